"""Networks of timm by name: families that no paper of ours uses, from their configuration to a trained network."""

import pytest
import torch

from barebones import data
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run import loading
from barebones.lab.run.network import Network
from barebones.lab.run.run import RunOptions, run
from barebones.models import build, wanted

try:
    import timm
except Exception as error:  # a torchvision for another torch raises errors of several classes
    pytest.skip(f"timm cannot be imported: {error}", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # timm's own

NAMES = ["timm:convnext_atto@32", "timm:vit_tiny_patch16_224@32"]  # tests/families has more, at smaller sizes


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_network_runs_from_pruning_to_export(name, tmp_path):
    experiment = Experiment(name, "digits", "snip", 0.5, epochs=1, batch_size=256, lr=0.01).resolved()
    options = RunOptions(tmp_path / "runs")
    result = run(experiment, options)
    assert result["sparsity"] == pytest.approx(0.5, abs=1e-4)
    assert 0 <= result["test"]["top1"] <= 1
    folder = options.folder(experiment)
    found, network, _ = loading.load(folder)
    assert loading.example(found, folder).shape == (2, 1, 32, 32)
    assert network(loading.example(found, folder)).shape == (2, 10)
    assert run(experiment, options)["weights"] == result["weights"]  # nothing has changed since


@pytest.mark.parametrize("sized", NAMES)
def test_size_and_normalization_are_those_of_the_configuration(sized):
    name = sized.partition("@")[0]
    config = timm.get_pretrained_cfg(name.removeprefix("timm:"))
    assert wanted(name) == (config.input_size[-1], tuple(config.mean), tuple(config.std))
    assert wanted(sized).size == 32


def test_the_images_are_resized_and_normalized_as_the_network_wants(tmp_path):
    experiment = Experiment("timm:vit_tiny_patch16_224@32", "digits").resolved()
    network = Network(experiment, RunOptions(tmp_path), torch.device("cpu"))
    images, _ = next(network.data.test.epoch(3))
    assert images.shape == (3, 1, 32, 32)
    plain = data.load("digits").test
    gray = plain.images[:3].float() / 16
    expected = torch.nn.functional.interpolate(gray, (32, 32), mode="bilinear", antialias=True)
    mean, std = (sum(values) / 3 for values in wanted(experiment.model)[1:])
    torch.testing.assert_close(images, (expected - mean) / std)


def test_color_images_get_the_mean_of_each_channel():
    request = data.Request(None, torch.device("cpu"), size=4, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    normalization = request.normalization((0.5,) * 3, (0.5,) * 3)  # with those of the data set, which give way
    torch.testing.assert_close(normalization.mean.flatten() / 255, torch.tensor([0.1, 0.2, 0.3]))
    torch.testing.assert_close(normalization.std.flatten() / 255, torch.tensor([0.4, 0.5, 0.6]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:", "names no network of timm; write timm:NAME"),
        ("timm:resnet18@0", "names no network of timm"),
        ("timm:resnet_18", "timm has no network 'resnet_18'; did you mean 'resnet18'"),
        ("timm:local-dir:.", "timm has no network"),
    ],
)
def test_names_that_cannot_be_used(name, message):
    with pytest.raises(ValueError, match=message):
        build(name, 10, 32)


def test_a_size_that_does_not_fit_is_said():
    with pytest.raises(ValueError, match=r"vit_tiny_patch16_224@8 .*(cannot be built|does not take)"):
        Network(Experiment("timm:vit_tiny_patch16_224@8", "digits").resolved(), RunOptions(), torch.device("cpu"))
