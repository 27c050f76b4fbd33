"""The picture of a result: the share of weights that each layer keeps, and what each round changed."""

from collections.abc import Sequence
from typing import Any

from ..masks import Masks
from ..running.shards import count
from .round import Record


def draw(masks: Masks, rounds: Sequence[Record]) -> Any:
    """Draw one panel for the layers and, if there are several rounds, one for them; return the axes."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plot draws with matplotlib: pip install 'barebones[figures]'") from error
    several = len(rounds) > 1
    figure = plt.figure(figsize=(4 * (1 + several), 2.6), layout="constrained")
    layers, *others = grid = figure.subplots(1, 1 + several, squeeze=False)[0]
    shares = [count(mask) / mask.numel() for mask in masks.values()]
    filled = [(place, share) for place, share in enumerate(shares, 1) if share]
    layers.plot(*zip(*filled, strict=True), "o-", color="#D55E00", markersize=3)
    layers.set(yscale="log", xlabel="layer, from input to output", ylabel="share of weights left")
    layers.minorticks_off()
    layers.xaxis.get_major_locator().set_params(integer=True)
    if empty := [place for place, share in enumerate(shares, 1) if not share]:
        layers.plot(empty, [min(share for _, share in filled) / 2] * len(empty), "x", color="#B22222", label="empty")
        layers.legend(frameon=False)
    for axes in others:
        numbers = [record.index + 1 for record in rounds]
        for name, label, line in (("keep", "kept", "-"), ("pruned", "pruned", "--"), ("recovered", "recovered", ":")):
            axes.plot(numbers, [getattr(record, name) for record in rounds], line, label=label)
        axes.set(yscale="symlog", xlabel="round", ylabel="weights")
        axes.legend(frameon=False)
    return grid
