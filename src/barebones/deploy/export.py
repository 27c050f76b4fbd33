"""Export: a masked network as a file for others, each checked against the network itself before it is written."""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import logging
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..files import container as files
from ..files.weights import dense_bytes, load_weights, save_weights
from ..running.inputs import call
from ..scope import bare, matched
from .fold import difference, folded, outputs, tolerance

CHATTER = ("torch", "onnxscript", "onnx_ir")  # loggers that have much to say of an export that goes well
MOST = 2**31 - 2**20  # bytes of weights in one ONNX file; protobuf ends at 2 GiB, and the graph needs room


@dataclass(frozen=True)
class Exported:
    """A file that was written: its bytes, those of the dense checkpoint, and how far the two networks were apart."""

    path: str
    bytes: int
    bytes_dense: int
    difference: float  # the largest one seen, as a share of the largest output

    @property
    def ratio(self) -> float:
        """How many times smaller the file is than the dense checkpoint."""
        return self.bytes_dense / self.bytes


def to_onnx(
    model: nn.Module, masks: Mapping[str, Tensor], example: Any, path: files.Path, *, fold: bool = True
) -> Exported:
    """Write the masked network as one ONNX file, for batches of any size, with batch-norm folded into its layers.

    onnxruntime runs it on the example and on a batch that is larger by one, and a `ValueError` gives the largest
    difference from the model under its masks, in eval mode, where that is more than rounding. Then nothing is written.

    The example is what the model is called with: an input, a tuple of arguments, a dict of them by name, or (args,
    kwargs); the first dimension of its first tensor is the batch. The model is left untouched, and exported on the CPU.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        _required(package)
    plain, program, examples = _program(model, masks, example, fold)
    if sum(t.numel() * t.element_size() for t in program.state_dict.values()) > MOST:
        raise ValueError("ONNX files end at 2 GB, and these weights are more; use torch.export (.pt2) instead")
    with _quietly(), _explained(f"{_name(plain)} cannot be written as ONNX"):
        made = torch.onnx.export(program, (), dynamo=True, verbose=False)
        assert made is not None
        blob = _bare(made.model_proto).SerializeToString()
    gap = _checked(plain, examples, session(blob), "onnxruntime")
    return _written(path, blob, model, gap)


def to_program(
    model: nn.Module, masks: Mapping[str, Tensor], example: Any, path: files.Path, *, fold: bool = True
) -> Exported:
    """Write the masked network as a program of `torch.export` (.pt2), for batches of any size, checked like `to_onnx`.

    What is checked is what the file gives back. Weights are raw bytes in it, but torch stores the example as a pickle:
    it is read here with `weights_only=True` alone, and where that does not do, the program is checked before it is
    saved. `torch.export.load` trusts its file more than that: load no strangers' programs with it.
    """
    plain, program, examples = _program(model, masks, example, fold)
    with _quietly(), _explained(f"{_name(plain)} cannot be saved by torch.export"):
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        blob = buffer.getvalue()
        if _without_code(blob):
            program = torch.export.load(io.BytesIO(blob))
        module = program.module()
    gap = _checked(plain, examples, module, "torch.export")
    return _written(path, blob, model, gap)


def to_sparse(model: nn.Module, masks: Mapping[str, Tensor], path: files.Path, **about: Any) -> Exported:
    """Write the masked network as a compact weight file, and read it back: bit for bit, so the difference is 0.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     to_sparse(nn.Linear(100, 100), {"weight": torch.eye(100) > 0}, f"{folder}/weights").difference
    0.0
    """
    masked = _masked(model, masks)
    save_weights(model, masks, path, **about)
    state = load_weights(path, copy.deepcopy(masked)).state
    for name, tensor in masked.state_dict().items():
        if not torch.equal(_bytes(tensor), _bytes(state[name])):
            raise OSError(f"{os.fspath(path)} gives other values of {name} back than were written; is the disk sound?")
    return Exported(os.fspath(path), os.path.getsize(path), dense_bytes(model), 0.0)


def _program(
    model: nn.Module, masks: Mapping[str, Tensor], example: Any, fold: bool
) -> tuple[nn.Module, torch.export.ExportedProgram, list[Any]]:
    """The masked network on the CPU, its program (of the folded one), and examples of two batch sizes."""
    plain = _masked(model, masks)
    args, kwargs = tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, call(example))
    first = next((tensor for tensor in _flat((args, kwargs)) if tensor.dim()), None)
    if first is None or not len(first):
        raise ValueError("the example holds no tensor with a batch in it; pass what the model is called with")

    def batched(leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == len(first)

    larger = tree_map(lambda leaf: torch.cat([leaf, leaf[:1]]) if batched(leaf) else leaf, (args, kwargs))
    network = folded(plain, (args, kwargs)) if fold else plain
    size = torch.export.Dim("batch")
    given = inspect.signature(network.forward).bind(*args, **kwargs).arguments
    free = {name: tree_map(lambda leaf: {0: size} if batched(leaf) else None, value) for name, value in given.items()}
    with _quietly(), _explained(f"{_name(plain)} cannot be exported for batches of any size"):  # 1 would be a constant
        program = torch.export.export(network, *larger, dynamic_shapes=free)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # this machine's paths are nobody's business
    return plain, program, [(args, kwargs), larger]


def _masked(model: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    """A copy on the CPU, in eval mode, with its pruned weights at zero."""
    fitted = {name: mask.cpu() for name, _, mask in matched(model, masks)}
    found = copy.deepcopy(bare(model)).cpu().eval()
    with torch.no_grad():
        for _, parameter, mask in matched(found, fitted):
            parameter.masked_fill_(~mask, 0.0)
    return found


def _bare(proto: Any) -> Any:
    """The ONNX model without notes on how it was made, its free dimension called "batch"."""
    graph = proto.graph
    free = [d for v in (*graph.input, *graph.output) for d in v.type.tensor_type.shape.dim if d.dim_param]
    for symbol in [dim.dim_param for dim in free[:1]]:
        for dim in free:
            dim.dim_param = dim.dim_param.replace(symbol, "batch")
    del graph.value_info[:], proto.metadata_props[:]
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
    return proto


def session(blob: bytes, threads: int = 0, arena: bool = True) -> Callable[..., list[Tensor]]:
    """A function that runs an ONNX model in onnxruntime, on so many threads (0: as it likes).

    Without `arena` it keeps no memory for the next call.
    """
    runtime = _required("onnxruntime")
    quiet = runtime.SessionOptions()
    quiet.log_severity_level = 3  # errors alone
    quiet.intra_op_num_threads = threads
    quiet.enable_cpu_mem_arena = arena
    with _explained("onnxruntime cannot load what was exported"):
        session = runtime.InferenceSession(blob, quiet, providers=["CPUExecutionProvider"])
    names = [taken.name for taken in session.get_inputs()]

    def run(*args: Any, **kwargs: Any) -> list[Tensor]:
        with _explained("onnxruntime cannot run what was exported"):
            taken = {name: tensor.numpy() for name, tensor in zip(names, _flat((args, kwargs)), strict=True)}
            return [torch.from_numpy(array) for array in session.run(None, taken)]

    return run


def _checked(plain: nn.Module, examples: list[Any], run: Callable[..., Any], where: str) -> float:
    """The largest difference between the network and what was made of it; more than rounding is a `ValueError`."""
    gap = 0.0
    for args, kwargs in examples:
        with torch.no_grad(), _quietly():
            found = run(*args, **kwargs)
        wanted = outputs(plain, (args, kwargs))
        gap = max(gap, difference(_flat(wanted), _flat(found)))
    if gap > (most := tolerance(plain)):
        raise ValueError(
            f"what {where} computes differs from {_name(plain)} by {gap:.2g} of the largest output, and rounding "
            f"explains {most:g}; nothing was written"
        )
    return gap


def _written(path: files.Path, blob: bytes, model: nn.Module, gap: float) -> Exported:
    with files.atomically(path) as file:
        file.write(blob)
    return Exported(os.fspath(path), len(blob), dense_bytes(model), gap)


def _without_code(blob: bytes) -> bool:
    """Whether all that is pickled in a .pt2 file is plain data, which `weights_only=True` reads."""
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        for name in archive.namelist():
            if name.endswith(".json") and b'"use_pickle": true' in archive.read(name):  # a weight of a class of its own
                return False
            if name.endswith(".pt") and (content := archive.read(name)):
                try:
                    torch.load(io.BytesIO(content), weights_only=True)
                except Exception:  # whatever it is, it is no plain data
                    return False
    return True


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings and the log of what goes well; errors are raised and logged as ever."""
    loggers = [logging.getLogger(name) for name in CHATTER]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """What a stranger's exporter raises, as a `ValueError` of one line; the whole of it is its cause."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
        raise ValueError(f"{what} ({type(error).__name__}: {line})") from error


def _required(package: str) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            return importlib.import_module(package)
    except ImportError:
        need = "ONNX files are written with onnx and onnxscript, and checked in onnxruntime"
        raise ImportError(f"{need}, of which {package} is missing: pip install 'barebones[export]'") from None


def _flat(tree: Any) -> list[Tensor]:
    """The tensors of inputs or outputs, in the order that torch.export and ONNX have them in."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _name(model: nn.Module) -> str:
    return type(model).__name__
