"""``envs doctor`` says which layers hold and fails where nothing isolates."""

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from ragen2_cli import sandbox
from ragen2_cli.commands.doctor import doctor
from ragen2_cli.sandbox import detect
from ragen2_cli.sandbox.selftest import probe

app = typer.Typer()
app.command()(doctor)


needs_namespaces = pytest.mark.skipif(not detect().namespaces, reason=detect().why_not)


@needs_namespaces
def test_doctor_finds_the_layers_and_all_tries_are_stopped():
    result = CliRunner().invoke(app, ["--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (found["isolation"], found["holds"], found["works"]) == ("namespaces", True, True)
    assert len(found["stopped"]) == 10
    assert all(found["stopped"].values())
    text = CliRunner().invoke(app, []).stdout
    assert "isolation: namespaces; it holds" in text
    assert "stopped opens a socket" in text


@needs_namespaces
def test_a_user_namespace_stops_the_same_tries():
    # what a process that is not root uses; root can use it too
    for zygote in {detect().zygote, False}:
        layers = replace(detect(), root=False, zygote=zygote)
        assert [item.what for item in probe(layers) if not item.stopped] == []


@needs_namespaces
def test_doctor_says_what_a_program_costs(monkeypatch):
    found = {True: "fork of a warm interpreter", False: "start of bubblewrap per program: refused"}
    for zygote, note in found.items():
        layers = replace(detect(), zygote=zygote, why_cold="refused")
        monkeypatch.setattr(sandbox, "detect", lambda layers=layers: layers)
        row = json.loads(CliRunner().invoke(app, ["--json"]).stdout)["layers"]["warm start"]
        assert row["there"] is zygote
        assert note in row["note"]


def test_landlock_alone_stops_the_same_tries():
    layers = replace(detect(), namespaces=False)
    if layers.isolation != "landlock":
        pytest.skip("this kernel has no Landlock")
    assert [item.what for item in probe(layers) if not item.stopped] == []


def test_doctor_does_not_hide_a_machine_without_isolation(monkeypatch):
    bare = replace(detect(), namespaces=False, landlock=0, seccomp=False, why_not="no bwrap")
    monkeypatch.setattr(sandbox, "detect", lambda: bare)
    result = CliRunner().invoke(app, ["--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == 2
    assert (found["isolation"], found["holds"], found["works"]) == ("none", False, True)
    assert not found["stopped"]["reads a file of the machine"]
    assert found["layers"]["namespaces"]["note"] == "no bwrap"
