"""Case 24: a TRL that was not tested is refused by its number, before any work."""

from importlib import metadata

import pytest

from ragen2_cli.errors import UserError
from ragen2_cli.training.versions import require_supported_trl


@pytest.mark.parametrize("version", ["1.16.0", "1.16.9", "1.16.1.dev0"])
def test_the_tested_minor_version_passes(version):
    require_supported_trl(version)


@pytest.mark.parametrize("version", ["0.24.0", "1.15.9", "1.17.0", "1.17.0.dev0", "2.16.0"])
def test_any_other_version_is_refused_by_number(version):
    with pytest.raises(UserError, match=f"TRL {version} is not supported.*pip install"):
        require_supported_trl(version)


def test_a_missing_trl_is_named(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UserError, match="TRL is not installed; install it with"):
        require_supported_trl()


def test_the_installed_version_passes():
    require_supported_trl()
