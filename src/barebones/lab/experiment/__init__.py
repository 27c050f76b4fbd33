"""What to run: an experiment, its training plan, the protocols of the paper, recipes and styles."""
