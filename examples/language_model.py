"""Prune a small language model of transformers at initialization, train what is left, and save the masks.

Run it with `pip install 'barebones[transformers]'` and `python examples/language_model.py`. It takes seconds.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import barebones as bb

STEPS, LENGTH = 60, 32
TEXT = "the quick brown fox jumps over the lazy dog and the lazy dog sleeps in the sun " * 50

torch.manual_seed(0)
tokens = torch.tensor(list(TEXT.encode()))  # one token per byte
config = LlamaConfig(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=LENGTH,
)  # fmt: skip
model = LlamaForCausalLM(config)  # from its configuration: nothing is downloaded


def batch() -> dict[str, torch.Tensor]:
    """Return 16 random pieces of the text; the model shifts the labels itself."""
    starts = torch.randint(len(tokens) - LENGTH, (16, 1))
    pieces = tokens[starts + torch.arange(LENGTH)]
    return {"input_ids": pieces, "labels": pieces}


def objective(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss that transformers computes."""
    return model(**batch).loss


# At initialization, attention is almost uniform, so queries and keys have small scores: at_least keeps some of each.
batches = [batch() for _ in range(10)]
result = bb.prune(model, batches, sparsity=0.8, method="force", rounds=10, objective=objective, at_least=256)
print(result)
bb.save_masks(result.masks, "language_model_masks.safetensors", **result.about)

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
bb.hold(model, result.masks, optimizer)  # pruned weights are zero now and after every step
for step in range(STEPS):
    optimizer.zero_grad()
    loss = objective(model, batch())
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step}: loss {loss.item():.2f}")

bb.audit(model, result.masks)
print(bb.account(model, result.masks, {"input_ids": batch()["input_ids"][:1]}))
