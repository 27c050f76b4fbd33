"""The command line as a whole: help, completion, signals, and one line for every mistake."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer

import barebones as bb
from barebones import __version__
from barebones.cli import app as cli
from barebones.cli import terminal as signals
from barebones.files.masks import save_masks
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run.run import Stopped


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(name, command):
    done, subject = command(name, "--help"), cli.loaded(name)
    assert "<bool>" not in done.out
    arguments = [each for each in subject.params if each.param_type_name == "argument"]
    usage = [each.name.upper() if each.required else f"[{each.name.upper()}]" for each in arguments]
    assert done.out.split("[OPTIONS]")[1].split("\n")[0].split() == usage
    assert (done.code, done.err) == (0, "")
    assert subject.help.splitlines()[0] in done.out
    assert subject.help.splitlines()[0] in " ".join(command("--help").out.replace("│", "").split())
    for option in (each for each in subject.params if not getattr(each, "hidden", False)):
        assert option.name == "help" or option.help, f"{name} {option.name} has no help"
        assert option.param_type_name == "argument" or option.opts[0] in done.out


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        *("", "--help", "--version", "trim", "--nonsense", "run --help", "sweep --help", "figure --help"),
        *("figure --list", "run --sparsty 1"),
    ],
)
def test_what_needs_no_torch_does_not_wait_for_it(words):
    program = f"""if True:
        import atexit, sys
        atexit.register(lambda: print({{"torch", "numpy", "matplotlib", "rich.live"}} & {{*sys.modules}}))
        sys.argv = ["barebones", *{words.split()!r}]
        from barebones.cli import main
        main()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.slow
def test_the_public_names_are_those_of_their_modules():
    code = "import sys, barebones as bb; print(bb.__version__, 'torch' in sys.modules); from barebones import *; prune"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{__version__} False\n", "")
    homes = [name for names in bb._HOMES.values() for name in names]
    assert sorted([*homes, "__version__"]) == sorted(bb.__all__)
    assert set(bb.__all__) <= set(dir(bb))
    assert all(getattr(bb, name) is not None for name in bb.__all__)
    assert bb.pruning.methods.METHODS is bb.METHODS
    with pytest.raises(AttributeError, match="module 'barebones' has no attribute 'prun'"):
        bb.prun


def test_nothing_at_all_shows_the_help_and_version_shows_the_version(command):
    shown = "".join(command()[1:])
    assert shown.strip() == command("--help").out.strip()
    assert all(word in shown for word in ("--debug", "--version", *(name.split()[0] for name in cli.COMMANDS)))
    assert command("--version") == (0, f"barebones {__version__}\n", "")


@pytest.mark.parametrize("name", ["run", "sweep"])
def test_under_torchrun_a_command_says_what_to_do_instead(name, mistake, monkeypatch):
    for variable, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(variable, value)
    mistake("start it without torchrun: a sweep gives each GPU runs of its own", name)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("run --spar", "--sparsity"), ("run --method iter", "iter-snip iter-grasp"), ("run --schedule lin", "linear"),
        ("run --model small", "small-vgg small-resnet"), ("prune --data tiny", "tiny-imagenet"),
        ("sweep early", "early-pruning"), ("figure acc", "accuracy accuracy-vs-rounds"),
        ("", "complete -o default -F _barebones_completion barebones"),  # the end of the script for the shell
    ],
)  # fmt: skip
def test_the_shell_completes(typed, expected, command, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "", raising=False)  # as for an installed command
    monkeypatch.setenv("_BAREBONES_COMPLETE", "complete_bash" if typed else "source_bash")
    monkeypatch.setenv("COMP_WORDS", f"barebones {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    words = expected.split()
    assert command().out.split()[-len(words) if not typed else 0 :] == words


RUN = "run --model nets_for_cli:tiny --data digits --batch-size 256 --device cpu"
PRUNE = RUN.replace("run", "prune")
SWEEP = "sweep smoke --device cpu"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # tests of the lab have all other values that an experiment refuses
        (f"{RUN} --sparsity 0.999999", "leaves none of the 594 prunable weights"),
        (f"{RUN} --batch-size 2000", "2000"),
        (f"{RUN} --device abacus", "device 'abacus' is unknown; choose auto, cpu, cuda, cuda:N, mps or xpu"),
        (f"{RUN} --device cuda:99", "there is no device cuda:99 here; use --device "),
        (f"{RUN} --on-collapse wran", "on-collapse 'wran' is unknown; choose warn, raise or skip"),
        ("run --data digits --model small-vgx", "did you mean 'small-vgg'"),
        ("run --data digits --model vgg19", "too small for this network"),
        ("run --data cifar10 --data-root nowhere", "nowhere"),
        (f"{PRUNE} --method dense", "method dense prunes nothing"),
        (f"{PRUNE} --method force --on-collapse skip", "barebones prune trains nothing, so it cannot skip training"),
        ("run --data digits --model small-vgg --method dense --sparsity 0.7", "takes no --sparsity"),
        ("train --method force", "--method has no effect; use barebones run"),
        ("train --sparsity 0.5", "name a mask file with --mask; barebones run --method dense trains"),
        ("train --mask nowhere", "there is no file nowhere; name a mask file"),
        ("train --mask nets_for_cli.py", "nets_for_cli.py is not a safetensors file"),
        ("inspect .", "is not the folder of a run: it has no experiment.json"),
        ("sweep nowhere.toml", "nowhere.toml"),
        (f"{SWEEP} --time-limit 0", "time_limit=0: a sweep needs some time"),
        (f"{SWEEP} --engine rai", "there is no engine 'rai'; did you mean 'ray'?"),
        (f"{SWEEP} --engine ray --engine-option address", "--engine-option address: write a name, =, and a value"),
        (f"{SWEEP} --engine-option memory=8e9", "the local engine has no options; leave out --engine-option"),
        (f"{SWEEP} --engine ray --device cuda:1", "--engine ray chooses the GPUs itself; use --device cuda instead of"),
        (f"{SWEEP} --engine ray --device cuda --devices 0", "--devices names GPUs of this machine"),
        (f"{SWEEP} --engine ray", "--engine ray needs Ray: pip install 'barebones[ray]'"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(words, expected, mistake, tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "barebones.lab.sweep.ray", raising=False)
    mistake(expected, *words.split())
    assert not (tiny / "smoke-runs").exists()


def test_words_that_are_no_options_get_the_usage_and_code_2(command):
    for words, expected in {"run --sparsty 0.5": "option", "sweep smoke --jobs 0": "jobs", "trim": "command"}.items():
        done = command(*words.split())
        assert done.code == 2
        assert "Usage" in done.err
        assert expected in done.err.partition("Error")[2]
        assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "stopped"),
        (torch.OutOfMemoryError("CUDA out of memory"), 2, "error: the device has too little memory; use"),
        (FileExistsError(17, "File exists", "here"), 2, "error: File exists: here"),
        (OSError(28, "No space left on device"), 2, "error: No space left on device"),
        (ImportError("pip install it"), 2, "error: pip install it"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_what_a_command_raises_is_one_line(error, code, line, command, monkeypatch):
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    done = command("run")
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(line)
    assert done.err.count("\n") == 1


def test_debug_shows_the_whole_error(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["barebones", "--debug", "inspect", "nowhere"])
    with pytest.raises(ValueError, match="there is no file or folder nowhere"):
        cli.main()


@pytest.mark.parametrize("name", ["[red]here", "[/]", "[bold"])
def test_brackets_in_paths_are_shown_as_they_are(name, command, capsys):
    problem = f"error: there is no file or folder {name}; name a run's folder or a mask file\n"
    assert command("inspect", name) == (2, "", problem)
    with pytest.raises(typer.Exit), signals.stoppable(f"saved in {name}"):
        raise Stopped
    assert capsys.readouterr().err == f"saved in {name}\n"
    path = Path(name + ".mask")
    path.parent.mkdir(exist_ok=True)
    save_masks({"w": torch.eye(2) > 0}, path, made="by [red]me[/]")
    shown = command("inspect", path).out
    assert f"{name}.mask" in shown
    assert "by [red]me[/]" in shown


@pytest.mark.parametrize("text", ["[/]", "[red]", "a\x1b[2Jb\rc", "\n", "\x07"])
def test_no_text_of_a_file_controls_the_terminal(text, command):
    experiment = Experiment(f"x:{text}", "digits", "snip").resolved().to_dict()
    bb.save_masks({text: torch.eye(2) > 0}, "mask", **{text: text, "note": {text: text}, "experiment": experiment})
    for words in ("inspect mask", "train --mask mask --dry-run", "train --mask mask --device cpu", "shrink mask"):
        done = command(*words.split())
        assert done.code == (0 if words == "inspect mask" else 2)
        assert ("asks to import and run" in done.err) == (words != "inspect mask")
        assert (done.out + done.err).replace("\n", "").isprintable()
        assert done.err.count("\n") == (done.code > 0)
    assert "\x1b" not in command("inspect", "mask").out


def test_the_first_signal_asks_and_the_second_insists(capfd, monkeypatch):
    # A signal may interrupt rich while it prints or is imported, so the answer must not need rich.
    monkeypatch.setattr(signals, "Console", lambda *args, **options: pytest.fail("a signal handler uses rich"))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with signals.stoppable("hint") as stopping:
        assert not stopping()
        signal.raise_signal(signal.SIGTERM)
        assert stopping()
        assert stopping.code == 143
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert "saving after this round or step, then stopping; press Ctrl-C again to stop" in capfd.readouterr().err
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
