"""Checkpoints.

Guarantees locked here:
1. What was saved comes back bit for bit; training on from it gives identical parameters.
2. A kill at any moment of a save leaves the earlier checkpoint the newest complete one.
3. A damaged, half-written or foreign folder is skipped by name, with the reason (case 41).
4. A full disk is one line, and the last checkpoint is intact.
5. Nothing in a checkpoint can hold code; damaged tensor files are one line.
"""

import contextlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2_cli.errors import UserError
from ragen2_cli.training import checkpoints
from ragen2_cli.training.state_codec import generators, pack, restore_generators, unpack


def through_disk(tmp_path, value):
    packed, tensors = pack(value)
    path = checkpoints.save(tmp_path / "c", 1, tensors=tensors, state={"value": packed})
    tensors, state = checkpoints.load(path)
    return unpack(state["value"], tensors)


def small(root, step, **options):
    return checkpoints.save(
        root, step, tensors={"w": torch.full((3,), float(step))}, state={"step": step}, **options
    )


# ---- bit for bit ----


def model_and_optimizer(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    return (
        model,
        optimizer,
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    )


def train(model, optimizer, scheduler, steps):
    for _ in range(steps):
        loss = model(torch.randn(16, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        model[0].bias.grad = None  # a parameter without a gradient has no optimizer state
        optimizer.step()
        scheduler.step()


def test_optimizer_scheduler_and_generators_continue_bit_for_bit(tmp_path):
    model, optimizer, scheduler = model_and_optimizer(0)
    train(model, optimizer, scheduler, 3)
    saved = through_disk(
        tmp_path,
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "generators": generators(),
        },
    )
    train(model, optimizer, scheduler, 4)

    other, other_optimizer, other_scheduler = model_and_optimizer(99)
    other.load_state_dict(saved["model"])
    other_optimizer.load_state_dict(saved["optimizer"])
    other_scheduler.load_state_dict(saved["scheduler"])
    restore_generators(saved["generators"])
    train(other, other_optimizer, other_scheduler, 4)

    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert len(saved["optimizer"]["state"]) == 3  # four parameters, one without gradient
    assert saved["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.95)
    assert isinstance(saved["optimizer"]["state"][0]["step"], torch.Tensor)


def test_generators_continue_bit_for_bit(tmp_path):
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 - the global state is what is tested
    torch.manual_seed(5)
    random.gauss(0, 1)  # leaves a cached second value behind
    np.random.standard_normal()  # noqa: NPY002 - the same
    saved = through_disk(tmp_path, generators())

    def draws():
        return (
            random.gauss(0, 1),
            random.random(),
            np.random.standard_normal(3).tolist(),  # noqa: NPY002
            torch.rand(3).tolist(),
        )

    first = draws()
    assert draws() != first
    restore_generators(saved)
    assert draws() == first


def test_generators_of_another_machine_are_refused():
    state = generators() | {"cuda": [torch.zeros(16, dtype=torch.uint8)] * 9}
    with pytest.raises(UserError, match="written with 9 GPUs visible"):
        restore_generators(state)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | st.text(st.characters(exclude_categories=())),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.dictionaries(st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
@settings(max_examples=200, deadline=None)
def test_pack_is_exact_through_json(value):
    packed, tensors = pack(value)
    text = json.dumps(packed, allow_nan=False)
    back = unpack(json.loads(text), tensors)
    assert repr(back) == repr(value)


def test_pack_takes_arrays_and_names_what_it_cannot():
    shared = torch.arange(6).view(2, 3)
    value = {"a": np.arange(3, dtype=np.uint32), "b": [shared, shared[0]], "c": np.float64(0.1)}
    packed, tensors = pack(value)
    back = unpack(packed, tensors)
    assert back["a"].dtype == np.uint32
    assert back["a"].tolist() == [0, 1, 2]
    assert torch.equal(back["b"][1], shared[0])
    assert back["c"] == 0.1
    with pytest.raises(TypeError, match=r"cannot store function at '.x.1'"):
        pack({"x": [1, len.__class__ and (lambda: 0)]})


def test_special_numbers_dtypes_and_views_survive(tmp_path):
    base = torch.randn(4, 4)
    value = {
        "nan": torch.tensor([math.nan, -0.0, math.inf]),
        "half": torch.randn(3).to(torch.bfloat16),
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0, 5),
        "view": base.t(),
        "row": base[1],
        "same": base,
        "floats": [math.inf, -math.inf, 5e-324, 0.1 + 0.2],
    }
    back = through_disk(tmp_path, value)
    for name, tensor in value.items():
        if isinstance(tensor, torch.Tensor):
            assert back[name].dtype == tensor.dtype
            assert back[name].shape == tensor.shape
            width = torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32
            assert torch.equal(
                back[name].contiguous().view(width), tensor.contiguous().view(width)
            ), name
    assert back["floats"] == value["floats"]


HOSTILE = [
    {"$tensor": "gone"},
    {"$array": "gone"},
    {"$tensor": []},
    {"$eval": "1"},
    {"$items": 3},
    {"$items": [[1]]},
    {"$items": [1]},
    {"$items": [[[], 1]]},
    {"$float": "x"},
    {"$float": []},
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_state_is_one_line(hostile):
    with pytest.raises(UserError):
        unpack(hostile, {})


# ---- complete or not there ----


def test_newest_first_and_keep(tmp_path):
    root = tmp_path / "c"
    for step in (10, 20, 30, 40):
        small(root, step, keep=2)
    found = checkpoints.list_complete(root)
    assert [path.name for path in found.complete] == ["step-000040", "step-000030"]
    assert found.skipped == []
    assert sorted(os.listdir(root)) == ["step-000030", "step-000040"]
    tensors, state = checkpoints.load(found.complete[0])
    assert tensors["w"].tolist() == [40.0] * 3
    assert state["step"] == 40
    assert checkpoints.step_of(found.complete[0]) == 40
    with pytest.raises(UserError, match="cannot keep 0"):
        checkpoints.prune(root, 0)


def test_no_folder_means_no_checkpoint(tmp_path):
    assert checkpoints.list_complete(tmp_path / "none") == ([], [])
    assert checkpoints.newest(tmp_path / "none") == (None, [])


def truncate(path):
    content = (path / "state.safetensors").read_bytes()
    (path / "state.safetensors").write_bytes(content[:-7])


def flip(path):
    content = bytearray((path / "state.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "state.safetensors").write_bytes(content)


def edit_manifest(change):
    def apply(path):
        manifest = json.loads((path / "manifest.json").read_text())
        change(manifest)
        (path / "manifest.json").write_text(json.dumps(manifest))

    return apply


def link(path):
    (path / "state.json").unlink()
    (path / "state.json").symlink_to("/etc/hostname")


ZEROS = {"bytes": 0, "sha256": "0" * 64}

DAMAGE = [
    (truncate, r"'state.safetensors' has \d+ bytes instead of \d+"),
    (flip, r"'state.safetensors' is damaged: its checksum differs"),
    (lambda path: (path / "state.json").unlink(), r"'state.json' is missing"),
    (lambda path: (path / "manifest.json").unlink(), "half-written: it has no manifest"),
    (lambda path: (path / "manifest.json").write_text('{"step'), "not valid JSON"),
    (lambda path: (path / "manifest.json").write_text("[" * 10**6), "nested too deeply"),
    (lambda path: (path / "optimizer.pt").write_bytes(b"x"), "'optimizer.pt' is not in its"),
    (link, r"'state.json' .*"),
    (edit_manifest(lambda m: m.update(step=7)), "of another step"),
    (edit_manifest(lambda m: m.update(files=[])), "manifest is damaged"),
    (edit_manifest(lambda m: m["files"].update({"../x.json": ZEROS})), "no checkpoint has"),
    (edit_manifest(lambda m: m["files"].update({"/etc/x.json": ZEROS})), "no checkpoint has"),
    (edit_manifest(lambda m: m["files"].update({"x.pkl": ZEROS})), "no checkpoint has"),
    (edit_manifest(lambda m: m["files"].update({"state.json": 3})), "manifest is damaged"),
    (edit_manifest(lambda m: m.update(schema_version=5)), "schema version 5"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGE)
def test_damaged_newest_is_skipped_by_name(tmp_path, damage, reason):  # case 41
    root = tmp_path / "c"
    small(root, 10)
    damage(small(root, 20))
    found = checkpoints.list_complete(root)
    assert [path.name for path in found.complete] == ["step-000010"]
    assert [skipped.name for skipped in found.skipped] == ["step-000020"]
    with pytest.raises(UserError, match=reason):
        checkpoints.load(root / "step-000020")
    newest, skipped = checkpoints.newest(root)
    assert newest == root / "step-000010"
    assert skipped == found.skipped
    assert "\n" not in skipped[0].reason


def test_the_same_step_is_replaced(tmp_path):
    root = tmp_path / "c"
    flip(small(root, 10))
    small(root, 10)
    assert [path.name for path in checkpoints.list_complete(root).complete] == ["step-000010"]
    assert os.listdir(root) == ["step-000010"]


def test_files_that_could_hold_code_are_refused_at_writing(tmp_path):
    root = tmp_path / "c"
    with pytest.raises(ValueError, match=r"model\.bin must not be in a checkpoint"):
        small(root, 10, write_files=lambda folder: (folder / "model.bin").write_bytes(b""))
    assert os.listdir(root) == []


def test_nested_files_are_covered(tmp_path):
    root = tmp_path / "c"

    def adapter(folder):
        (folder / "ref").mkdir()
        (folder / "ref" / "adapter_config.json").write_text("{}")

    path = small(root, 10, write_files=adapter)
    checkpoints.verify(path)
    (path / "ref" / "adapter_config.json").write_text("{ }")
    with pytest.raises(checkpoints.DamagedError, match=r"ref/adapter_config\.json"):
        checkpoints.verify(path)


KILLED = """
    import os, signal, sys
    from pathlib import Path
    import torch
    from ragen2_cli.training import checkpoints
    root, moment = Path(sys.argv[1]), int(sys.argv[2])
    count = 0
    def trap(real):
        def call(*args, **kwargs):
            global count
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)
        return call
    for name in ("fsync", "replace", "mkdir", "unlink", "rmdir"):
        setattr(os, name, trap(getattr(os, name)))
    checkpoints.save(root, 20, tensors={"w": torch.ones(3)}, state={"step": 20}, keep=1)
    print(count)
"""


@pytest.mark.slow
def test_kill_at_every_moment_of_a_save(tmp_path):
    """SIGKILL before each system call that changes the disk: one of the two is always whole."""
    script = textwrap.dedent(KILLED)

    def attempt(root, moment):
        return subprocess.run(
            [sys.executable, "-c", script, str(root), str(moment)], capture_output=True, text=True
        )

    first = tmp_path / "count"
    small(first, 10)
    moments = int(attempt(first, 10**9).stdout)
    assert moments >= 10
    survivors = []
    for moment in range(1, moments + 1):
        root = tmp_path / f"c{moment}"
        small(root, 10)
        assert attempt(root, moment).returncode == -9
        newest, skipped = checkpoints.newest(root)
        assert newest is not None
        survivors.append(checkpoints.step_of(newest))
        assert all(item.reason.startswith("half-written") for item in skipped)
        small(root, 20)
        assert checkpoints.newest(root)[0] == root / "step-000020"
        shutil.rmtree(root)
    assert survivors == sorted(survivors)
    assert set(survivors) == {10, 20}


# ---- disks ----


def test_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    root = tmp_path / "c"
    small(root, 10)

    def full(path, *args, **kwargs):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"step 20 .*No space left.*step-000010 is intact"):
        small(root, 20)
    monkeypatch.undo()
    assert checkpoints.newest(root)[0] == root / "step-000010"
    assert os.listdir(root) == ["step-000010"]


LIMITED = """
    import resource, sys
    from pathlib import Path
    import torch
    from ragen2_cli.errors import UserError
    from ragen2_cli.training import checkpoints
    root = Path(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        checkpoints.save(root, 20, tensors={"w": torch.ones(100_000)}, state={"step": 20})
    except UserError as error:
        print(error)
"""


def test_file_size_limit_is_one_line(tmp_path):
    root = tmp_path / "c"
    small(root, 10)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(root)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "checkpoint of step 20 not written" in done.stdout
    assert "step-000010 is intact" in done.stdout
    assert done.stdout.count("\n") == 1
    assert os.listdir(root) == ["step-000010"]


def test_a_really_full_disk(tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(mount)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        root = mount / "c"
        small(root, 10)
        with pytest.raises(UserError, match=r"step 20 .*[Nn]o space.*step-000010 is intact"):
            checkpoints.save(root, 20, tensors={"w": torch.ones(100_000)}, state={})
        assert checkpoints.newest(root)[0] == root / "step-000010"
        small(root, 20)
        assert checkpoints.newest(root)[0] == root / "step-000020"
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_deleted_run_folder_is_not_made_again(tmp_path):
    with pytest.raises(UserError, match=r"removed meanwhile.*no earlier checkpoint"):
        small(tmp_path / "gone" / "checkpoints", 10)
    assert os.listdir(tmp_path) == []


def test_checkpoints_are_not_written_through_links(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="is a link"):
        small(tmp_path / "c", 10)
    assert os.listdir(tmp_path / "outside") == []


# ---- tensors from elsewhere ----


def header(content, length=None):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        header({}, 2**63 - 1),
        header({}, 10**9),
        header(b"[" * 100_000),
        header({"w": ENTRY}),
        header({"w": ENTRY | {"shape": [2**40]}}) + bytes(8),
        header({"w": ENTRY | {"shape": [2**63, 2**63]}}) + bytes(8),
        header({"w": ENTRY | {"data_offsets": [8, 0]}}) + bytes(8),
        header({"w": ENTRY, "v": ENTRY}) + bytes(8),
        header({"w": ENTRY | {"dtype": "PICKLE"}}) + bytes(8),
    ],
)
def test_hostile_tensor_files_are_one_line(tmp_path, content):
    path = tmp_path / "state.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"state\.safetensors") as caught:
        checkpoints.read_tensors(path)
    assert "\n" not in str(caught.value)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_damaged_tensor_files_never_escape_as_another_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "state.safetensors"
    checkpoints.write_tensors(path, {"a": torch.ones(3), "b": torch.zeros(2, dtype=torch.int8)})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        assert len(checkpoints.read_tensors(path)) <= 2
