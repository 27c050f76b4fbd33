"""A model of what pruning and sweeps cost, in a few constants, and a simulator of sweeps; `scale.py` uses both."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

COLLECTIVES = 36  # of a selection: one count for each of 32 bits, and what is gathered about ties
LAYER_COLLECTIVES = 3  # of a layer and pass: its weights are gathered for both passes, its gradients are scattered
BLOCK = 12  # a layer of GPT-2 has 12 width² weights

Costs = Mapping[str, float]  # seconds or bytes of each unit


@dataclass(frozen=True)
class Case:
    """A round of pruning a GPT-2 that is sharded over some devices."""

    width: int
    depth: int
    tokens: int  # that a device reads in one pass
    devices: int = 1
    passes: int = 1  # forward and backward passes of a device in a round
    length: int = 1024  # tokens that attend to each other
    vocabulary: int = 50_304
    word: int = 2  # bytes of a weight that is gathered: bf16

    @property
    def weights(self) -> int:
        """The prunable weights."""
        return BLOCK * self.depth * self.width**2

    @property
    def embedding(self) -> int:
        """The weights of the embedding, which is not pruned."""
        return self.vocabulary * self.width

    @property
    def own(self) -> float:
        """The prunable weights of one device."""
        return self.weights / self.devices

    @property
    def flops(self) -> float:
        """The operations of one pass on one device; the last part is attention."""
        return self.tokens * (6 * (self.weights + self.embedding) + 6 * self.depth * self.length * self.width)

    @property
    def traffic(self) -> float:
        """The bytes that one device gets in a round: all weights for both passes, and gradients in float32."""
        return self.passes * (2 * self.word + 4) * (self.weights + self.embedding) * (self.devices > 1)

    def parts(self, cost: Costs) -> dict[str, float]:
        """Return the seconds of a round by what they are for, if these do not happen at the same time.

        A pass takes as long as its operations or as launching them, whichever takes longer. So does a selection: each
        of its steps launches the counts of all layers, and then waits once.
        """
        messages = (COLLECTIVES + self.passes * LAYER_COLLECTIVES * self.depth) * math.log2(self.devices)
        return {
            "passes": self.passes * max(self.flops * cost["operation"], self.depth * cost["launch"]),
            "selection": max(self.own * cost["weight"], self.depth * cost["layer"]),
            "link": self.traffic * cost["byte"],
            "messages": messages * cost["message"],
        }

    def seconds(self, cost: Costs) -> float:
        """Return the seconds of a round."""
        return sum(self.parts(cost).values())

    def memory(self, cost: Costs) -> float:
        """Return the bytes that one device needs, for the selection or for the gradient, whichever are more.

        While a gradient is computed, a device holds its weights, their dense copies and masks (9 bytes, and 4 for the
        sum of several gradients), the weights that are gathered, and activations, which make room for the gradients
        (4 bytes).
        """
        activations = cost["activation"] * self.tokens * self.depth * self.width
        activations += cost["logit"] * self.tokens * self.vocabulary
        gathered = cost["gathered"] * (BLOCK * self.width**2 + self.embedding)
        gradient = (9 + 4 * (self.passes > 1)) * self.own + max(activations, 4 * self.own) + gathered
        return cost["process"] + 4 * self.embedding / self.devices + max(cost["selection"] * self.own, gradient)


def fitted(predict: Callable[[Case, Costs], float], found: Mapping[Case, float], guess: Costs) -> Costs:
    """Return the costs with the least squares of relative errors, by changing one at a time.

    The search begins at the guess, and again with each cost ten times as high: of two costs whose larger one counts,
    the other changes nothing. A cost that changes no prediction at all keeps its guess.

    >>> found = {Case(64, 1, 1024): 3.0, Case(128, 1, 1024): 6.0}
    >>> round(fitted(lambda case, cost: cost["a"] * case.width, found, {"a": 1.0})["a"], 3)
    0.047
    """

    def error(cost: Costs) -> float:
        return sum(math.log(predict(case, cost) / value) ** 2 for case, value in found.items())

    def descended(best: dict[str, float]) -> dict[str, float]:
        step = 1.5
        while step > 1.0001:
            trials = [best | {name: best[name] * factor} for name in best for factor in (step, 1 / step)]
            lowest = min(trials, key=error)
            if error(lowest) < error(best) - 1e-12:
                best = lowest
            else:
                step = math.sqrt(step)
        return best

    starts = [dict(guess), *({**guess, name: 10 * guess[name]} for name in guess)]
    return min(map(descended, starts), key=error)


@dataclass
class Run:
    """A run of a sweep: the seconds of its set-up and of its training, if it is alone on a device."""

    setup: float
    train: float
    gain: Callable[[int], float]  # how many times as fast some such runs side by side are as one after another


def makespan(runs: Sequence[Run], devices: int, lanes: int, start: float = 0.0, ahead: int = 0) -> float:
    """Return the seconds of a sweep. Runs begin in their order, each on the device that has the fewest.

    Each lane sets up its own runs. With `ahead`, a second process on each device does it instead, one run at a time,
    until so many are ready; a lane sets up a run only if its device is idle. Whatever runs on a device shares it.
    """
    queue = [replace(run) for run in reversed(runs)]
    busy, ready, helper = ([list[Run]() for _ in range(devices)] for _ in range(3))
    turns = [(start, 0, device) for device in range(devices)]  # when something begins or ends there, and its runs
    now = start
    while turns:
        now, _, device = heapq.heappop(turns)
        lane, here = busy[device], helper[device]
        lane[:] = [run for run in lane if run.setup or run.train]
        ready[device] += [run for run in here if not run.setup]
        here[:] = [run for run in here if run.setup]
        prepared = ready[device] or next(filter(None, ready), [])
        step = 0.0  # it may begin more, after emptier devices
        if prepared and len(lane) < lanes:
            lane.append(prepared.pop(0))
        elif queue and len(lane) < lanes and not (ahead and lane):
            lane.append(queue.pop())
        elif queue and not here and len(ready[device]) < ahead:
            here.append(queue.pop())
        elif going := lane + here:
            rates = [run.gain(len(going)) / len(going) for run in going]
            step = min((run.setup or run.train) / rate for run, rate in zip(going, rates, strict=True))
            for run, rate in zip(going, rates, strict=True):
                stage = "setup" if run.setup else "train"
                left = getattr(run, stage) - step * rate
                setattr(run, stage, left if left > 1e-9 else 0.0)
        else:
            continue  # nothing is left for this device
        heapq.heappush(turns, (now + step, len(lane), device))
    return now
