"""Training on top of TRL: the only place that imports trl and peft."""
