"""Named bundles of settings. To add one, add an entry; nothing else knows the names."""

from typing import Any

Overlay = dict[str, Any]

ALGORITHMS: dict[str, Overlay] = {
    # DeepSeekMath: group-standardized rewards, mean over the tokens of a sequence, then sequences.
    "grpo": {"loss_type": "grpo", "scale_rewards": "group", "clip_low": 0.2, "clip_high": 0.2},
    # DAPO: asymmetric clip, mean over all tokens of the batch.
    "dapo": {"loss_type": "dapo", "scale_rewards": "group", "clip_low": 0.2, "clip_high": 0.28},
    # Dr. GRPO: no division by the std, constant length normalizer.
    "dr-grpo": {"loss_type": "dr_grpo", "scale_rewards": "none", "clip_low": 0.2, "clip_high": 0.2},
    # PPO: advantages token by token from a critic (GAE), mean over all tokens of the batch.
    "ppo": {"loss_type": "dapo", "advantage": "gae", "clip_low": 0.2, "clip_high": 0.28},
}

PRESETS: dict[str, Overlay] = {
    # What the public RAGEN code does: ranks by the standard deviation, absolute slack 0.01.
    "ragen2-code": {
        "filter": {"strategy": "top-p", "score": "reward_std", "mass": "linear", "eps": 0.01}
    },
    # The setting of the paper's main table.
    "ragen2-main-table": {
        "filter": {
            "strategy": "top-p",
            "score": "reward_std",
            "mass": "softmax",
            "include_zero": True,
        }
    },
    # PPO as in the paper's experiments: clip 0.2 / 0.28, gamma = lambda = 1, entropy bonus 0.001.
    # Their critic has a rate of 1e-5, all weights trained; a LoRA critic learns at 1e-3.
    "ppo": {"algorithm": {"name": "ppo", "entropy": 0.001}, "critic": {"lr": 1e-3}},
    # StarPO-S, the stabilized variant of RAGEN's first version (arXiv 2504.20073): the quarter of
    # the prompts with the highest standard deviation, no KL, clip-higher, a critic as baseline.
    "starpo-s": {
        "filter": {"strategy": "top-k", "value": 0.25, "score": "reward_std"},
        "algorithm": {"name": "ppo", "kl": 0.0, "clip_low": 0.2, "clip_high": 0.28},
        "critic": {"lr": 1e-3},
    },
    # Full-size hyperparameters of the paper (Qwen2.5-3B on a GPU).
    "paper": {
        "steps": 400,
        "model": {"name": "Qwen/Qwen2.5-3B-Instruct", "full": True},
        "rollout": {"prompts": 8, "group_size": 16, "max_new_tokens": 400},
        "algorithm": {"name": "grpo", "clip_high": 0.28, "entropy": 0.001},
        "optimizer": {
            "lr": 1e-6,
            "schedule": "constant",
            "beta2": 0.999,
            "max_grad_norm": 1.0,
            "micro_batches": 32,
        },
        "evaluation": {"every": 10, "temperature": 0.5},
    },
}
