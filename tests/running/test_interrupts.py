"""Interrupts: Ctrl-C while the command imports torch is quiet; in other programs it stays what it was."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

TORCH = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("words", "quiet"),
    [
        (["-m", "barebones", "inspect", "x"], True),
        (["bin/barebones", "inspect", "x"], True),  # as pip installs it
        (["-c", "from barebones import prune"], False),
        (["mine.py"], False),
    ],
    ids=["module", "script", "library", "program"],
)
def test_ctrl_c_while_torch_is_imported(words, quiet, tmp_path):
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "barebones").write_text("from barebones.cli import main\nmain()\n")
    (tmp_path / "mine.py").write_text("import barebones\n\nbarebones.prune\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2] / "src")])
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a command in the background ignores it
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path},
        preexec_fn=listen,
    )  # fmt: skip
    assert done.stdout == ""
    if quiet:
        assert (done.returncode, done.stderr) == (130, "")
    else:
        assert "KeyboardInterrupt" in done.stderr
