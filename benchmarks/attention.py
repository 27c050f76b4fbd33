"""Two small transformers of Hugging Face, pruned at initialization and trained on tasks that need attention.

    python benchmarks/attention.py            # prints the table of docs/transformers.md

The encoder reads a place and eight tokens, and names the token at this place. The decoder reads eight tokens, and
repeats them. Each is pruned to three sparsities with three seeds, held, and trained for some hundred steps. The table
has the mean test accuracy, and at 90 % the layers without weights and the effective sparsity.
"""

import warnings
from itertools import product
from statistics import mean
from typing import Any

import torch
from measuring import in_processes
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

import barebones as bb

SPARSITIES, SEEDS, BATCH, PEAK, TOKENS, PLACES, SHOWN = (0.8, 0.9, 0.98), range(3), 64, 0.005, 10, 8, 0.9
STEPS = {"BERT": 300, "Llama": 200}
SIZES: dict[str, Any] = dict(
    vocab_size=TOKENS + PLACES, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
)
HEAD, QUERIES_AND_KEYS = ("pooler", "classifier", "lm_head"), ("query", "key", "q_proj", "k_proj")
WAYS: dict[str, tuple[str, dict[str, Any]]] = {  # label -> method, options; at_least is a share of the mean layer
    **{method: (method, {}) for method in ("force", "hybrid", "iter-snip", "snip", "magnitude", "random", "erk")},
    **{f"{method}, at_least": (method, {"at_least": 0.5}) for method in ("force", "hybrid", "snip")},
    **{f"{method}, erk": (method, {"densities": "erk"}) for method in ("force", "hybrid", "iter-snip", "snip")},
    "hybrid, not q and k": ("hybrid", {"exclude": QUERIES_AND_KEYS}),
    "hybrid, not the head": ("hybrid", {"exclude": HEAD}),
}
Batch = dict[str, Tensor]


def places(number: int, source: torch.Generator) -> Batch:
    tokens = torch.randint(TOKENS, (number, PLACES), generator=source)
    place = torch.randint(PLACES, (number, 1), generator=source)
    return {"input_ids": torch.cat([TOKENS + place, tokens], 1), "labels": tokens.gather(1, place).squeeze(1)}


def copies(number: int, source: torch.Generator) -> Batch:
    tokens = torch.randint(TOKENS, (number, PLACES), generator=source)
    return {"input_ids": tokens.repeat(1, 2), "labels": torch.cat([torch.full_like(tokens, -100), tokens], 1)}


BERT = BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=TOKENS)
LLAMA = LlamaConfig(**SIZES, num_key_value_heads=2, use_cache=False)
NETWORKS = {"BERT": (BertForSequenceClassification, BERT, places), "Llama": (LlamaForCausalLM, LLAMA, copies)}


def tested(model: nn.Module, batch: Batch) -> float:
    """Return the share of the labels that the model names, in percent; a decoder names the next token."""
    with torch.no_grad():
        found, labels = model.eval()(input_ids=batch["input_ids"]).logits.argmax(-1), batch["labels"]
    found, labels = (found, labels) if labels.dim() == 1 else (found[:, :-1], labels[:, 1:])
    return 100 * (found == labels)[labels >= 0].double().mean().item()


def case(network: str, sparsity: float, way: str, seed: int) -> tuple[float, int, float]:
    """Prune and train once; return the accuracy, the number of empty layers and the effective sparsity, in percent."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
    (kind, config, draw), source = NETWORKS[network], torch.Generator().manual_seed(seed)
    model, batches = kind(config), [draw(BATCH, source) for _ in range(60)]
    (method, options), weights = WAYS[way], bb.prunable(model)
    least, parts, law = options.get("at_least", 0), options.get("exclude", ()), options.get("densities")
    total, example = sum(w.numel() for w in weights.values()), {"input_ids": batches[0]["input_ids"]}
    result = bb.prune(
        model, batches, sparsity, method, objective=lambda model, batch: model(**batch).loss, example=example,
        at_least=int(least * (1 - sparsity) * total / len(weights)), densities=law, on_collapse="ignore",
        seed=seed, exclude=lambda name, _: any(part in name for part in parts),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), PEAK, fused=True)
    bb.hold(model, result.masks, optimizer)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK, total_steps=STEPS[network])
    for _ in range(STEPS[network]):
        optimizer.zero_grad()
        model(**draw(BATCH, source)).loss.backward()
        optimizer.step()
        schedule.step()
    removed = sum(mask.numel() for mask in result.masks.values()) - (result.effective or 0)
    return tested(model, draw(1000, torch.Generator().manual_seed(-1))), len(result.empty), 100 * removed / total


def main() -> None:
    cases = list(product(NETWORKS, SPARSITIES, WAYS, SEEDS))
    rows = dict(zip(cases, in_processes(case, cases), strict=True))
    heads = [f"{n} {title}" for n in NETWORKS for title in (*(f"{s:.0%}" for s in SPARSITIES), "empty", "effective")]
    print("|" + "|".join(["", *heads]) + "|\n" + "|---" * (len(heads) + 1) + "|")
    for way in WAYS:
        cells = []
        for network in NETWORKS:
            at = {s: [rows[network, s, way, seed] for seed in SEEDS] for s in SPARSITIES}
            cells += [f"{mean(row[0] for row in at[s]):.0f}" for s in SPARSITIES]
            cells += [f"{mean(row[k] for row in at[SHOWN]):.1f}" for k in (1, 2)]
        print("|" + "|".join([way, *cells]) + "|")
    print("\nDense:", {name: [round(case(name, 0.0, "random", seed)[0]) for seed in SEEDS] for name in NETWORKS})


if __name__ == "__main__":
    main()
