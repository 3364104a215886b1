"""Several processes as one run: equal results, one folder, one end.

Guarantees held here:
1. two processes give the adapter, rollouts and records of one process with twice the batch;
2. one process dying ends the other within 60 s with a message, and both can be resumed exactly;
3. only the first process writes the run's folder.
"""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from launched import TORCHRUN, finish, options, train, worker
from ragen2_cli.config import load_config
from ragen2_cli.errors import UserError
from ragen2_cli.runs import RunDirectory
from ragen2_cli.runs.spectator import Spectator
from ragen2_cli.training import preflight, processes

SETTINGS = {
    "rollout__group_size": 4,
    "evaluation__episodes": 9,
    "evaluation__every": 2,
    "evaluation__matched_entropy": "false",
    "checkpoints__every": 2,
    "diagnostics__every": 2,
    "diagnostics__samples": 4,
    "diagnostics__gradients_every": 3,
    "algorithm__kl": 0.01,
}


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, count: int = 2) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(count))


@pytest.mark.parametrize("length", [0, 1, 2, 9, 512])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shares_put_together_are_the_list(
    monkeypatch: pytest.MonkeyPatch, length: int, count: int
) -> None:
    parts = []
    for rank in range(count):
        as_rank(monkeypatch, rank, count)
        parts.append(processes.share(list(range(length))))
    assert [item for part in parts for item in part] == list(range(length))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_one_process_asks_nobody() -> None:
    assert processes.gather([1, 2]) == [1, 2]
    assert processes.on_first(lambda: "x") == "x"
    assert processes.any_of(True)
    assert not processes.any_of(False)
    with pytest.raises(RuntimeError, match="closed by peer"), processes.ending_together():
        raise RuntimeError("Connection closed by peer")


def test_a_lost_peer_is_one_line_and_other_errors_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    as_rank(monkeypatch, 1)
    with (
        pytest.raises(UserError, match=r"process 1 of 2: another process .* ended.*--resume"),
        processes.ending_together(),
    ):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:1")
    with pytest.raises(RuntimeError, match="shapes"), processes.ending_together():
        raise RuntimeError("shapes cannot be multiplied")


def test_only_the_first_process_looks_at_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    as_rank(monkeypatch, 0)
    with pytest.raises(UserError, match="--resume"):
        preflight.check(load_config(), tmp_path)
    as_rank(monkeypatch, 1)
    preflight.check(load_config(), tmp_path)


def test_sharded_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError, match=r"FSDP: .* launch it with DDP"):
        processes.join(load_config())


def test_a_spectator_writes_nothing(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    before = sorted(run.path.rglob("*"))
    spectator = Spectator(run.path)
    spectator.append_diagnostics({"step": 1})
    spectator.write_rollouts(1, [])
    spectator.write_json("gradients/step-000001.json", {})
    spectator.write_summary({})
    spectator.sync()
    assert spectator.truncate_after(0) == {}
    spectator.discard()
    assert sorted(run.path.rglob("*")) == before


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Five steps of two processes, two prompts each."""
    out = tmp_path_factory.mktemp("two") / "run"
    said = finish(
        train(
            *("--steps", "5", "--prompts", "2", "--out", str(out)),
            *options(**SETTINGS),
            launcher=TORCHRUN,
        )
    )
    assert said.count("held-out success after step 0, sampled") == 1
    return RunDirectory.open(out)


@pytest.mark.slow
def test_two_processes_equal_one_with_twice_the_batch(two: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "one"
    finish(train("--steps", "5", "--prompts", "4", "--out", str(out), *options(**SETTINGS)))
    one = RunDirectory.open(out)
    weights, others = (load_file(run.adapter / "adapter_model.safetensors") for run in (one, two))
    worst = max(float((weights[name] - others[name]).abs().max()) for name in weights)
    print(f"largest difference of the adapters: {worst:.1e}")
    assert worst <= 1e-5
    assert any(float(weight.abs().max()) > 1e-3 for weight in weights.values())
    for step in range(1, 6):
        mine, theirs = one.read_rollouts(step), two.read_rollouts(step)
        for first, second in zip(mine, theirs, strict=True):
            assert first.advantage == pytest.approx(second.advantage, abs=1e-6)
            assert replace(first, advantage=None) == replace(second, advantage=None)
    for first, second in zip(one.read_steps(), two.read_steps(), strict=True):
        assert (first.kept_groups, first.dead_groups, first.tokens, first.success) == (
            second.kept_groups,
            second.dead_groups,
            second.tokens,
            second.success,
        )
        assert first.loss == pytest.approx(second.loss, abs=1e-5)
        assert first.kl == pytest.approx(second.kl, abs=1e-5)
    for first, second in zip(one.read_evaluations(), two.read_evaluations(), strict=True):
        assert (first.step, first.decoding, first.successes, first.episodes) == (
            second.step,
            second.decoding,
            second.successes,
            second.episodes,
        )
    assert [row["step"] for row in two.read_diagnostics()] == [1, 2, 4]
    assert os.listdir(two.path / "gradients") == ["step-000003.json"]


@pytest.mark.slow
def test_a_dying_process_ends_the_other_and_both_resume(two: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["--steps", "5", "--prompts", "2", "--out", str(out), *options(**SETTINGS)]
    launched = train(*arguments, launcher=TORCHRUN)
    manifest = out / "checkpoints" / "step-000002" / "manifest.json"
    deadline = time.monotonic() + 300
    while not manifest.exists():
        assert launched.poll() is None, launched.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(worker(launched.pid, 1), signal.SIGKILL)
    start = time.monotonic()
    _, said = launched.communicate(timeout=60)
    print(f"the other process ended after {time.monotonic() - start:.0f} s")
    assert launched.returncode != 0
    assert "process 0 of 2: another process of this run ended" in said
    finish(train("--resume", "--out", str(out), "--quiet", launcher=TORCHRUN))
    resumed = RunDirectory.open(out)
    weights, others = (
        load_file(run.adapter / "adapter_model.safetensors") for run in (resumed, two)
    )
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    for step in range(1, 6):
        assert resumed.read_rollouts(step) == two.read_rollouts(step)
    assert [row.step for row in resumed.read_steps()] == [1, 2, 3, 4, 5]
