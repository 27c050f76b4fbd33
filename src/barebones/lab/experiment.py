"""An experiment: one frozen record is the command line, the memory of a run and, hashed, the name of its folder."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from typing import Any

from ..data import DATA
from ..models import MODELS, SCHEMES
from ..pruning.gradients import LOSSES
from ..pruning.gradients import PRECISIONS as SCORING_PRECISIONS
from ..pruning.methods import METHODS, Method
from ..pruning.methods import resolved as resolved_method
from ..pruning.schedules import SCHEDULES
from .protocols import protocol
from .training import PRECISIONS, TrainingPlan

DENSE, FILE = "dense", "file"  # methods of the lab alone: no pruning, and masks from a file


def _option(default: Any, help: str, name: str = "") -> Any:
    return field(default=default, metadata={"help": help, "name": name})


@dataclass(frozen=True)
class Experiment:
    """Prune a network, train what is left, test it.

    None stands for the paper's value for this data set and method; `resolved()` puts the numbers in. Only a
    resolved experiment is run, recorded and hashed, so a run does not depend on defaults that may change.

    >>> Experiment(model="vgg19", data="cifar10", method="force").resolved().rounds
    300
    """

    model: str = _option("resnet50", f"Network: {', '.join(MODELS)}; or package.module:factory for one of yours.")
    data: str = _option("cifar10", f"Data set: {', '.join(DATA)}.")
    method: str = _option("force", f"How to prune: {', '.join(METHODS)}; or dense, for no pruning.")
    sparsity: float = _option(0.99, "Fraction of the prunable weights to remove, from 0 up to 1.")
    seed: int = _option(0, "Of the initial weights, the scoring batches and the order of training.")

    rounds: int | None = _option(None, "Pruning rounds of an iterative method (T).")
    batches: int | None = _option(None, "Batches that each pruning round reads (B).")
    schedule: str | None = _option(None, f"How many weights stay after each round: {', '.join(SCHEDULES)}.")
    revive_until: float | None = _option(None, "Fraction of the rounds in which pruned weights may return.")
    at_least: int | None = _option(None, "Weights that every layer keeps at least.")
    loss: str = _option("cross-entropy", f"Loss of the scores: {', '.join(LOSSES)}.")
    init: str = _option("kaiming-fan-in", f"Initialization: {', '.join(SCHEMES)}.")
    scoring_precision: str | None = _option(None, f"Precision of the scores: {', '.join(SCORING_PRECISIONS)}.")
    pretrain: int = _option(0, "Epochs of dense training before pruning (early pruning is 1, with --method magnitude).")
    rewind: bool = _option(False, "After --pretrain, train from the initial weights, not from the pretrained ones.")
    mask: str | None = _option(None, "SHA-256 of the mask file that is trained (method file).")

    epochs: int | None = _option(None, "Epochs of training; the milestones of the learning rate scale along.")
    batch: int | None = _option(None, "Images in a batch, in training and in scoring.")
    lr: float | None = _option(None, "Learning rate at the start.")
    momentum: float = _option(0.9, "Momentum of SGD.")
    weight_decay: float | None = _option(None, "Weight decay of SGD.")
    precision: str | None = _option(None, f"Precision of training: {', '.join(PRECISIONS)}.")
    shrink: bool = _option(False, "Train the network without the channels that carry no signal.")

    def __post_init__(self) -> None:
        for option in fields(self):  # 1 and 1.0 are one experiment, and have one name
            value = getattr(self, option.name)
            if option.type.startswith("float") and isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, option.name, float(value))
        for name, known in (
            ("data", DATA),
            ("method", (*METHODS, DENSE, FILE)),
            ("init", SCHEMES),
            ("loss", LOSSES),
            ("schedule", SCHEDULES),
            ("precision", PRECISIONS),
            ("scoring_precision", SCORING_PRECISIONS),
        ):
            value = getattr(self, name)
            if value is not None and value not in known:
                near = difflib.get_close_matches(str(value).lower(), list(known), n=1)
                hint = f"; did you mean {near[0]!r}? Else" if near else ""
                raise ValueError(f"{_spoken(name)} {value!r} is unknown{hint or ';'} choose one of {', '.join(known)}")
        if not 0 <= self.sparsity < 1:
            hint = f"; did you mean {self.sparsity / 100:g}?" if 1 < self.sparsity < 100 else ""
            raise ValueError(f"sparsity {self.sparsity:g} is no fraction to remove, from 0 up to 1{hint}")
        for name, least in (("rounds", 1), ("batches", 1), ("epochs", 0), ("batch", 2), ("pretrain", 0), ("seed", 0)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{_spoken(name)} {value} is too few; it is at least {least}")
        if self.seed >= 2**63:
            raise ValueError(f"seed {self.seed} is too large; it is below 2**63")
        for name in ("lr", "weight_decay", "momentum"):
            if (value := getattr(self, name)) is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{_spoken(name)} {value} must be 0 or more")
        if self.method == FILE and self.mask is None:
            raise ValueError("method file trains the masks of a file; name it with barebones train --mask FILE")
        if self.rewind and not self.pretrain:
            raise ValueError("rewind goes back to the weights before --pretrain, which is 0; set both or none")

    def resolved(self, device: str = "cpu") -> Experiment:
        """With every None replaced by the paper's value, and the precision of training by what suits the device."""
        paper = protocol(self.data, self.model)
        fast = "bf16" if device.startswith("cuda") else "fp32"
        changes: dict[str, Any] = {
            "epochs": paper.epochs,
            "batch": paper.batch,
            "lr": paper.lr,
            "weight_decay": paper.weight_decay,
            "precision": fast,
        }
        if self.method == DENSE:
            wrong = [name for name in (*PRUNING, "rewind") if getattr(self, name)]
            if wrong:
                raise ValueError(f"method dense prunes nothing, so it takes no {', '.join(map(_spoken, wrong))}")
            if self.shrink:
                raise ValueError("method dense prunes nothing, so there is nothing to shrink")
            changes |= {"sparsity": 0.0}
        elif self.method != FILE:
            row = self.pruning(paper.rounds, paper.batches)
            schedule = next((name for name, known in SCHEDULES.items() if known is row.schedule), None)
            changes |= {
                "rounds": row.rounds,
                "batches": row.batches,
                "schedule": schedule,
                "revive_until": row.revive_until,
                "at_least": row.at_least,
                "scoring_precision": "fp32",  # a fraction of the training's cost even so, and the faithful one
            }
        return replace(self, **{n: v for n, v in changes.items() if getattr(self, n) is None or n == "sparsity"})

    def pruning(self, rounds: int | None = None, batches: int | None = None) -> Method:
        """The row of `METHODS` with the experiment's own values; `rounds` and `batches` are the data set's.

        Methods of several rounds get the data set's T and B; those of one round over many batches ("-mb") get
        T x B batches, so that all see as much data; one-shot methods and those without data keep their own.
        """
        own = METHODS[self.method]
        iterative = own.rounds > 1 and self.method != "synflow"
        if rounds is not None and batches is not None:
            if iterative:
                own = replace(own, rounds=rounds, batches=batches)
            elif own.batches > 1:
                own = replace(own, batches=rounds * batches)
        return resolved_method(
            self.method if not iterative else own, self.rounds, self.batches or own.batches, self.schedule,
            self.revive_until, None, self.at_least,
        )  # fmt: skip

    def plan(self, epochs: int | None = None) -> TrainingPlan:
        """How to train; `epochs` in place of its own number."""
        assert self.epochs is not None and self.batch is not None and self.lr is not None  # noqa: PT018
        assert self.weight_decay is not None
        paper = protocol(self.data, self.model)
        return TrainingPlan(
            epochs=self.epochs if epochs is None else epochs,
            batch=self.batch,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            milestones=paper.milestones,
        )

    @property
    def id(self) -> str:
        """The first 10 hexadecimal digits of the hash of everything in it."""
        hashed = {name: value for name, value in asdict(self).items() if name not in LATER or value != LATER[name]}
        return sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:10]

    @property
    def folder(self) -> str:
        """What the folder of its run is called: readable, and unique by the hash."""
        model = "".join(c if c.isalnum() or c in "-_." else "-" for c in self.model)
        sparsity = "" if self.method == DENSE else f"-{100 * self.sparsity:g}"
        return f"{self.data}-{model}-{self.method}{sparsity}-s{self.seed}-{self.id}"

    @property
    def group(self) -> tuple[tuple[str, Any], ...]:
        """Everything but the seed: runs that differ in it alone are averaged."""
        return tuple((name, value) for name, value in asdict(self).items() if name != "seed")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def is_record(self, values: Any) -> bool:
        """Whether these plain values, of a file that may be older than an option, are this experiment."""
        try:
            return isinstance(values, Mapping) and Experiment.from_dict(values) == self
        except ValueError:
            return False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """From plain values; a name that it does not have is a `ValueError`."""
        known = {f.name: f for f in fields(cls)}
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"an experiment has no {name!r}{hint}. It has {', '.join(known)}")
        return cls(**{name: _typed(known[name], value) for name, value in values.items()})


LATER: dict[str, Any] = {"shrink": False}  # options that came later: at these values, older runs keep their names
PRUNING = ("rounds", "batches", "schedule", "revive_until", "at_least", "pretrain")


def _typed(option: Any, value: Any) -> Any:
    """The value if it is of the option's type; whole numbers pass as floats."""
    kinds = {"str": str, "int": int, "float": float, "bool": bool}
    wanted, _, none = option.type.partition(" | ")
    if value is None and (none or option.default is None):
        return None
    if wanted == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kinds[wanted]) or (wanted == "int" and isinstance(value, bool)):
        article = "a whole number" if wanted == "int" else {"float": "a number", "bool": "true or false"}.get(wanted)
        raise ValueError(f"{_spoken(option.name)} {value!r} is not {article or 'a text'}")
    return value


def _spoken(name: str) -> str:
    return name.replace("_", "-")
