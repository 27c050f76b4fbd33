"""Names that options take: plain data, so that help and completion need no torch. A table elsewhere has these keys."""

DATA = ("cifar10", "cifar100", "tiny-imagenet", "imagenet", "digits")
MODELS = (
    "resnet18", "resnet34", "resnet50", "vgg16", "vgg19", "mobilenet-v2", "small-vgg", "small-resnet",
    "resnet50-imagenet", "vgg19-imagenet",
)  # fmt: skip
METHODS = (
    "force", "iter-snip", "hybrid", "force-signal", "snip", "snip-mb", "grasp", "grasp-mb", "grasp-taylor",
    "iter-grasp", "synflow", "magnitude", "random", "erk",
)  # fmt: skip
LAWS = ("uniform", "erk")  # of densities
EVOLUTIONS = ("rigl", "set")  # of masks in training
UNITS, TARGETS = ("weight", "channel"), ("weights", "flops")  # what stays or goes, and what sparsity counts
LOSSES = ("cross-entropy", "nll-on-logits")
SCHEMES = ("kaiming-fan-in", "kaiming-fan-out", "xavier", "orthogonal")
NORM_SCALES = ("ones", "uniform")
TRACKERS = ("tensorboard", "wandb", "mlflow")

STATISTICS = ("batch", "eval")  # that batch-norms use in scoring
SCORING_PRECISIONS = ("fp32", "tf32", "bf16")
NONE = "none"  # CONTROLS says what each control does to a run
CONTROLS = {NONE: "", "shuffle": "shuffled", "reinitialize": "reinitialized", "invert": "inverted"}
SCALES = ("smoke", "short", "paper")  # of the experiments of a figure
AXES = ("sparsity", "effective", "flops", "time", "epoch")  # what accuracy is drawn against
