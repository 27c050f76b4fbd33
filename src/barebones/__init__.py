"""Strip a neural network to its bare bones before training: prune at initialization, keep it sparse, account for it."""

from .account import Account, account
from .export import Exported, to_onnx, to_program, to_sparse
from .fold import folded
from .hold import Hold, audit, hold
from .maskfile import load_masks, save_masks
from .masks import Agreement, Masks, Scores, agreement
from .methods import METHODS, Method
from .probe import Probe
from .prune import Pruned, prune, rounds
from .round import Record, Round
from .saliency import saliency
from .schedules import SCHEDULES, exponential, linear, one_shot, settle
from .scope import prunable
from .selection import keep_top
from .shrink import Shrunk, shrink
from .sparse import sparsify_for_cpu
from .version import __version__
from .weightfile import Weights, load_weights, save_weights

__all__ = [
    "METHODS",
    "SCHEDULES",
    "Account",
    "Agreement",
    "Exported",
    "Hold",
    "Masks",
    "Method",
    "Probe",
    "Pruned",
    "Record",
    "Round",
    "Scores",
    "Shrunk",
    "Weights",
    "__version__",
    "account",
    "agreement",
    "audit",
    "exponential",
    "folded",
    "hold",
    "keep_top",
    "linear",
    "load_masks",
    "load_weights",
    "one_shot",
    "prunable",
    "prune",
    "rounds",
    "saliency",
    "save_masks",
    "save_weights",
    "settle",
    "shrink",
    "sparsify_for_cpu",
    "to_onnx",
    "to_program",
    "to_sparse",
]
