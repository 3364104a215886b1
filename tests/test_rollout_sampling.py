"""Streams and inverse-CDF draws, against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from ragen2_cli.rollout.sampling import draw, stream


def logits_of(*probabilities):
    return torch.tensor([[math.log(p) if p else -math.inf for p in probabilities]])


def drawn(logits, uniform, temperature=1.0):
    ids, stats = draw(logits, torch.tensor([uniform], dtype=torch.float64), temperature)
    return int(ids[0]), stats[:, 0].tolist()


def test_inverse_cdf_by_hand():
    # Cumulative 0.5, 0.75, 1: u below 0.5 is token 0, below 0.75 token 1, else token 2.
    logits = logits_of(0.5, 0.25, 0.25)
    found = [drawn(logits, u)[0] for u in (0.0, 0.49, 0.51, 0.74, 0.76, 1 - 2**-53)]
    assert found == [0, 0, 1, 1, 2, 2]
    token, (logprob, sampling, entropy) = drawn(logits, 0.6)
    assert token == 1
    assert logprob == sampling == pytest.approx(math.log(0.25), abs=1e-6)
    # 0.5 ln 2 + 2 * 0.25 ln 4 = 1.5 ln 2
    assert entropy == pytest.approx(1.5 * math.log(2), abs=1e-6)


def test_temperature_by_hand():
    # Squares (T = 1/2) of 0.5, 0.25, 0.25 are 4, 1, 1 sixteenths: 2/3, 1/6, 1/6.
    token, (logprob, sampling, entropy) = drawn(logits_of(0.5, 0.25, 0.25), 0.7, 0.5)
    assert token == 1
    assert logprob == pytest.approx(math.log(0.25), abs=1e-6)
    assert sampling == pytest.approx(math.log(1 / 6), abs=1e-6)
    assert entropy == pytest.approx(1.5 * math.log(2), abs=1e-6)


def test_greedy_takes_the_likeliest_whatever_the_uniform():
    for uniform in (0.0, 0.999):
        token, (logprob, sampling, _) = drawn(logits_of(0.2, 0.5, 0.3), uniform, 0.0)
        assert token == 1
        assert logprob == pytest.approx(math.log(0.5), abs=1e-6)
        assert sampling == 0


def test_impossible_tokens_are_never_drawn():
    logits = logits_of(0, 0.5, 0, 0.5, 0)
    found = {drawn(logits, u)[0] for u in (0.0, 0.5 - 1e-9, 0.5 + 1e-6, 1 - 2**-53)}
    assert found == {1, 3}
    assert drawn(logits, 0.0)[1][2] == pytest.approx(math.log(2), abs=1e-6)


def test_frequencies_follow_the_probabilities():
    # 40,000 draws: standard error of a share is at most 0.0025.
    count = 40_000
    uniforms = torch.from_numpy(stream(5).random(count))
    ids, _ = draw(logits_of(0.1, 0.2, 0.7).expand(count, 3), uniforms, 1.0)
    shares = np.bincount(ids.numpy(), minlength=3) / count
    assert shares == pytest.approx([0.1, 0.2, 0.7], abs=0.01)


def test_streams_are_fixed_by_their_seed_alone():
    first = stream(7).random(5)
    assert (stream(7).random(5) == first).all()
    assert not (stream(8).random(5) == first).any()
    # The same numbers on every machine and version: Philox is specified.
    assert first[0] == pytest.approx(np.random.Generator(np.random.Philox(key=7)).random())
    assert 0 <= stream(2**127).random() < 1
