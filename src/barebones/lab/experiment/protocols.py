"""Protocols: how the paper prunes and trains on each data set, all its numbers in one table."""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Protocol:
    """Settings of SGD and pruning; the learning rate is divided by ten at each milestone, a fraction of the epochs."""

    epochs: int
    milestones: tuple[float, ...]
    batch_size: int
    weight_decay: float
    rounds: int  # T, of iterative methods
    batches_per_round: int  # B, in each of these rounds; methods of one round over several batches read T x B
    lr: float = 0.1
    norm_scale: str = "ones"  # the initial scales of batch-norms


PROTOCOLS = {
    "cifar10": Protocol(
        350, (150 / 350, 250 / 350), batch_size=128, weight_decay=5e-4, rounds=300, batches_per_round=1
    ),
    "cifar100": Protocol(
        350, (150 / 350, 250 / 350), batch_size=128, weight_decay=5e-4, rounds=60, batches_per_round=10
    ),
    "tiny-imagenet": Protocol(300, (1 / 2, 3 / 4), batch_size=128, weight_decay=5e-4, rounds=60, batches_per_round=20),
    "imagenet": Protocol(90, (1 / 3, 2 / 3), batch_size=256, weight_decay=1e-4, rounds=60, batches_per_round=40),
    # not in the paper, but small enough for any machine
    "digits": Protocol(20, (1 / 2, 3 / 4), batch_size=64, weight_decay=5e-4, rounds=60, batches_per_round=1),
}
ADAMW = {"lr": 1e-3, "weight_decay": 0.01}  # not in the paper
RECOMMENDED = {"method": "hybrid", "evolve": "set", "lr_schedule": "cosine", "shrink": True}  # see docs/findings/
NETWORKS: dict[str, dict[str, Any]] = {  # what the paper does otherwise with some networks
    "resnet50": {"norm_scale": "uniform"},  # its torch drew the scales so, and its code sets them for VGG-19 alone
    "mobilenet-v2": {"norm_scale": "uniform", "weight_decay": 4e-5},
}


def protocol(data: str, model: str, optimizer: str = "sgd") -> Protocol:
    """Return how the paper prunes and trains this network on this data set; a data set without a row is like digits.

    >>> protocol("cifar10", "mobilenet-v2").weight_decay, protocol("cifar10", "vgg19").weight_decay
    (4e-05, 0.0005)
    """
    changes = NETWORKS.get(model, {}) | (ADAMW if optimizer == "adamw" else {})
    return replace(PROTOCOLS.get(data, PROTOCOLS["digits"]), **changes)
