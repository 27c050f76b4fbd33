"""Patterns that hardware likes: N of M weights along the inputs, or whole blocks of outputs times inputs."""

import math
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..masks import Masks, Scores
from ..messages import shortened
from .selection import comparable, top_masks
from .thickness import by_channels, from_channels

Groups = Mapping[str, int]  # of layers whose inputs come first
HINT = "name N:M, such as 2:4, or block:RxC, such as block:16x16 (outputs x inputs)"


def parsed(pattern: str) -> tuple[int, int, bool]:
    """Return the two numbers of a pattern, and whether it is one of blocks.

    >>> parsed("2:4"), parsed("block:16x8")
    ((2, 4, False), (16, 8, True))
    """
    found = re.fullmatch(r"(block:)?([1-9]\d*)([:x])([1-9]\d*)", pattern) if isinstance(pattern, str) else None
    if found is None or bool(found[1]) != (found[3] == "x") or (not found[1] and int(found[2]) >= int(found[4])):
        raise ValueError(f"pattern={pattern!r}: {HINT}")
    return int(found[2]), int(found[4]), bool(found[1])


def counts(pattern: str, total: int, schedule: Sequence[int]) -> list[int]:
    """Return how many weights each round keeps: with blocks, the nearest number of whole ones, at least one.

    >>> counts("block:2x2", 100, [50, 10, 1]), counts("2:4", 100, [50, 10, 1])
    ([48, 8, 4], [50, 10, 1])
    """
    a, b, blocks = parsed(pattern)
    return [min(max(1, round(keep / (a * b))) * a * b, total) for keep in schedule] if blocks else list(schedule)


def beginning(pattern: str, shapes: Mapping[str, Sequence[int]], groups: Groups, counts: Sequence[int]) -> int:
    """Return the first round that keeps no more than the pattern allows; blocks begin with the first round."""
    a, b, blocks = parsed(pattern)
    return next(index for index, keep in enumerate(counts) if blocks or keep <= _most(a, b, shapes, groups))


def check(pattern: str, shapes: Mapping[str, Sequence[int]], groups: Groups, counts: Sequence[int]) -> None:
    """Raise a `ValueError` if a layer cannot be divided, or if more weights stay than the pattern allows."""
    a, b, blocks = parsed(pattern)
    rows, columns = (a, b) if blocks else (1, b)
    sides = {name: _sides(shape, groups.get(name)) for name, shape in shapes.items()}
    free = [name for name, (_, inputs) in sides.items() if inputs < b and not blocks]
    if len(free) == len(sides):
        raise ValueError(f"pattern={pattern!r}: no layer has as many as {b} inputs")
    divided = {name: side for name, side in sides.items() if name not in free}
    if wrong := [name for name, (outputs, inputs) in divided.items() if outputs % rows or inputs % columns]:
        outputs, inputs = sides[wrong[0]]
        what = f"{outputs} outputs and {inputs} inputs of {wrong[0]}"
        what += f", or those of {shortened(wrong[1:])}" * (len(wrong) > 1)
        raise ValueError(f"pattern={pattern!r} does not divide the {what}; choose another, or in Python use exclude=")
    total, most = sum(math.prod(shape) for shape in shapes.values()), _most(a, b, shapes, groups)
    if counts[-1] > most and not blocks:
        least = math.ceil(1e4 * (1 - most / total)) / 1e4
        raise ValueError(f"pattern={pattern!r} keeps at most {most:,} of {total:,} weights; use sparsity={least:g}")


def _most(best: int, size: int, shapes: Mapping[str, Sequence[int]], groups: Groups) -> int:
    """Return how many weights can stay, if of each `size` inputs the `best` do; layers with fewer inputs are free."""
    return sum(
        math.prod(shape) * best // size if _sides(shape, groups.get(name))[1] >= size else math.prod(shape)
        for name, shape in shapes.items()
    )


def _sides(shape: Sequence[int], groups: int | None) -> tuple[int, int]:
    """Return how many outputs and inputs a layer has; each output of a grouped one sees the inputs of its group."""
    if groups is None:
        return shape[0], shape[1] if len(shape) > 1 else 1
    return groups * shape[1], shape[0] // groups


def patterned(
    pattern: str, scores: Scores, keep: int, prefer: Masks | None, among: Masks | None, at_least: int, groups: Groups
) -> Masks:
    """Return the masks of the `keep` best weights in a pattern.

    Of each M weights, the N best are eligible; the best of them stay. All weights of layers with fewer than M inputs,
    such as a first convolution, are eligible. While more weights are kept than are eligible, the pattern has not begun.
    A block's score is the sum of its weights' scores.
    """
    a, b, blocks = parsed(pattern)
    wide = {name: s.view(scores[name].shape) for name, s in zip(scores, comparable(scores), strict=True)}
    if not blocks:
        if keep <= _most(a, b, {name: score.shape for name, score in scores.items()}, groups):
            free = among or dict.fromkeys(scores)
            among = Masks({name: _best_in_groups(wide[name], a, b, free[name], groups.get(name)) for name in scores})
        return top_masks(scores, keep, prefer, among, at_least)

    def whole(masks: Masks | None) -> Masks | None:
        return masks and Masks({name: _blocks(masks[name], a, b, groups.get(name)).all(3).all(1) for name in scores})

    pooled = {name: _blocks(score, a, b, groups.get(name)).sum((1, 3)) for name, score in wide.items()}
    best = top_masks(pooled, keep // (a * b), whole(prefer), whole(among), -(-at_least // (a * b)))
    return Masks({name: _spread(best[name], scores[name], a, b, groups.get(name)) for name in scores})


def _blocks(tensor: Tensor, rows: int, columns: int, groups: int | None) -> Tensor:
    outputs, inputs = _sides(tensor.shape, groups)
    kernel = tensor.shape[2:].numel()
    return by_channels(tensor, groups).reshape(outputs // rows, rows, inputs // columns, columns, kernel)


def _spread(best: Tensor, like: Tensor, rows: int, columns: int, groups: int | None) -> Tensor:
    whole = best.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return from_channels(whole.flatten(1), like, groups)


def _best_in_groups(score: Tensor, best: int, size: int, among: Tensor | None, groups: int | None) -> Tensor:
    """Return which weights are among the best of their group along the inputs; of equal ones, the first."""
    if _sides(score.shape, groups)[1] < size:
        return torch.ones_like(score, dtype=torch.bool) if among is None else among
    parts = _blocks(score if among is None else score.where(among, -torch.inf), 1, size, groups)
    rank = torch.zeros_like(parts, dtype=torch.int16)
    place = torch.arange(size, device=score.device).view(-1, 1)
    for other in range(size):
        one = parts[:, :, :, other : other + 1]
        rank += (one > parts) | ((one == parts) & (other < place))
    eligible = from_channels((rank < best).flatten(1), score, groups)
    return eligible if among is None else eligible & among
