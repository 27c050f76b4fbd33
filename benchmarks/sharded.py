"""Benchmark of sharded pruning: the memory of each process, and the time of a round, with 1, 2 and 4 processes."""

import json
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from measuring import memory
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed.fsdp import fully_shard

import barebones as bb
from barebones.masks import kept

WORLDS = (1, 2, 4)  # processes


def network(width: int, depth: int) -> nn.Module:
    """Return a perceptron of equal layers, each of which is sharded on its own."""
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width, bias=False), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def measure(rank: int, world: int, folder: str, width: int, depth: int, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", timedelta(seconds=300), rank=rank, world_size=world)
    empty = memory("VmRSS")
    model = network(width, depth)
    batches = [(torch.randn(8, width), torch.arange(8))]
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts from here
    began = time.perf_counter()
    result = bb.prune(model, batches, 0.99, "force", rounds=rounds)
    seconds = (time.perf_counter() - began) / rounds
    own = sum(parameter.to_local().numel() for parameter in model.parameters())
    total = sum(parameter.numel() for parameter in model.parameters())
    found = {"weights": total, "own": own, "bytes": memory("VmHWM") - empty, "seconds": seconds}
    found["kept"] = kept(result.masks)  # every process must ask
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    os._exit(0)  # torch caches what was sharded, and a gloo thread that outlives Python aborts the process


def main(width: int = 2048, depth: int = 10, rounds: int = 3) -> None:
    """Prune a perceptron with FORCE in 1, 2 and 4 processes, and print memory and time."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "1000000"  # so that what is freed does not count as memory of the process
    table = Table("processes", "weights", "of each process", "memory of each", "to one process", "seconds a round")
    alone = 0.0
    for world in WORLDS:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(measure, (world, folder, width, depth, rounds), nprocs=world)
            found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world)]
        highest = max(row["bytes"] for row in found)
        alone = alone or highest
        table.add_row(
            str(world),
            f"{found[0]['weights']:,}",
            f"{max(row['own'] for row in found):,}",
            f"{highest / 2**20:,.0f} MiB",
            f"{highest / alone:.2f}",
            f"{max(row['seconds'] for row in found):.2f}",
        )
    Console(width=120).print(table)
    print(f"{os.cpu_count()} processor cores, gloo, torch {torch.__version__}")


if __name__ == "__main__":
    main()
