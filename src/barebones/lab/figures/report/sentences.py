"""Sentences about a run: whether it failed, what its masks keep, and whether a signal still passes."""

from collections.abc import Iterator, Sequence
from typing import Any

from ....messages import disconnected_outputs, shortened
from ...records.records import FAILED, Row
from ...run.connectivity import SKIPPED

PRUNED, UNFINISHED = "pruned", "unfinished"
MOST_NAMES = 6  # layers that a sentence lists


def sentences(run: Row, reason: str | None = None, note: str | None = None) -> list[list[str]]:
    """Return pairs of urgency ("bad", "warn", "note", "plain" or "good") and sentence.

    `reason` says why a run failed, `note` why its effective weights are not known.
    """
    pairs = [*_state(run, reason), *_layers(run)]
    if run["dense"]:
        pairs.append(("plain", "Nothing is pruned: this is the dense network."))
    if note:
        pairs.append(("note", f"No effective weights per layer: {note}."))
    return [
        [urgency, sentence.replace("..", ".") if sentence.endswith("..") else sentence] for urgency, sentence in pairs
    ]


def _state(run: Row, reason: str | None) -> Iterator[tuple[str, str]]:
    if run["status"] == FAILED:
        yield "bad", f"It failed: {reason}"
    if run["status"] == UNFINISHED:
        yield "note", f"It is not finished ({run['state'] or 'begun'})."
    if run["status"] == PRUNED:
        yield "note", "It is pruned and not trained; barebones run with the same settings trains it."
    for problem in run["problems"]:
        yield "bad", f"Not readable: {problem}."
    if run["collapsed"]:
        where = f"{_listed(run['collapsed'])}." + (f" {SKIPPED}" if run["untrained"] else "")
        yield "bad", f"Disconnected: no signal passes from input to output, collapsed at {where}"
    elif lost := disconnected_outputs(run["disconnected_outputs"], run["outputs"]):
        yield "warn", f"{lost.capitalize()}."


def _layers(run: Row) -> Iterator[tuple[str, str]]:
    layers: list[Any] = run["layers"]
    empty = [name for name, _, total, kept, _ in layers if total and not kept]
    apart = [name for name, _, _, kept, effective in layers if kept and effective == 0]
    if run["effective"] == 0:  # then all layers are disconnected, and a sentence below says so
        apart = []
    if empty:
        count = "An empty layer" if len(empty) == 1 else f"{len(empty)} empty layers"
        yield "warn", f"{count}, with no weight left: {_listed(empty)}."
    if apart:
        count = "A disconnected layer" if len(apart) == 1 else f"{len(apart)} disconnected layers"
        yield "warn", f"{count}, without an effective weight: {_listed(apart)}."
    if layers and run["kept"] is not None:
        kept = int(run["kept"])
        yield "plain", f"{kept:,} of {int(run['prunable'] or 0):,} prunable weights are left."
        if kept and run["effective"] is not None:
            yield _effective(kept, int(run["effective"]))
    if layers and not (empty or apart or run["collapsed"] or run["disconnected_outputs"]):
        yield "good", "Every layer keeps weights" + (", and a signal passes." if run["effective"] else ".")


def _effective(kept: int, effective: int) -> tuple[str, str]:
    if not effective:
        return "bad", "None of them lies on a path from input to output, so they do nothing."
    if effective == kept:
        return "plain", "All of them lie on a path from input to output."
    lost = kept - effective
    share = f"{lost:,} of them ({100 * lost / kept:.1f} %)"
    return "plain", f"{share} lie on no path from input to output and do nothing."


def _listed(names: Sequence[str]) -> str:
    return shortened((name.removesuffix(".weight") for name in names), MOST_NAMES)
