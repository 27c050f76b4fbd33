"""How much faster linear layers are with 2 of 4 weights, as `bb.prune(..., pattern="2:4")` leaves them, on a GPU.

    python benchmarks/semi_structured.py      # needs an NVIDIA GPU of compute capability 8.0 or more

Dense weights with zeros take as long as all weights; `torch.sparse.to_sparse_semi_structured` stores half of them.
"""

import torch
from torch import nn
from torch.sparse import to_sparse_semi_structured
from torch.utils.benchmark import Timer

import barebones as bb

SIZES = ((1024, 1024), (4096, 1024), (4096, 4096), (11008, 4096))
ROWS = (16, 256, 4096)


def median(x: torch.Tensor, weight: torch.Tensor) -> float:
    """Return the seconds of one product."""
    timer = Timer("linear(x, w)", globals={"linear": nn.functional.linear, "x": x, "w": weight})
    return timer.blocked_autorange(min_run_time=0.3).median


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("error: this benchmark needs an NVIDIA GPU")
    print(torch.cuda.get_device_name(), torch.__version__)
    print("| outputs x inputs | rows | dense ms | 2:4 ms | times as fast | largest difference |\n" + "|---" * 6 + "|")
    for outputs, inputs in SIZES:
        layer = nn.Linear(inputs, outputs, bias=False, device="cuda", dtype=torch.bfloat16)
        masks = bb.prune(layer, None, 0.5, "magnitude", pattern="2:4", on_collapse="ignore").masks
        layer.weight.data *= masks["weight"]
        sparse = to_sparse_semi_structured(layer.weight.data)
        for rows in ROWS:
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            with torch.inference_mode():
                difference = (nn.functional.linear(x, sparse) - layer(x)).abs().max().item()
                dense, fast = (1e3 * median(x, weight) for weight in (layer.weight, sparse))
            cells = (
                f"{outputs} x {inputs}",
                rows,
                f"{dense:.3f}",
                f"{fast:.3f}",
                f"{dense / fast:.2f}",
                f"{difference:.2g}",
            )
            print("|" + "|".join(map(str, cells)) + "|")


if __name__ == "__main__":
    main()
