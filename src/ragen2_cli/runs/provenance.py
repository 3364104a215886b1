"""What a run was made with, written into its config.json."""

import platform
import subprocess
from importlib import metadata
from typing import Any

PACKAGES = (
    "ragen2",
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "tokenizers",
    "safetensors",
    "datasets",
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
    "gymnasium",
    "vllm",
)

STATISTICS: dict[str, str] = {
    "success": "share of scored training episodes that reached the goal (true outcome)",
    "episode_return": "mean over scored episodes of the sum of turn rewards and penalties",
    "reward_std": "mean over groups of the sample standard deviation (n - 1) of the return",
    "reward_var": "mean over groups of the sample variance (n - 1) of the return",
    "dead_groups": "groups whose scored returns do not differ",
    "kept_groups": "groups that the filter kept and that were trained on",
    "invalid_rate": "turns without a valid answer / all turns",
    "truncated_rate": "episodes that met a token limit / all episodes",
    "entropy": "mean over trained tokens of the full-softmax entropy, in nats",
    "kl": "mean over trained tokens of the k3 estimate of KL(policy || reference), in nats",
    "response_length": "sampled tokens per episode, mean",
    "evaluation.success": "successes / held-out episodes, with its 95 % Wilson interval",
    "evaluation.entropy": "mean negative log-probability of sampled tokens at the evaluation's"
    " temperature, in nats; absent at 0",
    "seal/loss": "SEAL's mean cross-entropy, before its coefficient, in nats",
    "seal/accuracy": "share of trained tokens whose logit has the sign of their row's advantage",
    "separation/contrast": "2 x across - (within_correct + within_incorrect), cosines of row means",
    "advantage": "as used in the loss: relative to the group; with credit per turn or a critic"
    " the mean over the sampled tokens, absent where a group was dropped before the critic",
    "value_loss": "0.5 * squared error of the critic, mean over trained tokens, before its step",
    "explained_variance": "1 - var(return - value) / var(return) over trained tokens",
}


def package_versions() -> dict[str, str]:
    """Return the installed versions of the packages that decide results; absent ones left out."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_revision() -> str | None:
    """Return the commit of the working directory's repository; None outside of one."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def describe(config: dict[str, Any]) -> dict[str, Any]:
    """Return the content of config.json, less its schema version.

    Args:
        config: The resolved config as JSON values; its top-level ``seed`` is repeated beside it.
    """
    from datetime import UTC, datetime

    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": config.get("seed"),
        "git_revision": git_revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
        "statistics": STATISTICS,
        "config": config,
    }
