"""Strip a neural network to its bare bones before training: prune at initialization, keep it sparse, account for it."""

from .running import interrupts as interrupts  # first: before torch is imported

# isort: split
from .accounting import Account, account
from .deploy.export import Exported, to_onnx, to_program, to_sparse
from .deploy.fold import folded
from .deploy.shrink import Shrunk, shrink
from .deploy.sparse import sparsify_for_cpu
from .files.masks import load_masks, save_masks
from .files.weights import Weights, load_weights, save_weights
from .holding import Hold, audit, hold
from .masks import Agreement, Masks, Scores, agreement
from .pruning.controls import inverted, redrawn, shuffled
from .pruning.methods import METHODS, Method
from .pruning.probe import Probe
from .pruning.prune import Pruned, prune
from .pruning.round import Record, Round
from .pruning.rounds import rounds
from .pruning.saliency import saliency
from .pruning.schedules import SCHEDULES, exponential, linear, one_shot, settle
from .pruning.selection import keep_top
from .scope import prunable
from .version import __version__

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
    "inverted",
    "keep_top",
    "linear",
    "load_masks",
    "load_weights",
    "one_shot",
    "prunable",
    "prune",
    "redrawn",
    "rounds",
    "saliency",
    "save_masks",
    "save_weights",
    "settle",
    "shrink",
    "shuffled",
    "sparsify_for_cpu",
    "to_onnx",
    "to_program",
    "to_sparse",
]
