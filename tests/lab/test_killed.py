"""Runs in processes that are killed or signalled at any moment: they resume and end the same."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lab_runs import NETWORK, assert_same_run, stamps

from barebones.lab.metrics import read
from barebones.lab.run import RunOptions, run

pytestmark = pytest.mark.slow  # test_stages.py stops runs at every step without processes

SERVER = """
import json, os, signal, sys
import sklearn.datasets, torch
import barebones.cli, barebones.lab.network, barebones.lab.run, barebones.lab.show
barebones.lab.network.cached_data("digits", None, "cpu", False)
warm = torch.nn.Linear(2, 2)  # what the first step loads
optimizer = torch.optim.SGD(warm.parameters(), 0.1, fused=True)
warm(torch.ones(1, 2)).sum().backward()
optimizer.step()
for request in sys.stdin:
    words = json.loads(request)
    if words == "wait":
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    for number, path in ((0, os.devnull), (1, words["out"]), (2, words["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    if words["die"]:
        count, after, number = words["die"]
        def replace(*args, real=os.replace):
            global count
            count -= 1
            if count == 0 and not after:
                os.kill(os.getpid(), number)
            real(*args)
            if count == 0 and after:
                os.kill(os.getpid(), number)
        os.replace = replace
    sys.argv = ["barebones", *words["argv"]]
    code = 0
    try:
        barebones.cli.app.main()
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:
        import traceback
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""


class Commands:
    """`barebones` in processes of their own, without the seconds that importing torch takes each."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.out, self.err = folder / "out", folder / "err"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        (folder / "nets_for_runs.py").write_text(NETWORK)
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER], env=environment, cwd=folder,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _ask(self, request: object) -> int:
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def start(self, *argv: str, die: tuple[int, bool, int] | None = None) -> int:
        """Return the process id; with `die` it signals itself before or after the n-th file that it puts in place."""
        return self._ask({"argv": argv, "die": die, "out": str(self.out), "err": str(self.err)})

    def wait(self) -> int:
        """The exit code of the latest, or minus the signal that ended it."""
        return self._ask("wait")

    def __call__(self, *argv: str, **options) -> int:
        self.start(*argv, **options)
        return self.wait()


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> Iterator[Commands]:
    made = Commands(tmp_path_factory.mktemp("commands") / "server")
    yield made
    made.server.stdin.close()
    made.server.wait(60)
    made.server.stdout.close()


KINDS = {
    "force": "--method force --rounds 6 --epochs 2",
    "rewound": "--method iter-snip --rounds 3 --pretrain 1 --rewind --epochs 1",
}


def words(runs: Path, kind: str) -> list[str]:
    common = "--model nets_for_runs:tiny --data digits --sparsity 0.7 --seed 1 --batch 128 --device cpu --save-every 0"
    own = KINDS.get(kind, "--rounds 100000 --epochs 100000")
    return ["run", *common.split(), *own.split(), "--runs", str(runs)]


@pytest.fixture(scope="module")
def uninterrupted(commands, tmp_path_factory) -> dict[str, Path]:
    """The folders of runs that nobody disturbed."""
    found = {}
    for kind in KINDS:
        runs = tmp_path_factory.mktemp(kind)
        assert commands(*words(runs, kind)) == 0, commands.err.read_text()
        (found[kind],) = runs.iterdir()
    return found


def until(condition, what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"{what} did not happen in {seconds} s")
        time.sleep(0.001)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_killed_at_every_file_it_writes_ends_the_same(kind, commands, uninterrupted, tmp_path):
    argv, killed, after = words(tmp_path, kind), 0, False
    for count in range(1, 200):
        code = commands(*argv, die=(1 + count // 2, after, signal.SIGKILL))
        after = not after
        if code == 0:
            break
        assert code == -signal.SIGKILL, commands.err.read_text()
        killed += 1
    assert killed >= 8
    (folder,) = tmp_path.iterdir()
    assert_same_run(folder, uninterrupted[kind])


@pytest.mark.parametrize(
    ("number", "code", "stage"),
    [(signal.SIGINT, 130, "pretrain"), (signal.SIGTERM, 143, "prune"), (signal.SIGINT, 130, "train")],
)
def test_a_signal_saves_says_how_to_go_on_and_leaves_with_its_code(number, code, stage, commands, tmp_path):
    argv = words(tmp_path, "endless")
    argv += ["--pretrain", "100000"] if stage == "pretrain" else []
    argv += ["--rounds", "2"] if stage == "train" else []
    argv[argv.index("--save-every") + 1] = "1000"  # so that it is the signal that saves
    pid = commands.start(*argv)

    def lines() -> list[dict]:
        return [line for path in tmp_path.glob("*/metrics.jsonl") for line in read(path)]

    until(lambda: any(line["stage"] == stage for line in lines()), stage)
    os.kill(pid, number)
    left, said = commands.wait(), commands.err.read_text()
    assert left == code, said
    (folder,) = tmp_path.iterdir()
    assert "Traceback" not in said
    assert said.endswith(f"stopped and saved in {folder}; the same command resumes from there\n")
    expected = {"pretrain": "pretraining", "prune": "round", "train": "checkpoint"}[stage]
    assert (folder / f"{expected}.safetensors").exists()
    assert not (folder / "result.json").exists()


def test_a_second_process_in_a_folder_gets_one_sentence(short, commands, tmp_path):
    argv = words(tmp_path / "mine", "force")
    (tmp_path / "mine").mkdir()
    experiment = replace(short, rounds=6).resolved()
    mine = RunOptions(tmp_path / "mine")
    steps = run(experiment, mine)
    next(steps)
    before = stamps(mine.folder(experiment))
    assert commands(*argv) == 2
    assert commands.err.read_text() == (
        f"error: another process is running in {mine.folder(experiment)}; wait for it, or stop it first\n"
    )
    assert stamps(mine.folder(experiment)) == before
    steps.close()
    assert commands(*argv) == 0
