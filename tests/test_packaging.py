"""What `pip install .` brings: crossover alone, which needs Python alone; the suites' command works from a checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from patience import patience_s

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel of a copy of the checkout: setuptools builds in the tree itself."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(
        ROOT,
        folder / "tree",
        symlinks=True,
        ignore=shutil.ignore_patterns(
            *(".*", "runs", "reference", "archive", "__pycache__", "profiles", "docs", "tests", "shared")
        ),
    )
    words = ["-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-q", "-w", str(folder), "."]
    subprocess.run([sys.executable, *words], cwd=folder / "tree", check=True, timeout=patience_s(120))
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        opened.extractall(folder / "installed")
        yield opened


def test_the_wheel_holds_crossover_alone(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"crossover"}
    assert "crossover/supervisor.py" in wheel.namelist()
    assert "crossover/py.typed" in wheel.namelist()


def test_the_wheel_wants_nothing_but_for_its_extras(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    lines = wheel.read(name).decode().splitlines()
    wanted = [line for line in lines if line.startswith("Requires-Dist:")]
    assert all("; extra == " in line for line in wanted)
    extras = {line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra:")}
    assert extras >= {"plan", "top", "torch", "bench"}


def test_what_is_installed_imports_and_runs_without_any_other_package(wheel: zipfile.ZipFile) -> None:
    installed = Path(str(wheel.filename)).with_name("installed")
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r}); import crossover; "
        "from crossover.commands.main import main; sys.exit(main(['run', 'a=true', '--socket', sys.argv[1]]))"
    )
    socket = installed / "s" / "h"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(socket)],
        capture_output=True,
        text=True,
        timeout=patience_s(60),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("plan", *(str(ROOT / "examples" / "profiles" / f"{name}.json") for name in ("resnet50", "vgg16"))), "plan"),
        (("top",), "top"),
    ],
)
def test_a_command_without_its_packages_names_what_to_install(
    wheel: zipfile.ZipFile, words: tuple[str, ...], extra: str
) -> None:
    installed = Path(str(wheel.filename)).with_name("installed")
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); from crossover.commands.main import main; "
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{code}sys.exit(main(sys.argv[1:]))", *words],
        capture_output=True,
        text=True,
        timeout=patience_s(60),
        check=False,
    )
    assert done.returncode == 2
    assert f"pip install 'crossover-bench[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_suites_command_of_an_environment_runs_from_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own" / "suites").mkdir(parents=True)  # a user's project may have packages of the same names
    (tmp_path / "own" / "suites" / "__main__.py").write_text("raise SystemExit('the user's suites')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = spec_from_file_location("setup_of_packaging", ROOT / "scripts" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    setup = module_from_spec(spec)
    spec.loader.exec_module(setup)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "e v")], check=True)
    monkeypatch.setattr(setup, "VENV", tmp_path / "e v")
    monkeypatch.setattr(setup, "ROOT", tmp_path / "checkout")
    (tmp_path / "checkout" / "suites").mkdir(parents=True)
    (tmp_path / "checkout" / "suites" / "__main__.py").write_text("import sys; print('suites', sys.argv[1:])")
    (tmp_path / "checkout" / "fabric").mkdir()
    shutil.copy(ROOT / "fabric" / "run_module.py", tmp_path / "checkout" / "fabric")
    setup.see_checkout()
    command = tmp_path / "e v" / "bin" / "crossover-bench"
    done = subprocess.run(
        [command, "list", "a b"],
        cwd=tmp_path / "own",
        capture_output=True,
        text=True,
        timeout=patience_s(60),
        check=False,
    )
    assert done.stdout == "suites ['list', 'a b']\n"
