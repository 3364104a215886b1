"""Build the embedded policy: a Llama of 0.36 M parameters, taught to imitate demonstrations.

Everything follows from one seed: demonstrations, tokenizer, first weights, order. On the same
versions and one thread the same seed gives the same bytes.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ragen2_cli.training.embedded.demonstrations import Demonstration, stream, token_row
from ragen2_cli.training.embedded.narrators import LESSONS, READING, Lesson
from ragen2_cli.training.embedded.tokenizer import build_tokenizer
from ragen2_cli.training.models import STYLE_KEY

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from ragen2_cli.rollout.template import ChatTemplate

Row = tuple[list[int], list[int]]
IGNORED = -100


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Settings of the warm start.

    Attributes:
        seed: Decides everything.
        steps: Optimizer steps.
        reading: Share of the steps, the first ones, that only teach to read: single turns on
            FrozenLake boards with many holes. Without them the grid is never looked at, because
            holes are rare and coordinates explain the rest.
        turns: Single turns per reading step.
        episodes: Demonstrated episodes per later step.
        lr: Peak learning rate; 50 steps of warm-up, then constant, falling over the last 40 %.
        width: Hidden size.
        layers: Number of layers.
        heads: Attention heads.
        mlp: Width of the feed-forward layers.
        rope_theta: Base of the rotary positions; the usual 10,000 leaves few dimensions for the
            short distances of a grid and reads it far later.
        initializer_range: Standard deviation of the first weights; 0.02 learns far slower.
        words: Optimizer steps after those, on top, mostly on Bandit and Countdown: copying names
            and numbers is a skill of its own, and this policy is too small to have it besides.
        tokenizer_episodes: Episodes of each lesson that the tokenizer is trained on.
        part: Rows per forward pass; small parts stay in the processor's cache.
    """

    seed: int = 0
    steps: int = 1100
    reading: float = 0.5
    turns: int = 48
    episodes: int = 20
    lr: float = 3e-3
    width: int = 96
    layers: int = 3
    heads: int = 4
    mlp: int = 256
    rope_theta: float = 100.0
    initializer_range: float = 0.08
    words: int = 0
    tokenizer_episodes: int = 200
    part: int = 6


DEFAULTS = WarmStart()
VARIANTS = {"grid": DEFAULTS, "words": replace(DEFAULTS, words=500)}


def with_steps(config: WarmStart, *, seed: int, steps: int | None) -> WarmStart:
    """Return the settings with another seed and, unless None, at most so many steps a phase."""
    if steps is None:
        return replace(config, seed=seed)
    return replace(config, seed=seed, steps=steps, words=min(config.words, steps))


def demonstrations(
    seed: int, lessons: Sequence[Lesson] = LESSONS, *, turns: int | None = None
) -> list[Iterator[Demonstration]]:
    """Return one endless stream of demonstrations per lesson.

    Args:
        seed: Decides boards, wordings and moves.
        lessons: What is taught.
        turns: Stop an episode after this many turns; None plays it to its end.
    """
    from ragen2_cli.envs import make

    return [
        stream(
            make(lesson.env, **lesson.options),
            lesson.narrator,
            seed,
            np.random.default_rng((seed, at)),
            turns=turns,
        )
        for at, lesson in enumerate(lessons)
    ]


def batches(config: WarmStart, template: "ChatTemplate") -> Iterator[list[Row]]:
    """Yield the rows of each step: single reading turns first, then episodes of all lessons."""
    (reading,) = demonstrations(config.seed + 1, [READING], turns=1)
    flows = demonstrations(config.seed + 2)
    shares = np.array([lesson.share for lesson in LESSONS])
    rng = np.random.default_rng((config.seed, 0xDE))
    for step in range(config.steps):
        if step < config.reading * config.steps:
            shown = list(itertools.islice(reading, config.turns))
        else:
            picks = rng.choice(len(flows), config.episodes, p=shares / shares.sum())
            shown = [next(flows[pick]) for pick in picks]
        rows = [token_row(demonstration, template) for demonstration in shown]
        yield sorted(rows, key=lambda row: len(row[0]))


def make_tokenizer(config: WarmStart) -> "PreTrainedTokenizerFast":
    """Return the tokenizer, trained on the first demonstrations of every lesson."""
    texts = [
        text
        for flow in demonstrations(config.seed)
        for shown in itertools.islice(flow, config.tokenizer_episodes)
        for exchange in shown.exchanges
        for text in exchange
    ]
    return build_tokenizer(texts)


def make_model(config: WarmStart, tokenizer: "PreTrainedTokenizerFast") -> "LlamaForCausalLM":
    """Return the untrained policy."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.width,
        intermediate_size=config.mlp,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        max_position_embeddings=2048,
        initializer_range=config.initializer_range,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    shape.update({STYLE_KEY: "compact"})
    torch.manual_seed(config.seed)
    return LlamaForCausalLM(shape)


def learning_rate(config: WarmStart, step: int) -> float:
    """Return the learning rate of a step (0-based)."""
    rise = min(1.0, (step + 1) / 50)
    fall = min(1.0, max(0.02, (config.steps - step) / (0.4 * config.steps)))
    return config.lr * rise * fall


def masked_loss(model: "LlamaForCausalLM", rows: list[Row], pad: int) -> "torch.Tensor":
    """Return the sum of -log p over the tokens whose mask is 1 (the first token has no p)."""
    import torch
    from torch.nn.functional import cross_entropy

    longest = max(len(ids) for ids, _ in rows)
    ids_B_T = torch.full((len(rows), longest), pad)
    labels_B_T = torch.full((len(rows), longest), IGNORED)
    for at, (ids, mask) in enumerate(rows):
        ids_B_T[at, : len(ids)] = torch.tensor(ids)
        own = torch.tensor(ids).masked_fill(torch.tensor(mask) == 0, IGNORED)
        labels_B_T[at, : len(ids)] = own
    hidden_B_T_H = model.model(input_ids=ids_B_T, use_cache=False).last_hidden_state
    said_B_T = labels_B_T[:, 1:] != IGNORED
    logits_N_V = model.lm_head(hidden_B_T_H[:, :-1][said_B_T])
    return cross_entropy(logits_N_V, labels_B_T[:, 1:][said_B_T], reduction="sum")


def imitate(
    model: "LlamaForCausalLM",
    template: "ChatTemplate",
    steps: Iterable[tuple[float, list[list[Row]]]],
    progress: Callable[[int, float], None],
) -> float:
    """Take one optimizer step for each (learning rate, parts of rows); return the last loss."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.01)
    pad = template.tokenizer.pad_token_id
    loss = float("nan")
    for step, (rate, parts) in enumerate(steps):
        optimizer.param_groups[0]["lr"] = rate
        tokens = sum(sum(mask) for part in parts for _, mask in part)
        loss = 0.0
        for rows in parts:
            share = masked_loss(model, rows, pad) / tokens
            share.backward()
            loss += share.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        progress(step + 1, loss)
    return loss


def train(
    model: "LlamaForCausalLM",
    template: "ChatTemplate",
    config: WarmStart,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> float:
    """Imitate fresh demonstrations for ``config.steps`` steps; return the last loss (nats/token).

    Args:
        model: Changed in place.
        template: Renders the episodes.
        config: Settings.
        progress: Called with (steps done, loss) after every step.
    """
    steps = (
        (
            learning_rate(config, step),
            [rows[at : at + config.part] for at in range(0, len(rows), config.part)],
        )
        for step, rows in enumerate(batches(config, template))
    )
    return imitate(model, template, steps, progress)


def train_words(
    model: "LlamaForCausalLM",
    template: "ChatTemplate",
    config: WarmStart,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> float:
    """Go on with ``config.words`` steps mostly of Bandit and Countdown; return the last loss.

    Arguments as in :func:`train`. The learning rate rises over 50 steps and falls over the last
    60 %; the optimizer starts afresh.
    """
    flows = demonstrations(config.seed + 3)

    def steps() -> Iterator[tuple[float, list[list[Row]]]]:
        for step in range(config.words):
            parts: dict[str, list[Row]] = {"bandit": [], "countdown": [], "grid": []}
            for lesson, flow in zip(LESSONS, flows, strict=True):
                rows = [
                    token_row(shown, template) for shown in itertools.islice(flow, lesson.words)
                ]
                parts[lesson.env if lesson.env in parts else "grid"] += rows
            parts["grid"].sort(key=lambda row: len(row[0]))
            fall = min(1.0, max(0.02, (config.words - step) / (0.6 * config.words)))
            yield config.lr * min(1.0, (step + 1) / 50) * fall, list(parts.values())

    return imitate(model, template, steps(), progress)


def build(
    out: Path,
    config: WarmStart,
    progress: Callable[[int, float], None] = lambda step, loss: None,
    *,
    threads: int = 1,
) -> dict[str, object]:
    """Build tokenizer and policy and write them to a folder.

    Args:
        out: Folder; made when missing.
        config: Settings.
        progress: As in :func:`train`.
        threads: CPU threads; the same bytes come out only for 1.

    Returns:
        The provenance that is also written, as ``provenance.json``.
    """
    import torch

    from ragen2_cli.rollout.template import ChatTemplate
    from ragen2_cli.training.embedded.files import write

    torch.set_num_threads(threads)
    began = time.perf_counter()
    tokenizer = make_tokenizer(config)
    model = make_model(config, tokenizer)
    template = ChatTemplate(tokenizer)
    loss = train(model, template, config, progress)
    if config.words:
        loss = train_words(model, template, config, progress)
    seconds = time.perf_counter() - began
    return write(out, model, tokenizer, asdict(config), loss, seconds)
