"""Replayed random numbers: they do not depend on the width of a network, so that two networks can be compared.

With the same seed, torch draws other numbers for tensors of other shapes. So a network in train mode cannot be compared
with the same network without some of its channels, unless the draws are replayed.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .rng import generators

RANDOM = torch.Tag.nondeterministic_seeded
FUNCTIONS = {"rand": "uniform_", "rand_like": "uniform_", "randn": "normal_", "randn_like": "normal_"}
METHODS = ("uniform_", "normal_", "exponential_", "cauchy_", "geometric_", "log_normal_", "random_")


class Replayed(TorchDispatchMode):
    """A mode in which networks of different widths see the same random numbers.

    Dropout drops nothing. Other functions draw one number for each sample (along the first dimension), the same in
    every run with this seed, and use it for all channels and positions. Functions for which that is impossible, such as
    `torch.randperm`, start from the same seed, so they draw the same if the shapes agree. `used` says whether a random
    function was called.

    >>> with Replayed(seed=0):
    ...     few, many = torch.rand(2, 3), torch.nn.functional.dropout(torch.ones(2), 0.5)
    >>> with Replayed(seed=0):
    ...     bool((torch.rand(2, 5)[:, :3] == few).all()), many.tolist()
    (True, [2.0, 2.0])
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.used = seed, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, torch would import its compiler, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        if RANDOM not in func.tags and name != "random_":
            return func(*args, **kwargs)
        self.used = True
        places = {argument.name: place for place, argument in enumerate(func._schema.arguments)}
        if name in ("bernoulli_", "bernoulli"):
            chance = args[1] if len(args) > 1 and args[1] is not None else args[0] if name == "bernoulli" else 0.5
            target = args[0] if name == "bernoulli_" else torch.empty_like(args[0])
            return target.copy_(torch.as_tensor(chance) > 0)
        if name == "native_dropout" and args[1] < 1 and args[2] is not False:
            return args[0] / (1 - args[1]), torch.ones_like(args[0], dtype=torch.bool)
        if name == "_fused_dropout" and args[1] > 0:  # its argument is the chance to stay
            return args[0] / args[1], torch.ones_like(args[0], dtype=torch.uint8)
        if name.startswith("rrelu_with_noise") and len(args) > 4 and args[4]:
            return self._leaky(name, *args[:4])
        if dropped := {"dropout", "dropout_p"} & places.keys():  # a fused attention or recurrent layer
            place = places[dropped.pop()]
            return func(*args[:place], *[0.0][: len(args) - place], *args[place + 1 :], **kwargs)
        if name in METHODS:
            return args[0].copy_(self._draws(args[0].shape, name, *args[1:]))
        self._seed_all(args, kwargs)
        result = func(*args, **kwargs)
        if name in FUNCTIONS:
            return result.copy_(self._draws(result.shape, FUNCTIONS[name]))
        if name in ("randint", "randint_like"):
            bounds = [bound for bound in args if isinstance(bound, int)]
            return result.copy_(self._draws(result.shape, "random_", *([0] * (2 - len(bounds))), *bounds))
        if name == "normal" and len(args) > 1:
            return result.copy_(args[0] + args[1] * self._draws(result.shape, "normal_").to(result))
        return result

    def _draws(self, shape: torch.Size, method: str, *args: Any) -> Tensor:
        """Return one draw for each index along the first dimension, in a shape that broadcasts."""
        self.seed += 1
        rows = torch.empty((*shape[:1], *[1] * (len(shape) - 1)), dtype=torch.double, device="cpu")
        return getattr(rows, method)(*args, generator=torch.Generator("cpu").manual_seed(self.seed))

    def _seed_all(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        device = kwargs.get("device") or next((a.device for a in args if isinstance(a, Tensor)), "cpu")
        for generator in generators(torch.device(device)):
            generator.manual_seed(self.seed)

    @staticmethod
    def _leaky(name: str, x: Tensor, noise: Tensor, lower: float, upper: float) -> Any:
        """Return a randomized leaky ReLU with its mean slope."""
        slopes = torch.where(x <= 0, (lower + upper) / 2, 1.0).to(x.dtype)
        if name.endswith("functional"):
            return x * slopes, slopes
        noise.copy_(slopes)
        return x.mul_(slopes) if name.endswith("_") else x * slopes
