"""Training: a masked network, in one loop that can stop after any step and resume there."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data import Data, Split
from ...evolution import Evolution, evolve
from ...files import container as files
from ...files.masks import masks_digest
from ...gpu.graphs import Captured
from ...holding import hold
from ...masks import Masks
from ...messages import shortened
from ...running import digest
from ...running.precision import autocast, computing, widest
from ...running.rng import reseed
from ...scope import parameters
from ...training import PREVIOUS, ham, sam
from ..experiment.plan import OPTIMIZERS, TrainingPlan

KIND, VERSION = "barebones-checkpoint", 2
KEYS = {"sgd": ("momentum_buffer", PREVIOUS), "adamw": ("step", "exp_avg", "exp_avg_sq", PREVIOUS)}  # its state
STATES = {key: key for keys in KEYS.values() for key in keys} | {"momentum_buffer": "momentum"}  # in a checkpoint
NETWORKS = 10_000  # that a process may compile
MOVES = 100  # of evolving masks, if they moved to the end: every 1,230 steps with the paper's protocol of CIFAR-10
TOP5_FROM = 100  # classes; with fewer, top-5 accuracy says little


@dataclass(frozen=True)
class Accuracy:
    """The performance of a network on some images: accuracies as fractions, and the mean cross-entropy."""

    top1: float
    top5: float | None  # None with fewer than 100 classes
    loss: float


@dataclass(frozen=True)
class Epoch:
    """The measurements of an epoch of training."""

    index: int
    lr: float
    loss: float  # mean over the training images, each at the step that trained on it
    accuracy: float  # on the training images, likewise
    validation: Accuracy | None  # None for data without a validation split
    test: Accuracy | None  # after the last epoch and the best so far; after every epoch without a validation split
    seconds: float  # of training, without evaluation
    images_per_second: float


@dataclass(frozen=True)
class Best:
    """The first epoch with the highest validation accuracy, and the test accuracy after it."""

    epoch: int
    validation: float
    test: float


class Training:
    """A network in training: `steps` trains it, `save` and `load` write and read a checkpoint.

    The model is changed in place. The batches of an epoch and the random numbers in the network depend on (seed, epoch,
    step) alone. So a training that was stopped after any step and resumed ends with the same bits, on the same device
    and thread count. Every step reseeds the global generators.

    On a GPU, `captured` replays the whole step (forward, backward, optimizer, masks) as one CUDA graph. `compiled` lets
    torch compile the network. No more than `micro_batch` images go through it at once; the gradients are the same.
    Masks that move grow `among` these weights.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        plan: TrainingPlan,
        masks: Masks | None = None,
        *,
        among: Masks | None = None,
        seed: int = 0,
        precision: str = "fp32",
        captured: bool = True,
        compiled: bool = False,
        micro_batch: int | None = None,
    ) -> None:
        self.model, self.data, self.plan, self.seed, self.precision = model, data, plan, seed, precision
        self.micro_batch = micro_batch
        self.device = next(model.parameters()).device
        self.masks = {name: mask.to(self.device) for name, mask in (masks or {}).items()}
        on_gpu = self.device.type == "cuda"
        torch.backends.cudnn.benchmark |= on_gpu  # pays off: all batches but the last have one size
        self.epoch = self.step = 0  # finished epochs, and finished steps of the current epoch
        self.best: Best | None = None
        self.last: Epoch | None = None
        self.seconds, self.began = 0.0, perf_counter()  # of this epoch: seconds before the last resume, and since
        self.tally = torch.zeros(3, dtype=widest(self.device), device=self.device)  # of this epoch: loss, hits, images
        self.rate = torch.full((), plan.lr, device=self.device) if on_gpu else None  # for the CUDA graph
        self.rate_now = plan.lr
        rate = plan.lr if self.rate is None else self.rate
        self.optimizer = OPTIMIZERS[plan.optimizer](model.parameters(), rate, plan, self.device)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self._masks_digest = masks_digest(self.masks)  # of those it begins with
        self.evolution: Evolution | None = None
        if masks:  # a shrunk network may have none
            self.held = hold(model, masks, self.optimizer)
        if masks and plan.evolve and plan.epochs:
            self.masks, steps = self.held.state_dict(), plan.epochs * math.ceil(len(data.train) / plan.batch_size)
            every = math.ceil(steps / MOVES)
            self.evolution = evolve(
                self.held, steps, every=every, method=plan.evolve, ablate=plan.ablate, among=among, seed=seed
            )
            self.evolution.remove()  # `steps` advances it, since a CUDA graph calls no hooks
        if plan.ham:
            ham(self.optimizer)
        self.perturbed = sam(self.optimizer, plan.sam).perturbed if plan.sam else nullcontext
        self.forward = _compiled(model) if compiled else model
        self.usual = min(micro_batch or plan.batch_size, plan.batch_size)  # images at once
        capturing = captured and on_gpu and precision != "fp16"  # with fp16 the host decides whether to step
        self._learn = Captured(self._learn_from) if capturing else self._learn_from

    def steps(self) -> Iterator[Epoch | None]:
        """Train to the end: yield None after every step and an `Epoch` after every epoch. Save only after a yield."""
        plan, train = self.plan, self.data.train
        steps = math.ceil(len(train) / plan.batch_size)
        while self.epoch < plan.epochs:
            self.model.train()
            self.began = perf_counter()
            for images, labels in train.epoch(
                plan.batch_size, self.seed, self.epoch, shuffle=True, augment=True, skip=self.step
            ):
                if len(labels) > 1:  # batch-norm needs more than one image
                    reseed(self.device, digest.text(self.seed, "train", self.epoch, self.step))
                    self._set_rate(plan.rate(self.epoch, self.step, steps))
                    self._learn_and_move(images, labels)
                self.step += 1
                yield None
            loss, hits, count = self.tally.tolist()  # once per epoch, the host waits for the device
            seconds = self.seconds + perf_counter() - self.began
            if not math.isfinite(loss):
                raise self._broken("the training loss is")
            validation, test = self._evaluate_epoch(last=self.epoch + 1 == plan.epochs)
            if not all(math.isfinite(measured.loss) for measured in (validation, test) if measured is not None):
                raise self._broken("the network's outputs after it are")
            rate = plan.rate(self.epoch, steps - 1, steps)
            self.last = Epoch(self.epoch, rate, loss / count, hits / count, validation, test, seconds, count / seconds)
            self.epoch, self.step, self.seconds = self.epoch + 1, 0, 0.0
            self.tally.zero_()
            yield self.last

    def _learn_and_move(self, images: Tensor, labels: Tensor) -> None:
        """Do one step, and move the masks if it is time: RigL by the gradients of a plain step, not of some graph."""
        plain = self.evolution is not None and self.evolution.reads_gradients(self.evolution.step + 1)
        (self._learn_from if plain else self._learn)(images, labels)
        if self.evolution is not None and self.evolution.advance():
            self.masks = self.held.state_dict()

    def _broken(self, what: str) -> FloatingPointError:
        remedy = "lower the learning rate, add a warm-up, or train in fp32"
        return FloatingPointError(f"epoch {self.epoch + 1}: {what} not finite; {remedy}")

    def _learn_from(self, images: Tensor, labels: Tensor) -> None:
        """Do one step: forward, backward, optimizer. `hold` zeroes the pruned weights after it."""
        size = self.micro_batch or len(labels)
        sums = torch.zeros_like(self.tally)
        with computing(self.device, self.precision), self.perturbed():
            self.optimizer.zero_grad()
            for part, targets in zip(images.split(size), labels.split(size), strict=True):
                forward = self.forward if len(targets) == self.usual else self.model  # no compiling for a short part
                with autocast(self.precision, self.device):
                    output = forward(part)
                    loss = F.cross_entropy(output, targets, label_smoothing=self.plan.label_smoothing)
                weight = len(targets) / len(labels)
                self.scaler.scale(loss if weight == 1 else loss * weight).backward()
                hits = (output.detach().argmax(1) == targets).sum()
                count = torch.full_like(hits, len(targets))
                sums += torch.stack([loss.detach().to(sums) * len(targets), hits.to(sums), count.to(sums)])
        with computing(self.device, self.precision):
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.tally += sums

    def _evaluate_epoch(self, last: bool) -> tuple[Accuracy | None, Accuracy | None]:
        """Return validation and test accuracy, the latter only where it is reported."""
        if self.data.validation is None:
            return None, self.evaluate(self.data.test)
        validation = self.evaluate(self.data.validation)
        best = self.best is None or validation.top1 > self.best.validation
        test = self.evaluate(self.data.test) if last or best else None
        if best and test is not None:
            self.best = Best(self.epoch, validation.top1, test.top1)
        return validation, test

    def evaluate(self, split: Split) -> Accuracy:
        """Return the accuracy of the network, in its current state, on a split of the data."""
        batch = self.micro_batch or 4 * self.plan.batch_size
        return evaluate(self.model, split, batch, self.precision, self.data.classes)

    def _set_rate(self, rate: float) -> None:
        if rate == self.rate_now:
            return
        self.rate_now = rate
        if self.rate is not None:
            self.rate.fill_(rate)
        else:
            self.optimizer.param_groups[0]["lr"] = rate

    def _whole(self) -> dict[str, Tensor]:
        """Return what a checkpoint holds as it is, by its names there: buffers, masks that move, sums of this epoch."""
        moving = self.masks if self.evolution is not None else {}
        buffers = {f"buffer {name}": buffer for name, buffer in self.model.named_buffers()}
        return {f"mask {name}": mask for name, mask in moving.items()} | buffers | {"tally": self.tally}

    def _kept(self, name: str, tensor: Tensor) -> Tensor:
        """Return what a checkpoint holds of a parameter or its optimizer's state: the values of the kept weights."""
        mask = self.masks.get(name)
        return tensor if mask is None or mask.shape != tensor.shape else tensor.detach()[mask]

    def save(self, path: files.Path, **about: Any) -> None:
        """Write a checkpoint, atomically; `about` takes further values that JSON can represent.

        Of masked weights it holds the values of those that are kept, and their optimizer's state. The state of the
        others has no effect, because they are zero again after every step.
        """
        tensors = self._whole()
        for name, p in parameters(self.model).items():
            tensors[f"weight {name}"] = self._kept(name, p)
            state = self.optimizer.state.get(p, {})
            tensors |= {f"{STATES[k]} {name}": self._kept(name, v) for k, v in state.items() if v is not None}
        state = {
            "masks": self._masks_digest,
            "epoch": self.epoch,
            "step": self.step,
            "seconds": self.seconds + perf_counter() - self.began if self.step else 0.0,
            "best": self.best and asdict(self.best),
            "last": self.last and asdict(self.last),
            "scaler": self.scaler.state_dict(),
            "evolved": self.evolution and self.evolution.step,
        }
        files.write(path, tensors, KIND, VERSION, about | {"state": state})

    def load(self, path: files.Path) -> "Training":
        """Resume from a checkpoint of the same network under the same masks."""
        tensors, about = files.read(path, KIND, VERSION)
        state = about["state"]
        whole, named = self._whole(), parameters(self.model)
        kept = {name: self._kept(name, p) for name, p in named.items()}
        required = whole | {f"weight {name}": values for name, values in kept.items()}
        count, keys = self.tally[0].float(), KEYS[self.plan.optimizer]
        optional = {f"{STATES[k]} {name}": count if k == "step" else kept[name] for name in named for k in keys}
        if differing := files.differences(tensors, optional | required, required):
            raise ValueError(f"{path} is a checkpoint of another network: {shortened(differing)}")
        if state["masks"] != self._masks_digest:
            raise ValueError(f"{path} is a checkpoint of training under other masks")
        with torch.no_grad():
            for name, tensor in whole.items():
                tensor.copy_(tensors[name])
            if self.evolution is not None:
                self.evolution.load_state_dict({"masks": self.masks, "step": state["evolved"]})
            self.optimizer.state.clear()
            for name, p in named.items():
                self._put(name, p, tensors[f"weight {name}"])
                for key in keys:
                    if (stored := tensors.get(f"{STATES[key]} {name}")) is not None:
                        empty = torch.zeros_like(count if key == "step" else p)
                        self.optimizer.state[p][key] = self._put(name, empty, stored)
        self.epoch, self.step, self.seconds = state["epoch"], state["step"], state["seconds"]
        self.best = state["best"] and Best(**state["best"])
        self.last = state["last"] and _epoch(**state["last"])
        self.scaler.load_state_dict(state["scaler"])
        return self

    def _put(self, name: str, tensor: Tensor, values: Tensor) -> Tensor:
        """Write into a parameter or its optimizer's state what a checkpoint holds of it, and return it."""
        mask = self.masks.get(name)
        if mask is None or mask.shape != tensor.shape:
            return tensor.copy_(values)
        tensor.masked_fill_(~mask, 0)[mask] = values.to(tensor.device)
        return tensor


def _compiled(model: nn.Module) -> Callable[..., Any]:
    """Let torch compile the network.

    By default torch gives up, with a warning, at the ninth network with the same code but other widths, as shrunk ones
    are in a sweep.
    """
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = NETWORKS
    return torch.compile(model, dynamic=False)


def evaluate(model: nn.Module, split: Split, batch: int, precision: str, classes: int) -> Accuracy:
    """Return the accuracy of a network, in evaluation mode, on a split of the data; then set it to training mode."""
    device = next(model.parameters()).device
    total = torch.zeros(4, dtype=widest(device), device=device)
    model.eval()
    with torch.no_grad(), computing(device, precision), autocast(precision, device):
        for images, labels in split.epoch(batch):
            output = model(images).float()
            loss = F.cross_entropy(output, labels, reduction="sum")
            five = output.topk(min(5, output.shape[1])).indices == labels[:, None]
            total += torch.stack([five[:, 0].sum(), five.sum(), loss, torch.full_like(loss, len(labels))]).to(total)
    model.train()
    first, five_best, loss_sum, count = total.tolist()
    return Accuracy(first / count, five_best / count if classes >= TOP5_FROM else None, loss_sum / count)


def _epoch(**values: Any) -> Epoch:
    """Make an `Epoch` from the plain values of `asdict`."""
    return Epoch(**values | {name: values[name] and Accuracy(**values[name]) for name in ("validation", "test")})
