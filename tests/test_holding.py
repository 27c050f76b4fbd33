"""Held weights stay at exactly zero, and the kept weights train as if the pruned ones did not exist."""

import copy
import gc
import math
import re
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils._python_dispatch import TorchDispatchMode

from barebones.holding import ELEMENTWISE, INTEGER, Hold, audit, hold
from barebones.scope import matched, parameters

X, Y = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5


def network(seed=1):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 5))


def random_masks(model, keep=0.3):
    generator = torch.Generator().manual_seed(2)
    weights = {name: p for name, p in parameters(model).items() if name.endswith("weight")}
    return {name: torch.rand(p.shape, generator=generator) < keep for name, p in weights.items()}


@pytest.fixture
def model():
    return network()


@pytest.fixture
def masks():
    return random_masks(network())


def sgd(model, **options):
    return optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})


def backward(model, x=X, y=Y):
    loss = F.cross_entropy(model(x.to(next(model.parameters()).dtype)), y)
    loss.backward()
    return loss


def train(model, optimizer, steps, between=lambda: None):
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model)
        between()
        optimizer.step()


def assert_same(model, other):
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert p.isfinite().all(), name
        assert torch.equal(p, q), name


def assert_held(model, masks):
    audit(model, masks)
    for name, p, mask in matched(model, masks):
        pruned = p.detach()[~mask]
        assert pruned.numel(), name
        assert not pruned.view(INTEGER[p.element_size()]).any(), name  # not even -0.0
        assert p[mask].count_nonzero() == mask.count_nonzero(), name


def assert_not_held(model, masks):
    with pytest.raises(ValueError, match=r"not zero: 0\.weight \("):
        audit(model, masks)


def state_of(optimizer, p):
    return [v for v in optimizer.state[p].values() if torch.is_tensor(v) and v.shape == p.shape]


class Lamb(optim.Optimizer):
    """Adam with a trust ratio: the norm of a step is that of the weights. Without eps, so that 0/0 would show."""

    def __init__(self, params, lr=0.05, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                moments = self.state[p].setdefault("moments", [torch.zeros_like(p), torch.zeros_like(p)])
                moments[0].lerp_(p.grad, 0.1)
                moments[1].lerp_(p.grad.square(), 0.1)
                update = moments[0] / (moments[1].sqrt() + 1e-6) + group["weight_decay"] * p
                p.sub_(update * (group["lr"] * p.norm() / update.norm()))
        return loss


class Noise(optim.Optimizer):
    """Moves every weight at random, computes the loss there, and moves again: it does not respect zeros."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure):
        for p in self.param_groups[0]["params"]:
            p.add_(torch.randn_like(p))
            self.state[p]["seen"] = torch.randn_like(p)
            self.state[p]["codes"] = torch.ones(p.shape, dtype=torch.uint8)
        with torch.enable_grad():
            loss = closure()
        for p in self.param_groups[0]["params"]:
            p.sub_(torch.randn_like(p))
        return loss


class Clipped(optim.SGD):
    """A subclass that uses a norm and calls its parent's step, so that torch runs every hook twice."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)


OPTIMIZERS = {
    "sgd": (optim.SGD, dict(lr=0.1, weight_decay=0.01)),
    "momentum": (optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01)),
    "nesterov": (optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "adam": (optim.Adam, dict(lr=0.01, weight_decay=0.01)),
    "amsgrad": (optim.Adam, dict(lr=0.01, amsgrad=True)),
    "adamw": (optim.AdamW, dict(lr=0.01, weight_decay=0.1, amsgrad=True, maximize=True)),
    "rmsprop": (optim.RMSprop, dict(lr=0.01, momentum=0.9, centered=True, weight_decay=0.01)),
    "adagrad": (optim.Adagrad, dict(lr=0.05, weight_decay=0.01, initial_accumulator_value=0.1)),
    "adadelta": (optim.Adadelta, dict(lr=1.0, weight_decay=0.01)),
    "adamax": (optim.Adamax, dict(lr=0.01, weight_decay=0.01)),
    "nadam": (optim.NAdam, dict(lr=0.01, weight_decay=0.01, decoupled_weight_decay=True)),
    "radam": (optim.RAdam, dict(lr=0.01, weight_decay=0.01)),
    "rprop": (optim.Rprop, dict(lr=0.01)),
    "asgd": (optim.ASGD, dict(lr=0.1, t0=2, weight_decay=0.01)),
    "adafactor": (optim.Adafactor, dict(lr=0.05, weight_decay=0.01)),
    "lamb": (Lamb, {}),
    "subclass": (Clipped, dict(lr=0.1, momentum=0.9, weight_decay=0.01)),
}
FUSED = {optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad}
CASES = [
    pytest.param(kind, {**options, **flag}, id="-".join([name, *flag]))
    for name, (kind, options) in OPTIMIZERS.items()
    for flag in ({}, {"foreach": True}, {"fused": True})
    if not flag or ("foreach" in flag and kind not in (Lamb, Clipped)) or ("fused" in flag and kind in FUSED)
]


def by_hand(model, masks, *optimizers, gradients=True):
    """Mask weights, state and perhaps gradients, as a careful user would without the library."""
    for _, p, mask in matched(model, masks):
        state = [value for optimizer in optimizers if p in optimizer.state for value in optimizer.state[p].values()]
        state = [t for value in state for t in (value if isinstance(value, list) else [value])]
        for t in [p.data, *([p.grad] if gradients and p.grad is not None else []), *state]:
            if t.shape == p.shape:
                t[~mask] = 0.0


def twins(kind, options, dense_steps=3):
    """Return two equal networks with their optimizers, trained dense so far."""
    pair = []
    for _ in range(2):
        model = network()
        optimizer = kind(model.parameters(), **options)
        train(model, optimizer, dense_steps)
        pair += [model, optimizer]
    return pair


# ---- every optimizer ----


def test_every_elementwise_optimizer_is_tested():
    assert {kind for kind, _ in OPTIMIZERS.values()} | {optim.SparseAdam} >= ELEMENTWISE
    assert all(kind.__module__.startswith("torch.optim.") for kind in ELEMENTWISE)


@pytest.mark.parametrize(("kind", "options"), CASES)
@pytest.mark.parametrize("dense_steps", [0, 3])
def test_kept_weights_train_as_masked_by_hand(kind, options, dense_steps, masks):
    """Old state, huge, infinite and NaN gradients of pruned weights make no difference to the kept ones."""
    model, optimizer, other, others = twins(kind, options, dense_steps)
    hold(model, masks, optimizer)
    assert_held(model, masks)
    by_hand(other, masks, others)

    def spoil():
        for _, p, mask in matched(model, masks):
            poison = torch.tensor([1e30, -1e30, math.inf, -math.inf, math.nan, -1.0]).repeat(p.numel())
            p.grad[~mask] = poison[: int((~mask).count_nonzero())]

    for step in range(4):
        train(model, optimizer, 1, spoil if step % 2 else lambda: None)
        train(other, others, 1, lambda: by_hand(other, masks, others))
        by_hand(other, masks, others)
        assert_held(model, masks)
        assert_same(model, other)


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_hold_cleans_old_state_of_pruned_weights_only(kind, options, masks):
    model, optimizer, other, others = twins(kind, options)
    hold(model, masks, optimizer)
    for (name, p, mask), (_, q, _) in zip(matched(model, masks), matched(other, masks), strict=True):
        for a, b in zip([p, p.grad, *state_of(optimizer, p)], [q, q.grad, *state_of(others, q)], strict=True):
            assert not a[~mask].any(), name
            assert torch.equal(a[mask], b[mask]), name
    state, before = optimizer.state_dict()["state"], others.state_dict()["state"]
    for i in before:  # counters and factors stay
        assert all(torch.equal(state[i][k], v) for k, v in before[i].items() if torch.is_tensor(v) and v.dim() == 0)
    assert torch.equal(model[0].bias, other[0].bias)


def masked_training(model, masks, optimizer, steps, closure=False):
    """Train the network whose weights are p * mask, with nothing but autograd."""

    def loss():
        optimizer.zero_grad()
        weights = {name: p * masks[name] if name in masks else p for name, p in model.named_parameters()}
        value = F.cross_entropy(torch.func.functional_call(model, weights, (X,)), Y)
        value.backward()
        return value

    for _ in range(steps):
        optimizer.step(loss) if closure else (loss(), optimizer.step())


def pruned_copy(model, masks):
    other = copy.deepcopy(model)
    for _, p, mask in matched(other, masks):
        p.data[~mask] = 0.0
        p.grad = None
    return other


@pytest.mark.parametrize("closure", [False, "positional", "keyword"])
def test_trust_ratio_sees_the_pruned_network_only(closure, model, masks):
    other, loose = pruned_copy(model, masks), pruned_copy(model, masks)
    masked_training(other, masks, Lamb(other.parameters()), 4, closure=bool(closure))

    optimizer = Lamb(model.parameters())
    hold(model, masks, optimizer)

    def loss():
        optimizer.zero_grad()
        return backward(model)

    for _ in range(4):
        if not closure:
            train(model, optimizer, 1)
        else:
            value = optimizer.step(loss) if closure == "positional" else optimizer.step(closure=loss)
            assert value.requires_grad
    assert_held(model, masks)
    assert_same(model, other)

    train(loose, Lamb(loose.parameters()), 4)  # the ratio depends on the pruned weights
    assert not torch.equal(loose[0].bias, other[0].bias)


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
@pytest.mark.parametrize("dense_steps", [0, 2])
def test_lbfgs_forgets_the_dense_network_and_trains_the_pruned_one(line_search, dense_steps, model, masks):
    optimizer = optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, line_search_fn=line_search)

    def loss():
        optimizer.zero_grad()
        return backward(model)

    for _ in range(dense_steps):
        optimizer.step(loss)
    other = pruned_copy(model, masks)
    fresh = optim.LBFGS(other.parameters(), lr=0.1, max_iter=4, line_search_fn=line_search)
    hold(model, masks, optimizer)
    masked_training(other, masks, fresh, 3, closure=True)
    for _ in range(3):
        optimizer.step(loss)
    assert_held(model, masks)
    assert_same(model, other)

    memory = copy.deepcopy(optimizer.state_dict())  # a held run resumes with its memory
    optimizer.load_state_dict(memory)
    assert optimizer.state_dict()["state"][0]["n_iter"] == memory["state"][0]["n_iter"] > 1


def test_muon_and_a_second_optimizer_for_the_rest(masks):
    def optimizers(model):
        matrices = [p for p in model.parameters() if p.dim() == 2]
        return optim.Muon(matrices, lr=0.05), optim.AdamW([p for p in model.parameters() if p.dim() != 2], lr=0.01)

    model, other = network(), network()
    ours, theirs = optimizers(model), optimizers(other)
    for each, both in ((model, ours), (other, theirs)):
        for _ in range(2):
            each.zero_grad()
            backward(each)
            for optimizer in both:
                optimizer.step()
    hold(model, masks, ours)
    by_hand(other, masks, *theirs)
    for _ in range(3):
        for each in (model, other):
            each.zero_grad()
            backward(each)
        by_hand(other, masks, *theirs)
        for optimizer in (*ours, *theirs):
            optimizer.step()
        by_hand(other, masks, *theirs)
        assert_held(model, masks)
        assert_same(model, other)


def test_a_users_optimizer_that_moves_everything(model, masks):
    optimizer = Noise(model.parameters())
    hold(model, masks, optimizer)

    def loss():
        assert_held(model, masks)  # the loss is that of the pruned network, although the optimizer moved its weights
        return backward(model)

    with torch.random.fork_rng():
        for _ in range(3):
            assert optimizer.step(closure=loss).isfinite()
            assert_held(model, masks)
    for _, p, mask in matched(model, masks):
        assert not optimizer.state[p]["seen"][~mask].any()
        assert optimizer.state[p]["codes"].all()  # quantized state is left alone


def test_averaged_weights_of_asgd_stay_pruned(model, masks):
    optimizer = optim.ASGD(model.parameters(), lr=0.1, t0=0)
    hold(model, masks, optimizer)
    train(model, optimizer, 4)
    for _, p, mask in matched(model, masks):
        assert not optimizer.state[p]["ax"][~mask].any()
        assert optimizer.state[p]["ax"][mask].all()


# ---- ways of training ----


def with_closure(model, optimizer, memory, step):
    assert optimizer.step(lambda: (optimizer.zero_grad(), backward(model))[1]).isfinite()


def accumulating(model, optimizer, memory, step):
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    for part in range(2):
        backward(model, X[part::2], Y[part::2])
    optimizer.step()


def with_schedule(model, optimizer, memory, step):
    schedule = memory.setdefault("schedule", optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
    train(model, optimizer, 1)
    schedule.step()


def with_scaler(model, optimizer, memory, step):
    scaler = memory.setdefault("scaler", torch.amp.GradScaler("cpu", init_scale=8.0))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(X), Y) * (math.inf if step == 1 else 1.0)  # the scaler leaves that step out
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == (4.0 if step else 8.0)


def channels_last(model, optimizer, memory, step):
    model.to(memory_format=torch.channels_last)
    train(model, optimizer, 1)


@pytest.mark.parametrize("way", [with_closure, accumulating, with_schedule, with_scaler, channels_last])
@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["plain", "fused"])
def test_ways_of_training(way, options, masks):
    model, optimizer, other, others = twins(optim.AdamW, {"lr": 0.01, **options})
    hold(model, masks, optimizer)
    by_hand(other, masks, others)
    memories = {}, {}
    for step in range(4):
        way(model, optimizer, memories[0], step)
        way(other, others, memories[1], step)
        by_hand(other, masks, others)
        assert_held(model, masks)
        assert_same(model, other)


def test_an_elementwise_step_costs_one_operation_per_pruned_layer(model, masks):
    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen[function.overloadpacket.__name__] += 1
            return function(*args, **(kwargs or {}))

    masks = {**masks, "5.weight": torch.ones(5, 8, dtype=torch.bool)}  # all weights of the last layer are kept
    optimizer = optim.SGD(model.parameters(), lr=0.1, foreach=False)
    counts = []
    for held in (False, True):
        if held:
            hold(model, masks, optimizer)
        backward(model)
        seen = Counter()
        with Count():
            optimizer.step()
        counts.append(seen)
    extra = counts[1] - counts[0]
    assert {name: extra[name] for name in extra if name not in ("detach", "view", "alias")} == {"bitwise_and_": 2}


@pytest.mark.parametrize("clip", [False, True])
def test_gradients_option_masks_as_they_accumulate(clip, masks):
    model, optimizer, other, others = twins(optim.SGD, dict(lr=0.1, momentum=0.9))
    model[0].weight.requires_grad_(False)  # frozen when `hold` is called, and trained below
    handle = hold(model, masks, optimizer, gradients=True)
    assert not model[0].weight.requires_grad
    model[0].weight.requires_grad_(True)
    by_hand(other, masks, others)
    for _ in range(3):
        for each in (model, other):
            each.zero_grad()
            for part in range(2):
                backward(each, X[part::2], Y[part::2])
        for _, p, mask in matched(model, masks):
            assert not p.grad[~mask].any()
            assert p.grad[mask].any()
        by_hand(other, masks, others)
        norms = [nn.utils.get_total_norm([p.grad for p in each.parameters()]) for each in (model, other)]
        assert norms[0] == norms[1]
        if clip:
            for each in (model, other):
                nn.utils.clip_grad_norm_(each.parameters(), 0.1)
        optimizer.step()
        others.step()
        by_hand(other, masks, others)
        assert_held(model, masks)
        assert_same(model, other)
    handle.remove()
    model.zero_grad()
    backward(model)
    assert all(p.grad[~mask].any() for _, p, mask in matched(model, masks))


@pytest.mark.parametrize("gradients", [False, True])
def test_sparse_gradients(gradients):
    model = nn.Sequential(nn.Embedding(10, 3, sparse=True), nn.Flatten(), nn.Linear(6, 2))
    masks = random_masks(model, 0.5)
    optimizers = [optim.SparseAdam(model[0].parameters(), lr=0.1), Lamb(model[2].parameters())]
    unknown = type("Unknown", (optim.SGD,), {})(model[0].parameters(), lr=0.1)  # not elementwise: clears gradients

    def step(*steppers):
        model.zero_grad()
        model(torch.tensor([[1, 2], [1, 1], [5, 7]])).square().sum().backward()
        assert model[0].weight.grad.is_sparse
        pruned_gradients = model[0].weight.grad.to_dense()[~masks["0.weight"]]
        for optimizer in steppers:
            optimizer.step()
        return pruned_gradients

    step(*optimizers)
    with hold(model, masks, [*optimizers, unknown], gradients=gradients):
        for steppers in (optimizers, optimizers, [unknown]):
            before = model[0].weight.clone()
            pruned_gradients = step(*steppers)
            assert not gradients or not pruned_gradients.any()
            assert not torch.equal(before, model[0].weight)
            assert model[0].weight.grad.is_sparse
            audit(model, masks)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_masks_follow_a_model_that_changes_its_type(dtype, gradients, model, masks):
    optimizer = sgd(model)
    handle = hold(model, masks, optimizer, gradients=gradients)
    model.to(dtype)
    train(model, optimizer, 3)
    assert model[0].weight.dtype == dtype
    assert all(bits.element_size() == p.element_size() for p, bits in handle._bits.items())  # converted once
    assert_held(model, masks)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_masks_follow_a_model_to_the_gpu(model, masks):
    optimizer = optim.AdamW(model.parameters(), lr=0.01, fused=True)
    hold(model, masks, optimizer, gradients=True)
    model.cuda()
    for _ in range(3):
        optimizer.zero_grad()
        backward(model, X.cuda(), Y.cuda())
        optimizer.step()
        assert_held(model, masks)


@pytest.mark.parametrize("kind", [optim.Adam, Lamb])
def test_loading_a_dense_checkpoint_cleans_again(kind, masks):
    model, optimizer, other, others = twins(kind, {})
    handle = hold(model, masks, optimizer)
    optimizer.load_state_dict(copy.deepcopy(others.state_dict()))
    for _, p, mask in matched(model, masks):
        assert not any(value[~mask].any() for value in state_of(optimizer, p))
    model.load_state_dict(other.state_dict())
    handle.apply()
    by_hand(other, masks, others)
    assert_held(model, masks)
    for each, its in ((model, optimizer), (other, others)):
        train(each, its, 1, (lambda: by_hand(other, masks, others)) if each is other else (lambda: None))
    by_hand(other, masks, others)
    assert_same(model, other)


def test_parameters_added_to_the_optimizer_later(model, masks):
    optimizer = optim.SGD(model[:4].parameters(), lr=0.1, momentum=0.9)
    with pytest.warns(UserWarning, match=r"no optimizer has 5\.weight"):
        hold(model, masks, optimizer)
    assert_held(model, masks)  # also the weights that no optimizer has
    optimizer.add_param_group({"params": model[5].parameters(), "lr": 0.2})
    before = model[5].weight.clone()
    train(model, optimizer, 3)
    assert not torch.equal(before, model[5].weight)
    assert_held(model, masks)


def test_frozen_parameters_need_no_optimizer(model, masks):
    model[0].weight.requires_grad_(False)
    optimizer = optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with hold(model, masks, optimizer, gradients=True):
        train(model, optimizer, 2)
    assert_held(model, masks)
    assert not model[0].weight.requires_grad
    assert model[0].weight.grad is None


def test_optimizer_in_backward(model, masks):
    optimizers = {p: optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}
    hold(model, masks, optimizers.values())

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        backward(model)
        assert_held(model, masks)


def test_remove_stops_holding_and_leaves_no_hooks(model, masks):
    for kind in (optim.SGD, Lamb):
        optimizer = kind(model.parameters(), lr=0.1)
        hooks = [value for name, value in vars(optimizer).items() if name.endswith("_hooks")]
        handle = hold(model, masks, optimizer, gradients=True)
        assert isinstance(handle, Hold)
        assert sum(map(len, hooks)) == (2 if kind is optim.SGD else 3)
        handle.remove()
        handle.remove()
        assert not any(hooks)
        assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
        train(model, optimizer, 1)
        assert_not_held(model, masks)
        handle.apply()
        assert_held(model, masks)


def test_an_exception_ends_the_with_block(model, masks):
    optimizer = sgd(model, momentum=0)

    def stop():
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), hold(model, masks, optimizer):
        train(model, optimizer, 1, stop)
    assert not optimizer._optimizer_step_post_hooks


def test_a_dropped_handle_keeps_holding_and_changing_the_masks_changes_nothing(model, masks):
    before = copy.deepcopy(masks)
    optimizer = sgd(model)
    hold(model, masks, optimizer)
    gc.collect()
    assert all(torch.equal(masks[name], before[name]) for name in before)
    for mask in masks.values():
        mask.fill_(True)
    train(model, optimizer, 2)
    assert_held(model, before)


@pytest.mark.parametrize("gradients", [False, True])
def test_names_state_and_copies_stay_plain(gradients, model, masks):
    keys, attributes = list(model.state_dict()), {id(m): set(vars(m)) for m in model.modules()}
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    hold(model, masks, optimizer, gradients=gradients)
    train(model, optimizer, 2)
    assert list(model.state_dict()) == keys
    assert {id(m): set(vars(m)) for m in model.modules()} == attributes
    assert not any(vars(p) for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())

    twin, twins_optimizer = copy.deepcopy((model, optimizer))  # a copy is clean, but not held
    assert_held(twin, masks)
    train(twin, twins_optimizer, 1)
    assert_not_held(twin, masks)
    assert_held(model, masks)

    average = torch.optim.swa_utils.AveragedModel(model)
    train(model, optimizer, 1)
    average.update_parameters(model)
    audit(average.module, masks)

    fresh = network(seed=5)
    fresh.load_state_dict(model.state_dict())
    assert_held(fresh, masks)


# ---- models and masks ----


def test_compiled_and_wrapped_models_use_canonical_names(model, masks):
    compiled = torch.compile(model, backend="eager")
    for wrapped in (compiled, nn.DataParallel(model), nn.DataParallel(compiled)):
        optimizer = sgd(wrapped)
        with hold(wrapped, masks, optimizer, gradients=True):
            train(wrapped, optimizer, 2)
            assert_held(wrapped, masks)
            assert_held(model, masks)
        train(wrapped, optimizer, 1)
        assert_not_held(wrapped, masks)


def test_distributed_data_parallel(model, masks):
    plain = network()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        for each in (wrapped, plain):
            optimizer = Lamb(each.parameters())
            hold(each, masks, optimizer, gradients=True)
            train(each, optimizer, 3)
        assert_held(wrapped, masks)
        assert_same(model, plain)
    finally:
        torch.distributed.destroy_process_group()


def test_tied_weights_are_held_under_their_first_name():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    optimizer = sgd(model)
    hold(model, {"0.weight": torch.eye(4) > 0}, optimizer)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert model[2].weight.count_nonzero() == 4
    with pytest.raises(ValueError, match=r"no parameter 2\.weight.*first name"):
        hold(model, {"2.weight": torch.eye(4) > 0}, optimizer)


def test_an_optimizer_of_another_model_is_refused(model, masks):
    stale = optim.SGD(copy.deepcopy(model).parameters())
    good = optim.SGD(model.parameters())
    biases = optim.Adam([p for p in model.parameters() if p.dim() == 1])
    dense = copy.deepcopy(model.state_dict())
    for bad in (stale, [good, stale], [stale]):
        with pytest.raises(ValueError, match=r"SGD has none of the model's parameters.*another model.*wrapped"):
            hold(model, masks, bad)
    with pytest.raises(ValueError, match="has none of the 3 masked parameters"):
        hold(model, masks, biases)
    with pytest.raises(ValueError, match="has none of the 3 masked parameters"):
        hold(model, masks, [])
    assert all(torch.equal(value, dense[name]) for name, value in model.state_dict().items())  # nothing was changed
    hold(model, masks, [good, biases])  # the second has nothing to hold, but belongs to the model


def test_what_is_no_optimizer_is_refused(model, masks):
    class Wrapper(optim.Optimizer):  # like that of accelerate, which does not initialize itself
        def __init__(self, optimizer):
            self.optimizer = optimizer

    for bad in (None, ["sgd"], Wrapper(optim.SGD(model.parameters()))):
        with pytest.raises(ValueError, match=r"(NoneType|str|Wrapper) is not a torch\.optim\.Optimizer; if it wraps"):
            hold(model, masks, bad)


def test_masks_that_do_not_fit_are_named(model, masks):
    optimizer = optim.SGD(model.parameters())
    for wrong, message in (
        ({"module.0.weight": masks["0.weight"]}, r"no parameter module\.0\.weight.*such as '0\.weight'"),
        ({"3.weight": masks["3.weight"].T}, r"mask of 3\.weight has the shape 64×8, the weight 8×64"),
        ({"3.weight": masks["3.weight"].float()}, r"mask of 3\.weight is not a bool tensor but torch\.float32"),
        ({"3.weight": masks["3.weight"].tolist()}, r"mask of 3\.weight is not a bool tensor but list"),
        ({"5.weight": masks["3.weight"], "a": X}, r"mask of 5\.weight has .*, the model has no parameter a\."),
        (dict.fromkeys("abcdefg", masks["0.weight"]), r"no parameter e and 2 more\."),
    ):
        for call in (lambda w=wrong: hold(model, {**masks, **w}, optimizer), lambda w=wrong: audit(model, w)):
            with pytest.raises(ValueError, match=message):
                call()
    with pytest.raises(ValueError, match="weight is lazy"):
        matched(nn.LazyLinear(3), {"weight": torch.ones(3, 3) > 0})
    assert not optimizer._optimizer_step_post_hooks


def test_audit_counts_what_is_not_zero(model, masks):
    with torch.no_grad():
        for _, p, mask in matched(model, masks):
            p[~mask] = -0.0
    assert audit(model, masks) is None
    gone = [tuple(index) for index in (~masks["3.weight"]).nonzero().tolist()]
    with torch.no_grad():
        model[3].weight[gone[0]] = math.nan
        model[3].weight[gone[1]] = 1e-45  # the smallest there is
        model[0].weight[tuple((~masks["0.weight"]).nonzero()[0])] = -math.inf
        model[5].weight[masks["5.weight"]] = 7.0
    first, second = ((~masks[name]).count_nonzero() for name in ("0.weight", "3.weight"))
    message = f"3 pruned weights are not zero: 0.weight (1 of {first}), 3.weight (2 of {second}); "
    with pytest.raises(ValueError, match=re.escape(message)):
        audit(model, masks)


@pytest.mark.parametrize("later", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_clearing_is_exact_for_every_bit_pattern(dtype, later):
    """Pruned entries become 0.0 and kept ones keep every bit, whatever type the weights had when they were held."""
    layer = nn.Linear(4096, 1, bias=False, dtype=later)
    generator = torch.Generator().manual_seed(3)
    mask = torch.rand(1, 4096, generator=generator) < 0.5
    handle = hold(layer, {"weight": mask}, optim.SGD(layer.parameters()))
    layer.to(dtype)
    width = layer.weight.element_size()
    raw = torch.randint(0, 256, (4096, width), dtype=torch.uint8, generator=generator)  # also NaN and subnormal numbers
    layer.weight.data.copy_(raw.view(dtype).view(1, 4096))
    handle.apply()
    assert torch.equal(layer.weight.detach().view(torch.uint8).view(4096, width), raw * mask.view(-1, 1))
