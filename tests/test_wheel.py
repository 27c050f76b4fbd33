"""The wheel, as a user gets it: built, installed in an environment of its own, and imported from there."""

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from barebones import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "barebones"

LOOK = """
import importlib.metadata, importlib.resources, json, barebones
[script] = importlib.metadata.entry_points(group="console_scripts", name="barebones")
print(json.dumps({
    "file": barebones.__file__,
    "version": barebones.__version__,
    "installed": importlib.metadata.version("barebones"),
    "script": script.value,
    "typed": importlib.resources.files(barebones).joinpath("py.typed").is_file(),
}))
"""


def call(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    [path] = out.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    ours = {p for p in PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert held == {p.relative_to(PACKAGE.parent).as_posix() for p in ours}


def test_the_wheel_imports_from_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    venv.create(clean, with_pip=False)
    at = sysconfig.get_paths(vars={"base": str(clean), "platbase": str(clean)}, scheme="venv")
    python = Path(at["scripts"], Path(sys.executable).name)
    call(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    # The dependencies are borrowed from this environment, after the install, so that pip never sees them. A folder
    # named in a .pth file has its own .pth files ignored, so the editable install in it stays invisible.
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(at["purelib"], "borrowed.pth").write_text("\n".join(sorted(borrowed)))

    contents = json.loads(call(python, "-I", "-c", LOOK, cwd=tmp_path))

    assert Path(contents["file"]).is_relative_to(at["purelib"])
    assert contents["version"] == contents["installed"] == __version__
    assert contents["script"] == "barebones.cli:main"
    assert contents["typed"]
    assert list(Path(at["scripts"]).glob("barebones*"))
