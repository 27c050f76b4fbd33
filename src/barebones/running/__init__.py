"""Running: run a model repeatably, and leave it as it was."""
