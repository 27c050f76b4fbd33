"""The paper's table of parameters per layer type, for any model."""

from typing import NamedTuple

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd


class ParameterTable(NamedTuple):
    """One row of the table: percentages of all parameters, and their number."""

    conv: float
    fully_connected: float
    batchnorm: float
    bias: float
    prunable: float
    total: int


def parameter_table(model: nn.Module) -> ParameterTable:
    """Return the table's row for a model.

    The columns are the weights of convolutions, linear layers and batch-norms, all biases (those of batch-norms, too),
    and the prunable weights: those of convolutions and linear layers. Tied parameters count once. Other parameters
    count in the total only.

    >>> parameter_table(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)))
    ParameterTable(conv=0.0, fully_connected=60.0, batchnorm=10.0, bias=30.0, prunable=60.0, total=20)
    """
    kinds = {_ConvNd: "conv", nn.Linear: "fully_connected", _BatchNorm: "batchnorm"}
    counts = dict.fromkeys([*kinds.values(), "bias", "other"], 0)
    counted = set()
    for module in model.modules():
        kind = next((kind for base, kind in kinds.items() if isinstance(module, base)), "other")
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in counted:
                counted.add(id(parameter))
                counts["bias" if name == "bias" else kind] += parameter.numel()
    total = sum(counts.values())
    percent = {kind: 100 * count / max(total, 1) for kind, count in counts.items() if kind != "other"}
    return ParameterTable(**percent, prunable=percent["conv"] + percent["fully_connected"], total=total)
