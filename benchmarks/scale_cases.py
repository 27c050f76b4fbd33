"""Measure small cases of pruning and of sweeps, from which docs/scale.md is derived; one line of JSON for each.

    python benchmarks/scale_cases.py --repeats 3 > benchmarks/scale_cpu.jsonl
    python benchmarks/scale_cases.py --device cuda > benchmarks/scale_gpu.jsonl

On two cores the first takes ten minutes, on an H200 the second takes two; `--seconds 110` begins no case after that.
"""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
import typer
from rich.console import Console
from sharded import memory
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import barebones as bb
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run.folder import RESULT
from barebones.lab.run.options import RunOptions
from barebones.lab.sweep.sweep import sweep
from barebones.masks import kept

HEAD = 64  # width of an attention head
KINDS = {  # of runs in a sweep: method, sparsity and rounds
    "dense": ("dense", 0.0, None),
    "snip": ("snip", 0.98, None),
    "force": ("force", 0.98, 60),
}
CPU_SIZES = [  # the path, the numbers of processes, width, depth and tokens of each process
    ("sharded", (1, 2, 4), *size)
    for size in ((256, 4, 128), (256, 8, 512), (384, 6, 256), (512, 4, 512), (512, 8, 128), (640, 6, 256))
]
CPU_SWEEPS = [  # lanes, epochs and kinds of runs
    (1, 4, ["dense", "dense", "snip", "snip", "force", "force", "dense", "snip", "force"]),
    (2, 4, ["force", "snip", "dense"] * 4),
    (2, 4, ["dense"] * 7 + ["force"] * 2),
]
GPU_SIZES = [
    (path, (1,), width, depth, tokens)
    for path, width, depth, tokens in (
        ("sharded", 128, 2, 1024), ("plain", 128, 2, 1024),  # these compile the kernels
        ("sharded", 768, 14, 8192), ("sharded", 768, 14, 2048),  # 0.1 B weights
        ("sharded", 1024, 24, 8192), ("sharded", 1024, 24, 2048),  # 0.3 B
        ("sharded", 2048, 20, 8192), ("sharded", 2048, 20, 2048),  # 1 B
        ("sharded", 3072, 26, 8192), ("sharded", 3072, 26, 2048),  # 3 B
        ("plain", 768, 14, 8192), ("plain", 1024, 24, 8192), ("plain", 2048, 20, 8192), ("plain", 2048, 20, 2048),
        ("sharded", 4096, 27, 2048),  # 5.4 B: the largest that may fit
    )
]  # fmt: skip
GPU_SWEEPS = [
    (1, 4, ["snip", "force", "snip"]),
    (4, 4, ["snip", "force"] * 4),
    (2, 4, ["force", "snip"] * 2),
]


class Block(nn.Module):
    """A layer of GPT-2: attention and a perceptron, 12 width² weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, HEAD)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(rows[0], rows[1], rows[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class LanguageModel(nn.Module):
    """GPT-2 with as many layers of any width; the embedding is the head, too, and is not pruned."""

    def __init__(self, width: int, depth: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding.weight)


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def pruned(case: dict[str, Any], device: str) -> dict[str, Any]:
    """Prune a language model, and return the case with its seconds, memory and weights; in every process."""
    torch.manual_seed(0)
    gpu, sharded = device == "cuda", case["path"] == "sharded"
    empty = torch.cuda.memory_allocated() if gpu else memory("VmRSS")
    with torch.device(device):
        model = LanguageModel(case["width"], case["depth"], case["vocabulary"])
        tokens = torch.randint(case["vocabulary"], (case["tokens"] // case["length"], case["length"]))
    if sharded:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if gpu else MixedPrecisionPolicy()
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    precision = "bf16" if gpu and not sharded else "fp32"  # FSDP rounds by its own policy
    gradient = _gradient_seconds(model, tokens, precision)
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts from here
    used, began = _processor(), time.perf_counter()
    result = bb.prune(model, [tokens], 0.99, "force", rounds=case["rounds"], objective=loss, precision=precision)
    counted = kept(result.masks)  # this waits for the GPU
    seconds, used = time.perf_counter() - began, _processor() - used
    peak = torch.cuda.max_memory_allocated() if gpu else memory("VmHWM")
    return case | {
        "weights": sum(mask.numel() for mask in result.masks.values()),
        "kept": counted,
        "seconds": round(seconds, 4),
        "processor": round(used, 4),
        "rounds_seconds": [round(record.seconds, 4) for record in result.rounds],
        "gradient": round(gradient, 5),
        "bytes": peak - empty,
    }


def _gradient_seconds(model: nn.Module, tokens: Tensor, precision: str) -> float:
    """Return the seconds of one forward and backward pass: the fastest of three after a warm-up."""
    best = float("inf")
    for _ in range(4):
        _wait(tokens)
        began = time.perf_counter()
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            loss(model, tokens).backward()
        _wait(tokens)
        best = min(best, time.perf_counter() - began)
        model.zero_grad(set_to_none=True)
    return best


def _wait(tensor: Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize()


def _processor(whose: int = resource.RUSAGE_SELF) -> float:
    usage = resource.getrusage(whose)
    return usage.ru_utime + usage.ru_stime


def noise() -> dict[str, tuple[Tensor, Tensor]]:
    """Return images of CIFAR-10's number and size, for sweeps on a machine that has no data."""
    generator = torch.Generator().manual_seed(0)

    def pair(count: int) -> tuple[Tensor, Tensor]:
        pixels = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
        return pixels, torch.arange(count) % 10

    return {"train": pair(45_000), "validation": pair(5_000), "test": pair(10_000)}


def swept(case: dict[str, Any], device: str) -> dict[str, Any]:
    """Run a sweep, and return the case with the seconds after which each run ended, and those of its stages."""
    with tempfile.TemporaryDirectory() as folder:
        options = RunOptions(runs=Path(folder), device=device)
        listed = [
            Experiment(case["model"], case["data"], method, sparsity, seed, rounds=rounds, epochs=case["epochs"])
            for seed, (method, sparsity, rounds) in enumerate(KINDS[kind] for kind in case["kinds"])
        ]
        wall, began, used = time.time(), time.perf_counter(), _processor(resource.RUSAGE_CHILDREN)
        sweep(listed, options, jobs=case["jobs"], console=Console(file=io.StringIO()), summarize=False)
        seconds, used = time.perf_counter() - began, _processor(resource.RUSAGE_CHILDREN) - used
        runs = []
        for kind, experiment in zip(case["kinds"], listed, strict=True):
            path = Path(folder, experiment.resolved(device).folder, RESULT)
            stages = json.loads(path.read_text())["seconds"]
            end = path.stat().st_mtime - wall
            runs.append({"kind": kind, "end": round(end, 3), **{s: round(stages[s], 3) for s in ("prune", "train")}})
        case = case | {"data": case["data"].rpartition(":")[2]}  # without the path of this file
        return case | {"seconds": round(seconds, 3), "processor": round(used, 3), "runs": runs}


def _process(rank: int, world: int, folder: str, case: dict[str, Any], device: str) -> None:
    torch.set_num_threads(1)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, f"file://{folder}/store", timedelta(seconds=300), rank=rank, world_size=world)
    found = pruned(case, device)
    dist.barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    os._exit(0)  # torch caches what was sharded, and a gloo thread that outlives Python aborts the process


def spawned(case: dict[str, Any], device: str) -> dict[str, Any]:
    """Prune in as many processes as the case names; return the highest memory, and the processor time of all."""
    world = case["processes"]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_process, (world, folder, case, device), nprocs=world)
        found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world)]
    highest = {name: max(row[name] for row in found) for name in ("seconds", "bytes", "gradient")}
    return found[0] | highest | {"processor": round(sum(row["processor"] for row in found), 4)}


def cases(device: str, small: bool) -> Iterator[dict[str, Any]]:
    """Yield the cases to measure on a device; with `small`, two short ones that try the script."""
    gpu = device == "cuda"
    sizes, sweeps = (GPU_SIZES, GPU_SWEEPS) if gpu else (CPU_SIZES, CPU_SWEEPS)
    if small:
        sizes, sweeps = [("sharded", (1,), 64, 2, 64)], [(1, 1, ["snip", "snip"])]
    for path, worlds, width, depth, tokens in sizes:
        for processes in worlds:
            settings = {"path": path, "processes": processes, "width": width, "depth": depth, "tokens": tokens}
            length, vocabulary = (min(1024, tokens), 50_304) if gpu else (min(128, tokens), 256)
            yield settings | {"length": length, "vocabulary": vocabulary, "rounds": 4}
    for jobs, epochs, kinds in sweeps:
        model, data = ("vgg19", f"{Path(__file__).resolve()}:noise") if gpu else ("small-vgg", "digits")
        yield {"path": "sweep", "model": model, "data": data, "jobs": jobs, "epochs": epochs, "kinds": kinds}


def measured(case: dict[str, Any], device: str) -> dict[str, Any]:
    """Measure one case. That it fails, for example because it does not fit, is a result, too."""
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    try:
        if case["path"] == "sweep":
            return swept(case, device)
        return spawned(case, device) if device == "cpu" else pruned(case, device)
    except Exception as error:
        return case | {"error": f"{type(error).__name__}: {error}"}


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    seconds: Annotated[float, typer.Option(help="begin no other case after this time")] = 3600,
    repeats: Annotated[int, typer.Option(help="measurements of each case, one after all others")] = 1,
    only: Annotated[str, typer.Option(help="the path to measure: sharded, plain or sweep", show_default="all")] = "",
    small: Annotated[bool, typer.Option("--small", help="two short cases, to try the script")] = False,
) -> None:
    """Measure all cases, and print a line of JSON for each."""
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter(f"device {device}: there is no CUDA device on this machine; choose cpu")
    chosen = [case for case in cases(device, small) if only in ("", case["path"])]
    if not chosen:
        paths = " or ".join(dict.fromkeys(case["path"] for case in cases(device, small)))
        raise typer.BadParameter(f"--only {only} matches no case on the {device}; choose {paths}")
    began = time.perf_counter()
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "1000000"  # so that what is freed does not count as memory of the process
    with tempfile.TemporaryDirectory() as folder:
        if device == "cuda":
            torch.cuda.set_device(0)
            dist.init_process_group("nccl", f"file://{folder}/store", rank=0, world_size=1)
        print(json.dumps({"machine": _machine(device), "torch": torch.__version__}), flush=True)
        for case in chosen * repeats:
            if time.perf_counter() - began < seconds:
                print(json.dumps(measured(case, device)), flush=True)
        if device == "cuda":
            dist.destroy_process_group()


def _machine(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} processor cores, gloo"


if __name__ == "__main__":
    typer.run(main)
