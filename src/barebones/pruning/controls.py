"""Controls: masks and weights that share something with a method's result, and by chance or on purpose nothing else.

A mask may be good because of its weights, or only because of how many of them each layer keeps. A control tells which:
it keeps the counts and changes the rest.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..masks import Masks, Scores, check_masks
from ..messages import shortened, unknown
from ..models import SCHEMES
from ..running import digest
from ..running.shards import refuse_shards
from ..scope import masked_copy, prunable
from .selection import keep_top


def shuffled(masks: Mapping[str, Tensor], seed: int = 0) -> Masks:
    """Return masks permuted at random within each layer; the permutation depends on the seed and the layer's name.

    >>> masks = {"w": torch.arange(1000) < 100}
    >>> other = shuffled(masks, seed=1)
    >>> int(other["w"].count_nonzero()), bool((other["w"] & masks["w"]).count_nonzero() < 30)
    (100, True)
    """
    check_masks(masks)
    refuse_shards("masks", masks)
    shuffled = Masks()
    for name, mask in masks.items():
        order = torch.randperm(mask.numel(), generator=_generator(seed, "shuffle", name), device="cpu")
        shuffled[name] = mask.reshape(-1)[order.to(mask.device)].view(mask.shape)
    return shuffled


def inverted(masks: Mapping[str, Tensor], scores: Scores) -> Masks:
    """Return masks that keep as many weights of every layer as `masks`, but those with the lowest scores.

    >>> dict(inverted({"w": torch.tensor([True, False, False])}, {"w": torch.tensor([3.0, 1.0, 2.0])}))
    {'w': tensor([False,  True, False])}
    """
    check_masks(masks)
    refuse_shards("masks", masks)
    if wrong := [name for name, mask in masks.items() if name not in scores or scores[name].shape != mask.shape]:
        raise ValueError(f"there must be a score for every weight of the masks; check {shortened(wrong)}")
    lowest = Masks()
    for name, mask in masks.items():
        lowest |= keep_top({name: -scores[name]}, int(mask.count_nonzero()))
    return lowest


def reinitialized(model: nn.Module, seed: int = 0, init: str | None = None) -> nn.Module:
    """Return a copy of the model whose prunable weights are reinitialized; the model is left as it was.

    By default the new values are normal, with the mean and standard deviation of the present ones without zeros; `init`
    names a scheme of `initialize` instead. To train these weights under the same masks, `hold` the copy with them.

    >>> layer = nn.Linear(20, 10)
    >>> fresh = reinitialized(layer, seed=1)
    >>> bool((fresh.weight == layer.weight).any()), bool((fresh.bias == layer.bias).all())
    (False, True)
    """
    if init is not None and init not in SCHEMES:
        raise ValueError(unknown("initialization", init, SCHEMES))
    copy = masked_copy(model, {})
    with torch.no_grad():
        for name, weight in prunable(copy).items():
            generator = _generator(seed, "redraw", name)
            drawn = torch.empty(weight.shape, device="cpu")  # so that the values are the same for every device
            values = weight[weight != 0].cpu().double()
            if init is not None:
                weight.copy_(SCHEMES[init](drawn, generator=generator))
            elif values.numel():
                weight.copy_(drawn.normal_(float(values.mean()), float(values.std(correction=0)), generator=generator))
    return copy


def _generator(seed: int, *what: str) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(digest.text(seed, *what))
