"""Randomness: random number generators, seeded for a while and put back, or replayed for networks of other widths."""

import importlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

RANDOM = torch.Tag.nondeterministic_seeded
FUNCTIONS = {"rand": "uniform_", "rand_like": "uniform_", "randn": "normal_", "randn_like": "normal_"}
METHODS = ("uniform_", "normal_", "exponential_", "cauchy_", "geometric_", "log_normal_", "random_")
CERTAIN = {"native_dropout": 0.0, "_fused_dropout": 1.0}  # the chance to drop, and that to keep


@contextmanager
def forked(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Put the global generators of torch (CPU and `device`), Python and NumPy back at the end.

    With a `seed`, all of them start from it inside.

    >>> before = torch.get_rng_state()
    >>> with forked(torch.device("cpu"), seed=1):
    ...     _ = torch.rand(3)
    >>> bool((torch.get_rng_state() == before).all())
    True
    """
    with put_back([*generators(device), random, *_numpy_random()]):
        if seed is not None:
            reseed(device, seed)
        yield


def reseed(device: torch.device, seed: int) -> None:
    """Start these generators from `seed`. (`torch.manual_seed` would seed every other device too.)"""
    for generator in generators(device):
        generator.manual_seed(seed)
    random.seed(seed)
    for numpy in _numpy_random():
        numpy.seed(seed % 2**32)


def own_generators(modules: Iterable[nn.Module]) -> AbstractContextManager[None]:
    """Put the generators that modules hold as attributes back at the end: those of torch, Python and NumPy."""
    kinds = [torch.Generator, random.Random]
    for numpy in _numpy_random():
        kinds += [numpy.RandomState, numpy.Generator]
    return put_back(value for module in modules for value in vars(module).values() if type(value) in kinds)


@contextmanager
def put_back(generators: Iterable[Any]) -> Iterator[None]:
    """Put generators of torch, Python and NumPy back at the end."""
    states = [(write, read()) for read, write in map(_access, generators)]
    try:
        yield
    finally:
        for write, state in states:
            write(state)


def _access(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    if hasattr(generator, "getstate"):  # Python's
        return generator.getstate, generator.setstate
    if hasattr(generator, "get_state"):  # torch's, and NumPy's older ones
        return generator.get_state, generator.set_state
    return partial(getattr, generator.bit_generator, "state"), partial(setattr, generator.bit_generator, "state")


def _numpy_random() -> list[Any]:
    # NumPy itself imports this module only at first use
    return [importlib.import_module("numpy.random")] if "numpy" in sys.modules else []


def generators(device: torch.device) -> list[torch.Generator]:
    """Return torch's global generators of the CPU and the device."""
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, "default_generators"):  # torch.cuda, torch.xpu
        index = module.current_device() if device.index is None else device.index
        return [torch.default_generator, module.default_generators[index]]
    return [torch.default_generator, *([torch.mps._get_default_mps_generator()] if device.type == "mps" else [])]


class Replayed(TorchDispatchMode):
    """A mode in which networks of different widths see the same random numbers, so that they can be compared.

    Dropout drops nothing. Other functions draw one number for each sample (along the first dimension), and use it for
    all channels and positions. Functions for which that is impossible, such as `torch.randperm`, start from the same
    seed. `used` says whether a random function was called.

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
        if name in ("bernoulli_", "bernoulli"):
            chance = args[1] if len(args) > 1 and args[1] is not None else args[0] if name == "bernoulli" else 0.5
            target = args[0] if name == "bernoulli_" else torch.empty_like(args[0])
            return target.copy_(torch.as_tensor(chance) > 0)
        if name in METHODS:
            return args[0].copy_(self._draws(args[0].shape, name, *args[1:]))
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))
        given |= {chance: 0.0 for chance in ("dropout", "dropout_p") if chance in given}  # fused attention, LSTM
        if name in CERTAIN:
            given["p"] = CERTAIN[name]
        if "upper" in given:  # a randomized leaky ReLU: the mean slope
            given["lower"] = given["upper"] = (given["lower"] + given["upper"]) / 2
        self._seed_all(args, kwargs)
        result = func(*given.values(), **kwargs)
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
