"""GPU: what only an NVIDIA GPU runs."""
