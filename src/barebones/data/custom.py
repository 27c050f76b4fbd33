"""Data of the user's own: what a factory returns becomes splits (docs/your-data.md is the recipe)."""

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..imports import made
from ..messages import did_you_mean, first_line, shape_of
from ..running import digest
from ..running.rng import forked
from .folder import loaded
from .normalization import Normalization
from .split import Batch, Data, Request, Split, statistics
from .tensors import TensorSplit

PARTS = ("train", "validation", "test")
OTHERS = ("classes", "mean", "std", "workers")
RECIPE = "(train, test), each a Dataset of (input, target) or a pair of tensors (inputs, targets)"
LOOKED_AT = 256  # items at the start of a Dataset that its digest is made from
CPU = torch.device("cpu")


class DatasetSplit(Split):
    """A Dataset of the user's own, read when its items are needed.

    Each item is read with the global generators of torch, Python and NumPy seeded by the epoch and its index, so random
    transforms are the same in a resumed run and with any number of workers.
    """

    def __init__(self, dataset: Dataset[Any], name: str, normalization: Normalization, workers: int = 0) -> None:
        self.reader, self.normalization, self.workers = _Reader(dataset, name), normalization, workers

    def __len__(self) -> int:
        return len(self.reader.dataset)  # type: ignore[arg-type]

    def read(self, order: Tensor, batch: int, key: int | None) -> Iterator[Batch]:
        items = ([(i, digest.text(key, i)) for i in indices.tolist()] for indices in order.split(batch))
        yield from loaded(self.reader, items, self.workers, self.normalization)


class _Reader(Dataset[Any]):
    """Read one batch of items at a time; return errors."""

    def __init__(self, dataset: Dataset[Any], name: str) -> None:
        self.dataset, self.name = dataset, name
        self.form: tuple[tuple[int, ...], torch.dtype] | None = None  # shape and type of an input, once known
        self.classes: int | None = None

    def __getitems__(self, items: list[tuple[int, int]]) -> Batch | Exception:
        try:
            pairs = [self._item(index, seed) for index, seed in items]
        except ValueError as error:
            return error
        return torch.stack([each for each, _ in pairs]), torch.tensor([target for _, target in pairs])

    def _item(self, index: int, seed: int) -> tuple[Tensor, int]:
        where = f"item {index} of {self.name}"
        try:
            with forked(CPU, seed):
                item = self.dataset[index]
        except Exception as error:  # the user's Dataset may raise anything
            raise ValueError(f"{where} raised {type(error).__name__}: {first_line(error)}") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(f"{where} is of type {type(item).__name__}; it must be a pair (input, target)")
        input, target = _tensor(item[0], where), item[1]
        input = _prepared(input.unsqueeze(0), where)[0]
        try:
            label = operator.index(target.item() if hasattr(target, "item") else target)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"the target of {where} is {target!r:.40}; it must be the number of a class") from None
        if self.form not in (None, (tuple(input.shape), input.dtype)):
            assert self.form is not None
            found, first = (f"{shape_of(shape)} {str(dtype)[6:]}" for shape, dtype in (_form(input), self.form))
            raise ValueError(f"{where} is {found}, but the first input is {first}; make all inputs alike")
        if label < 0 or (self.classes is not None and label >= self.classes):
            raise ValueError(f"the target of {where} is {label}; {_range(self.classes)}")
        return input, label


def load(name: str, request: Request) -> Data:
    """Load the data that the factory of this name returns."""
    given = _given(name, made(name, "data set", {"root": request.root}, RECIPE))
    bytes_as_they_are = Normalization((), (), device=CPU)
    workers = given.get("workers", 0)
    if not isinstance(workers, int) or workers < 0:
        raise ValueError(f"workers of {name} is {workers!r:.40}; it must be a number of processes, 0 or more")
    raw = {
        part: _split(given[part], f"{part} of {name}", bytes_as_they_are, workers) for part in PARTS if part in given
    }
    form, classes = _form(next(raw["train"].epoch(1))[0][0]), given.get("classes")
    if classes is None:
        classes = int(_labels(raw["train"]).max()) + 1
    if not isinstance(classes, int) or classes < 2:
        raise ValueError(f"{name} has {classes!r:.40} classes; it needs two or more, numbered from 0")
    for part, split in raw.items():
        _check(split, f"{part} of {name}", form, classes)
    normalization = _normalization(name, given, raw["train"], form, request)
    splits = {part: _on_device(split, normalization) for part, split in raw.items()}
    return Data(
        name,
        classes,
        request.shape(*form[0]),
        train=splits["train"],
        validation=splits.get("validation"),
        test=splits["test"],
        dtype=str(torch.float32 if normalization.normalizes else form[1]).removeprefix("torch."),
        digest=digest.hexadecimal(tensor for split in raw.values() for tensor in _content(split)),
    )


def _given(name: str, returned: Any) -> Mapping[str, Any]:
    """Return what a factory returned as a mapping from the names of its parts."""
    if isinstance(returned, tuple | list) and len(returned) == 2 and not isinstance(returned[0], Tensor):
        returned = {"train": returned[0], "test": returned[1]}
    if not isinstance(returned, Mapping):
        kind = f"{len(returned)} values" if isinstance(returned, tuple | list) else type(returned).__name__
        raise ValueError(f"{name} returned {kind}; a factory must return {RECIPE}")
    for key in returned:
        if key not in (*PARTS, *OTHERS):
            known = ", ".join((*PARTS, *OTHERS))
            raise ValueError(
                f"{name} returned a dict with {key!r:.40}{did_you_mean(str(key), PARTS)}; it may have {known}"
            )
    if missing := [part for part in ("train", "test") if returned.get(part) is None]:
        raise ValueError(f"{name} returned no {missing[0]} data; a factory must return {RECIPE}")
    return {key: value for key, value in returned.items() if value is not None}


def _split(given: Any, name: str, normalization: Normalization, workers: int) -> TensorSplit | DatasetSplit:
    """Return the inputs and targets of a part as they are, on the CPU."""
    pair = isinstance(given, tuple | list) and len(given) == 2 and all(hasattr(each, "shape") for each in given)
    if pair:
        inputs, targets = (_tensor(each, name) for each in given)
        if len(inputs) != len(targets) or targets.dim() != 1 or targets.is_floating_point() or targets.is_complex():
            found = f"inputs of {shape_of(inputs)} and targets of {shape_of(targets)} {str(targets.dtype)[6:]}"
            raise ValueError(f"the {name} has {found}; it needs one whole number, that of its class, for each input")
        split: TensorSplit | DatasetSplit = TensorSplit(
            _prepared(inputs, f"the {name}"), targets, normalization, pad=0, flip=False
        )
    elif hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, tuple | list | Mapping):
        split = DatasetSplit(given, name, normalization, workers)
    else:
        raise ValueError(
            f"the {name} is of type {type(given).__name__}; return a Dataset with a length, or a pair of tensors "
            "(inputs, targets)"
        )
    if not len(split):
        raise ValueError(f"the {name} is empty; it needs at least one input")
    return split


def _tensor(value: Any, where: str) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        hint = "" if not hasattr(value, "convert") else "; add a transform that makes a tensor of an image"
        raise ValueError(f"{where} has an input of type {type(value).__name__}, which is no tensor{hint}") from error


def _prepared(inputs: Tensor, where: str) -> Tensor:
    """Return a batch of inputs as bytes of images, as 32-bit floats, or as 64-bit integers."""
    if inputs.dtype == torch.uint8:
        if inputs.dim() not in (3, 4):
            shape = shape_of(inputs.shape[1:])
            raise ValueError(
                f"{where} has bytes of shape {shape}; images are channels×height×width, others need floats"
            )
        return inputs.unsqueeze(1) if inputs.dim() == 3 else inputs
    if inputs.is_complex():
        raise ValueError(f"{where} has complex inputs; the lab takes real ones")
    return inputs.to(torch.float32 if inputs.is_floating_point() or inputs.dtype == torch.bool else torch.int64)


def _form(input: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(input.shape), input.dtype


def _range(classes: int | None) -> str:
    return "classes are numbered from 0" + ("" if classes is None else f" to {classes - 1}")


def _labels(split: TensorSplit | DatasetSplit) -> Tensor:
    if isinstance(split, TensorSplit):
        return split.labels
    return torch.cat([labels for _, labels in split.epoch(LOOKED_AT)])


def _check(
    split: TensorSplit | DatasetSplit, name: str, form: tuple[tuple[int, ...], torch.dtype], classes: int
) -> None:
    """Check a part against the first training input and the classes; a Dataset checks its items as they are read."""
    if isinstance(split, DatasetSplit):
        split.reader.form, split.reader.classes = form, classes
        return
    if (found := _form(split.images[0])) != form:
        texts = [f"{shape_of(shape)} {str(dtype)[6:]}" for shape, dtype in (found, form)]
        raise ValueError(f"the {name} has inputs of {texts[0]}, but those of train are {texts[1]}; make them alike")
    if (low := int(split.labels.min())) < 0 or int(split.labels.max()) >= classes:
        wrong = low if low < 0 else int(split.labels.max())
        raise ValueError(f"the {name} has the target {wrong}; {_range(classes)}")


def _normalization(
    name: str,
    given: Mapping[str, Any],
    train: Split,
    form: tuple[tuple[int, ...], torch.dtype],
    request: Request,
) -> Normalization:
    """Return how inputs are normalized: images of bytes by their mean and standard deviation, others not at all."""
    if ("mean" in given) != ("std" in given):
        raise ValueError(f"{name} returned one of mean and std; give both or neither")
    if form[1] != torch.uint8:
        if "mean" in given:
            raise ValueError(f"{name} returned mean and std, which are for bytes; other inputs are used as they are")
        return request.normalization((), ())
    channels = form[0][0]
    mean, std = statistics(train) if "mean" not in given else (given["mean"], given["std"])
    try:
        mean, std = ([float(value) for value in values] for values in (mean, std))
    except (TypeError, ValueError):
        mean = std = []
    if not len(mean) == len(std) == channels or not all(value > 0 for value in std):
        raise ValueError(f"mean and std of {name} need one number for each of {channels} channels, std above 0")
    return request.normalization(mean, std)


def _content(split: TensorSplit | DatasetSplit) -> Iterator[Tensor]:
    """Yield the tensors that tell whether the data has changed."""
    if isinstance(split, TensorSplit):
        yield from (split.images, split.labels)
        return
    yield from next(split.epoch(LOOKED_AT))
    yield torch.tensor(len(split))


def _on_device(split: TensorSplit | DatasetSplit, normalization: Normalization) -> Split:
    if isinstance(split, TensorSplit):
        return TensorSplit(split.images, split.labels, normalization, pad=0, flip=False)
    split.normalization = normalization
    return split
