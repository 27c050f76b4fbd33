"""Modes: what a run changes in a model is put back."""

import pytest
import torch
import zoo
from references import Trace
from torch import nn

import barebones as bb
from barebones.running.modes import restored


def test_expanded_buffers_are_put_back():
    model, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    model.register_buffer("same", torch.ones(2, 1, 1).expand(2, 3, 4))
    with Trace(model), restored(model):
        model(x)
        model.same[:, :1, :1] += torch.tensor([1.0, 2.0]).view(2, 1, 1)
    assert model.same.stride() == (1, 0, 0)
    model, batch = nn.Sequential(nn.Linear(4, 3)), (torch.randn(6, 4), torch.arange(6) % 3)
    model.register_buffer("same", torch.ones(1).expand(5))
    for method in ("snip", "synflow"):
        with Trace(model):
            bb.prune(model, [batch], 0.5, method, on_collapse="ignore")


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_network_with_a_sparse_buffer_is_pruned_and_counted(layout):
    model = zoo.Net(
        lambda net, x: net.last(torch.relu(net.first(torch.sparse.mm(net.graph, x.T).T))),
        graph=torch.eye(4).to_sparse(layout=layout),
        first=nn.Linear(4, 6),
        last=nn.Linear(6, 2),
    )
    batches = [(torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 1]))]
    with restored(model):
        model.graph.values().mul_(2) if layout == torch.sparse_csr else model.graph.mul_(2)
    assert torch.equal(model.graph.to_dense(), torch.eye(4))
    for options in ({"method": "snip"}, {"method": "synflow"}, {"method": "force", "bn": "eval", "rounds": 2}):
        masks = bb.prune(model, batches, 0.5, **options, on_collapse="ignore").masks
        assert bb.account(model, masks, batches[0][0]).kept == 18
    masks = {"first.weight": torch.arange(24).view(6, 4) < 12}
    if layout == torch.sparse_coo:
        assert bb.shrink(model, masks, batches[0][0]).module.first.out_features == 3
    else:
        with pytest.raises(ValueError, match=r"cannot be copied \(.*Csr"):
            bb.shrink(model, masks, batches[0][0])
