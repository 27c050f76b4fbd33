"""What the tests of the integrations share: a small network with its data."""

import torch
from references import Items, equal
from torch import nn

import barebones as bb

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(48, 6, generator=GENERATOR), torch.randint(3, (48,), generator=GENERATOR)


class Classifier(nn.Module):
    """Takes batches as keywords and returns its own loss, as the models of transformers do."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x, labels):
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


ROWS = Items(len(X), lambda row: {"x": X[row], "labels": Y[row]})  # which a DataLoader collates to batches of dicts


def found(model: nn.Module) -> bb.Masks:
    """Prune 70 % of a classifier."""
    batches = [{"x": X, "labels": Y}]
    objective = lambda model, batch: model(**batch)["loss"]
    return bb.prune(model, batches, sparsity=0.7, objective=objective, rounds=3).masks


def assert_resumed(resumed: Classifier, whole: Classifier, masks: bb.Masks) -> None:
    """Check that a resumed run has ended as a whole one, with the masks that were found."""
    assert equal(whole.state_dict(), resumed.state_dict())
    assert equal(dict(masks), dict(found(Classifier())))
    bb.audit(resumed, masks)
    assert all(resumed.get_parameter(name)[mask].all() for name, mask in masks.items())
