"""Trouble: what to tell about masks that disconnect a network or its outputs, or keep weights on no path."""

from collections.abc import Iterator, Mapping
from math import log
from typing import Any

from ...messages import disconnected_outputs, empty_layers, shortened
from ...pruning.prune import ON_NO_PATH
from ..experiment.experiment import DENSE

WARN, RAISE, SKIP = ON_COLLAPSE = ("warn", "raise", "skip")
SKIPPED = "Its training is skipped."
ABSURD = 10  # times the loss of a guess, from which on a test loss is told


def sentences(about: Mapping[str, Any], skipped: bool = False) -> Iterator[str]:
    """Yield what is wrong with the masks of a run, from its result or from what its mask file says.

    `skipped` says that the network is not trained for this reason.
    """
    if (unknown := _unknown(about)) and about.get("empty"):  # without an empty layer, a signal usually passes
        yield f"{unknown}."
    elif collapsed := about.get("collapsed"):
        yield f"No signal passes from input to output: collapsed at {shortened(collapsed)}."
        if skipped:
            yield SKIPPED
    elif lost := disconnected_outputs(*_outputs(about)):
        yield f"{lost.capitalize()}."
    if share := _on_no_path(about):
        yield f"{share:.0%} of the kept weights are on no path from input to output."
    if empty := about.get("empty"):
        yield f"{empty_layers(empty, about['layers'])}."


def in_short(about: Mapping[str, Any], skipped: bool = False) -> str:
    """Say the same in a few words, for a table.

    >>> in_short({"collapsed": ["a"], "empty": ["a", "b"], "layers": 3}), in_short({"empty": ["a"], "layers": 3})
    ('collapsed, 2 of 3 layers empty', '1 of 3 layers empty')
    >>> in_short({"disconnected_outputs": 6, "outputs": 10, "kept": 100, "effective": 60})
    '6 of 10 outputs disconnected, 40% of the weights on no path'
    """
    lost, outputs = _outputs(about)
    some = f"{lost} of {outputs} outputs disconnected" if lost else ""
    empty = about.get("empty")
    layers = f"{len(empty)} of {about['layers']} layers empty" if empty else ""
    all_of_it = "collapsed, not trained" if skipped else "collapsed"
    apart = f"{share:.0%} of the weights on no path" if (share := _on_no_path(about)) else ""
    return ", ".join(filter(None, [all_of_it if about.get("collapsed") else some, apart, layers]))


def absurd(result: Mapping[str, Any]) -> Iterator[str]:
    """Say that the test loss of a trained network is absurd; nothing if it is not, or if that cannot be known.

    >>> list(absurd({"experiment": {}, "plan": {"epochs": 9}, "test": {"loss": 2.5}, "outputs": 10}))
    []
    """
    loss, outputs, settings = result["test"]["loss"], result.get("outputs") or 0, result["experiment"]
    if outputs > 1 and epochs_of(result) and loss > ABSURD * log(outputs):
        yield f"The test loss is {loss:.3g}; that of a guess is {log(outputs):.3g}."
        yield "If the training loss is small, the running statistics of batch-norms do not fit."
        if settings["precision"] == "bf16":
            yield "In bf16, weights on no path from input to output can cause this; try --shrink or --precision fp32."


def untrained(result: Mapping[str, Any]) -> bool:
    """Return whether a run has left out the epochs of its experiment.

    >>> untrained({"experiment": {"epochs": 9}, "plan": {"epochs": 0}})
    True
    """
    return epochs_of(result) == 0 < result["experiment"]["epochs"]


def epochs_of(result: Mapping[str, Any]) -> int:
    """Return for how many epochs a finished run was trained."""
    return result["plan"]["epochs"]


def when_tested(result: Mapping[str, Any]) -> str:
    """Say when a run has measured its test accuracy."""
    if epochs_of(result):
        return "after the last epoch"
    return "without training" if result["experiment"]["method"] == DENSE else "right after pruning"


def skips(about: Mapping[str, Any], on_collapse: str) -> bool:
    """Return whether the network is not to be trained: it is known that it is disconnected."""
    return on_collapse == SKIP and bool(about.get("collapsed"))


def _counts(about: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return where the counts of the masks are: results and mask files have them at different places."""
    return about.get("account") or about


def _unknown(about: Mapping[str, Any]) -> str:
    """Say why it is not known whether the network is disconnected; nothing if it is."""
    reason = _counts(about).get("not_followed")
    return f"Whether a signal passes from input to output is not known: {reason.rstrip('.')}" if reason else ""


def _outputs(about: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return how many outputs no signal reaches, and how many there are; None if that is not known."""
    counts = _counts(about)
    return counts.get("disconnected_outputs"), counts.get("outputs")


def _on_no_path(about: Mapping[str, Any]) -> float:
    """Return the share of kept weights on no path from input to output; 0 if it is small, or not known, or all are."""
    kept, effective = (_counts(about).get(name) for name in ("kept", "effective"))
    share = 1 - effective / kept if kept and effective else 0.0
    return share if share >= ON_NO_PATH else 0.0


def check(about: Mapping[str, Any], on_collapse: str) -> None:
    """Raise a `ValueError` if the masks disconnect the network and that is to stop the run, before epochs are spent."""
    if on_collapse != RAISE:
        return
    if problem := _unknown(about) or (next(sentences(about)).rstrip(".") if about.get("collapsed") else ""):
        raise ValueError(f"{problem}; lower the sparsity or prune in more rounds, or train it with --on-collapse warn")
