"""Sweeps on Ray: what the executor does about losses, and one real cluster that loses a node."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ragen2_cli.runs import RunDirectory
from ragen2_cli.sweeps.folder import SweepDirectory
from ragen2_cli.sweeps.plan import plan
from ragen2_cli.sweeps.progress import SilentSweep
from ragen2_cli.sweeps.ray_cluster import Ended, Resources, train_on_node
from ragen2_cli.sweeps.ray_executor import run_on_cluster

ENDED = {"stopped": None, "kept_ratio": 0.5, "tokens": 7, "seconds": 1.0}


class FakeCluster:
    """Ends one cell a poll as its script says: lost, failed, elsewhere, or (by default) done."""

    def __init__(self, slots: int, script: Mapping[str, list[str]]) -> None:
        self._slots = slots
        self._script = {name: list(acts) for name, acts in script.items()}
        self._under: dict[str, Path] = {}
        self.submitted: list[str] = []
        self.most = 0
        self.closed = False

    def slots(self) -> int:
        return self._slots

    def submit(self, cell: str, config: Mapping[str, Any], out: Path) -> None:
        self._under[cell] = out
        self.submitted.append(cell)
        self.most = max(self.most, len(self._under))

    def poll(self, seconds: float) -> list[Ended]:
        cell, out = next(iter(self._under.items()))
        del self._under[cell]
        acts = self._script.get(cell, [])
        act = acts.pop(0) if acts else "done"
        if act == "lost":
            return [Ended(cell, None, "the node died")]
        if act == "stop":
            self._under[cell] = out
            raise KeyboardInterrupt
        if act == "fail":
            return [Ended(cell, {"status": "failed", "reason": "no", "seconds": 0.1})]
        if act == "done":
            run = RunDirectory.create(out, {}, force=True)
            run.write_summary(ENDED)
            run.close()
        return [Ended(cell, {"status": "done", "reason": "", "seconds": 0.1})]

    def cancel(self, seconds: float) -> list[Ended]:
        answer = {"status": "interrupted", "reason": "", "seconds": 0.1}
        cell = next(iter(self._under))  # one saves in time, the others do not answer
        del self._under[cell]
        return [Ended(cell, answer)]

    def close(self) -> None:
        self.closed = True


def sweep_of(folder: Path, seeds: str) -> SweepDirectory:
    return SweepDirectory.create(folder, plan({"filter": "none"}, [], seeds))


def names(sweep: SweepDirectory) -> list[str]:
    return list(sweep.cells)


def test_what_is_lost_is_tried_again_three_times_at_most(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "s", "4")
    unlucky, hopeless, wrong, good = names(sweep)
    script = {unlucky: ["lost", "lost"], hopeless: ["lost"] * 9, wrong: ["fail"]}
    cluster = FakeCluster(2, script)
    outcome = run_on_cluster(sweep, cluster, retry=False, progress=SilentSweep())
    assert (outcome.done, outcome.failed, outcome.open, outcome.ran) == (2, 2, 0, 2)
    assert cluster.submitted.count(unlucky) == cluster.submitted.count(hopeless) == 3
    assert cluster.submitted.count(wrong) == cluster.submitted.count(good) == 1
    assert cluster.most == 2
    assert cluster.closed
    assert "lost, 3 of 3 times: the node died" in sweep.cells[hopeless].reason
    assert sweep.cells[unlucky].reason == ""
    lines = [json.loads(line) for line in (tmp_path / "s" / "cells.jsonl").open()]
    statuses = [line["status"] for line in lines if line["name"] == unlucky]
    assert statuses == ["planned", *["running", "interrupted"] * 2, "running", "done"]


def test_without_room_one_cell_waits_for_the_cluster(tmp_path: Path) -> None:
    cluster = FakeCluster(0, {})
    outcome = run_on_cluster(
        sweep_of(tmp_path / "s", "2"), cluster, retry=False, progress=SilentSweep()
    )
    assert outcome.done == 2
    assert cluster.most == 1


def test_a_run_that_is_not_on_shared_storage_is_no_success(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "s", "1")
    cluster = FakeCluster(1, {names(sweep)[0]: ["elsewhere"]})
    outcome = run_on_cluster(sweep, cluster, retry=False, progress=SilentSweep())
    assert outcome.failed == 1
    assert "storage that all nodes share" in sweep.cells[names(sweep)[0]].reason


def test_a_node_without_the_folder_says_so(tmp_path: Path) -> None:
    answer = train_on_node({}, str(tmp_path / "nowhere" / "runs" / "a"))
    assert answer["status"] == "failed"
    assert "shared storage" in answer["reason"]


def test_a_cell_that_its_lost_process_finished_is_done(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "s", "1")
    cell = sweep.cells[names(sweep)[0]]
    run = RunDirectory.create(sweep.run_path(cell), cell.config)
    run.write_summary(ENDED)
    assert train_on_node(cell.config, str(run.path))["status"] == "done"


def test_ctrl_c_notes_every_cell_under_way(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "s", "3")
    cluster = FakeCluster(2, {names(sweep)[0]: ["stop"]})
    with pytest.raises(KeyboardInterrupt):
        run_on_cluster(sweep, cluster, retry=False, progress=SilentSweep())
    assert cluster.closed
    read = SweepDirectory.open(tmp_path / "s")
    statuses = [cell.status for cell in read.cells.values()]
    assert statuses == ["interrupted", "interrupted", "planned"]


def test_resources_in_words() -> None:
    assert str(Resources()) == "1 CPU"
    assert str(Resources(2, 0.5)) == "2 CPUs and 0.5 GPUs"


def command(*arguments: str | Path, timeout: int = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ragen2_cli", "sweep", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--cpus", "2"], "go with --executor ray"),
        (["--ray-address", "auto"], "go with --executor ray"),
        (["--executor", "ray", "--workers", "2"], "--workers goes with --executor local"),
    ],
)
def test_flags_of_the_other_executor_are_refused(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    done = command("--filter", "none", "--out", tmp_path / "s", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "s").exists()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A head without room for a cell, and two nodes with one CPU each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # 15 by default: nothing moves on a busy machine
    small = {"include_dashboard": False, "object_store_memory": 100 * 1024 * 1024}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    yield made
    made.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_node_killed_in_the_middle_costs_nothing(tmp_path: Path, cluster: Any) -> None:
    small = {"num_cpus": 1, "object_store_memory": 100 * 1024 * 1024}
    first, _ = (cluster.add_node(**small) for _ in range(2))
    out = tmp_path / "s"
    sizes = ["--prompts", "2", "--set", "rollout.group_size=4", "--eval-episodes", "4"]
    quick = ["--set", "diagnostics.every=0", "--set", "evaluation.matched_entropy=false"]
    cells = ["--filter", "none,top-p", "--seeds", "2", "--steps", "8", *sizes, *quick]
    often = ["--set", "checkpoints.every=1"]
    where = ["--executor", "ray", "--ray-address", cluster.address]
    words = [sys.executable, "-m", "ragen2_cli", "sweep", *cells, *often, *where, "--out", out]
    with subprocess.Popen(
        [*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        # In the middle: two cells are under way, one on each node, past their first checkpoint.
        deadline = time.monotonic() + 900
        while len(list(out.glob("runs/*/checkpoints/step-*/manifest.json"))) < 3:
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.2)
        cluster.remove_node(first, allow_graceful=False)
        said, told = process.communicate(timeout=1200)
    assert process.returncode == 0, told
    sweep = SweepDirectory.open(out)
    assert [cell.status for cell in sweep.cells.values()] == ["done"] * 4
    lines = [json.loads(line) for line in (out / "cells.jsonl").open()]
    lost = [line for line in lines if line["status"] == "interrupted"]
    assert len(lost) >= 1, "the node was killed after its cell had ended"
    assert "lost, 1 of 3 times" in lost[0]["reason"]
    for cell in sweep.cells.values():
        run = RunDirectory.open(sweep.run_path(cell))
        assert [step.step for step in run.read_steps()] == list(range(1, 9))
        assert run.rollout_steps() == list(range(1, 9))
        assert run.finished
    assert "4 cells done, 4 now" in said

    # Nothing lost also means nothing changed: the cell that moved equals a run in one go.
    moved = sweep.cells[lost[0]["name"]]
    alone = tmp_path / "alone"
    sets = ["--filter", moved.labels["filter"], "--seed", str(moved.seed), "--steps", "8"]
    words = [sys.executable, "-m", "ragen2_cli", "train", *sets, *sizes, *quick, *often]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run([*words, "-q", "--out", str(alone)], check=True, env=environment, timeout=600)
    ours, theirs = RunDirectory.open(sweep.run_path(moved)), RunDirectory.open(alone)
    assert [(s.loss, s.success) for s in ours.read_steps()] == [
        (s.loss, s.success) for s in theirs.read_steps()
    ]
    assert ours.read_rollouts(8) == theirs.read_rollouts(8)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:x", "ray://127.0.0.1:1", "auto"])
def test_no_cluster_is_one_line_and_at_once(tmp_path: Path, address: str) -> None:
    pytest.importorskip("ray")
    nowhere = ["--executor", "ray", "--ray-address", address, "--out", tmp_path / "s"]
    gone = command("--filter", "none", *nowhere, timeout=60)
    assert gone.returncode == 2
    assert f"--ray-address {address}: no Ray cluster there" in gone.stderr
    assert len(gone.stderr.splitlines()) == 1
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_a_cluster_without_room_is_one_line(tmp_path: Path, cluster: Any) -> None:
    where = ["--executor", "ray", "--ray-address", cluster.address]
    done = command("--filter", "none", *where, "--out", tmp_path / "s")
    assert done.returncode == 2
    assert "none of its 1 node has 1 CPU for a cell" in done.stderr
    assert not (tmp_path / "s").exists()
