"""What accuracy is drawn against: a column of the records, and where its values stand on a logarithmic axis."""

from dataclasses import dataclass

from .. import plots


@dataclass(frozen=True)
class Axis:
    """A column of the records, its label, and the settings that change along a line."""

    label: str
    column: str
    along: tuple[str, ...] = ("sparsity",)
    removed: bool = False  # a share of the weights that was removed: the axis is that of the share that is left
    percent: bool = True

    def position(self, value: float) -> float:
        """Return where a value is drawn; 0 is where nothing is left."""
        return max(1 - value if self.removed else value, 0.0)

    def text(self, position: float) -> str:
        """Return a position as the label of its tick.

        >>> AXES["sparsity"].text(0.005), AXES["flops"].text(0.005), AXES["time"].text(0.005)
        ('99.5', '0.5', '0.005')
        """
        return plots.removed(1 - position) if self.removed else f"{100 * position if self.percent else position:.3g}"


AXES = {
    "sparsity": Axis("weights removed (%)", "sparsity", removed=True),
    "effective": Axis("effective sparsity (%)", "effective_sparsity", removed=True),
    "flops": Axis("FLOPs left (%)", "flops_left"),
    "time": Axis("pruning time (s)", "prune_seconds", along=("rounds", "batches_per_round"), percent=False),
}
