"""HAM and single-step SAM are their equations with every optimizer, and see the kept weights only."""

import math
from unittest.mock import Mock

import held
import pytest
import torch
from held import CASES, X, Y, backward, by_hand, network, spoiled
from torch import nn, optim
from torch.utils._python_dispatch import TorchDispatchMode

import barebones as bb
from barebones.holding import ELEMENTWISE

ALPHA, BETA, RHO = 30.0, 0.01, 0.5


def by_the_equations(model, masks, optimizer, previous, spoil):
    """Do one step with both, one weight tensor at a time; return its gradients."""
    params = list(model.parameters())
    before = [p.detach().clone() for p in params]
    if previous:
        norm = math.sqrt(sum(float(g.square().sum()) for g in previous))
        for p, g in zip(params, previous, strict=True):
            p.data += RHO * g / norm
    optimizer.zero_grad()
    backward(model)
    for p, weight in zip(params, before, strict=True):
        p.data.copy_(weight)
    if spoil:
        spoiled(model, masks)
    by_hand(model, masks)
    optimizer.step()
    group = optimizer.param_groups[0]
    uphill = -1 if group.get("maximize") else 1
    for p in params:
        if p.dim() > 1:
            p.data *= (group["lr"] * (-ALPHA * uphill * p.sign() * p.grad - BETA)).clamp(-5, 5).exp().detach()
    by_hand(model, masks, optimizer)
    return [p.grad.clone() for p in params]


@pytest.mark.parametrize("first", ["held", "trained better"])
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_both_are_their_equations(kind, options, first, masks):
    model, other = network().double(), network().double()
    optimizer, others = (kind(each.parameters(), **options) for each in (model, other))
    if first == "held":
        bb.hold(model, masks, optimizer)
    bb.ham(optimizer, ALPHA, BETA)
    sharpness = bb.sam(optimizer, RHO)
    if first != "held":
        bb.hold(model, masks, optimizer)
    by_hand(other, masks)
    previous = []
    for step in range(4):
        optimizer.zero_grad()
        spoil = step % 2 and kind in ELEMENTWISE
        before = [p.detach().clone() for p in model.parameters()]
        with sharpness.perturbed():
            bb.audit(model, masks)
            assert all(torch.equal(p, b) == (step == 0) for p, b in zip(model.parameters(), before, strict=True))
            backward(model)
        assert all(map(torch.equal, model.parameters(), before))
        if spoil:
            spoiled(model, masks)
        optimizer.step()
        previous = by_the_equations(other, masks, others, previous, spoil)
        held.assert_held(model, masks)
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def test_the_exponent_of_ham_is_limited():
    layer = nn.Linear(3, 1, bias=False)
    layer.weight.data = torch.tensor([[2.0, -2.0, 0.0]])
    layer.weight.grad = torch.tensor([[1.0, 1.0, 1.0]])
    optimizer = optim.SGD(layer.parameters(), lr=0.0)
    handle = bb.ham(optimizer, 1e6)
    optimizer.param_groups[0]["lr"] = torch.tensor(1.0)  # as a CUDA graph takes it
    optimizer.step()
    assert layer.weight.tolist() == [pytest.approx([math.exp(-5), -3 * math.exp(5), -math.exp(5)])]
    handle.remove()
    optimizer.step()
    assert layer.weight[0, 1].item() == pytest.approx(-3 * math.exp(5) - 1)
    assert not optimizer._optimizer_step_pre_hooks


def test_ham_does_not_wait_for_the_value_of_a_learning_rate():
    class Still(optim.SGD):
        def step(self): ...

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            names.append(str(operation))
            return operation(*args, **(kwargs or {}))

    names, weight = [], nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    optimizer = Still([weight], lr=torch.tensor(0.1))
    bb.ham(optimizer)
    with Seen():
        optimizer.step()
    assert "aten._foreach_exp_.default" in names
    assert "aten._local_scalar_dense.default" not in names


def test_gradients_may_be_sparse_as_those_of_an_embedding():
    ends = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 3, sparse=sparse), nn.Linear(3, 2))
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        bb.ham(optimizer)
        sharpness = bb.sam(optimizer, RHO)
        for _ in range(3):
            optimizer.zero_grad()
            with sharpness.perturbed():
                model(torch.tensor([0, 1, 1])).square().sum().backward()
            optimizer.step()
        ends.append([p.detach() for p in model.parameters()])
    assert all(map(torch.allclose, *ends))


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_parts_of_a_batch_and_checkpoints_change_nothing(kind, masks):
    def fresh():
        model = network().double()
        optimizer = kind(model.parameters(), lr=0.01, weight_decay=0.1)
        bb.hold(model, masks, optimizer)
        bb.ham(optimizer)
        return model, optimizer, bb.sam(optimizer, RHO)

    def train(model, optimizer, sharpness, steps, parts=1):
        for _ in range(steps):
            optimizer.zero_grad()
            for x, y in zip(X.chunk(parts), Y.chunk(parts), strict=True):
                with sharpness.perturbed():
                    (nn.functional.cross_entropy(model(x.double()), y) / parts).backward()
            optimizer.step()

    whole, parted, first, second = (fresh() for _ in range(4))
    train(*whole, 4)
    train(*parted, 4, parts=4)
    for p, q in zip(whole[0].parameters(), parted[0].parameters(), strict=True):
        torch.testing.assert_close(p, q)
    train(*first, 2)
    second[0].load_state_dict(first[0].state_dict())
    second[1].load_state_dict(first[1].state_dict())
    train(*second, 2)
    held.assert_same(second[0], whole[0])


def test_what_would_go_wrong_unseen_gets_a_sentence(model):
    optimizer = optim.SGD(model.parameters(), lr=0.1, fused=True)
    for wrong in ({"alpha": -1}, {"beta": -1e-3}, {"alpha": float("nan")}):
        with pytest.raises(ValueError, match="of ham must be at least 0; change them"):
            bb.ham(optimizer, **wrong)
    with pytest.raises(ValueError, match="rho=-1 of sam must be at least 0; change it"):
        bb.sam(optimizer, rho=-1)
    sharpness = bb.sam(optimizer)
    held.train(model, optimizer, 1)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=r"call step\(\) after its block"), sharpness.perturbed():
        optimizer.step()
    assert all(map(torch.equal, model.parameters(), before))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(ValueError, match="pass fused=False, or use bf16"):
        scaler.step(optimizer)


def test_weights_survive_an_interrupt_before_sam_has_copied_them(model, monkeypatch):
    optimizer = held.sgd(model)
    sharpness = bb.sam(optimizer)
    held.train(model, optimizer, 1)
    before = [p.detach().clone() for p in model.parameters()]
    monkeypatch.setattr(torch, "_foreach_copy_", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), sharpness.perturbed():
        pass
    assert all(map(torch.equal, model.parameters(), before))
