"""Running: what it takes to run a model repeatably and leave it as it was."""
