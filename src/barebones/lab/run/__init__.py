"""One run: its stages, its training, its folder and its metrics."""
