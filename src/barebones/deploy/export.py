"""Export: masked networks as files for other programs, checked against the network before they are written."""

import importlib
import inspect
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..files import container as files
from ..files.weights import dense_bytes
from ..messages import first_line
from ..running.inputs import call, tensors
from ..running.outputs import difference, mismatch, outputs, rounded, tolerance
from ..running.rng import forked
from ..scope import masked_copy

CHATTY = ("torch", "onnxscript", "onnx_ir")  # loggers that report a lot even if an export succeeds
NARROWEST = 1e-3  # range in int8: onnxruntime gives rows without weights a range of 255, which rounds their bias away
CACHE = "it returns a cache; set model.config.use_cache = False, or pass use_cache=False in the example"
ONNX_BYTES = 2**31 - 2**20  # of weights in an ONNX file, at most: protobuf allows 2 GiB, and the graph needs some of it


@dataclass(frozen=True)
class Exported:
    """A written file: its size, the size of the dense checkpoint, and how much the outputs differ."""

    path: str
    bytes: int
    bytes_dense: int
    difference: float  # the largest, relative to the largest output

    @property
    def ratio(self) -> float:
        """Return how many times smaller the file is than the dense checkpoint."""
        return self.bytes_dense / self.bytes


@forked(torch.device("cpu"))
def to_onnx(
    model: nn.Module, masks: Mapping[str, Tensor], example: Any, path: files.Path, *, int8: Iterable[Any] | None = None
) -> Exported:
    """Write the masked network as one ONNX file for batches of any size, with batch-norm folded into its layers.

    With `int8`, a few batches of typical inputs, onnxruntime computes in 8-bit integers, whose ranges it finds with
    these batches. `Exported.difference` says how much the outputs then differ on the example. Pruned weights stay
    exactly zero.

    Before the file is written (and quantized), onnxruntime runs it on the example and on a batch that is larger by one.
    If the outputs differ from those of the masked model in eval mode by more than rounding, that is a `ValueError`.

    The example is what the model is called with: one input, a tuple of arguments, a dict of arguments by name, or
    (args, kwargs). The first dimension of its first tensor is the batch.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        _required(package)
    batches = list(int8 or ())
    if int8 is not None and not batches:
        raise ValueError("int8 needs batches of typical inputs to find the ranges of values, and there are none")
    plain, program, examples = _program(model, masks, example)
    if sum(t.numel() * t.element_size() for t in program.state_dict.values()) > ONNX_BYTES:
        raise ValueError("an ONNX file holds at most 2 GB, and these weights are more; use torch.export (.pt2) instead")
    with _quietly(), _explained(f"{type(plain).__name__} cannot be written as ONNX"):
        onnx_program = torch.onnx.export(program, (), dynamo=True, verbose=False)
        assert onnx_program is not None
        blob = _without_notes(onnx_program.model_proto).SerializeToString()
    gap = _checked(plain, examples, session(blob), "onnxruntime")
    if batches:
        with _quietly(), _explained(f"onnxruntime cannot quantize {type(plain).__name__}"):
            blob = _quantized(blob, batches)
        args, kwargs = examples[0]
        gap = difference(outputs(plain, (args, kwargs)), session(blob)(*args, **kwargs))
    return _written(path, blob, model, gap)


@forked(torch.device("cpu"))
def to_program(model: nn.Module, masks: Mapping[str, Tensor], example: Any, path: files.Path) -> Exported:
    """Write the masked network as a program of `torch.export` (.pt2) for batches of any size, checked like `to_onnx`.

    `torch.export.load` may unpickle what a file contains: do not load programs from people you do not trust.
    """
    plain, program, examples = _program(model, masks, example)
    with _quietly(), _explained(f"{type(plain).__name__} cannot be saved by torch.export"):
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        module = torch.export.load(io.BytesIO(buffer.getvalue())).module()
    gap = _checked(plain, examples, module, "torch.export")
    return _written(path, buffer.getvalue(), model, gap)


FORMATS = {"onnx": ".onnx", "torch": ".pt2", "sparse": ".safetensors"}  # the endings of their files


def format_for(path: files.Path, name: str | None = None) -> str:
    """Return the format of that name or, without one, the format that the file's name ends in.

    >>> format_for("network.pt2")
    'torch'
    """
    suffix = os.path.splitext(path)[1].lower()
    for known, ending in FORMATS.items():
        if name == known or (name is None and suffix == ending):
            return known
    wrong = f"format {name!r} is unknown" if name else f"the name {os.path.basename(path)} does not tell the format"
    endings = ", ".join(FORMATS.values())
    raise ValueError(f"{wrong}; use --format {', '.join(FORMATS)}, or a name that ends in {endings}")


def _program(
    model: nn.Module, masks: Mapping[str, Tensor], example: Any
) -> tuple[nn.Module, torch.export.ExportedProgram, list[Any]]:
    plain = masked_copy(model, masks).cpu().eval()
    args, kwargs = _copied(call(example))
    first = next((tensor for tensor in tensors((args, kwargs)) if tensor.dim()), None)
    if first is None or not len(first):
        raise ValueError("the example has no tensor with a batch dimension; pass what the model is called with")

    def batched(leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == len(first)

    larger = tree_map(lambda leaf: torch.cat([leaf, leaf[:1]]) if batched(leaf) else leaf, (args, kwargs))
    size = torch.export.Dim("batch")
    arguments = inspect.signature(plain.forward).bind(*args, **kwargs).arguments
    shapes = {name: tree_map(lambda t: {0: size} if batched(t) else None, value) for name, value in arguments.items()}
    with _quietly(), _explained(f"{type(plain).__name__} cannot be exported for batches of any size"):
        program = torch.export.export(plain, *larger, dynamic_shapes=shapes)  # a batch of 1 would become a constant
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it contains paths of this machine
    return plain, program, [(args, kwargs), larger]


def _copied(example: Any) -> Any:
    # a network may write into its inputs
    return tree_map(lambda leaf: leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf, example)


def _without_notes(proto: Any) -> Any:
    """Remove the notes on how the ONNX model was made, and call its dynamic dimension "batch"."""
    graph = proto.graph
    dynamic = [d for v in (*graph.input, *graph.output) for d in v.type.tensor_type.shape.dim if d.dim_param]
    for symbol in [dim.dim_param for dim in dynamic[:1]]:
        for dim in dynamic:
            dim.dim_param = dim.dim_param.replace(symbol, "batch")
    del graph.value_info[:], proto.metadata_props[:]
    for element in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del element.metadata_props[:]
    return proto


def _quantized(blob: bytes, batches: Iterable[Any]) -> bytes:
    """Return an ONNX model with weights and activations in 8 bits; weights are symmetric, so zeros stay zero."""
    onnx, quantization = _required("onnx"), _required("onnxruntime.quantization")
    names = [argument.name for argument in onnx.load_from_string(blob).graph.input]
    feeds = ({n: t.cpu().numpy() for n, t in zip(names, tensors(call(batch)), strict=False)} for batch in batches)
    with TemporaryDirectory() as folder:
        plain, ready, done = (Path(folder, f"{name}.onnx") for name in ("plain", "ready", "done"))
        plain.write_bytes(blob)
        quantization.quant_pre_process(plain, ready, skip_symbolic_shape=True)
        quantization.quantize_static(
            ready, done, SimpleNamespace(get_next=lambda: next(feeds, None)), per_channel=True,
            activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
            extra_options={"WeightSymmetric": True, "MinimumRealRange": NARROWEST},
        )  # fmt: skip
        return _without_notes(onnx.load(done)).SerializeToString()


def session(blob: bytes, threads: int = 0) -> Callable[..., list[Tensor]]:
    """Return a function that runs an ONNX model in onnxruntime, on this many threads (0: onnxruntime decides)."""
    runtime = _required("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # only errors
    options.intra_op_num_threads = threads
    with _explained("onnxruntime cannot load the exported network"):
        session = runtime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]

    def run(*args: Any, **kwargs: Any) -> list[Tensor]:
        with _explained("onnxruntime cannot run the exported network"):
            inputs = {name: tensor.numpy() for name, tensor in zip(names, tensors((args, kwargs)), strict=True)}
            return [torch.from_numpy(array) for array in session.run(None, inputs)]

    return run


def _checked(plain: nn.Module, examples: list[Any], run: Callable[..., Any], where: str) -> float:
    """Return the largest difference between the network and its export; more than rounding is a `ValueError`."""
    gap = 0.0
    for args, kwargs in examples:
        with torch.no_grad(), _quietly():
            arguments = _copied((args, kwargs))
            exported = run(*arguments[0], **arguments[1])
        expected = outputs(plain, (args, kwargs))
        noise = partial(rounded, plain, (args, kwargs), expected=expected)
        if problem := mismatch(expected, exported, tolerance(plain), noise):
            name = type(plain).__name__
            raise ValueError(f"{where} does not compute what {name} does: {problem}; nothing was written")
        gap = max(gap, difference(expected, exported))
    return gap


def _written(path: files.Path, blob: bytes, model: nn.Module, gap: float) -> Exported:
    with files.atomically(path) as file:
        file.write(blob)
    return Exported(os.fspath(path), len(blob), dense_bytes(model), gap)


@contextmanager
def _quietly() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in CHATTY]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(action="ignore"), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    """Turn any error of another library into a `ValueError` of one line; its cause is the full error."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        reason = CACHE if "Cache'>" in str(error) else f"{type(error).__name__}: {first_line(error)}"
        raise ValueError(f"{problem} ({reason})") from error


def _required(package: str) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            return importlib.import_module(package)
    except ImportError:
        needs = "writing ONNX files needs onnx, onnxscript and onnxruntime"
        raise ImportError(f"{needs}, and {package} is missing: pip install 'barebones[export]'") from None
