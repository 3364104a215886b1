import json
import logging
import re
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import TrainerControl, TrainerState, TrainingArguments
from trl import GRPOConfig, GRPOTrainer

import ragen2_cli
from ragen2_cli.core.regimes import Thresholds
from ragen2_cli.errors import UserError
from ragen2_cli.logs import RawText
from ragen2_cli.training.collapse_monitor import CollapseMonitor
from ragen2_cli.training.log_scoring import measure_texts
from tiny_trl import saved_model, tiny_model, tiny_tokenizer

DOCS = Path(__file__).parents[1] / "docs" / "collapse_monitor.md"
torch.set_num_threads(1)


def length_reward(completions, **kwargs):
    return [len(completion.split()) / 10 for completion in completions]


def sometimes(completions, **kwargs):
    return [None if i % 4 == 0 else 0.5 for i in range(len(completions))]


def ordinary_trainer(folder: Path, steps: int = 3, **options) -> GRPOTrainer:
    """A GRPO script as anyone writes it, on a tiny random model."""
    return GRPOTrainer(
        model=tiny_model(),
        reward_funcs=[length_reward, sometimes],
        processing_class=tiny_tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": [f"w{i % 8} w9" for i in range(32)]}),
        args=GRPOConfig(
            output_dir=str(folder), max_steps=steps, per_device_train_batch_size=16,
            num_generations=4, max_completion_length=6, report_to=[], use_cpu=True,
            save_strategy="no", seed=3, beta=0.0, reward_weights=[1.0, 2.0], learning_rate=1e-3,
            disable_tqdm=True, logging_steps=1, bf16=False, **options,
        ),
    )  # fmt: skip


def written(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "diagnostics.jsonl").read_text().splitlines()]


def test_measures_in_an_ordinary_script_and_changes_nothing(tmp_path):
    plain = ordinary_trainer(tmp_path / "plain")
    plain.train()
    watched = ordinary_trainer(tmp_path / "watched")
    watched.add_callback(CollapseMonitor(watched, every=2, samples=12))
    watched.train()
    rows = written(tmp_path / "watched")
    assert [row["step"] for row in rows] == [1, 2]
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, watched.model.state_dict()[name]), name
    for row in rows:
        assert (row["rows"], row["groups"], row["reasonings"]) == (16, 4, 12)
        assert row["cross_scoring"] == "done"
        assert row["mi_zscore_ema"] is not None
        assert row["seconds"] > 0
    assert rows[0]["truncated"] == watched.state.log_history[0]["completions/clipped_ratio"]
    # step 1: rewards are length / 10 + 2 x (0.5 or nothing), as TRL itself sums them
    assert rows[0]["reward_mean"] == pytest.approx(watched.state.log_history[0]["reward"], abs=1e-5)


def test_the_first_measurement_is_of_the_policy_that_sampled(tmp_path):
    trainer = ordinary_trainer(tmp_path, steps=1)
    monitor = CollapseMonitor(trainer, samples=16)
    trainer.add_callback(monitor)
    trainer.train()
    rows, texts = monitor._batch(1)
    assert all(isinstance(text, RawText) for text in texts)
    again = measure_texts(tiny_model(), tiny_tokenizer(), rows, texts, step=1, samples=16)
    (row,) = written(tmp_path)
    for name in ("mi_estimate", "conditional_entropy", "retrieval_accuracy", "prefix_mi"):
        assert row[name] == pytest.approx(again[name], abs=1e-6), name
    # After the update the same texts have another likelihood.
    after = measure_texts(trainer.model, tiny_tokenizer(), rows, texts, step=1, samples=16)
    assert after["conditional_entropy"] != pytest.approx(row["conditional_entropy"], abs=1e-6)


def test_stops_with_its_reason_and_saves(tmp_path, caplog):
    trainer = ordinary_trainer(tmp_path, steps=6)
    # A random policy hardly depends on its prompt: with a wide chance band that is a collapse.
    limits = Thresholds(rows=4, chance_deviations=20.0, stop_after=1)
    monitor = CollapseMonitor(trainer, every=1, stop_on_collapse=True, limits=limits)
    trainer.add_callback(monitor)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert trainer.state.global_step == 2  # the first verdict needs a baseline
    assert monitor.stopped.startswith("step 2: template collapse in 1 measurement in a row")
    assert (tmp_path / "checkpoint-2").is_dir()
    assert "stopping after step 2" in caplog.text


def test_without_permission_it_only_reports(tmp_path):
    trainer = ordinary_trainer(tmp_path)
    limits = Thresholds(rows=4, chance_deviations=20.0, stop_after=1)
    monitor = CollapseMonitor(trainer, every=1, limits=limits)
    trainer.add_callback(monitor)
    trainer.train()
    assert trainer.state.global_step == 3
    assert monitor.stopped is None
    assert written(tmp_path)[-1]["regime"] == "template collapse"


def begin(monitor, folder, step):
    monitor.on_train_begin(
        TrainingArguments(output_dir=str(folder), use_cpu=True),
        TrainerState(global_step=step, is_world_process_zero=True),
        TrainerControl(),
    )


def test_a_resumed_run_replays_its_lines_and_a_fresh_one_starts_anew(tmp_path):
    trainer = ordinary_trainer(tmp_path, steps=3)
    monitor = CollapseMonitor(trainer, every=1)
    trainer.add_callback(monitor)
    trainer.train()
    lines = (tmp_path / "diagnostics.jsonl").read_text()
    (tmp_path / "diagnostics.jsonl").write_text(lines + '{"step": 4, "ro')
    resumed = CollapseMonitor(trainer, every=1)
    begin(resumed, tmp_path, 2)
    assert [row["step"] for row in written(tmp_path)] == [1, 2]
    assert [row["step"] for row in resumed.watch.state()["rows"]] == [1, 2]
    begin(resumed, tmp_path, 0)
    assert written(tmp_path) == []
    assert resumed.watch.state()["rows"] == []


def test_refusals(tmp_path):
    from transformers import Trainer

    other = Trainer(model=tiny_model(), args=TrainingArguments(str(tmp_path), use_cpu=True))
    with pytest.raises(UserError, match="Trainer keeps none"):
        CollapseMonitor(other)
    with pytest.raises(UserError, match="every >= 1"):
        CollapseMonitor(ordinary_trainer(tmp_path), every=0)


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    model = saved_model(tmp_path / "model")
    code = code.replace("Qwen/Qwen2.5-0.5B-Instruct", model)
    code = code.replace(
        'output_dir="out",',
        'output_dir="out", max_steps=1, max_completion_length=8, use_cpu=True, report_to=[],',
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(DOCS), "exec"), {"__name__": "__main__"})
    assert "no collapse" in capsys.readouterr().out
    assert [row["step"] for row in written(tmp_path / "out")] == [1]


def test_an_eruption_of_entropy_is_warned_of_at_once_and_in_the_next_measurement(tmp_path, caplog):
    # Flat at 1.0 with small ripples for 30 steps, then up by 0.5 a step: far beyond the noise.
    series = [1.0 + 0.01 * (-1) ** step for step in range(30)] + [1.5, 2.0, 2.5]
    trainer = ordinary_trainer(tmp_path, steps=1)
    monitor = CollapseMonitor(trainer, every=1, samples=8)
    trainer.train()  # a table of completions to measure
    state, control, args = trainer.state, TrainerControl(), trainer.args
    state.log_history.clear()
    monitor.on_train_begin(args, state, control)
    with caplog.at_level(logging.WARNING):
        for step, entropy in enumerate(series, start=1):
            state.global_step = step
            state.log_history.append({"step": step, "entropy": entropy})
            monitor.on_log(args, state, control, logs={"entropy": entropy})
            monitor.on_log(args, state, control, logs={"eval_loss": 1.0})
    assert len(monitor.alarms) == 1
    assert 31 <= monitor.alarms[0] <= 32
    assert f"entropy is erupting at step {monitor.alarms[0]}" in caplog.text
    for _ in range(2):
        monitor.on_pre_optimizer_step(args, state, control, trainer.model, tiny_tokenizer())
    first, second = written(tmp_path)[-2:]
    assert any("entropy is erupting" in warning for warning in first["warnings"])
    assert not any("erupting" in warning for warning in second["warnings"])
    # A resumed run has seen the same history.
    resumed = CollapseMonitor(trainer, every=1)
    resumed.on_train_begin(args, state, control)
    assert resumed.alarms == monitor.alarms
    assert resumed._alarm.state() == monitor._alarm.state()


def test_the_library_name():
    assert ragen2_cli.CollapseMonitor is CollapseMonitor
