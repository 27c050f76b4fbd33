"""Prune a GPT-2 that is sharded over several processes, train it a little, and write its masks.

    pip install 'barebones[transformers]'
    torchrun --nproc-per-node 2 examples/sharded_language_model.py masks.safetensors

The network is built from its configuration, and the text is random, so nothing is downloaded. With GPUs the same
script runs on them.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from transformers import GPT2Config, GPT2LMHeadModel

import barebones as bb


def language_model() -> nn.Module:
    torch.manual_seed(0)  # the same weights in every process
    sizes = dict(vocab_size=101, n_positions=32, n_embd=64, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(input_ids=tokens).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def main(path: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank = dist.get_rank()
    if device == "cuda":
        torch.cuda.set_device(rank)
    model = language_model().to(device)
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)

    generator = torch.Generator().manual_seed(rank)  # every process reads its own text
    texts = [torch.randint(101, (4, 32), generator=generator).to(device) for _ in range(8)]
    result = bb.prune(model, texts, sparsity=0.9, method="force", rounds=5, objective=loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with bb.hold(model, result.masks, optimizer):
        for tokens in texts:
            optimizer.zero_grad()
            value = loss(model, tokens)
            value.backward()
            optimizer.step()
    bb.audit(model, result.masks)
    result.save(path)

    own = sum(mask.to_local().numel() for mask in result.masks.values())
    print(
        f"process {rank} of {dist.get_world_size()}: holds the masks of {own:,} weights, loss {value.item():.3f}",
        flush=True,
    )
    counts = bb.account(model, result.masks)
    if rank == 0:
        print(f"{counts.kept:,} of {counts.total:,} weights kept; masks written to {path}", flush=True)
    dist.destroy_process_group()
    os._exit(0)  # torch caches what was sharded, and a gloo thread that outlives Python aborts the process


if __name__ == "__main__":
    if len(sys.argv) != 2 or "RANK" not in os.environ:
        sys.exit(f"start it with torchrun: torchrun --nproc-per-node 2 {sys.argv[0]} MASKS.safetensors")
    main(sys.argv[1])
