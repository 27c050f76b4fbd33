"""Benchmarks: speed and memory on this machine, as ratios within one run."""
