"""Suites: which files `make quick` and `make test` leave out, and how many cases their fuzzers try."""

import os
from pathlib import Path

# Files of one suite. The smaller suites do not import them: the packages behind them take seconds to load.
NIGHTLY = "benchmarks/test_* families/* report/test_page.py test_compiled.py test_ray.py test_wheel.py"
SLOW = """
    test_keep_sparse_* test_random_networks.py test_shards.py accuracy/* report/* test_fuzzed_* test_shrink.py
    test_shrink_c*s*.py test_shrink_layout.py test_shrink_functions.py test_own_*
    test_controlled_runs.py test_stages.py test_folder.py test_shrunk.py
    test_analyses.py test_figures.py test_export.py test_export_command.py test_hub_folder.py
    test_models.py test_experiments.py test_trust.py test_run.py test_training.py test_progress.py test_lock.py
    test_belonging.py test_connectivity.py test_metrics.py test_batches.py test_demo.py
    test_image_folder.py test_tracking.py
"""
FILES = {"nightly": NIGHTLY.split(), "slow": SLOW.split()}


def in_suite(path: Path, suite: str) -> bool:
    return any(map(path.match, FILES[suite]))


def cases(default: int) -> int:
    """Return $BAREBONES_FUZZ, or the default if it is not set."""
    return int(os.environ.get("BAREBONES_FUZZ") or default)
