"""Data of the user's own: what a factory returns becomes splits (docs/your-data.md is the recipe)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..imports import made
from ..messages import did_you_mean, first_line, shape_of
from ..running import digest
from ..running.rng import forked
from .dataset import Data, Inputs, Request
from .split import ItemSplit, Normalization, Split, TensorSplit, statistics

PARTS = ("train", "validation", "test")
KEYS = (*PARTS, "classes", "mean", "std", "workers")
RECIPE = "(train, test), each a Dataset of (input, target) or a pair of tensors (inputs, targets)"
LOOKED_AT = 256  # items at the start of a Dataset that its digest is made from
AS_THEY_ARE = Normalization((), ())
UNKNOWN = 2**31  # the number of classes, until it is known


def load(name: str, request: Request) -> Data:
    given = _given(name, made(name, "data set", {"root": request.root}, RECIPE))
    if not isinstance(workers := given.get("workers", 0), int) or workers < 0:
        raise ValueError(f"workers of {name} is {workers!r:.40}; it must be a number of processes, 0 or more")

    def split(part: str, normalization: Normalization = AS_THEY_ARE) -> TensorSplit | ItemSplit:
        return _split(given[part], f"the {part} of {name}", normalization, workers, inputs)

    inputs: Inputs | None = None  # what all inputs have to be like, once that is known
    first = next(split("train").epoch(1))[0][0]
    inputs = Inputs(UNKNOWN, tuple(first.shape), str(first.dtype).removeprefix("torch."))
    classes = given.get("classes")
    if classes is None:
        classes = 1 + max(int(labels.max()) for _, labels in split("train").epoch(LOOKED_AT))
    if not isinstance(classes, int) or classes < 2:
        raise ValueError(f"{name} has {classes!r:.40} classes; it needs two or more, numbered from 0")
    inputs = replace(inputs, classes=classes)
    normalization = _normalization(name, given, split("train"), inputs, request)
    splits = {part: split(part, normalization) for part in PARTS if part in given}
    return Data(
        name,
        classes,
        normalization.shape(*inputs.shape),
        train=splits["train"],
        validation=splits.get("validation"),
        test=splits["test"],
        dtype="float32" if normalization.normalizes else inputs.dtype,
        digest=digest.hexadecimal(tensor for each in splits.values() for tensor in _content(each)),
    )


def _given(name: str, returned: Any) -> Mapping[str, Any]:
    if isinstance(returned, tuple | list) and len(returned) == 2 and not isinstance(returned[0], Tensor):
        returned = {"train": returned[0], "test": returned[1]}
    if not isinstance(returned, Mapping):
        kind = f"{len(returned)} values" if isinstance(returned, tuple | list) else type(returned).__name__
        raise ValueError(f"{name} returned {kind}; a factory must return {RECIPE}")
    for key in returned:
        if key not in KEYS:
            hint = did_you_mean(str(key), PARTS)
            raise ValueError(f"{name} returned a dict with {key!r:.40}{hint}; it may have {', '.join(KEYS)}")
    if missing := [part for part in ("train", "test") if returned.get(part) is None]:
        raise ValueError(f"{name} returned no {missing[0]} data; a factory must return {RECIPE}")
    return {key: value for key, value in returned.items() if value is not None}


def _split(
    given: Any, where: str, normalization: Normalization, workers: int, alike: Inputs | None
) -> TensorSplit | ItemSplit:
    split: TensorSplit | ItemSplit
    if isinstance(given, tuple | list) and len(given) == 2 and all(hasattr(each, "shape") for each in given):
        inputs, targets = _checked(_tensor(given[0], where), _tensor(given[1], where), where, alike)
        split = TensorSplit(inputs, targets, normalization, pad=0, flip=False)
    elif hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, tuple | list | Mapping):
        read_one = partial(_item, dataset=given, where=where, alike=alike)
        split = ItemSplit(range(len(given)), read_one, normalization, workers)
    else:
        kind = type(given).__name__
        raise ValueError(f"{where} is of type {kind}; return a Dataset with a length, or tensors (inputs, targets)")
    if not len(split):
        raise ValueError(f"{where} is empty; it needs at least one input")
    return split


def _item(
    item: int, index: int, key: int | None, dataset: Dataset[Any], where: str, alike: Inputs | None
) -> tuple[Tensor, int]:
    """Read an item with the global generators of torch, Python and NumPy seeded by the epoch and its index.

    So random transforms are the same in a resumed run and with any number of workers.
    """
    where = f"item {index} of {where}"
    try:
        with forked(torch.device("cpu"), digest.text(key, index)):
            pair = dataset[item]
    except Exception as error:  # the user's Dataset may raise anything
        raise ValueError(f"{where} raised {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"{where} is of type {type(pair).__name__}; it must be a pair (input, target)")
    input, target = (_tensor(each, where) for each in pair)
    inputs, targets = _checked(input[None], target.squeeze()[None], where, alike)
    return inputs[0], int(targets[0])


def _tensor(value: Any, where: str) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        hint = "" if not hasattr(value, "convert") else "; add a transform that makes a tensor of an image"
        found = f"{value!r:.40} of type {type(value).__name__}"
        raise ValueError(f"{where} has {found}, which is no tensor{hint}") from error


def _checked(inputs: Tensor, targets: Tensor, where: str, alike: Inputs | None) -> tuple[Tensor, Tensor]:
    """Return inputs as bytes of images, as 32-bit floats or as 64-bit integers, and the numbers of their classes."""
    if targets.shape != inputs.shape[:1] or targets.is_floating_point() or targets.is_complex():
        found = f"inputs of {shape_of(inputs)} and targets of {shape_of(targets)} {str(targets.dtype)[6:]}"
        raise ValueError(f"{where} has {found}; it needs one whole number, that of its class, for each input")
    targets = targets.to(torch.int64)
    if inputs.is_complex():
        raise ValueError(f"{where} has complex inputs; the lab takes real ones")
    if inputs.dtype == torch.uint8:
        if inputs.dim() not in (3, 4):
            shape = f"bytes of shape {shape_of(inputs.shape[1:])}"
            raise ValueError(f"{where} has {shape}; images are channels×height×width, others need floats")
        inputs = inputs.unsqueeze(1) if inputs.dim() == 3 else inputs
    else:
        floats = inputs.is_floating_point() or inputs.dtype == torch.bool
        inputs = inputs.to(torch.float32 if floats else torch.int64)
    if alike is not None:
        found = f"{shape_of(inputs.shape[1:])} {str(inputs.dtype)[6:]}"
        if found != (first := f"{shape_of(alike.shape)} {alike.dtype}"):
            raise ValueError(f"{where} has inputs of {found}, but those of train are {first}; make them alike")
        if len(wrong := targets[(targets < 0) | (targets >= alike.classes)]):
            last = "" if alike.classes == UNKNOWN else f" to {alike.classes - 1}"
            raise ValueError(f"{where} has the target {wrong[0]}; classes are numbered from 0{last}")
    return inputs, targets


def _normalization(
    name: str, given: Mapping[str, Any], train: Split, inputs: Inputs, request: Request
) -> Normalization:
    """Return how inputs are normalized: images of bytes by their mean and standard deviation, others not at all."""
    stated = "mean" in given or "std" in given
    if inputs.dtype != "uint8":
        if stated:
            raise ValueError(f"{name} returned mean and std, which are for bytes; other inputs are used as they are")
        return request.normalization((), ())
    try:
        mean, std = (torch.as_tensor(given[key]).double().flatten().tolist() for key in ("mean", "std"))
    except (TypeError, ValueError, RuntimeError):  # no numbers
        mean = std = []
    except KeyError:
        if stated:
            raise ValueError(f"{name} returned one of mean and std; give both or neither") from None
        mean, std = statistics(train)
    if not len(mean) == len(std) == inputs.channels or not all(value > 0 for value in std):
        raise ValueError(f"mean and std of {name} need one number for each of {inputs.channels} channels, std above 0")
    return request.normalization(mean, std)


def _content(split: TensorSplit | ItemSplit) -> Iterator[Tensor]:
    """Yield the tensors that tell whether the data has changed."""
    if isinstance(split, TensorSplit):
        yield from (split.images, split.labels)
    else:
        yield from next(split.epoch(LOOKED_AT))
        yield torch.tensor(len(split))
