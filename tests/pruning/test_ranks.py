"""Two processes: every rank scores the mean gradient, and all ranks get the same masks."""

import itertools
from datetime import timedelta
from pathlib import Path

import pytest
import references
import torch
import torch.multiprocessing
from references import Trace, assert_top, equal, few, pairs, tiny, weights_of
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from barebones import METHODS, Probe, rounds
from barebones.masks import kept

RANKS = 2
NAMES = ("force", "grasp", "grasp-mb")
KINDS = {
    "plain": DistributedDataParallel,
    "channels last": lambda model: DistributedDataParallel(model.to(memory_format=torch.channels_last)),
    "compiled": lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
}
MasksByRun = dict[tuple[str, str], list[dict[str, Tensor]]]  # the masks of each round, by method and kind of model


def prune_on_rank(rank: int, folder: str) -> None:
    """Prune in one of the processes, each with its own half of the batches, and write the masks."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/store", timedelta(seconds=60), rank=rank, world_size=RANKS
    )
    masks: MasksByRun = {}
    for name, (kind, wrap) in itertools.product(NAMES, KINDS.items()):
        with Trace(wrap(tiny())) as trace:
            probe = Probe(trace.model, pairs(4)[rank::RANKS])
            masks[name, kind] = [dict(step.masks) for step in rounds(probe, few(name, 2, 2), 20)]
    torch.save(masks, f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[MasksByRun]:
    folder = Path(tmp_path_factory.mktemp("ranks"))
    torch.multiprocessing.spawn(prune_on_rank, (str(folder),), nprocs=RANKS)
    return [torch.load(folder / str(rank), weights_only=True) for rank in range(RANKS)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_ranks_agree_and_score_the_mean_gradient(on_ranks, name, kind):
    first, second = (masks[name, kind] for masks in on_ranks)
    assert len(first) == few(name, 2).rounds
    assert all(equal(a, b) for a, b in zip(first, second, strict=True))
    reference = references.snip if METHODS[name].criterion is METHODS["force"].criterion else references.grasp
    model, before, count = tiny(), references.ones(weights_of(tiny())), few(name, 2, 2).batches
    for index, masks in enumerate(first):
        batches = [b for rank in range(RANKS) for b in references.of_round(pairs(4)[rank::RANKS], index, count)]
        assert_top(masks, reference(model, before, batches), kept(masks))
        before = masks
