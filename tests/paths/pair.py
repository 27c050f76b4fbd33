"""What the tests of paths share: two linear layers of four units, masks for them, and an input."""

from typing import Any

import torch
from torch import nn

eye, off = torch.eye(4, dtype=torch.bool), torch.zeros(4, 4, dtype=torch.bool)
half = eye & torch.tensor([True, True, False, False])
x4 = torch.randn(2, 4)


def linears(**more: Any) -> dict[str, Any]:
    return {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), **more}
