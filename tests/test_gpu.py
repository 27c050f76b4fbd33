"""On a GPU: the same selection without waiting for it, exact counts, no trace, and masks that agree with the CPU's."""

import warnings

import pytest
import torch
from torch import nn

import barebones as bb
from barebones import digest
from barebones.masks import kept

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


def batches(count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(32, 3, 16, 16, generator=generator), torch.randint(10, (32,), generator=generator))
        for _ in range(count)
    ]


@pytest.mark.parametrize("kind", ["random", "tied", "zero", "double"])
@pytest.mark.parametrize("share", [0.001, 0.3, 0.6, 0.95])
def test_selection_equals_the_hosts_and_does_not_wait(kind, share):
    generator = torch.Generator().manual_seed(2)
    scores = {
        name: {
            "random": lambda n: torch.randn(n, generator=generator),
            "tied": lambda n: torch.randint(0, 5, (n,), generator=generator).float(),
            "zero": torch.zeros,
            "double": lambda n: torch.randn(n, generator=generator, dtype=torch.float64),
        }[kind](size)
        for name, size in {"a": 50_000, "b": 1, "c": 30_011}.items()
    }
    prefer = {name: torch.rand(s.shape, generator=generator) < 0.5 for name, s in scores.items()}
    keep = round(share * sum(s.numel() for s in scores.values()))
    there = [{name: t.cuda() for name, t in tensors.items()} for tensors in (scores, prefer)]
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = bb.keep_top(there[0], keep, prefer=there[1])
        finally:
            torch.cuda.set_sync_debug_mode("default")
    expected = bb.keep_top(scores, keep, prefer=prefer)
    assert kept(found) == keep
    assert all(torch.equal(found[name].cpu(), expected[name]) for name in expected)


@pytest.mark.parametrize("method", list(bb.METHODS))
def test_every_method_keeps_its_count_and_leaves_no_trace(method):
    model = network().cuda()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.cuda.get_rng_state(), torch.get_rng_state()
    result = bb.prune(model, batches(), sparsity=0.9, method=method, seed=3, on_collapse="ignore")
    total = sum(p.numel() for p in bb.prunable(model).values())
    assert kept(result.masks) == round(0.1 * total)
    assert all(mask.is_cuda for mask in result.masks.values())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(
        torch.equal(a, b) for a, b in zip(random, (torch.cuda.get_rng_state(), torch.get_rng_state()), strict=True)
    )


@pytest.mark.parametrize("method", ["snip", "magnitude", "iter-grasp"])
def test_one_round_agrees_with_the_cpu(method):
    model = network().eval()  # without dropout, which draws other numbers there
    options = {"sparsity": 0.9, "method": method, "on_collapse": "ignore"}
    if method == "iter-grasp":
        options["rounds"] = 1
    here = bb.prune(model, batches(), **options).masks
    there = bb.prune(model.cuda(), batches(), **options).masks
    assert float(bb.agreement(here, {name: mask.cpu() for name, mask in there.items()})) > 0.99


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_faster_precisions_agree_over_one_round(precision):
    model = network().eval().cuda()
    exact = bb.prune(model, batches(), 0.9, "snip", on_collapse="ignore").masks
    fast = bb.prune(model, batches(), 0.9, "snip", precision=precision, on_collapse="ignore").masks
    assert float(bb.agreement(exact, fast)) > 0.9


def test_not_finite_scores_stop_before_the_masks_leave():
    model = network().cuda()
    poisoned = batches()
    poisoned[2][0][0] = torch.inf
    with pytest.raises(FloatingPointError, match="round 2"):
        bb.prune(model, poisoned, 0.9, "force", rounds=4)


def test_a_digest_is_the_same_there():
    for shape, dtype in [((3, 5), torch.float32), ((200_001,), torch.bfloat16), ((1 << 18, 3), torch.float32)]:
        tensor = torch.randn(shape).to(dtype)
        assert int(digest.content([tensor])) == int(digest.content([tensor.cuda()]))


@pytest.mark.parametrize("options", [{"momentum": 0.9, "weight_decay": 5e-4}, {"momentum": 0.9, "fused": True}])
def test_holding_and_accounting(options):
    model = network().cuda()
    masks = bb.prune(model, batches(), 0.9, "iter-snip", rounds=3, on_collapse="ignore").masks
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    bb.hold(model, masks, optimizer)
    for inputs, targets in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs.cuda()), targets.cuda()).backward()
        optimizer.step()
    bb.audit(model, masks)
    assert bb.account(model, masks, batches()[0][0].cuda()).kept == kept(masks)
