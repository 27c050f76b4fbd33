"""ImageNet, from the folders train and val with one folder per class: crops of 224x224 pixels."""

from .folder import FolderSplit, listed
from .split import Data, Request

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load(request: Request) -> Data:
    """Load the data set: `train` for training, `val` for testing; classes are numbered in sorted order of folders."""
    root = next((r for r in (request.root, request.root / "imagenet") if (r / "train").is_dir()), request.root)
    if not (root / "train").is_dir():
        hint = "; downloading it needs an account at image-net.org" if request.download else ""
        raise FileNotFoundError(
            f"there is no ImageNet in {root}; put the folders train and val there, each with one folder per class{hint}"
        )
    normalization = request.normalization(MEAN, STD)
    shape = request.shape(3, SIZE, SIZE)
    classes, files = listed(root, ("train", "val"))
    train, test = (FolderSplit(*files[name], shape[-1], normalization, request.workers) for name in ("train", "val"))
    return Data("imagenet", len(classes), shape, train=train, validation=None, test=test)
