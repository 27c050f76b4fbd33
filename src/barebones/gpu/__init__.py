"""GPU: code that only an NVIDIA GPU runs."""
