"""The figure of gradients by reward spread: what it reads, averages and says."""

import math
from pathlib import Path

import pytest

from log_helpers import log, write
from ragen2_cli.commands import figures
from ragen2_cli.errors import UserError
from ragen2_cli.plots import gradients


def analysis(kl=None, dead=(0, 0), snr=(10.0, 10.0), **changes):
    norms = {"task": 1.0, "entropy": 0.1, "kl": kl, "regularizer": 0.1}
    rows = [
        {
            "bucket": name,
            "groups": 2,
            "dead_groups": (*dead, sum(dead))[k],
            "score_mean": 0.1 * k,
            "norms": {"batch": {**norms, "snr": (*snr, 10.0)[k]}},
        }
        for k, name in enumerate(("Q1", "Q2", "all"))
    ]
    tables = [
        {"scale_rewards": scale, "filtered": filtered, "rows": rows}
        for scale in ("group", "none")
        for filtered in (False, True)
    ]
    about = {"step": 5, "groups": 4, "loss_type": "dapo", "entropy": 0.1, "kl": 0.0}
    return {**about, "source": "fresh batch", "score": "reward_var", "tables": tables, **changes}


def test_a_term_that_is_off_has_no_line() -> None:
    figure = gradients.draw(gradients.data([analysis(), analysis()]))
    panel = figure.axes[2]
    labels = {line.get_label() for line in panel.lines}
    assert "entropy term" in labels
    assert "KL term" not in labels
    assert "n = 2 fresh batches of 4 groups" in figure.get_supxlabel()


def test_coefficients_are_not_averaged_and_dead_groups_add_up() -> None:
    # Dead groups of three analyses: Q1 2 + 2 + 1, Q2 0 + 1 + 0. Ratios highest over lowest live
    # bucket: 2 and 8 under entropy 0.1, geometric mean 4; none under 0, where only Q2 is live.
    rows = gradients.data(
        [
            analysis(dead=(2, 0), snr=(1.0, 2.0)),
            analysis(dead=(2, 1), snr=(1.0, 8.0)),
            analysis(dead=(1, 0), snr=(0.0, 5.0), entropy=0.0),
        ]
    )
    assert sum(row["filtered"] for row in rows) == len(rows) / 2
    figure = gradients.draw(rows)
    assert len(figure.axes) == 2 * 4
    assert figure.axes[3].lines[-1].get_ydata().tolist() == [1.0, 5.0]
    assert figure.axes[7].lines[-1].get_ydata().tolist() == [0.0, 5.0]
    said = figure.get_supxlabel().replace("\n", " ")
    assert "over the tokens of the whole batch" in said  # dapo's
    assert "Dead groups in all: Q1 5, Q2 1." in said
    assert "entropy coefficient 0.1, KL coefficient 0 (task over regularizer" in said
    # log 2 and log 8: mean log 4, standard error log 2, t(1) 12.706.
    found = gradients.snr_ratio([row for row in rows if row["analysis"] < 2])
    assert (math.exp(found.mean), found.n) == (pytest.approx(4.0), 2)
    assert found.ci_high - found.mean == pytest.approx(12.706 * math.log(2), rel=1e-4)
    assert "4 times the lowest's, 95 % [0.000599, 2.67e+04], n = 2)" in said
    adapted = analysis(entropy_target=0.2)
    assert "entropy adapted to 0.2" in gradients.draw(gradients.data([adapted])).get_supxlabel()
    none = analysis(entropy=0.0)
    for table in none["tables"]:
        for row in table["rows"]:
            row["norms"]["batch"] |= {"entropy": None, "regularizer": None, "snr": None}
    panel = gradients.draw(gradients.data([none])).axes[2]
    assert "no regularizer acts" in panel.texts[0].get_text()


def test_training_batches_and_fresh_ones_are_not_mixed(tmp_path: Path) -> None:
    runs = [write(tmp_path / name, log(name)) for name in ("a", "b")]

    def steps(step=None):
        rows = figures.gradients([run.path for run in runs], step, lambda text: None)
        return sorted({(r["source"], r["step"], r["entropy_coef"]) for r in rows})

    training = {"source": "training batch"}
    runs[0].write_json("gradients/step-000005.json", analysis(**training))
    runs[0].write_json("gradients/step-000010.json", analysis(step=10, **training))
    assert steps() == [("training batch", 10, 0.1)]
    runs[0].write_json("gradients/step-000005-fresh.json", analysis())
    runs[0].write_json("gradients/step-000005-fresh-entropy-0.json", analysis(entropy=0.0))
    assert steps() == [("fresh batch", 5, 0.0), ("fresh batch", 5, 0.1)]
    assert steps(10) == [("training batch", 10, 0.1)]
    runs[1].write_json("gradients/step-000010.json", analysis(step=10, **training))
    assert steps() == [("training batch", 10, 0.1)]
    (runs[0].path / "gradients" / "step-000005.json").unlink()
    (runs[0].path / "gradients" / "step-000010.json").unlink()
    with pytest.raises(UserError, match="only fresh batches, some only training"):
        steps()


def test_a_critic_has_a_panel_of_its_own() -> None:
    plain, found = analysis(), analysis()
    for table in found["tables"]:
        table["scale_rewards"] = {"group": "gae"}.get(table["scale_rewards"], "none")
        for row in table["rows"]:
            row["norms"] = {"batch": {**row["norms"]["batch"], "critic": 0.5}}
    figure = gradients.draw(gradients.data([found]))
    assert len(figure.axes) == len(gradients.draw(gradients.data([plain])).axes) + 1
    assert figure.axes[-1].lines[0].get_ydata().tolist() == [0.5, 0.5]
    assert "need not vanish at spread 0" in figure.get_supxlabel().replace("\n", " ")
    assert "spread 0" not in gradients.draw(gradients.data([plain])).get_supxlabel()
    labels = {line.get_label() for line in figure.axes[1].lines}
    assert "advantages of the critic" in labels
