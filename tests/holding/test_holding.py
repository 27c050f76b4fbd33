"""Held weights stay at exactly zero, whatever way the model is trained, wrapped, copied or loaded."""

import copy
import gc
import math
import re

import held
import pytest
import torch
from held import Lamb, X, Y, backward, by_hand, network, sgd, train, twins
from references import equal
from torch import nn, optim
from zoo import random_masks

from barebones.files.masks import load_masks, save_masks
from barebones.holding import Hold, audit, hold
from barebones.scope import matched


def test_gradients_option_masks_as_they_accumulate(masks):
    model, optimizer, other, others = twins(optim.SGD, dict(lr=0.1, momentum=0.9))
    model[0].weight.requires_grad_(False)  # frozen when `hold` is called, and trained below
    hold(model, masks, optim.SGD([p for p in model.parameters() if p.requires_grad])).remove()  # without a warning
    handle = hold(model, masks, optimizer, gradients=True)
    assert not model[0].weight.requires_grad
    model[0].weight.requires_grad_(True)
    by_hand(other, masks, others)
    for _ in range(3):
        for each in (model, other):
            each.zero_grad()
            for part in range(2):
                backward(each, X[part::2], Y[part::2])
        assert all(p.grad[mask].any() and not p.grad[~mask].any() for _, p, mask in matched(model, masks))
        by_hand(other, masks, others)
        norms = [nn.utils.get_total_norm([p.grad for p in each.parameters()]) for each in (model, other)]
        assert norms[0] == norms[1]
        for each in (model, other):
            nn.utils.clip_grad_norm_(each.parameters(), 0.1)
        optimizer.step()
        others.step()
        by_hand(other, masks, others)
        held.assert_held(model, masks)
        held.assert_same(model, other)
    handle.remove()
    model.zero_grad()
    backward(model)
    assert all(p.grad[~mask].any() for _, p, mask in matched(model, masks))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("kind", [optim.SparseAdam, type("Unknown", (optim.SGD,), {})])
def test_sparse_gradients(kind, gradients):
    model = nn.Sequential(nn.Embedding(10, 3, sparse=True), nn.Flatten(), nn.Linear(6, 2))
    optimizer, masks = kind(model[0].parameters(), lr=0.1), {"0.weight": random_masks(model, 0.5)["0.weight"]}

    def step():
        model.zero_grad()
        model(torch.tensor([[1, 2], [1, 1], [5, 7]])).square().sum().backward()
        gradient, before = model[0].weight.grad, model[0].weight.clone()
        optimizer.step()
        assert gradient.is_sparse
        assert not torch.equal(before, model[0].weight)
        return bool(gradient.to_dense()[~masks["0.weight"]].any())

    step()
    with hold(model, masks, optimizer, gradients=gradients):
        for _ in range(2):
            assert not (step() and gradients)
            audit(model, masks)


@pytest.mark.gpu
def test_masks_follow_a_model_to_the_gpu(model, masks):
    optimizer = optim.AdamW(model.parameters(), lr=0.01, fused=True)
    hold(model, masks, optimizer, gradients=True)
    model.cuda()
    for _ in range(3):
        optimizer.zero_grad()
        backward(model, X.cuda(), Y.cuda())
        optimizer.step()
        held.assert_held(model, masks)


@pytest.mark.parametrize("kind", [optim.Adam, Lamb])
def test_loading_a_dense_checkpoint_cleans_again(kind, masks):
    model, optimizer, other, others = twins(kind, {})
    handle = hold(model, masks, optimizer)
    optimizer.load_state_dict(copy.deepcopy(others.state_dict()))
    held.assert_state_held(optimizer, model, masks)
    model.load_state_dict(other.state_dict())
    handle.apply()
    by_hand(other, masks, others)
    held.assert_held(model, masks)
    train(model, optimizer, 1)
    train(other, others, 1, lambda: by_hand(other, masks, others))
    by_hand(other, masks, others)
    held.assert_same(model, other)


def test_parameters_added_to_the_optimizer_later(model, masks):
    optimizer = optim.SGD(model[:4].parameters(), lr=0.1, momentum=0.9)
    with pytest.warns(UserWarning, match=r"no optimizer has 5\.weight"):
        hold(model, masks, optimizer)
    held.assert_held(model, masks)  # also the weights that no optimizer has
    optimizer.add_param_group({"params": model[5].parameters(), "lr": 0.2})
    before = model[5].weight.clone()
    train(model, optimizer, 3)
    assert not torch.equal(before, model[5].weight)
    held.assert_held(model, masks)


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
        held.assert_not_held(model, masks)
        handle.apply()
        held.assert_held(model, masks)


def test_the_state_is_a_copy_of_all_masks(model, masks, tmp_path):
    before = masks | {"3.bias": torch.ones(8) > 0}  # nothing of it is pruned
    masks = copy.deepcopy(before)
    model, optimizer = model.to(memory_format=torch.channels_last), sgd(model)
    state = hold(model, masks, optimizer).state_dict()  # the hold outlives its handle
    assert equal(dict(state), before)
    assert equal(masks, before)
    for mask in (*masks.values(), *state.values()):
        mask.fill_(True)
    gc.collect()
    train(model, optimizer, 2)
    held.assert_held(model, {name: mask for name, mask in before.items() if name != "3.bias"})
    handle = hold(model, before, optimizer)
    model.half()
    handle.remove()
    save_masks(handle.state_dict(), tmp_path / "masks.safetensors")
    assert equal(dict(load_masks(tmp_path / "masks.safetensors", model)), before)


def test_masks_of_inference_mode_can_be_exchanged_outside(model, masks):
    with torch.inference_mode():
        handle = hold(model, masks, optim.SGD(model.parameters(), lr=0.1))
    other = {name: ~mask for name, mask in masks.items()}
    handle.load_state_dict(other)
    assert equal(dict(handle.state_dict()), other)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("kind", [optim.Adam, Lamb])
def test_other_masks_of_the_same_network_are_held_from_then_on(kind, gradients, model, masks):
    other = {name: ~mask for name, mask in masks.items()} | {"5.weight": masks["5.weight"] | True}
    optimizer = kind(model.parameters(), lr=0.01)
    handle = hold(model, masks, optimizer, gradients=gradients)
    train(model, optimizer, 2)
    codes = optimizer.state[model[0].weight]["codes"] = torch.ones(model[0].weight.shape, dtype=torch.uint8)
    handle.load_state_dict(other)
    assert equal(dict(handle.state_dict()), other)
    held.assert_state_held(optimizer, model, other)
    train(model, optimizer, 2)
    for name in ("0.weight", "3.weight"):
        held.assert_held(model, {name: other[name]})
    assert model[5].weight.all()
    handle.remove()
    handle.load_state_dict(masks)  # zeroes, but does not hold again
    audit(model, masks)
    assert codes.all()  # quantized state is left alone


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
    held.assert_held(twin, masks)
    train(twin, twins_optimizer, 1)
    held.assert_not_held(twin, masks)
    held.assert_held(model, masks)


def test_compiled_and_wrapped_models_use_canonical_names(model, masks):
    compiled = torch.compile(model, backend="eager")
    for wrapped in (compiled, nn.DataParallel(model), nn.DataParallel(compiled)):
        optimizer = sgd(wrapped)
        with hold(wrapped, masks, optimizer, gradients=True):
            train(wrapped, optimizer, 2)
            held.assert_held(wrapped, masks)
            held.assert_held(model, masks)
        train(wrapped, optimizer, 1)
        held.assert_not_held(wrapped, masks)


def test_distributed_data_parallel(model, masks):
    plain = network()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        for each in (wrapped, plain):
            optimizer = Lamb(each.parameters())
            hold(each, masks, optimizer, gradients=True)
            train(each, optimizer, 3)
        held.assert_held(wrapped, masks)
        held.assert_same(model, plain)
    finally:
        torch.distributed.destroy_process_group()


def test_gradients_are_cleared_where_only_later_masks_prune(model, masks):
    everything = {name: torch.ones_like(mask) for name, mask in masks.items()}
    handle = hold(model, everything, sgd(model), gradients=True)
    handle.load_state_dict(masks)
    held.backward(model)
    assert not any(model.get_parameter(name).grad[~mask].any() for name, mask in masks.items())
    handle.load_state_dict(everything)
    held.backward(model)
    assert all(model.get_parameter(name).grad[~mask].any() for name, mask in masks.items())


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


class Wrapper(optim.Optimizer):
    """Wraps another one, and does not initialize itself."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda good, stale, biases: stale, "SGD has none of the model's parameters.*another model.*wrapped"),
        (lambda good, stale, biases: [good, stale], "SGD has none of the model's parameters.*another model.*wrapped"),
        (lambda good, stale, biases: biases, "has none of the 3 masked parameters"),
        (lambda good, stale, biases: [], "has none of the 3 masked parameters"),
        (lambda good, stale, biases: None, r"NoneType is not a torch\.optim\.Optimizer; if it wraps"),
        (lambda good, stale, biases: ["sgd"], r"str is not a torch\.optim\.Optimizer; if it wraps"),
        (lambda good, stale, biases: Wrapper(good), r"Wrapper is not a torch\.optim\.Optimizer; if it wraps"),
    ],
)
def test_optimizers_of_nothing_or_of_another_model_are_refused(make, message, model, masks):
    stale, good = sgd(copy.deepcopy(model)), sgd(model)
    biases = optim.Adam([p for p in model.parameters() if p.dim() == 1])
    dense = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        hold(model, masks, make(good, stale, biases))
    assert equal(dense, model.state_dict())  # nothing was changed
    hold(model, masks, [good, biases])  # the second has nothing to hold, but belongs to the model


def test_masks_that_do_not_fit_are_named_and_change_nothing(model, masks):
    optimizer = sgd(model)
    handle = hold(model, masks, optimizer)
    hooks, before = len(optimizer._optimizer_step_post_hooks), copy.deepcopy(model.state_dict())
    for wrong, message in (
        ({"module.0.weight": masks["0.weight"]}, r"no parameter module\.0\.weight.*such as '0\.weight'"),
        ({"3.weight": masks["3.weight"].T}, r"mask of 3\.weight has the shape 64×8, the weight 8×64"),
        ({"3.weight": masks["3.weight"].float()}, r"mask of 3\.weight is not a bool tensor but torch\.float32"),
        ({"3.weight": masks["3.weight"].tolist()}, r"mask of 3\.weight is not a bool tensor but list"),
        ({"5.weight": masks["3.weight"], "a": X}, r"mask of 5\.weight has .*, the model has no parameter a\."),
        (dict.fromkeys("abcdefg", masks["0.weight"]), r"no parameter e and 2 more\."),
        ([], "must be a dict from names to bool tensors"),
    ):
        for call, *words in ((hold, model, wrong, optimizer), (audit, model, wrong), (handle.load_state_dict, wrong)):
            with pytest.raises(ValueError, match=message):
                call(*words)
    for wrong, message in (
        ({"0.weight": masks["0.weight"]}, r"other weights \(3\.weight, 5\.weight\); call hold"),
        (masks | {"3.bias": torch.ones(8) > 0}, r"other weights \(3\.bias\); call hold with them instead"),
    ):
        with pytest.raises(ValueError, match=message):
            handle.load_state_dict(wrong)
    with pytest.raises(ValueError, match="weight is lazy"):
        matched(nn.LazyLinear(3), {"weight": torch.ones(3, 3) > 0})
    assert len(optimizer._optimizer_step_post_hooks) == hooks
    assert equal(dict(handle.state_dict()), masks)
    assert equal(before, model.state_dict())


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
