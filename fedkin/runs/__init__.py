"""Run folders: configuration, metrics, checkpoints, resuming."""
