"""The command line: help, versions, and errors in one line."""

import subprocess
import sys

import pytest

from barebones import __version__


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "barebones", *words], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["--help"], 0, "demo"),
        (["--version"], 0, __version__),
        (["bench", "speed", "--help"], 0, "--repeats"),
        (["prune-everything"], 2, "No such command"),
        (["bench", "speed", "x", "--repeats", "0"], 2, "repeats"),
        (["bench", "speed", "x", "--device", "abacus"], 2, "error: device 'abacus'"),
        (["prune", "--model", "resnet19", "--dry-run"], 2, "resnet18"),
    ],
)
def test_words_get_an_answer_and_a_code(words, code, expected):
    done = command(*words)
    assert done.returncode == code
    assert expected in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback():
    done = command("--debug", "bench", "speed", "x", "--device", "abacus")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
