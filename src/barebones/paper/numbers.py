"""Numbers that the paper states, each with its place; those that can only be read off its plots are not here.

Where a sentence names no network, its number is stored for both ResNet-50 and VGG-19. Accuracies are fractions of 1.
GRASP and SNIP on the larger data sets read T x B batches, so they are our "-mb" rows.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ..models import ParameterTable

EXACT, ABOUT, ABOVE = "exact", "about", "above"  # "above" is a lower bound


class Reference(NamedTuple):
    """A test accuracy that the paper states."""

    data: str
    model: str
    method: str
    sparsity: float
    top1: float
    top5: float | None = None
    prune_seconds: float | None = None  # to the mask, on a Tesla K40m
    rounds: int | None = None
    batches_per_round: int | None = None
    says: str = EXACT
    where: str = ""


TEXT, COST = "section 5.1", "figure 4, right"


def _cifar10() -> Iterable[Reference]:
    for model in ("resnet50", "vgg19"):
        yield Reference("cifar10", model, "snip", 0.99, 0.10, says=ABOUT, where=TEXT)
        yield Reference("cifar10", model, "snip-mb", 0.99, 0.90, says=ABOUT, where=TEXT)  # "almost 90 %"
        for method in ("snip", "snip-mb", "grasp", "grasp-mb"):  # "one-shot approaches", nearly 10 %
            yield Reference("cifar10", model, method, 0.999, 0.10, says=ABOUT, where=TEXT)
        for method in ("force", "iter-snip"):
            yield Reference("cifar10", model, method, 0.999, 0.80, says=ABOVE, where=TEXT)
    yield Reference("cifar10", "resnet50", "random", 0.99, 0.75, says=ABOUT, where=TEXT)
    yield Reference("cifar10", "vgg19", "random", 0.99, 0.82, says=ABOUT, where=TEXT)


def _cost() -> Iterable[Reference]:
    """Yield time to the mask and accuracy at 99.5 %, ResNet-50 on CIFAR-10; the default is 300 rounds or batches."""
    for method, rounds, batches, seconds, top1 in (
        ("snip", 1, 1, 14, 0.100),
        ("grasp", 1, 1, 47, 0.192),
        ("force", 20, 1, 57, 0.879),
        ("iter-snip", 20, 1, 57, 0.889),
        ("snip-mb", 1, 300, 4.8 * 60, 0.761),
        ("force", 300, 1, 11.6 * 60, 0.900),
        ("iter-snip", 300, 1, 11.6 * 60, 0.890),
        ("grasp-mb", 1, 300, 50.7 * 60, 0.885),
    ):
        yield Reference("cifar10", "resnet50", method, 0.995, top1, None, seconds, rounds, batches, EXACT, COST)


def _imagenet() -> Iterable[Reference]:
    """Yield top-1 and top-5 at 90 and 95 %: VGG-19 with batch-norm, then ResNet-50."""
    yield Reference("imagenet", "vgg19", "dense", 0.0, 0.731, 0.913, where="table 1")
    yield Reference("imagenet", "resnet50", "dense", 0.0, 0.756, 0.928, where="table 1")
    for method, *numbers in (
        ("force", 70.2, 89.5, 65.8, 86.8, 64.9, 86.5, 59.0, 82.3),
        ("iter-snip", 69.8, 89.5, 65.9, 86.9, 63.7, 85.5, 54.7, 78.9),
        ("grasp-mb", 69.5, 89.2, 67.6, 87.8, 65.4, 86.7, 46.2, 66.0),
        ("snip-mb", 68.5, 88.8, 63.8, 86.0, 61.5, 83.9, 44.3, 69.6),
        ("random", 64.2, 86.0, 56.6, 81.0, 64.6, 86.0, 57.2, 80.8),
    ):
        columns = [(model, sparsity) for model in ("vgg19", "resnet50") for sparsity in (0.90, 0.95)]
        for number, (model, sparsity) in enumerate(columns):
            top1, top5 = (round(value / 100, 4) for value in numbers[2 * number : 2 * number + 2])
            yield Reference("imagenet", model, method, sparsity, top1, top5, where="table 1")


BELOW_RANDOM = ("snip", "grasp")  # with one batch; the table of costs prints them in red

ACCURACIES: tuple[Reference, ...] = (*_cifar10(), *_cost(), *_imagenet())


PARAMETERS = {  # appendix A, table 2, by data set and network; "bias" includes that of batch-norm
    ("cifar10", "resnet50"): ParameterTable(99.69, 0.09, 0.11, 0.11, 99.78, 23_520_000),
    ("cifar10", "vgg19"): ParameterTable(99.92, 0.03, 0.03, 0.03, 99.95, 20_040_000),
    ("cifar100", "resnet50"): ParameterTable(98.91, 0.86, 0.11, 0.11, 99.78, 23_710_000),
    ("cifar100", "vgg19"): ParameterTable(99.69, 0.25, 0.03, 0.03, 99.94, 20_080_000),
    ("tiny-imagenet", "resnet50"): ParameterTable(98.06, 1.71, 0.11, 0.11, 99.78, 23_910_000),
    ("tiny-imagenet", "vgg19"): ParameterTable(99.44, 0.51, 0.03, 0.03, 99.94, 20_130_000),
    ("imagenet", "resnet50"): ParameterTable(91.77, 8.01, 0.10, 0.11, 99.79, 25_560_000),
    ("imagenet", "vgg19"): ParameterTable(13.93, 86.05, 0.01, 0.01, 99.98, 143_680_000),
}
