"""How much faster linear layers are with 2 of 4 weights, as `bb.prune(..., pattern="2:4")` leaves them, on a GPU.

    python benchmarks/semi_structured.py      # needs an NVIDIA GPU of compute capability 8.0 or more

Dense weights with zeros take as long as all weights; `torch.sparse.to_sparse_semi_structured` stores half of them.
The first two times are those of products in a CUDA graph; the next two include the call of torch from Python.
"""

from functools import partial

import torch
from torch import nn
from torch.sparse import to_sparse_semi_structured
from torch.utils.benchmark import Timer

import barebones as bb

SIZES = ((1024, 1024), (4096, 1024), (4096, 4096), (11008, 4096))
ROWS = (16, 256, 4096)
PRODUCTS = 20  # in one graph


def seconds(x: torch.Tensor, weight: torch.Tensor, captured: bool) -> float:
    """Return the median seconds of one product: called from Python, or of those in a CUDA graph."""
    product = partial(nn.functional.linear, x, weight)
    product()
    if not captured:
        return Timer("product()", globals={"product": product}).blocked_autorange(min_run_time=0.1).median
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(PRODUCTS):
            product()
    return Timer("graph.replay()", globals={"graph": graph}).blocked_autorange(min_run_time=0.1).median / PRODUCTS


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("error: this benchmark needs an NVIDIA GPU")
    print(torch.cuda.get_device_name(), torch.__version__)
    print("| outputs x inputs | rows | dense ms | 2:4 ms | × | called: dense ms | 2:4 ms | largest difference |")
    print("|---" * 8 + "|")
    for outputs, inputs in SIZES:
        layer = nn.Linear(inputs, outputs, bias=False, device="cuda", dtype=torch.bfloat16)
        masks = bb.prune(layer, None, 0.5, "magnitude", pattern="2:4", on_collapse="ignore").masks
        layer.weight.data *= masks["weight"]
        sparse = to_sparse_semi_structured(layer.weight.data)
        for rows in ROWS:
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            with torch.inference_mode():
                difference = (nn.functional.linear(x, sparse) - layer(x)).abs().max().item()
                times = [1e3 * seconds(x, weight, how) for how in (True, False) for weight in (layer.weight, sparse)]
            dense, fast, *called = times
            cells = f"{outputs} x {inputs}", rows, *(f"{time:.3f}" for time in (dense, fast)), f"{dense / fast:.2f}"
            cells += *(f"{time:.3f}" for time in called), f"{difference:.2g}"
            print("|" + "|".join(map(str, cells)) + "|")


if __name__ == "__main__":
    main()
