"""Connectivity: what to tell about masks that disconnect a network or its outputs, or keep weights on no path."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...messages import disconnected_outputs, empty_layers, shortened
from ...pruning.prune import ON_NO_PATH
from ..experiment.experiment import DENSE
from .options import RAISE

SKIPPED = "Its training is skipped."


def findings(about: Mapping[str, Any], skipped: bool = False) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a run's masks, as a sentence and in a few words; `about` is its result or mask file.

    >>> [short for _, short in findings({"collapsed": ["a"], "empty": ["a", "b"], "layers": 3})]
    ['collapsed', '2 of 3 layers empty']
    >>> [short for _, short in findings({"disconnected_outputs": 6, "outputs": 10, "kept": 100, "effective": 60})]
    ['6 of 10 outputs disconnected', '40% of the weights on no path']
    """
    kept, effective, empty = about.get("kept"), about.get("effective"), about.get("empty")
    if (unknown := _unknown(about)) and empty:  # without an empty layer, a signal usually passes
        yield f"{unknown}.", ""
    elif collapsed := about.get("collapsed"):
        yield f"No signal passes from input to output: collapsed at {shortened(collapsed)}.", "collapsed"
        if skipped:
            yield SKIPPED, "not trained"
    elif lost := about.get("disconnected_outputs"):
        outputs = about["outputs"]
        yield f"{disconnected_outputs(lost, outputs).capitalize()}.", f"{lost} of {outputs} outputs disconnected"
    if kept and effective and 1 - effective / kept >= ON_NO_PATH:
        share = f"{1 - effective / kept:.0%} of the"
        yield f"{share} kept weights are on no path from input to output.", f"{share} weights on no path"
    if empty:
        yield f"{empty_layers(empty, about['layers'])}.", f"{len(empty)} of {about['layers']} layers empty"


def untrained(result: Mapping[str, Any]) -> bool:
    """Return whether a run has left out the epochs of its experiment.

    >>> untrained({"experiment": {"epochs": 9}, "plan": {"epochs": 0}})
    True
    """
    return result["plan"]["epochs"] == 0 < result["experiment"]["epochs"]


def when_tested(result: Mapping[str, Any]) -> str:
    if result["plan"]["epochs"]:
        return "after the last epoch"
    return "without training" if result["experiment"]["method"] == DENSE else "right after pruning"


def check(about: Mapping[str, Any], on_collapse: str) -> None:
    """Raise a `ValueError` if the masks disconnect the network and that is to stop the run, before epochs are spent."""
    problem = _unknown(about) or (next(findings(about))[0].rstrip(".") if about.get("collapsed") else "")
    if problem and on_collapse == RAISE:
        raise ValueError(f"{problem}; lower the sparsity or prune in more rounds, or train it with --on-collapse warn")


def _unknown(about: Mapping[str, Any]) -> str:
    reason = about.get("not_followed")
    return f"Whether a signal passes from input to output is not known: {reason.rstrip('.')}" if reason else ""
