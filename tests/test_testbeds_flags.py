"""The flags of ``train`` that belong to one environment reach its options."""

import json

import pytest
from typer.testing import CliRunner

from ragen2_cli.app import app


@pytest.mark.parametrize(
    ("flags", "option", "value"),
    [
        (["--env", "web_shop", "--reward", "binary"], "reward", "binary"),
        (["--env", "search_qa", "--retriever", "http://localhost:1/r"], "retriever", None),
        (["--env", "deep_coder", "--unsafe-sandbox"], "unsafe_sandbox", True),
    ],
)
def test_a_flag_sets_the_option(flags, option, value):
    result = CliRunner().invoke(app, ["train", *flags, "--dry-run"])
    assert result.exit_code == 0, result.output
    options = json.loads(result.stdout)["env"]["options"]
    assert options == {option: value or flags[-1]}
