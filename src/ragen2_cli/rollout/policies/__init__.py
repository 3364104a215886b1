"""Policies that the engine can drive; all follow ``ragen2_cli.rollout.policy.Policy``.

To add one, write a class with ``converse`` in a file of its own and name it here.
"""

from ragen2_cli.rollout.policies.scripted import ScriptedPolicy
from ragen2_cli.rollout.policies.transformers_policy import TransformersPolicy
from ragen2_cli.rollout.policies.vllm_policy import VllmPolicy

__all__ = ["ScriptedPolicy", "TransformersPolicy", "VllmPolicy"]
