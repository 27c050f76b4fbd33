"""The page for users of other tools: its code runs here, after what the other tool would have left."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import barebones as bb

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text(encoding="utf-8")
SECTIONS = {
    title: re.findall(r"```py(?:thon)?\n(.*?)```", body, re.DOTALL)
    for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
}


def rows(weight: torch.Tensor) -> torch.Tensor:
    return (torch.arange(len(weight)) % 2).view(-1, *[1] * (weight.dim() - 1)).expand_as(weight)


def half(scope):
    with torch.no_grad():
        for parameter in bb.prunable(scope["model"]).values():
            parameter.mul_(rows(parameter))


LEFT = {  # what the other tool has left, without it
    "torch.nn.utils.prune": lambda scope: exec(SECTIONS["torch.nn.utils.prune"][0], scope),
    "torchao": half,
    "jaxpruner": lambda scope: scope.update(kernel=rows(scope["model"][0].weight).T.numpy()),
    "NNI": lambda scope: scope.update(
        found={n: {k: rows(p).float() for k, p in scope["model"][int(n)].named_parameters()} for n in "02"}
    ),
    "The paper's code": lambda scope: scope.update(keep_masks=[rows(scope["model"][n].weight).float() for n in (0, 2)]),
}
KEPT = {"torch.nn.utils.prune": 0.1, "SparseML": 0.1}  # of the masked weights; others keep a half


def user():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(32, 64), torch.arange(32) % 10)]
    return dict(torch=torch, bb=bb, model=model, optimizer=optimizer, batches=batches, inputs=batches[0][0])


@pytest.mark.filterwarnings("ignore::UserWarning")  # a network as small as this loses outputs
@pytest.mark.parametrize("tool", SECTIONS)
def test_our_code_runs(tool):
    scope = user()
    LEFT.get(tool, lambda scope: None)(scope)
    exec(SECTIONS[tool][1], scope)
    if tool == "Torch-Pruning":
        assert scope["small"][0].out_features == 50
        return
    masks = scope["masks"]
    bb.audit(scope["model"], masks)
    kept, total = (sum(int(count(m)) for m in masks.values()) for count in (torch.count_nonzero, torch.numel))
    assert kept == pytest.approx(KEPT.get(tool, 0.5) * total, abs=1)


def test_every_tool_has_a_row():
    assert len(SECTIONS) == len(re.findall(r"^\|(?!tool|---)", PAGE, re.MULTILINE)) == 7
