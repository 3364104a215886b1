"""What can be checked and built before torch is imported: environment, limits, paths."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ragen2_cli.config import Config
from ragen2_cli.core.gradients import DENOMINATORS
from ragen2_cli.envs import TextEnv, environment_class, make, options_of
from ragen2_cli.envs.session import Limits
from ragen2_cli.errors import UserError
from ragen2_cli.training import processes
from ragen2_cli.training.models import is_gguf, locate


def check(config: Config, out: Path | None = None, *, force: bool = False) -> None:
    """Check everything about a new run that needs neither a model nor a written file.

    Args:
        config: The resolved config.
        out: Where the run is to be written; None for an automatic name.
        force: Whether a run there may be replaced.

    Raises:
        UserError: One line about the first fault.
    """
    limits_of(config, build_env(config))
    _check_gradients(config)
    locate(config.model.name, config.env.name)
    if config.model.full and config.model.dtype == "float16":
        raise UserError("--dtype float16: too narrow for --full; use bfloat16 or float32")
    if config.model.full and config.algorithm.kl and is_gguf(config.model.name):
        raise UserError(
            f"--model {config.model.name}: a GGUF file cannot be the KL term's reference of a run"
            " that trains every weight; train an adapter with --lora, give --kl 0, or a folder"
        )
    if config.rollout.backend == "vllm" and find_spec("vllm") is None:
        raise UserError("rollout.backend: vllm is not installed; pip install 'ragen2[vllm]'")
    for tracker in config.report_to:
        if find_spec(tracker) is None:
            raise UserError(f"--report-to {tracker}: not installed; pip install {tracker}")
    if out is not None and processes.is_first() and out.exists() and not force:
        if not out.is_dir():
            raise UserError(f"--out {out}: exists and is not a folder")
        if any(out.iterdir()):
            raise UserError(f"--out {out}: exists; give --resume to go on or --force to replace it")


def _check_gradients(config: Config) -> None:
    """Refuse a gradient analysis that would end the run at the first step that it is made at."""
    where = "--gradient-analysis-every"
    if not config.diagnostics.gradients_every:
        return
    require_analyzed(config, where)
    if config.model.full and config.algorithm.kl:
        raise UserError(
            f"{where}: the KL term of a run that trains every weight is not analyzed; give --kl 0,"
            " train an adapter with --lora, or give 0"
        )


def require_analyzed(config: Config, where: str) -> None:
    """Refuse a loss whose gradient is not known to the analysis.

    Args:
        config: Of the run, with the coefficients that are analyzed.
        where: What asks for the analysis.

    Raises:
        UserError: The type of loss, or a key of ``[trl]`` that changes its gradient.
    """
    algorithm, known = config.algorithm, ", ".join(DENOMINATORS)
    if algorithm.loss_type not in DENOMINATORS:
        raise UserError(
            f"{where}: no analysis for the loss '{algorithm.loss_type}'; use one of {known}"
        )
    needed: dict[str, object] = {
        "top_entropy_quantile": 1.0,
        "multi_objective_aggregation": "sum_then_normalize",
        "mask_truncated_completions": False,
    }
    if algorithm.kl:
        needed["use_bias_correction_kl"] = True
    if algorithm.kl or algorithm.advantage == "gae" or algorithm.credit != "episode":
        needed["importance_sampling_level"] = "token"
    for key, value in needed.items():
        if (given := config.trl.get(key, value)) != value:
            raise UserError(f"{where}: no analysis of a run with trl.{key} {given}, only {value}")


def build_env(config: Config) -> TextEnv:
    """Build the environment that a config names.

    Raises:
        UserError: Unknown name, option or kind of stochasticity.
    """
    env = config.env
    options = dict(env.options)
    if env.max_actions is not None and "max_actions" in options_of(environment_class(env.name)):
        options["max_actions"] = env.max_actions  # boards must be solvable within the budget
    return make(env.name, stochasticity=env.stochasticity / 100, kind=env.kind, **options)


def limits_of(config: Config, env: TextEnv) -> Limits:
    """Return the environment's limits with the config's own values on top."""
    own = Limits.of(env, config.env.format_penalty)
    chosen = {
        name: value
        for name in ("max_turns", "max_actions", "actions_per_turn")
        if (value := vars(config.env)[name]) is not None
    }
    return replace(own, **chosen)
