"""Fixtures of the lab's tests: a tiny network, a short experiment, undisturbed runs."""

import shutil
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from lab_runs import NETWORK, command, interrupted, tiny

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run.run import RunOptions, run


@pytest.fixture(scope="session", autouse=True)
def networks(tmp_path_factory) -> Iterator[str]:
    """The name of a tiny network in a user's module, which can be imported in all tests of the lab."""
    folder = tmp_path_factory.mktemp("networks")
    (folder / "nets_for_runs.py").write_text(NETWORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield "nets_for_runs:tiny"


@pytest.fixture
def start(forks, tmp_path) -> Iterator[Callable[..., BaseProcess]]:
    """A function that starts the command in a process of its own; what it prints goes to the file `printed`."""
    processes = []

    def started(argv: list[str], die: tuple[int, bool] | None = None) -> BaseProcess:
        processes.append(forks.Process(target=command, args=(argv, tmp_path / "printed", die)))
        processes[-1].start()
        return processes[-1]

    yield started
    for process in processes:
        process.kill()


@pytest.fixture(scope="session")
def short() -> Experiment:
    return tiny(rounds=4)


@pytest.fixture
def options(tmp_path) -> RunOptions:
    return RunOptions(tmp_path / "runs", save_every=0)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> Callable[[Experiment], Path]:
    """A function that returns the folder of an experiment's finished run; each experiment runs once in all tests."""
    options = RunOptions(tmp_path_factory.mktemp("undisturbed"), save_every=0)

    def folder(experiment: Experiment) -> Path:
        run(experiment, options)
        return options.folder(experiment)

    return folder


@pytest.fixture(scope="session")
def staged(networks, tmp_path_factory) -> Callable[..., dict[str, Path]]:
    """A function that returns the folders of one run in all its stages: pretrain, prune, train (all stopped), done."""
    folders: dict[Experiment, dict[str, Path]] = {}

    def of(**settings) -> dict[str, Path]:
        chosen: dict = dict(model=networks, data="digits", method="force", sparsity=0.6, rounds=3, pretrain=1, epochs=1)
        experiment = Experiment(**chosen | dict(batch_size=256) | settings).resolved()
        if experiment not in folders:
            root = tmp_path_factory.mktemp("staged")
            options, folders[experiment] = RunOptions(root / "run", save_every=0), {}
            for stage, stop in {"pretrain": 3, "prune": 4, "train": 4, "done": None}.items():
                if stop is None:
                    run(experiment, options)
                else:
                    interrupted(experiment, options, stop)
                copied = shutil.copytree(options.folder(experiment), root / stage / experiment.folder)
                folders[experiment][stage] = Path(copied)
        return folders[experiment]

    return of
