"""Configuration: frozen, self-checking models; sparse TOML in, resolved JSON out.

``schema.py`` declares every field once, ``presets.py`` names bundles of values, ``load.py`` merges
defaults, preset, file and flags. Nothing changes a config after it is built.
"""

from ragen2_cli.config.load import load_config
from ragen2_cli.config.schema import Config

__all__ = ["Config", "load_config"]
