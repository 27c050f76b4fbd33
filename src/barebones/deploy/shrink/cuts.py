"""Cuts: all that a network must lose, so that it can be shrunk again without looking for it; also as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from ...files import container
from ...files.encoding import check_size, decoded, layers, pack
from ...files.header import record
from ...masks import size
from .cut import RemovedChannels

KIND, VERSION = "barebones-cuts", 1


@dataclass(frozen=True)
class Notes:
    """What a plan says besides the sizes (see `ShrinkPlan`), and whether the weights are stored with channels last."""

    folded: dict[str, int]
    shifts: dict[str, int]
    left: dict[str, str]
    unchecked: str
    layout: str
    channels_last: bool


@dataclass(frozen=True)
class Cuts:
    """What shrinking changes in a network, by layer."""

    removed: RemovedChannels
    added: dict[str, Tensor]  # to the bias: what constant inputs that are removed contribute
    zeroed: dict[str, Tensor]  # bool: the channels whose shift counts as pruned
    severed: dict[str, Tensor]  # bool, as (outputs, inputs): the connections that `expand` sets to zero
    notes: Notes

    def save(self, path: container.Path, **about: Any) -> None:
        """Write the cuts to a file, with anything else that JSON can represent."""
        bools = {f"removed {side} {layer}": mask for (layer, side), mask in self.removed.items()}
        bools |= {f"zeroed {layer}": mask for layer, mask in self.zeroed.items()}
        bools |= {f"severed {layer}": mask for layer, mask in self.severed.items()}
        packed, layout = pack(bools)
        values = {f"added {layer}": value for layer, value in self.added.items()}
        header = {**about, "layout": layout, "notes": asdict(self.notes)}
        container.write(path, packed | values, KIND, VERSION, header)

    @staticmethod
    def load(path: container.Path, model: nn.Module) -> Cuts:
        """Read the cuts of a file; the model is the one that they are for, which bounds how large they may be."""
        tensors, about = container.read(path, KIND, VERSION)
        with container.named(path):
            added = _under("added ", tensors)
            packed = {name: tensor for name, tensor in tensors.items() if not name.startswith("added ")}
            stored = layers(packed, about.get("layout"))
            check_size(sum(layer.total for layer in stored.values()) - _connections(model), size(packed))
            bools = decoded(packed, stored)
            sides = {side: _under(f"removed {side} ", bools) for side in ("in", "out", "both")}
            removed = {(layer, side): mask for side, masks in sides.items() for layer, mask in masks.items()}
            notes = record(Notes, about.get("notes"), "what it says about the cuts")
            return Cuts(removed, added, _under("zeroed ", bools), _under("severed ", bools), notes)


def _connections(model: nn.Module) -> int:
    """Return how many pairs of an output and an input the layers of a model have."""
    weights = [(module, module._parameters.get("weight")) for module in model.modules()]
    return sum(w.shape[0] * w.shape[1] * getattr(m, "groups", 1) for m, w in weights if w is not None and w.dim() > 1)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
