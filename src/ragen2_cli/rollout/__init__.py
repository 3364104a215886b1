"""The multi-turn rollout engine: chat rendering, policies, batching."""
