"""Several processes, with replicas or shards of a network: the masks of one device, and no shard is held by all."""

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from pruning_runs import without_norms
from references import Trace, assert_top, equal, few, grasp, of_round, ones, pairs, snip, tiny, weights_of
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel

import barebones as bb
from barebones import Probe, rounds
from barebones.files.masks import pack
from barebones.integrations.source import masks_for
from barebones.masks import kept, size
from barebones.pruning import selection
from barebones.running.shards import full, local

NAMES = ("force", "iter-snip", "hybrid", "snip-mb", "iter-grasp", "magnitude", "random")
Tensors = dict[str, Tensor]


def net() -> nn.Module:
    """Layers whose rows do not divide evenly: five, seven and three; and a transposed one, with its inputs first."""
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU()]
    second = [nn.ConvTranspose2d(5, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*first, *second, nn.Linear(100, 7), nn.ReLU(), nn.Linear(7, 3)).double()


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, 3, 6, 6, generator=generator, dtype=torch.double), torch.tensor([0, 1, 2, 0])) for _ in range(4)
    ]


def sharded(kind: str) -> nn.Module:
    model, world = net(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    if kind == "hybrid":  # two replicas
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicas", "shards"))
    for layer in (model[0], model[3], model[7], model[9]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(tensors: Tensors) -> Tensors:
    return {name: full(tensor).clone() for name, tensor in tensors.items()}


# ---- what runs in each process; everything is returned as plain tensors ----


def pruned(kind: str) -> dict[str, Tensors]:
    """Prune with every method, round by round, each from the masks of one device; return the masks."""
    model = sharded(kind)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    results: dict[str, Tensors] = {}
    for name in NAMES if kind == "plain" else ("force", "random"):
        method = few(name)
        alone = list(rounds(Probe(net(), batches()), method, 60))
        first = next(rounds(Probe(model, batches()), method, 60))
        for index in range(method.rounds):
            probe = Probe(model, batches())
            after = None
            if index:  # continue from the masks that one device had
                placed = probe.shards.whole(probe.placed(alone[index - 1].masks))
                integers = alone[index - 1].integers.clone()
                integers[3] = first.weights_digest
                after = replace(alone[index - 1], masks=placed, integers=integers, plan=first.plan)
            step = next(rounds(probe, method, 60, after))
            results[f"{name} {index}"] = whole(step.masks)
            record, expected = step.record, alone[index].record
            assert (record.pruned, record.recovered, record.recovered_empty, record.layers) == (
                expected.pruned, expected.recovered, expected.recovered_empty, expected.layers,
            )  # fmt: skip
            torch.testing.assert_close(record.saliency, expected.saliency, equal_nan=True)
            torch.testing.assert_close(record.loss, expected.loss, equal_nan=True)
            results[f"{name} {index} alone"] = dict(alone[index].masks)
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        assert torch.equal(local(parameter), local(before[name]))
    return results


def chosen(kind: str) -> dict[str, Tensors]:
    """Select among scores with many ties, with preferences, exclusions and a floor; return the masks."""
    model = sharded(kind)
    probe = Probe(model, batches())
    shards = probe.shards
    assert shards is not None
    results: dict[str, Tensors] = {}
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        draw = lambda shape, high: torch.randint(high, shape, generator=generator)  # noqa: B023
        levels = [1, 2, 5, 1000][seed % 4]
        dtype = torch.float64 if seed % 3 else torch.float32
        scores = {n: draw(s, levels).to(dtype) - levels // 2 for n, s in probe.shapes.items()}
        prefer, among = ({n: draw(s, 2) > 0 for n, s in probe.shapes.items()} for _ in range(2))
        options = {"prefer": prefer if seed % 2 else None, "among": among if seed % 5 < 2 else None}
        options["at_least"] = 3 if seed % 7 == 0 else 0
        keep = 20 + seed * 7
        rows = {name: mask and probe.placed(mask) for name, mask in options.items() if name != "at_least"}
        with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as meetings:
            found = shards.keep_top(probe.placed(scores), keep, **rows, at_least=options["at_least"])
        assert options["at_least"] or meetings.call_count == (5 if dtype == torch.float64 else 3)  # few readings
        results[f"{seed}"] = whole(shards.whole(found))
        results[f"{seed} alone"] = dict(selection.keep_top(scores, keep, **options))
    if kind == "hybrid":
        local(model[0].weight).add_(dist.get_rank() // 2)  # the second replica begins with others
        with pytest.raises(ValueError, match="the processes hold different weights"):
            bb.prune(model, batches(), 0.5, "snip")
    return results


def held(kind: str) -> dict[str, Tensors]:
    """Prune, train under two optimizers, save, load and audit; return the masks and whether all went well."""
    results: dict[str, Tensors] = {}
    for optimizer in (
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3),
        lambda p: torch.optim.AdamW(p),
    ):
        model = sharded(kind)
        result = bb.prune(model, batches(), 0.9, "force", rounds=3, on_collapse="ignore")
        steps = optimizer(model.parameters())
        with bb.hold(model, result.masks, steps) as handle:
            for x, y in batches() * 2:
                steps.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                steps.step()
            bb.audit(model, result.masks)
            assert equal(whole(handle.state_dict()), whole(result.masks))
        counts = bb.account(model, result.masks)
        assert counts.kept == kept(result.masks) == round(0.1 * size(result.masks))
        path = Path(os.environ["SHARDS_FOLDER"]) / "masks.safetensors"
        result.save(path)
        alike, first = path.with_name("alike"), dist.get_rank() == 0
        bb.save_masks(result.masks, alike)
        bb.save_masks(whole(result.masks), path.with_name(f"whole-{dist.get_rank()}"))
        assert alike.read_bytes() == path.with_name(f"whole-{dist.get_rank()}").read_bytes()
        assert any(len(data) for data in pack(result.masks)[0].values()) == first  # others do not have the file's bytes
        loaded = bb.load_masks(path, model)
        assert loaded.about["kept"] == counts.kept
        assert all(torch.equal(local(loaded[name]), local(mask)) for name, mask in result.masks.items())
        bb.audit(model, bb.load_masks(path))  # whole masks are cut to the rows
        with torch.no_grad():
            local(model[0].weight).add_(1)
        with pytest.raises(ValueError, match=r"pruned weights are not zero: 0.weight"):
            bb.audit(model, result.masks)
        results[type(steps).__name__] = whole(result.masks)
    return results


def refused(kind: str) -> dict[str, Tensors]:
    """Ask for what a sharded network cannot have; each time one sentence says so."""
    for method, words in (("grasp", "second derivatives"), ("synflow", "synflow"), ("erk", "erk")):
        with pytest.raises(ValueError, match=words):
            bb.prune(sharded(kind), batches(), 0.5, method)
    masks = bb.prune(sharded(kind), batches(), 0.5, "magnitude").masks
    with pytest.raises(ValueError, match="no process can follow its paths"):
        bb.account(sharded(kind), masks, batches()[0][0])
    with pytest.raises(ValueError, match="no process can copy it"):
        bb.shrink(sharded(kind), masks, batches()[0][0])
    first = dist.get_rank() == 0
    different = [
        ("counts", dict(sparsity=0.9 if first else 0.8)),
        ("counts", dict(sparsity=0.9 if first else 0)),
        ("counts, revive", dict(rounds=3 if first else 4)),
        ("revive", dict(method="force" if first else "iter-snip")),
        ("seed", dict(method="random", seed=int(first))),
    ]
    for names, settings in different:
        with pytest.raises(ValueError, match=rf"different settings \({names}\); pass the same sparsity"):
            bb.prune(sharded(kind), batches(), **settings)
    bb.prune(sharded(kind), batches(), 0.5, "snip", seed=int(first), on_round=(lambda step: None) if first else None)
    scores = {name: parameter.detach() for name, parameter in bb.prunable(sharded(kind)).items()}
    path = Path(os.environ["SHARDS_FOLDER"]) / f"weights-{dist.get_rank()}"
    bb.save_weights(net(), {}, path)
    refusals = {
        r"^the masks are sharded; gather them in every process: \{name: t.full_tensor\(\) for": (
            lambda: bb.shuffled(masks, 1),
            lambda: bb.inverted(masks, whole(scores)),
            lambda: bb.agreement(masks, whole(masks)),
            lambda: bb.keep_top(whole(scores), 9, among=masks),
            lambda: bb.shrink(net(), masks, batches()[0][0]),
            lambda: bb.audit(net(), masks),
        ),
        "^the scores are sharded; gather them": (
            lambda: bb.keep_top(scores, 9),
            lambda: bb.inverted(whole(masks), scores),
        ),
        "no process can write all its weights; use torch.distributed.checkpoint": (
            lambda: bb.save_weights(sharded(kind), masks, path),
            lambda: bb.save_weights(sharded(kind), {}, path),
        ),
        "no process can load a weight file into it; load it before you shard": (
            lambda: bb.load_weights(path, sharded(kind)),
        ),
    }
    for words, calls in refusals.items():
        for call in calls:
            with pytest.raises(ValueError, match=words):
                call()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = net()
    model[7].weight = nn.Parameter(distribute_tensor(model[7].weight.detach(), mesh, [Shard(1)]))
    with pytest.raises(ValueError, match=r"7.weight cannot be pruned: it is sharded as \(S"):
        bb.prune(model, batches(), 0.5, "magnitude")
    with pytest.raises(OSError, match=r"cannot write|could not write"):
        bb.save_masks(masks, "/proc/no/such/folder")
    return {}


def evaluated(kind: str) -> dict[str, Tensors]:
    """Prune a model that has just run without gradients: FSDP may still hold whole weights. Measure its saliency."""
    model = sharded(kind)
    with torch.no_grad():
        model(batches()[0][0])
    masks = bb.prune(model, batches(), 0.5, "snip").masks
    for over in ("kept", "all"):
        expected = bb.saliency(net(), whole(masks), batches(), over=over)
        for given in (masks, whole(masks)):
            assert bb.saliency(model, given, batches(), over=over) == pytest.approx(expected)
    return {"masks": whole(masks)}


def tensor_parallel(kind: str, shard: bool = True) -> dict[str, Tensors]:
    """Prune layers that are sharded along their outputs; the second, along its inputs, is left out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    if shard:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    data = [(torch.ones(3, 4, dtype=torch.double) * torch.arange(3)[:, None], torch.tensor([0, 1, 0]))]
    return {"masks": whole(bb.prune(model, data, 0.5, "force", rounds=2, exclude="2.weight").masks)}


SHARED: dict[str, tuple[Callable[[], nn.Module], str, int]] = {  # whose batches the ranks share out, or split
    "five batches": (tiny, "force", 5),
    "one batch": (without_norms, "force", 1),
    "second derivatives of five batches": (tiny, "grasp-mb", 5),
    "second derivatives of one batch": (without_norms, "grasp", 1),
    "no batch": (tiny, "magnitude", 1),
}


def shared(kind: str) -> dict[str, Tensors]:
    """Share out the batches, round by round, each from the masks of one device; return the masks."""
    rank, ranks, data = dist.get_rank(), dist.get_world_size(), pairs(6, dtype=torch.float32)
    results: dict[str, Tensors] = {}
    for name, (build, row, count) in SHARED.items():
        method = replace(few(row, 3), batches_per_round=count)
        alone = list(rounds(Probe(build().float(), data), method, 20))
        for micro, step in itertools.product((None, 3) if count == 1 else (None,), alone):
            probe = Probe(DistributedDataParallel(build().float()), data, shared=True, micro_batch=micro)
            before = alone[step.index - 1] if step.index else None
            results[f"{name} {micro} {step.index}"] = dict(next(rounds(probe, method, 20, before)).masks)
            results[f"{name} {micro} {step.index} alone"] = dict(step.masks)
    for key, model in (("bn", DistributedDataParallel(tiny())), ("bn alone", tiny())):
        result = bb.prune(model, pairs(1), 0.5, "snip", shared=key == "bn", bn="eval")
        results[key] = dict(result.masks)
    with pytest.raises(ValueError, match=r"the ranks split one batch, but batch-norms.*use SyncBatchNorm"):
        bb.prune(DistributedDataParallel(tiny()), pairs(1), 0.5, "snip", shared=True)
    with pytest.raises(ValueError, match=f"a batch of 1 cannot be split over {ranks} ranks"):
        bb.prune(DistributedDataParallel(without_norms()), pairs(1, size=1), 0.5, "snip", shared=True)
    different = [("counts", dict(sparsity=0.9 - rank / 10)), ("seed", dict(method="random", seed=rank))]
    for together, (name, settings) in itertools.product((True, False), different):
        with pytest.raises(ValueError, match=rf"different settings \({name}\)"):
            bb.prune(DistributedDataParallel(tiny()), pairs(2), shared=together, **settings)
    with pytest.raises(ValueError, match=r"different settings \(seed\)"):
        bb.prune(DistributedDataParallel(tiny()), pairs(2), shared=True, seed=rank)
    bb.prune(DistributedDataParallel(tiny()), pairs(2), method="snip", seed=rank)  # each reads its own batches
    wrapped = DistributedDataParallel(tiny())
    wrapped.module[0].weight.data.add_(rank)  # when it was wrapped, all had those of the first
    with pytest.raises(ValueError, match="the processes hold different weights; build the network with the same seed"):
        bb.prune(wrapped, pairs(2), method="snip")
    return results


SCORES = {"force": snip, "grasp": grasp, "grasp-mb": grasp}
KINDS: dict[str, Callable[[nn.Module], Any]] = {
    "plain": DistributedDataParallel,
    "channels last": lambda model: DistributedDataParallel(model.to(memory_format=torch.channels_last)),
    "compiled": lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
}


def own(kind: str) -> dict[str, Tensors]:
    """Each rank has its own half of the batches; return the masks of every round."""
    results: dict[str, Tensors] = {}
    for name, (wrapper, wrap) in itertools.product(SCORES, KINDS.items()):
        with Trace(wrap(tiny())) as trace:
            probe = Probe(trace.model, pairs(4)[dist.get_rank() :: 2])
            steps = rounds(probe, few(name, 2, 2), 20)
            results |= {f"{name} {wrapper} {step.index}": dict(step.masks) for step in steps}
    return results


def evolved(kind: str) -> dict[str, Tensors]:
    """Train with HAM and SAM: shards, the whole network, and replicas on batches of their own whose masks move."""
    results: dict[str, Tensors] = {}
    rank, masks = dist.get_rank(), bb.prune(net(), batches(), 0.5, "snip").masks
    for name, model in {"shards": sharded(kind), "alone": net(), "replicas": DistributedDataParallel(net())}.items():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        handle = bb.hold(model, masks, optimizer)
        bb.ham(optimizer)
        sharpness = bb.sam(optimizer, rho=0.5)
        if name == "shards":
            with pytest.raises(ValueError, match=r"evolve compares whole layers; train replicas \(DDP\) instead"):
                bb.evolve(handle, 10)
        if name == "replicas":
            bb.evolve(handle, 10, every=1)
        for x, y in batches()[rank::2] if name == "replicas" else batches():
            optimizer.zero_grad()
            with sharpness.perturbed():
                nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        results[name] = {key: full(p.detach()) for key, p in model.named_parameters()}
    return results | {"before": dict(masks), "after": dict(handle.state_dict())}


def sourced(kind: str) -> dict[str, Tensors]:
    """Ask for masks as the integrations do: the first rank prunes its network, and all take its masks."""
    torch.manual_seed(dist.get_rank())
    return {"masks": dict(masks_for(nn.Linear(40, 3), lambda model: {"weight": model.weight > 0}))}


JOBS: dict[str, Callable[[str], dict[str, Tensors]]] = {
    job.__name__: job
    for job in (pruned, chosen, held, refused, evaluated, tensor_parallel, shared, own, evolved, sourced)
}


def on_rank(rank: int, world: int, folder: str, jobs: list[tuple[str, str]]) -> None:
    torch.set_num_threads(1)
    os.environ["SHARDS_FOLDER"] = folder
    dist.init_process_group("gloo", f"file://{folder}/store", timedelta(seconds=60), rank=rank, world_size=world)
    for job, kind in jobs:
        torch.save(JOBS[job](kind), f"{folder}/{job}-{kind}-{rank}")
    dist.destroy_process_group()
    os._exit(0)  # torch caches what was sharded, and a gloo thread that outlives Python aborts the process


def results(folder: Path, world: int, *jobs: tuple[str, str]) -> dict[tuple[str, str], dict[str, Tensors]]:
    """Run jobs in several processes, and return what they returned; all processes must return the same."""
    start_processes(on_rank, (world, str(folder), list(jobs)), nprocs=world, start_method="forkserver")
    found = {}
    for job, kind in jobs:
        first, *others = (torch.load(folder / f"{job}-{kind}-{rank}", weights_only=True) for rank in range(world))
        for other in others:
            assert first.keys() == other.keys()
            assert all(equal(first[name], other[name]) for name in first)
        found[job, kind] = first
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def two(folder: Path, forks: Any) -> Any:
    return results(folder, 2, *((job, "plain") for job in JOBS))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory, forks: Any) -> Any:
    return results(tmp_path_factory.mktemp("four"), 4, ("pruned", "hybrid"), ("chosen", "hybrid"), ("chosen", "plain"))


def check_alone(found: dict[str, Tensors]) -> None:
    for name in (name for name in found if not name.endswith("alone")):
        assert equal(found[name], found[f"{name} alone"]), name


def test_the_masks_of_each_round_are_those_of_one_device(two):
    check_alone(two["pruned", "plain"])


def test_ties_are_broken_as_on_one_device(two):
    check_alone(two["chosen", "plain"])


def test_masks_are_held_saved_loaded_and_audited(two):
    found = two["held", "plain"]
    assert equal(found["SGD"], bb.prune(net(), batches(), 0.9, "force", rounds=3, on_collapse="ignore").masks)
    assert equal(found["SGD"], found["AdamW"])


def test_a_model_that_has_just_run_gives_the_same_masks(two):
    assert equal(two["evaluated", "plain"]["masks"], bb.prune(net(), batches(), 0.5, "snip").masks)


def test_tensor_parallel_layers_give_the_same_masks(two):
    assert equal(two["tensor_parallel", "plain"]["masks"], tensor_parallel("plain", shard=False)["masks"])


def test_all_processes_take_the_masks_of_the_first(two):
    torch.manual_seed(0)
    assert equal(two["sourced", "plain"]["masks"], {"weight": nn.Linear(40, 3).weight > 0})


def test_ranks_that_share_the_batches_find_the_masks_of_one_process(two, tmp_path, forks):
    check_alone(two["shared", "plain"])
    check_alone(results(tmp_path, 4, ("shared", "plain"))["shared", "plain"])


def test_shards_train_as_one_and_masks_of_replicas_move_alike(two):
    found = two["evolved", "plain"]
    assert found["shards"].keys() == found["alone"].keys()
    for name, weight in found["alone"].items():
        torch.testing.assert_close(found["shards"][name], weight)
    assert not equal(found["before"], found["after"])
    assert all(mask.count_nonzero() == found["after"][name].count_nonzero() for name, mask in found["before"].items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCORES)
def test_ranks_agree_and_score_the_mean_gradient(two, name, kind):
    model, method = tiny(), few(name, 2, 2)
    before = ones(weights_of(model))
    for index in range(method.rounds):
        masks = two["own", "plain"][f"{name} {kind} {index}"]
        data = [b for rank in range(2) for b in of_round(pairs(4)[rank::2], index, method.batches_per_round)]
        assert_top(masks, SCORES[name](model, before, data), kept(masks))
        before = masks


@pytest.mark.nightly
def test_four_processes_with_and_without_replicas(four):
    for job in (("pruned", "hybrid"), ("chosen", "hybrid"), ("chosen", "plain")):
        check_alone(four[job])
