"""An experiment: all settings of a run, which become the options of the command line and the name of its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ... import names
from ...imports import is_code
from ...messages import counted, did_you_mean, shown, unknown
from ...names import NONE
from ...pruning.schedules import SCHEDULES
from .plan import LR_SCHEDULES, OPTIMIZERS, PRECISIONS, TrainingPlan
from .protocols import protocol

if TYPE_CHECKING:
    from ...pruning.methods import Method

DENSE, FILE = "dense", "file"  # train everything; train the masks of a file that does not name a method
KINDS: dict[str, tuple[type, str]] = {  # of fields, by their annotations
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (bool, "true or false"),
}

LONGEST = 80  # characters of a network's, data set's or method's name in the name of a folder


def _option(
    default: Any, help: str, roles: str = "", *, panel: str = "Experiment", shown: str = "", kind: str = "",
    known: Iterable[str] = (), least: float | None = None, below: float = math.inf,
) -> Any:  # fmt: skip
    """Return a field with all that is said about it in one place.

    Its roles: "key", every table shows it; "finding", it says how masks are found; "pruning", a dense run lacks it, as
    it lacks all of "finding"; "settled", it cannot change once there are masks, as nothing of "finding" can; "named",
    figures name it wherever it is not the default; "computing", it may depend on the device; "optional", it is no part
    of a run's name while it has its default, so that runs from before there was such a field keep their names.

    The help has it in a `panel`, and these words are `shown` for None. The `known` values complete what is typed in a
    shell; with the `kind` of value, they are the only ones, and the help lists them. A number is at least `least`, and
    `below`.
    """
    help = f"{help}: {', '.join(known)}." if kind and not help.endswith(".") else help
    about = {"help": help, "panel": panel, "shown": shown, "kind": kind, "known": known, "least": least, "below": below}
    return field(default=default, metadata=about | {"roles": roles.split()})


_pruning = partial(_option, panel="Pruning", shown="set by the method and the data set's protocol")
_training = partial(_option, panel="Training", shown="set by the data set's protocol")


@dataclass(frozen=True)
class Experiment:
    """Prune a network, train what is left, and test it.

    None stands for the value that the paper uses for this data set and method; `resolved()` fills it in. Only a
    resolved experiment is run, recorded and hashed, so a run does not depend on defaults, which may change.

    >>> Experiment(model="vgg19", data="cifar10", method="force").resolved().rounds
    300
    """

    model: str = _option(
        "resnet50",
        f"Network: {', '.join(names.MODELS)}; timm:NAME for one of timm; or file.py:factory for your own.",
        "key", known=names.MODELS,
    )  # fmt: skip
    data: str = _option(
        "cifar10",
        f"Data set: {', '.join(names.DATA)}; images:PATH for a folder of images; or file.py:factory for your own.",
        "key", known=names.DATA,
    )  # fmt: skip
    method: str = _option(
        "force",
        f"Pruning method: {', '.join(names.METHODS)}; file.py:function for your own; or dense, for no pruning.",
        "key", known=(*names.METHODS, DENSE),
    )  # fmt: skip
    sparsity: float = _option(0.99, "Fraction of the prunable weights to remove, from 0 to below 1.", "key settled")
    seed: int = _option(0, "Seed of the initial weights, the scoring batches and the order of images.", least=0)

    rounds: int | None = _pruning(None, "Number of pruning rounds of an iterative method (T).", "finding", least=1)
    batches_per_round: int | None = _pruning(None, "Number of batches per pruning round (B).", "finding", least=1)
    schedule: str | None = _pruning(
        None, "How many weights are kept after each round", "finding",
        shown="set by the method", kind="schedule", known=SCHEDULES,
    )  # fmt: skip
    revive_until: float | None = _pruning(
        None, "Fraction of the rounds in which pruned weights may return.", "finding", shown="set by the method"
    )
    revive_empty: bool = _pruning(True, "Let pruned weights return into channels that keep no weight.", "finding named")
    at_least: int | None = _pruning(
        None, "Minimum number of weights that each layer keeps.", "finding", shown="set by the method"
    )
    densities: str | None = _pruning(
        None,
        "How many weights each layer keeps: uniform, equal shares; erk, Erdős-Rényi kernel; or as many as the masks of "
        "a .safetensors file.", "finding named optional", shown="set by the scores of all layers together",
        known=names.LAWS,
    )  # fmt: skip
    min_per_channel: int = _pruning(
        0, "Minimum number of weights in each output channel that keeps any.", "finding named optional", least=0
    )
    pattern: str | None = _pruning(
        None, "N:M, at most N of M weights along the inputs stay; or block:RxC, blocks of outputs x inputs stay or go.",
        "finding named optional", shown="none",
    )  # fmt: skip
    unit: str | None = _pruning(
        None, "Whether single weights or whole channels, which shrink can remove, stay or go", "finding named optional",
        shown="weight", kind="unit", known=names.UNITS,
    )  # fmt: skip
    target: str | None = _pruning(
        None, "What the sparsity counts, with --unit channel", "finding named optional",
        shown="weights", kind="target", known=names.TARGETS,
    )  # fmt: skip
    scope: str | None = _pruning(
        None, "all prunes norms and biases, too.", "finding named optional",
        shown="weights of convolutions and linear layers", kind="scope", known=("all",),
    )  # fmt: skip
    loss: str = _pruning(
        "cross-entropy", "Loss that the scores are computed from", "pruning settled", kind="loss", known=names.LOSSES
    )
    init: str = _pruning("kaiming-fan-in", "Initialization", kind="initialization", known=names.SCHEMES)
    norm_scale: str | None = _pruning(
        None, "Initial scales of batch-norms: ones; or uniform, as in torch before 1.2, which the paper used.",
        shown="uniform for resnet50 and mobilenet-v2, else ones", kind="scale of batch-norms", known=names.NORM_SCALES,
    )  # fmt: skip
    scoring_init: str | None = _pruning(
        None, "Find the masks on other initial weights than those that are trained, drawn by this initialization.",
        "finding named", shown="none: score the weights that are trained", kind="initialization", known=names.SCHEMES,
    )  # fmt: skip
    scoring_bn: str = _pruning(
        "batch", "Statistics of batch-norms in scoring: batch, those of the batch; or eval, the running ones.",
        "finding named", kind="kind of batch-norm statistics", known=names.STATISTICS,
    )  # fmt: skip
    scoring_precision: str | None = _pruning(
        None, "Precision of the scores", "finding computing",
        shown="fp32", kind="scoring precision", known=names.SCORING_PRECISIONS,
    )  # fmt: skip
    pretrain: int = _pruning(
        0, "Epochs of dense training before pruning (early pruning is 1, with --method magnitude).", "pruning settled",
        least=0,
    )  # fmt: skip
    rewind: bool = _pruning(
        False, "After --pretrain, train from the initial weights instead of the pretrained ones.", "pruning settled"
    )
    mask: str | None = _pruning(None, "SHA-256 of the masks to train, if they come from a file.")
    control: str = _pruning(
        NONE,
        "What to change as a control: the masks, shuffled within each layer (shuffle) or inverted to the lowest scores "
        "(invert); or the weights, reinitialized under the same masks (reinitialize).",
        "key pruning settled", kind="control", known=names.CONTROLS,
    )  # fmt: skip

    epochs: int | None = _training(None, "Training epochs; the learning rate's schedule scales with them.", least=0)
    batch_size: int | None = _training(None, "Images per batch, in training and in scoring.", least=2)
    lr: float | None = _training(None, "Learning rate: the first and highest, after the warm-up.", least=0)
    momentum: float = _training(0.9, "Momentum of SGD, or the first beta of AdamW.", least=0, below=1)
    weight_decay: float | None = _training(None, "Weight decay.", least=0)
    optimizer: str = _training("sgd", "Optimizer", kind="optimizer", known=OPTIMIZERS)
    lr_schedule: str = _training(
        "milestones", "How the learning rate changes", kind="schedule of the learning rate", known=LR_SCHEDULES
    )
    warmup: int = _training(0, "Epochs in which the learning rate rises.", least=0)
    label_smoothing: float = _training(0.0, "Share of each target that is spread over all classes.", least=0, below=1)
    ham: bool = _training(False, "After each step, multiply weights by factors of HAM.", "named optional")
    sam: float = _training(
        0.0, "How far along the previous gradient each is taken (ρ of single-step SAM).", "named optional", least=0
    )
    evolve: str | None = _training(
        None, "Move the masks in training: to large gradients (rigl), at random (set), or not (none).",
        "pruning named optional", shown="none", kind="evolution", known=(*names.EVOLUTIONS, NONE),
    )  # fmt: skip
    ablate: float = _training(
        0.0, "With --evolve, empty channels with fewer salient weights than this share of the mean.",
        "pruning named optional", least=0, below=1,
    )  # fmt: skip
    precision: str | None = _training(
        None, "Precision of training", "computing",
        shown="bf16 on a GPU, else fp32", kind="precision", known=PRECISIONS,
    )  # fmt: skip
    shrink: bool = _training(False, "Train without the channels that carry no signal.", "pruning computing")

    def __post_init__(self) -> None:
        from ...data import check_name  # here, so that the help of a command does not wait for torch
        from ...models import NORM_SCALES, SCHEMES
        from ...pruning.gradients import LOSSES

        rows = {"loss": LOSSES, "initialization": SCHEMES, "scale of batch-norms": NORM_SCALES}  # and those of recipes
        if self.evolve == NONE:
            object.__setattr__(self, "evolve", None)
        for option in fields(self):
            name, about, value = _option_name(option.name), option.metadata, getattr(self, option.name)
            kind, least, below = str(option.type).partition(" | ")[0], about["least"], about["below"]
            if kind in ("int", "float") and isinstance(value, int):  # 1, 1.0 and True are the same experiment
                object.__setattr__(self, option.name, KINDS[kind][0](value))
            if typed(name, getattr(self, option.name), str(option.type)) is None:
                continue
            if about["kind"] and value not in (known := rows.get(about["kind"], about["known"])):
                raise ValueError(unknown(about["kind"], value, known))
            if least is not None and not least <= value < below:
                most = f", and below {below:g}" if below < math.inf or value >= below else ""
                raise ValueError(f"{name} {value} must be at least {least}{most}")
        check_name(self.data)
        if not 0 <= self.sparsity < 1:
            hint = f"; did you mean {self.sparsity / 100:g}?" if 1 < self.sparsity < 100 else ""
            problem = f"sparsity {self.sparsity:g} is not a fraction of weights to remove"
            raise ValueError(f"{problem}, from 0 to below 1{hint}")
        if self.method == FILE and self.mask is None:
            raise ValueError("method file trains the masks of a file; name it with barebones train --mask FILE")
        if self.precision == "fp16" and (self.ham or self.sam):
            raise ValueError("ham and sam take gradients as they are, and fp16 scales them; choose another precision")
        if self.rewind and not self.pretrain:
            raise ValueError("rewind returns to the weights before --pretrain, which is 0; set both or neither")

    def resolved(self, device: str = "cpu") -> Experiment:
        """Return the experiment with every None replaced by the paper's value, and a precision for this device."""
        if self.densities is not None and self.densities.endswith(".safetensors"):
            return replace(self, densities=_shares(self.densities)).resolved(device)
        paper = protocol(self.data, self.model, self.optimizer)
        defaults = {name: getattr(paper, name) for name in ("norm_scale", "epochs", "batch_size", "lr", "weight_decay")}
        defaults["precision"] = "bf16" if device.startswith("cuda") else "fp32"
        if self.method == DENSE:
            if wrong := [name for name in PRUNING if getattr(self, name) != getattr(Experiment, name)]:
                raise ValueError(f"method dense prunes nothing, so it takes no {', '.join(map(_option_name, wrong))}")
        elif self.mask is None:
            row = self.pruning()
            if not self.revive_empty and not row.revive_until:
                raise ValueError(f"no-revive-empty has no effect: {self.method} lets no weight return; leave it out")
            if self.scoring_bn != Experiment.scoring_bn and not row.needs_data:
                raise ValueError(f"scoring-bn has no effect: {self.method} scores without data; leave it out")
            same = ("rounds", "batches_per_round", "revive_until", "at_least")
            defaults |= {name: getattr(row, name) for name in same}
            defaults["schedule"] = next((name for name, known in SCHEDULES.items() if known is row.schedule), None)
            defaults["scoring_precision"] = "fp32"  # faithful, and still a fraction of the cost of training
        if self.ablate and not self.evolve:
            raise ValueError("ablate empties channels when masks move; add --evolve rigl, or leave it out")
        control = self.control in ("shuffle", "invert") and f"control {self.control}"
        moves = "evolve" if self.evolve else control
        if moves and (group := "pattern" if self.pattern else self.unit == "channel" and "unit channel"):
            raise ValueError(f"{moves} moves single weights, so it takes no {group}; leave one of them out")
        if self.scoring_init is not None and (self.pretrain or self.control == "reinitialize"):
            other = "pretrain" if self.pretrain else "control reinitialize"
            raise ValueError(f"scoring-init and {other} both change the weights; leave one of them out")
        missing = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        epochs = paper.epochs if self.epochs is None else self.epochs
        if self.warmup and self.warmup >= epochs:
            length = counted(epochs, "epoch")
            raise ValueError(f"warmup {self.warmup}: the training has {length}, and must be longer than its warm-up")
        return replace(self, **missing, sparsity=0.0 if self.method == DENSE else self.sparsity)

    def pruning(self) -> Method:
        """Return the row of `METHODS` with the experiment's values, and those of the protocol where it has none.

        A method of several rounds takes the protocol's T and B. A method of one round over several batches ("-mb")
        takes T x B batches, so that both read equally much data. All others keep the values of their row, and so
        does every method with `protocol_rounds=False`.
        """
        from ...pruning.methods import resolved

        paper, row = protocol(self.data, self.model, self.optimizer), method_named(self.method)
        iterative = row.rounds > 1 and row.protocol_rounds
        if iterative:
            row = replace(row, rounds=paper.rounds, batches_per_round=paper.batches_per_round)
        elif row.batches_per_round > 1 and row.protocol_rounds:
            row = replace(row, batches_per_round=paper.rounds * paper.batches_per_round)
        return resolved(
            row if iterative or is_code(self.method) else self.method, rounds=self.rounds,
            batches_per_round=self.batches_per_round or row.batches_per_round, schedule=self.schedule,
            revive_until=self.revive_until, revive_empty=None if self.revive_empty else False, at_least=self.at_least,
            densities=json.loads(law) if (law := self.densities) and law.startswith("{") else law,
            min_per_channel=self.min_per_channel or None, pattern=self.pattern, unit=self.unit, target=self.target,
        )  # fmt: skip

    def plan(self) -> TrainingPlan:
        own = {option.name: getattr(self, option.name) for option in fields(TrainingPlan) if hasattr(self, option.name)}
        return TrainingPlan(**own, milestones=protocol(self.data, self.model).milestones)

    @property
    def id(self) -> str:
        """The first 10 hexadecimal digits of the hash of all fields."""
        return self.folder.rpartition("-")[2]

    @property
    def folder(self) -> str:
        """The name of its run's folder: readable, and unique by the hash."""
        return folder_of(asdict(self))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """Make an experiment from plain values; a name that is no field raises a `ValueError`."""
        return cls(**cls.settings(values))

    @classmethod
    def settings(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return recorded values with the default of each missing field; check the names and types alone."""
        known = {option.name: option for option in fields(cls)}
        for name in values:
            if name not in known:
                hint = did_you_mean(name, known) or "."
                raise ValueError(f"an experiment has no {name!r}{hint} It has {', '.join(known)}")
        checked = {name: typed(_option_name(name), value, str(known[name].type)) for name, value in values.items()}
        return {name: checked.get(name, option.default) for name, option in known.items()}


def _shares(path: str) -> str:
    """Return the share that each layer keeps in a file of masks, so that the experiment does not need the file."""
    from ...files.masks import load_masks

    return json.dumps({name: int(mask.count_nonzero()) / mask.numel() for name, mask in load_masks(path).items()})


def method_named(name: str) -> Method:
    """Return the row of a method; one of the user's own is imported, so only pruning may ask for it."""
    from ...pruning import methods

    if is_code(name):
        return methods.imported(name)
    if name not in methods.METHODS:
        known = [*methods.METHODS, DENSE]
        raise ValueError(f"{unknown('method', name, known)}; or name a file.py:function of your own")
    return methods.METHODS[name]


def with_role(*roles: str) -> tuple[str, ...]:
    return tuple(option.name for option in fields(Experiment) if {*roles} & {*option.metadata["roles"]})


FINDING, PRUNING, SETTLED = with_role("finding"), with_role("finding", "pruning"), with_role("finding", "settled")
OPTIONAL = {name: getattr(Experiment, name) for name in with_role("optional")}  # and their defaults


def folder_of(settings: Mapping[str, Any]) -> str:
    """Return the name of the folder of a run from all its settings; an optional one counts if it is not the default."""
    named = {name: value for name, value in settings.items() if name not in OPTIONAL or value != OPTIONAL[name]}
    id = sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:10]
    data, model, method = (_in_file_name(settings[name]) for name in ("data", "model", "method"))
    control = "" if settings["control"] == NONE else f"-{settings['control']}"
    sparsity = "" if settings["method"] == DENSE else f"-{100 * settings['sparsity']:g}"
    return f"{data}-{model}-{method}{control}{sparsity}-s{settings['seed']}-{id}"


def _in_file_name(name: str) -> str:
    """Return the name of a network, data set or method for a file name; of a long one, such as a path, the end."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[-LONGEST:]


def _option_name(name: str) -> str:
    return name.replace("_", "-")


def typed(name: str, value: Any, annotation: str) -> Any:
    """Return the value if it has the annotated type (a float may be a whole number), else raise a `ValueError`.

    >>> typed("seed", 3, "int | None"), typed("init", None, "str | None")
    (3, None)
    """
    kind, _, optional = annotation.partition(" | ")
    if value is None and optional:
        return None
    accepted, words = KINDS[kind]
    fits = isinstance(value, accepted) or (kind == "float" and isinstance(value, int))
    if not fits or (isinstance(value, bool) and kind != "bool"):
        raise ValueError(f"{name} {shown(value)} is not {words}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # tensors and tables hold 64 bits
        raise ValueError(f"{name} {shown(value)} is too large")
    return value
