"""Several processes: every rank scores the mean gradient, and all ranks get the same masks."""

import itertools
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import references
import torch
from pruning_runs import without_norms
from references import Trace, assert_top, equal, few, pairs, tiny, weights_of
from torch import Tensor, nn
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel

import barebones as bb
from barebones import METHODS, Probe, rounds
from barebones.masks import kept
from barebones.scope import bare

RANKS = 2
NAMES = ("force", "grasp", "grasp-mb")
KINDS = {
    "plain": DistributedDataParallel,
    "channels last": lambda model: DistributedDataParallel(model.to(memory_format=torch.channels_last)),
    "compiled": lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
}
SHARED = {  # a network and the settings of a method whose batches the ranks share out, or split
    "five batches": (tiny, "force", 5),
    "one batch": (without_norms, "force", 1),
    "second derivatives of five batches": (tiny, "grasp-mb", 5),
    "second derivatives of one batch": (without_norms, "grasp", 1),
    "no batch": (tiny, "magnitude", 1),
}
MasksByRun = dict[tuple[str, str], list[dict[str, Tensor]]]  # the masks of each round, by method and kind of model


def shared_rounds(model: nn.Module, name: str, batches: int, **settings) -> list[dict[str, Tensor]]:
    """The masks of three rounds, all of which begin with the masks that one process alone has found before them."""
    method, found = replace(few(name, 3), batches_per_round=batches), []
    alone = list(rounds(Probe(bare(model), pairs(6, dtype=torch.float32)), method, 20))
    for before in [None, *alone[:-1]]:
        probe = Probe(model, pairs(6, dtype=torch.float32), **settings)
        found.append(dict(next(rounds(probe, method, 20, after=before)).masks))
    return found


def prune_on_rank(rank: int, folder: str, ranks: int) -> None:
    """Prune in one of the processes, and write the masks."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/store", timedelta(seconds=60), rank=rank, world_size=ranks
    )
    masks: MasksByRun = {}
    for name, (build, method, batches) in SHARED.items():
        for micro in (None, 3) if batches == 1 else (None,):
            model = DistributedDataParallel(build().float())
            masks[name, f"micro {micro}"] = shared_rounds(model, method, batches, shared=True, micro_batch=micro)
    with pytest.raises(ValueError, match=r"the ranks split one batch, but batch-norms.*use SyncBatchNorm"):
        bb.prune(DistributedDataParallel(tiny()), pairs(1), 0.5, "snip", shared=True)
    with pytest.raises(ValueError, match=f"a batch of 1 cannot be split over {ranks} ranks"):
        bb.prune(DistributedDataParallel(without_norms()), pairs(1, size=1), 0.5, "snip", shared=True)
    different = [("counts", dict(sparsity=0.9 - rank / 10)), ("seed", dict(method="random", seed=rank))]
    for shared, (name, settings) in itertools.product((True, False), different):
        with pytest.raises(ValueError, match=rf"different settings \({name}\)"):
            bb.prune(DistributedDataParallel(tiny()), pairs(2), shared=shared, **settings)
    with pytest.raises(ValueError, match=r"different settings \(seed\)"):
        bb.prune(DistributedDataParallel(tiny()), pairs(2), shared=True, seed=rank)
    model = DistributedDataParallel(tiny())
    model.module[0].weight.data.add_(rank)  # when it was wrapped, all had those of the first
    with pytest.raises(ValueError, match="the processes hold different weights; build the network with the same seed"):
        bb.prune(model, pairs(2), method="snip")
    bb.prune(DistributedDataParallel(tiny()), pairs(2), method="snip", seed=rank)  # each reads its own batches
    result = bb.prune(DistributedDataParallel(tiny()), pairs(1), 0.5, "snip", shared=True, bn="eval")
    masks["running statistics", ""] = [dict(result.masks)]
    if ranks == RANKS:
        masks |= own_batches(rank)
    torch.save(masks, f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


def own_batches(rank: int) -> MasksByRun:
    """Each rank has its own half of the batches."""
    masks: MasksByRun = {}
    for name, (kind, wrap) in itertools.product(NAMES, KINDS.items()):
        with Trace(wrap(tiny())) as trace:
            probe = Probe(trace.model, pairs(4)[rank::RANKS])
            masks[name, kind] = [dict(step.masks) for step in rounds(probe, few(name, 2, 2), 20)]
    return masks


def found_by(folder: Path, ranks: int) -> list[MasksByRun]:
    start_processes(prune_on_rank, (str(folder), ranks), nprocs=ranks, start_method="forkserver")
    return [torch.load(folder / str(rank), weights_only=True) for rank in range(ranks)]


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory, forks: Any) -> list[MasksByRun]:
    return found_by(tmp_path_factory.mktemp("two"), RANKS)


@pytest.fixture(scope="module")
def on_four(tmp_path_factory: pytest.TempPathFactory, forks: Any) -> list[MasksByRun]:
    return found_by(tmp_path_factory.mktemp("four"), 4)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["on_ranks", "on_four"])
def test_ranks_that_share_the_batches_find_the_masks_of_one_process(ranks, request):
    first, *others = request.getfixturevalue(ranks)
    for (name, kind), masks in first.items():
        assert all(equal(a, b) for other in others for a, b in zip(masks, other[name, kind], strict=True))
    for name, (build, method, batches) in SHARED.items():
        alone = shared_rounds(build().float(), method, batches)
        for micro in (None, 3) if batches == 1 else (None,):
            for masks, expected in zip(first[name, f"micro {micro}"], alone, strict=True):
                assert kept(masks) == kept(expected)
                assert equal(masks, expected)
    expected = bb.prune(tiny(), pairs(1), 0.5, "snip", bn="eval").masks
    assert equal(first["running statistics", ""][0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_ranks_agree_and_score_the_mean_gradient(on_ranks, name, kind):
    first, second = (masks[name, kind] for masks in on_ranks)
    assert len(first) == few(name, 2).rounds
    assert all(equal(a, b) for a, b in zip(first, second, strict=True))
    reference = references.snip if METHODS[name].criterion is METHODS["force"].criterion else references.grasp
    model, before, count = tiny(), references.ones(weights_of(tiny())), few(name, 2, 2).batches_per_round
    for index, masks in enumerate(first):
        batches = [b for rank in range(RANKS) for b in references.of_round(pairs(4)[rank::RANKS], index, count)]
        assert_top(masks, reference(model, before, batches), kept(masks))
        before = masks
