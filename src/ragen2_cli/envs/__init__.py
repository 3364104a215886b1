"""Text environments: the contract, the episode around it, and one file per environment."""
