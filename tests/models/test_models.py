"""Networks: the paper's table of parameters, torchvision's names, shapes, initialization, and models by name."""

import hashlib
import warnings

import pytest
import torch
from torch import nn

from barebones.models import MODELS, SCHEMES, build, initialize, parameter_table

# The paper's table "Percentage of weights per layer for each network and dataset", as printed.
TABLE = {  # (model, classes, size): Conv, Fully connected, BatchNorm, Bias, Prunable, Total
    ("resnet50", 10, 32): ("99.69", "0.09", "0.11", "0.11", "99.78", "23.52M"),
    ("vgg19", 10, 32): ("99.92", "0.03", "0.03", "0.03", "99.95", "20.04M"),
    ("resnet50", 100, 32): ("98.91", "0.86", "0.11", "0.11", "99.78", "23.71M"),
    ("vgg19", 100, 32): ("99.69", "0.25", "0.03", "0.03", "99.94", "20.08M"),
    ("resnet50", 200, 64): ("98.06", "1.71", "0.11", "0.11", "99.78", "23.91M"),
    ("vgg19", 200, 64): ("99.44", "0.51", "0.03", "0.03", "99.94", "20.13M"),
    ("resnet50", 1000, 224): ("91.77", "8.01", "0.10", "0.11", "99.79", "25.56M"),
    ("vgg19", 1000, 224): ("13.93", "86.05", "0.01", "0.01", "99.98", "143.68M"),
}
# Two of its 48 cells differ from the rounded values of the networks. 23,467,712 / 23,520,842 prunable weights are
# 99.774 %; the printed 99.78 is the sum of the rounded 99.69 and 0.09. 5,504 / 143,678,248 batch-norm weights are
# 0.004 %; the printed 0.01 would count the batch-norm biases, too, which no other row does.
MISPRINTS = {(("resnet50", 10, 32), "prunable"): "99.77", (("vgg19", 1000, 224), "batchnorm"): "0.00"}

# SHA-256 of "name shape" per line of the state dict of torchvision 0.28's resnet50() and so on.
TORCHVISION = {
    "resnet18": "84fb10d9c6905a1cbb020b284537dc97c4f4ec55fb2a780a41152a23a2dd0e9d",
    "resnet34": "28f9096d5130749948981c6900083e57b19456b8b835829b8bdfe415bddc3f32",
    "resnet50": "d7e4f8bb0a5363446a59c81c3887ccf66900a11651a0ae2dec96d1bb1eb6ea81",
    "vgg16": "347371586a8ea365f60486dc7572a8600dedd099dda98501d6fe20654e8f6bb2",  # vgg16_bn
    "vgg19": "fc3ff6fab2b5cc094a9aae9d96106501b6c05ca298e52c42d73cf8b27b8d8d73",  # vgg19_bn
}


def sketch(name, classes=10, size=32, channels=3):
    """Build the model on the meta device, which has shapes but no numbers."""
    with torch.device("meta"):
        return build(name, classes, size, channels)


def digest(model):
    lines = (f"{name} {tuple(value.shape)}" for name, value in model.state_dict().items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_table_of_the_paper(row):
    model = sketch(*row)
    table = parameter_table(model)
    ours = {name: f"{value:.2f}" for name, value in table._asdict().items()} | {"total": f"{table.total / 1e6:.2f}M"}
    printed = dict(zip(table._fields, TABLE[row], strict=True))
    assert ours == {name: MISPRINTS.get((row, name), value) for name, value in printed.items()}
    assert all(abs(float(ours[name]) - float(printed[name])) < 0.011 for name in table._fields[:-1])
    assert table.total == sum(p.numel() for p in model.parameters())
    assert table.prunable + table.batchnorm + table.bias == pytest.approx(100, abs=1e-9)


def test_mobilenet_has_the_number_of_parameters_of_the_paper():  # the others have the shapes of torchvision
    assert parameter_table(sketch("mobilenet-v2")).total == 2_296_922


def test_tied_parameters_count_once_and_unknown_ones_in_the_total_only():
    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.Linear(3, 3, bias=False), nn.Linear(3, 3), nn.Embedding(4, 5))
    model[1].weight = model[2].weight
    table = parameter_table(model)
    assert table.total == 6 + 3 + 9 + 3 + 20
    assert [round(share * table.total / 100) for share in table[:5]] == [6, 9, 0, 6, 15]
    assert parameter_table(nn.ReLU()) == (0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient(name):
    model = sketch(name, classes=7, size=33, channels=1)
    model(torch.empty(2, 1, 33, 33, device="meta")).sum().backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


@pytest.mark.parametrize(
    ("name", "size", "inside"),
    [
        ("resnet50", 32, {"layer1": 32, "layer2.0.conv1": 32, "layer2.0.conv2": 16, "layer4": 4}),  # 3x3 has the stride
        ("resnet50", 64, {"layer1": 64, "layer4": 8}),  # Tiny-ImageNet has the stem of CIFAR
        ("resnet50", 224, {"conv1": 112, "layer1": 56, "layer2.0.conv1": 56, "layer4": 7}),
        ("vgg19", 32, {"features": 2, "avgpool": 1}),
        ("vgg19-imagenet", 64, {"features": 2, "avgpool": 7}),
        ("mobilenet-v2", 32, {"stem": 32, "blocks.1": 32, "head": 4}),
        ("mobilenet-v2", 224, {"stem": 112, "blocks.1": 56, "head": 7}),
    ],
)
def test_sizes_inside(name, size, inside):
    model = sketch(name, 200, size)
    sizes = {}
    for layer in inside:
        record = lambda module, args, out, layer=layer: sizes.update({layer: out.shape[-1]})
        model.get_submodule(layer).register_forward_hook(record)
    with torch.no_grad():
        assert model(torch.empty(2, 3, size, size, device="meta")).shape == (2, 200)
    assert sizes == inside


@pytest.mark.parametrize("name", TORCHVISION)
def test_names_and_shapes_for_imagenet_are_torchvisions(name):
    assert digest(sketch(name, 1000, 224)) == TORCHVISION[name]


def test_a_torchvision_checkpoint_gives_the_same_outputs():
    with warnings.catch_warnings(action="ignore"):
        torchvision = pytest.importorskip("torchvision", exc_type=ImportError)
    reference = torchvision.models.resnet50()
    for module in reference.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 2)
    ours = build("resnet50-imagenet", 1000, 224)
    ours.load_state_dict(reference.state_dict())
    x = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(x), reference.eval()(x))


VARIANCE = {
    "kaiming-fan-in": lambda fan_in, fan_out: 2 / fan_in,
    "kaiming-fan-out": lambda fan_in, fan_out: 2 / fan_out,
    "xavier": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("layer", [nn.Conv2d(64, 96, 3, groups=4), nn.Linear(500, 120), nn.Linear(120, 500)], ids=str)
def test_the_distribution_of_a_scheme(scheme, layer):
    weight = initialize(layer, scheme, torch.Generator().manual_seed(3)).weight.detach()
    if scheme == "orthogonal":
        matrix = weight.flatten(1)
        small = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
        torch.testing.assert_close(small, torch.eye(len(small)), atol=1e-5, rtol=0)
    else:
        std = VARIANCE[scheme](weight[0].numel(), weight[:, 0].numel()) ** 0.5
        assert weight.std().item() == pytest.approx(std, rel=0.03)  # four times its spread at 14,000 weights
        assert abs(weight.mean().item()) < 4 * std / weight.numel() ** 0.5
        assert (weight.abs() > 2.5 * std).float().mean().item() == pytest.approx(0.0124, abs=0.005)  # normal


@pytest.mark.parametrize("scheme", SCHEMES)
def test_initialize_sets_every_layer_and_nothing_else(scheme):
    model = build("mobilenet-v2", 10, 32)
    model.extra = nn.LayerNorm(3)
    for tensor in (t for t in model.state_dict().values() if t.is_floating_point()):
        tensor.fill_(7)
    assert initialize(model, scheme=scheme) is model
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    expected = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}
    for name, tensor in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        if module == "extra":
            assert (tensor == 7).all(), name
        elif module in norms and kind in expected:
            assert (tensor == expected[kind]).all(), name
        elif kind == "weight":
            assert not (tensor == 7).any(), name
    assert not model.classifier.bias.any()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_random_numbers_come_from_the_generator(scheme):
    model, before = nn.Linear(20, 30), torch.get_rng_state()
    first, repeated = (initialize(model, scheme, torch.Generator().manual_seed(5)).weight.clone() for _ in range(2))
    assert torch.equal(first, repeated)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    assert torch.equal(first, initialize(model).weight) == (scheme == "kaiming-fan-in")  # the default


def test_scales_of_batch_norms_are_ones_or_uniform_and_the_weights_are_the_same_with_both():
    def network(**options):
        layers = [nn.Conv2d(1, 5000, 1), nn.BatchNorm2d(5000), nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False)]
        return initialize(nn.Sequential(*layers), generator=torch.Generator().manual_seed(5), **options)

    ones, uniform = network(), network(norm_scale="uniform")
    assert all(torch.equal(ones[i].weight, uniform[i].weight) for i in (0, 2))
    assert bool((ones[1].weight == 1).all())
    scales = uniform[1].weight.detach().sort().values
    assert (scales - (torch.arange(5000) + 0.5) / 5000).abs().max() < 0.03  # the distance of Kolmogorov and Smirnov
    assert bool((uniform[1].bias == 0).all())


def test_errors_of_initialize():
    with pytest.raises(ValueError, match="no initialization 'kaiming'"):
        initialize(nn.Linear(2, 2), "kaiming")
    with pytest.raises(ValueError, match="no scale of batch-norms 'random'"):
        initialize(nn.Linear(2, 2), norm_scale="random")
    with pytest.raises(ValueError, match="1 is lazy and has no weights yet"):
        initialize(nn.Sequential(nn.Flatten(), nn.LazyLinear(3)))


@pytest.mark.parametrize("name", ["resnet50", "vgg19"])
def test_large_images_get_the_variant_for_imagenet(name):
    large, small = digest(sketch(f"{name}-imagenet", 10, 32)), digest(sketch(name, 10, 32))
    assert large != small
    assert digest(sketch(name, 10, 64)) == digest(sketch(name, 10, 127)) == small
    assert digest(sketch(name, 10, 128)) == digest(sketch(name, 10, 224)) == large


@pytest.mark.parametrize(("name", "size", "least"), [("vgg16", 8, 16), ("vgg19", 15, 16), ("vgg19-imagenet", 31, 32)])
def test_images_that_are_too_small(name, size, least):
    with pytest.raises(ValueError, match=f"{size}x{size} pixels are too small .* needs {least}x{least}"):
        build(name, 10, size)
    assert sketch(name, 10, least)(torch.empty(2, 3, least, least, device="meta")).shape == (2, 10)


NETS = """
from torch import nn

def plain(): return nn.Linear(4, 2)
def named(width=3, num_classes=2): return nn.Linear(width, num_classes)
def one(n): return nn.Linear(4, n)
def width(width=3): return nn.Linear(width, 2)
def two(a, b): return nn.Linear(a, b)
def nothing(): pass
def failing(): raise SystemExit("no")

class Net(nn.Linear):
    def __init__(self, *, classes): super().__init__(4, classes)
    @classmethod
    def narrow(cls, classes=2): return nn.Linear(1, classes)

ready = nn.Linear(4, 2)
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """A user's package with the module `mynets.nets`, and modules that cannot be imported."""
    files = {"__init__": "", "nets": NETS, "broken": "def half(:\n"}
    (tmp_path / "mynets").mkdir()
    for name, content in files.items():
        (tmp_path / "mynets" / f"{name}.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize(
    ("factory", "inputs", "outputs"),
    [
        ("plain", 4, 2), ("named", 3, 10), ("one", 4, 10), ("Net", 4, 10), ("Net.narrow", 1, 10),
        ("width", 3, 2),  # an optional argument of another name is not the number of classes
    ],
)  # fmt: skip
def test_a_factory_of_the_user(factory, inputs, outputs):
    model = build(f"mynets.nets:{factory}", 10, 32)
    assert (model.in_features, model.out_features) == (inputs, outputs)


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet-18", "there is no model 'resnet-18'; did you mean 'resnet18'"),
        ("transformer", "'transformer'; choose one of resnet18, .*vgg19-imagenet, or package.module:factory"),
        ("mynest.nets:plain", r"mynest.nets:plain cannot be imported \(ModuleNotFoundError.*to PYTHONPATH"),
        ("mynets.broken:half", r"cannot be imported \(SyntaxError"),
        (":plain", "cannot be imported"),
        ("mynets.nets:plane", r"mynets.nets has no 'plane'; did you mean 'plain'"),
        ("mynets.nets:ready", "is of type Linear; name a function or class"),
        ("mynets.nets:two", r"two\(a, b\) needs more arguments than classes"),
        ("mynets.nets:nothing", "returned NoneType; a factory must return an nn.Module"),
        ("mynets.nets:failing", "raised SystemExit: no"),
    ],
)
def test_a_name_that_cannot_be_used(name, expected):
    with pytest.raises(ValueError, match=expected):
        build(name, 10, 32)
