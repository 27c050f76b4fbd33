"""Prune a small vision transformer of transformers at initialization, train what is left, and save the masks.

Run it with `pip install 'barebones[transformers,demo]'` and `python examples/vision_transformer.py`. It takes seconds.
"""

import torch
from transformers import ViTConfig, ViTForImageClassification

import barebones as bb
from barebones import data
from barebones.models import initialize

torch.manual_seed(0)
digits = data.load("digits")
config = ViTConfig(
    image_size=8, patch_size=2, num_channels=1, num_labels=10, hidden_size=32, intermediate_size=64,
    num_hidden_layers=2, num_attention_heads=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
model = ViTForImageClassification(config)  # from its configuration: nothing is downloaded
initialize(model, "xavier")  # so small a network learns slowly from the tiny weights that transformers draws


def objective(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the loss that transformers computes."""
    images, labels = batch
    return model(pixel_values=images, labels=labels).loss


# At initialization, attention is almost uniform, so queries and keys have small scores: at_least keeps some of each.
batches = digits.train.scoring(64)
result = bb.prune(model, batches, sparsity=0.8, method="iter-snip", rounds=10, objective=objective, at_least=64)
print(result)
bb.save_masks(result.masks, "vision_transformer_masks.safetensors", **result.about)

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
bb.hold(model, result.masks, optimizer)  # pruned weights are zero now and after every step
for epoch in range(10):
    for batch in digits.train.epoch(64, number=epoch, shuffle=True):
        optimizer.zero_grad()
        loss = objective(model, batch)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.2f}")

bb.audit(model, result.masks)
images, labels = next(digits.test.epoch(len(digits.test)))
with torch.no_grad():
    accuracy = (model(images).logits.argmax(1) == labels).float().mean()
print(f"Test accuracy: {accuracy:.1%}")
print(bb.account(model, result.masks, images[:1]))
