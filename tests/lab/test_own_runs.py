"""Runs with networks and data of the user's own: files, resuming, changes that are noticed, trust, and the docs."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lab_runs import interrupted, swept

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run import loading, network
from barebones.lab.run.run import RunOptions, run

PAGE = Path(__file__).parents[2] / "docs" / "your-data.md"
SNIPPETS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
MARK = "from pathlib import Path\nPath('ran').touch()\n"


@pytest.fixture
def page(command, tmp_path) -> Path:
    """Write the files of the page into the working folder of `command`, and return it; no file is imported yet."""
    for name, text in SNIPPETS.items():
        (tmp_path / name).write_text(text)
    forget()
    return tmp_path


def forget() -> None:
    """Make files and data unknown to this process, as to a new one."""
    for name in [name for name in sys.modules if name.startswith("barebones_file_") or f"{name}.py" in SNIPPETS]:
        del sys.modules[name]
    network.cached_data.cache_clear()


def experiment(data: str = "mydata.py:blobs", model: str = "mynet.py:mlp", **settings) -> Experiment:
    return Experiment(model, data, "force", 0.8, rounds=3, epochs=2, batch_size=128, **settings).resolved()


@pytest.mark.parametrize("data", ["mydata:blobs", "noisy.py:noisy_blobs"])
def test_the_examples_of_the_page_learn_and_can_be_exported(data, page, command):
    words = ["--model", "mynet.py:mlp", "--sparsity", 0.8, "--rounds", 10, "--epochs", 5, "--device", "cpu"]
    done = command("run", "--data", data, *words)
    assert done.code == 0, done.err
    assert float(re.search(r"last epoch: ([\d.]+)%", done.out)[1]) > 70
    (folder,) = (path for path in Path("runs").iterdir() if path.is_dir())
    assert folder.name.startswith(f"{data.replace(':', '-')}-mynet.py-mlp-force-80-s0-")
    done = command("export", folder, "--to-hub-folder", "hub", "--data", data, "--model", "mynet.py:mlp")
    assert (done.code, done.err) == (0, "")
    text = Path("hub/README.md").read_text()
    assert "The code of the network is not part of this folder." in text
    assert f"barebones run --data {data} --model mynet.py:mlp --method force --sparsity 0.8" in text
    assert json.loads(Path("hub/config.json").read_text())["input_shape"] == [8]


@pytest.mark.parametrize("stop", [None, 5], ids=["finished", "unfinished"])
@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    [
        ("mydata.py", "2 * torch", "3 * torch", r"mydata.py:blobs has changed since .*--overwrite"),
        ("mydata.py", "500", "400", r"mydata.py:blobs has changed since"),
        ("mynet.py", "64", "65", r"mynet.py:mlp has changed since .* was written; delete that folder, .*--overwrite"),
    ],
)
def test_changed_data_and_networks_are_noticed(stop, file, before, after, message, page):
    options, chosen = RunOptions(page / "runs", save_every=0), experiment()
    interrupted(chosen, options, stop) if stop else run(chosen, options)
    forget()
    Path(file).write_text(SNIPPETS[file].replace(before, after))
    with pytest.raises(ValueError, match=message):
        run(chosen, options)
    if not stop:
        with pytest.raises(ValueError, match=message):
            swept([chosen], options)
    forget()
    assert run(chosen, replace(options, overwrite=True))["test"]["top1"] > 0.5


def test_a_mask_file_says_what_its_network_takes(page, command, mistake):
    mark = MARK + SNIPPETS["mydata.py"]
    words = ["--sparsity", 0.5, "--rounds", 2, "--model", "mynet.py:mlp", "--data", "mydata.py:blobs"]
    assert command("prune", *words, "-o", "mask", "--device", "cpu").code == 0
    Path("mydata.py").write_text(mark)
    forget()
    assert command("shrink", "mask", "--model", "mynet.py:mlp", "--json").code == 0
    assert command("export", "mask", "--model", "mynet.py:mlp", "-o", "x.safetensors").code == 0
    assert not Path("ran").exists()
    ask = "asks to import and run mydata.py:blobs; if you trust that code, pass --data mydata.py:blobs, or --trust"
    train = ["train", "--mask", "mask", "--model", "mynet.py:mlp", "--epochs", 0, "--device", "cpu"]
    mistake(ask, *train)
    assert not Path("ran").exists()
    assert command(*train, "--data", "mydata.py:blobs").code == 0
    assert Path("ran").exists()


def test_a_finished_run_can_be_loaded_without_its_data(page):
    options = RunOptions(page / "runs")
    run(experiment(), options)
    Path("mydata.py").unlink()
    folder = options.folder(experiment())
    found, model, _ = loading.load(folder, model="mynet.py:mlp")
    assert model(loading.example(found, folder)).shape == (2, 3)
    assert torch.equal(loading.example(found, folder), loading.example(found, folder))


def test_wrong_names_are_said_in_one_line(page, mistake):
    words = ["run", "--device", "cpu", "--model", "mynet.py:mlp", "--data"]
    mistake("there is no data set 'mydata'", *words, "mydata")
    mistake("there is no data set 'timm:blobs'", *words, "timm:blobs")
    mistake("small-vgg takes images, but the inputs have the shape 8", *words, "mydata.py:blobs", "--model=small-vgg")
    mistake("gives outputs of shape (2, 1, 8, 10) for 2 images of digits", *words, "digits")
    assert not Path("runs").exists()
