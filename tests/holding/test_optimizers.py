"""With every optimizer, held weights stay at zero and the kept ones train as if the pruned ones did not exist."""

import copy
from functools import partial

import held
import pytest
import torch
import torch.nn.functional as F
from held import CASES, OPTIMIZERS, Lamb, X, Y, backward, by_hand, network, spoiled, train, twins
from torch import optim
from zoo import masked

from barebones.holding import ELEMENTWISE, hold


def test_every_elementwise_optimizer_is_tested():
    assert {kind for kind, _ in OPTIMIZERS.values()} | {optim.SparseAdam} >= ELEMENTWISE
    assert all(kind.__module__.startswith("torch.optim.") for kind in ELEMENTWISE)


@pytest.mark.parametrize(("kind", "options"), CASES)
@pytest.mark.parametrize("dense_steps", [0, 3])
def test_kept_weights_train_as_masked_by_hand(kind, options, dense_steps, masks):
    """Old state, huge, infinite and NaN gradients of pruned weights make no difference to the kept ones."""
    model, optimizer, other, others = twins(kind, options, dense_steps)
    hold(model, masks, optimizer)
    held.assert_held(model, masks)
    held.assert_state_held(optimizer, model, masks)
    by_hand(other, masks, others)

    for step in range(4):
        train(model, optimizer, 1, partial(spoiled, model, masks) if step % 2 else lambda: None)
        train(other, others, 1, lambda: by_hand(other, masks, others))
        by_hand(other, masks, others)
        held.assert_held(model, masks)
        held.assert_same(model, other)
        if kind not in ELEMENTWISE:
            held.assert_state_held(optimizer, model, masks)
    for i, state in others.state_dict()["state"].items():  # counters and factors stay
        scalars = {key: value for key, value in state.items() if torch.is_tensor(value) and value.dim() == 0}
        assert all(torch.equal(optimizer.state_dict()["state"][i][key], value) for key, value in scalars.items())


class SAM(optim.Optimizer):
    """Sharpness-aware minimization, as its users write it: two steps, between which the weights are perturbed."""

    def __init__(self, params, base=optim.SGD, rho=0.5, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        params = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in params]).norm()
        for p in params:
            self.state[p]["old"] = p.clone()
            p.add_(p.grad * self.param_groups[0]["rho"] / norm)

    @torch.no_grad()
    def second_step(self):
        for p, state in self.state.items():
            p.copy_(state["old"])
        self.base_optimizer.step()

    def step(self, closure=None):
        self.first_step()
        torch.enable_grad()(closure)()
        self.second_step()


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize(("base", "options"), [(optim.SGD, dict(momentum=0.9)), (optim.Adam, {})])
def test_both_steps_of_sam_see_the_pruned_network_only(base, options, closure, masks):
    model, other = network(), network()
    optimizer, reference = (SAM(m.parameters(), base, lr=0.1, **options) for m in (model, other))
    for m, o in ((model, optimizer), (other, reference)):
        backward(m)
        o.step(partial(backward, m))  # dense: the state remembers pruned weights
    handle = hold(model, masks, optimizer)
    by_hand(other, masks, reference.base_optimizer)
    for _ in range(3):
        backward(model)
        if closure:
            optimizer.step(partial(backward, model))
        else:
            optimizer.first_step()
            held.assert_held(model, masks)
            backward(model)
            optimizer.second_step()
        held.assert_held(model, masks)
        for half in (reference.first_step, reference.second_step):
            backward(other)
            by_hand(other, masks)
            half()
            by_hand(other, masks, reference.base_optimizer)
        held.assert_same(model, other)
    handle.remove()
    backward(model)
    optimizer.first_step()
    held.assert_not_held(model, masks)


def masked_training(model, masks, optimizer, steps):
    """Train the network whose weights are p * mask, with nothing but autograd."""

    def loss():
        optimizer.zero_grad()
        weights = {name: p * masks[name] if name in masks else p for name, p in model.named_parameters()}
        value = F.cross_entropy(torch.func.functional_call(model, weights, (X,)), Y)
        value.backward()
        return value

    for _ in range(steps):
        optimizer.step(loss)


def without_closure(optimizer, loss):
    loss()
    optimizer.step()


def with_closure(optimizer, loss):
    assert optimizer.step(loss).requires_grad


def with_closure_by_name(optimizer, loss):
    assert optimizer.step(closure=loss).requires_grad


LBFGS = partial(optim.LBFGS, lr=0.1, max_iter=4)
WOLFE = partial(LBFGS, line_search_fn="strong_wolfe")
STEPS = [(Lamb, step, 0) for step in (without_closure, with_closure, with_closure_by_name)]
STEPS += [(kind, with_closure, dense_steps) for kind in (LBFGS, WOLFE) for dense_steps in (0, 2)]


@pytest.mark.parametrize(("kind", "step", "dense_steps"), STEPS)
def test_optimizers_that_combine_weights_see_the_pruned_network_only(kind, step, dense_steps, model, masks):
    """Trust ratios, line searches and curvature; L-BFGS forgets those of the dense network."""
    optimizer = kind(model.parameters())

    def loss():
        optimizer.zero_grad()
        return backward(model)

    for _ in range(dense_steps):
        step(optimizer, loss)
    other, loose = masked(model, masks), masked(model, masks)
    masked_training(other, masks, kind(other.parameters()), 3)
    hold(model, masks, optimizer)
    for _ in range(3):
        step(optimizer, loss)
    held.assert_held(model, masks)
    held.assert_same(model, other)
    memory = copy.deepcopy(optimizer.state_dict())  # a held run resumes with its memory
    optimizer.load_state_dict(memory)
    assert optimizer.state_dict()["state"].keys() == memory["state"].keys() != set()

    masked_training(loose, {}, kind(loose.parameters()), 3)  # it depends on the pruned weights
    assert not torch.equal(loose[0].bias, other[0].bias)


class Noise(optim.Optimizer):
    """Moves every weight at random, computes the loss there, and moves again: it does not respect zeros."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure):
        for loss in (torch.enable_grad()(closure), lambda: None):
            for p in self.param_groups[0]["params"]:
                p.add_(torch.randn_like(p))
            loss()


def test_a_users_optimizer_that_moves_everything(model, masks):
    optimizer = Noise(model.parameters())
    hold(model, masks, optimizer)

    def loss():
        held.assert_held(model, masks)  # although the optimizer has moved its weights
        backward(model)

    with torch.random.fork_rng():
        for _ in range(3):
            optimizer.step(closure=loss)
            held.assert_held(model, masks)
