"""Make the project's virtual environment: torch first, then the project, while Horovod and DeepSpeed compile.

Needs nothing but Python. `make` calls it when pyproject.toml, constraints.txt or these scripts have changed:

    python3 scripts/setup.py --torch pinned|system --stamp .venv/.ready-…

While it works, the environment carries the file `.unfinished`, which becomes the stamp at the end: an environment that
still has it was interrupted, and the next set-up starts anew. A lock keeps two set-ups of one checkout apart.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import deepspeed_wheel
import horovod_wheel
from steps import SetupError, SetupStep, begin, end, finish, run, say

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
UNFINISHED = VENV / ".unfinished"
SCRATCH = VENV / ".setup"
PYTHON = VENV / "bin" / "python"
BUILD_TOOLS = ["setuptools>=77", "wheel", "packaging", "numpy", "ninja"]
COMPILE = {  # else the first run would wait for it
    "compressors' kernels, compiled": "from baselines.kernels import warm_up; warm_up()",
    "network engines, compiled": "from fabric.simulated.warm_up import warm_up; warm_up()",
}
COMPILED = {"Horovod": horovod_wheel, "DeepSpeed": deepspeed_wheel}
GPU_DEVICES = ("/dev/nvidia0", "/dev/dxg", "/dev/kfd")
COMMAND = """\
#!/bin/sh
exec "$(dirname -- "$(readlink -f -- "$0")")/python" -P {module} suites "$@"
"""  # a shell's, because the first line of a script in Python may not be longer than 127 bytes
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 8)
DISK_BYTES = 4_000_000_000

ASK = """
import json, sys
try:
    import torch
    version, gpu = torch.__version__, bool(torch.version.cuda or torch.version.hip)
except ImportError:
    version, gpu = "", False
print(json.dumps([version, gpu, f"cp{sys.version_info[0]}{sys.version_info[1]}"]))
"""


class Torch(NamedTuple):
    """The torch that the environment sees; `version` is empty where there is none."""

    version: str
    for_gpu: bool
    python_tag: str


def main() -> int:
    """Set up unless another process has meanwhile; exit code 1 with one message when it cannot be done."""
    parser = argparse.ArgumentParser(description="make the virtual environment")
    parser.add_argument("--torch", choices=("pinned", "system"), default="pinned")
    parser.add_argument("--stamp", type=Path, default=VENV / ".ready")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.chdir(ROOT)
    try:
        check_machine()
        with one_at_a_time():
            if not chosen.stamp.exists():
                set_up(chosen.torch == "system", ROOT / chosen.stamp)
    except KeyboardInterrupt:
        print("set-up: interrupted; the next one starts anew", file=sys.stderr)
        return 130
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    return 0


def check_machine() -> None:
    """SetupError when this interpreter or disk cannot carry the environment."""
    if sys.version_info < OLDEST_PYTHON:
        raise SetupError(
            f"Python {sys.version.split()[0]} is too old: 3.11 or later is needed, e.g. make setup PYTHON=python3.11"
        )
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        raise SetupError(
            f"{sys.executable} cannot make environments: install python3-venv, or name another with PYTHON=…"
        )
    free = shutil.disk_usage(ROOT).free
    if free < DISK_BYTES and not PYTHON.exists():
        raise SetupError(
            f"{free / 1e9:.1f} GB are free in {ROOT} and about {DISK_BYTES / 1e9:.0f} GB are needed: make room"
        )


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the checkout's lock; it goes with the process, and it leaves no file."""
    with open(__file__, "rb") as script:
        try:
            fcntl.flock(script, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this checkout is at work; waiting for it")
            fcntl.flock(script, fcntl.LOCK_EX)
        yield


def set_up(use_system_torch: bool, stamp: Path) -> None:
    """The whole way from a Python to a ready environment."""
    began_s = time.monotonic()
    clear_away(use_system_torch)
    make_environment(use_system_torch)
    torch = install_torch(use_system_torch)
    building = begin_wheels(torch)
    try:
        pip("project and its dependencies", ["--no-build-isolation", "-e", ".[bench,dev]"])
        see_checkout()
        for title, code in COMPILE.items():
            run(title, [str(PYTHON), "-c", code], SCRATCH)
        for name in COMPILED:
            install_wheel(name, torch, building.get(name))
    finally:
        for step in building.values():
            end(step)
    shutil.rmtree(SCRATCH)
    UNFINISHED.replace(stamp)
    say(f"ready in {time.monotonic() - began_s:.0f} s")


def clear_away(use_system_torch: bool) -> None:
    """Remove an environment that is half done or of the other kind, and the stamps of an older one."""
    if UNFINISHED.exists() or (VENV.exists() and sees_system(VENV) != use_system_torch):
        say("removing an environment that is half done or of another kind")
        shutil.rmtree(VENV)
    for stamp in VENV.glob(".ready*"):
        stamp.unlink()


def sees_system(environment: Path) -> bool:
    """Whether a virtual environment sees the packages of the interpreter it came from."""
    settings = environment / "pyvenv.cfg"
    return settings.exists() and "include-system-site-packages = true" in settings.read_text(encoding="utf-8")


def make_environment(use_system_torch: bool) -> None:
    """Create what `clear_away` has left to create, marked as unfinished from the first moment."""
    VENV.mkdir(exist_ok=True)
    UNFINISHED.touch()
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir()
    if not PYTHON.exists():
        sees = ["--system-site-packages"] if use_system_torch else []
        run("environment", [sys.executable, "-m", "venv", *sees, str(VENV)], SCRATCH)
    if use_system_torch and sys.prefix != sys.base_prefix:
        see_parent_environment()


def see_parent_environment() -> None:
    """An environment made from an environment sees the base interpreter only: add the one in between."""
    ours = next(VENV.glob("lib/python3*/site-packages"))
    parent = Path(sys.prefix) / ours.relative_to(VENV)
    (ours / "parent_environment.pth").write_text(f"import site; site.addsitedir({str(parent)!r})\n", encoding="utf-8")


def see_checkout() -> None:
    """Make the suites importable, and `crossover-bench` a command: only `crossover` is a package to install."""
    packages = next(VENV.glob("lib/python3*/site-packages"))
    (packages / "crossover_bench_checkout.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    command = VENV / "bin" / "crossover-bench"
    module = shlex.quote(str(ROOT / "fabric" / "run_module.py"))
    command.write_text(COMMAND.format(module=module), encoding="utf-8")
    command.chmod(0o755)


def install_torch(use_system_torch: bool) -> Torch:
    """Put torch and the build tools in place and write the constraints that everything later obeys."""
    constraints = SCRATCH / "constraints.txt"
    if use_system_torch:
        torch = ask_torch()
        check_system_torch(torch)
        constraints.write_text(f"torch=={torch.version}\n", encoding="utf-8")
        pip("tools to build with", BUILD_TOOLS)
    else:
        shutil.copyfile(ROOT / "constraints.txt", constraints)
        pip("torch and tools to build with", ["torch", *BUILD_TOOLS])
        torch = ask_torch()
    say(build_of(torch, has_gpu=any(Path(device).exists() for device in GPU_DEVICES)))
    return torch


def build_of(torch: Torch, *, has_gpu: bool) -> str:
    """Which build of torch it is, with advice when it is several times larger than this machine can use."""
    text = f"torch {torch.version}, a {'GPU' if torch.for_gpu else 'CPU'} build"
    if not torch.for_gpu or has_gpu:
        return text
    return f"{text}; no GPU here: name the smaller CPU wheels to pip (PIP_EXTRA_INDEX_URL), then 'make clean setup'"


def check_system_torch(torch: Torch) -> None:
    """SetupError when TORCH=system has nothing to use."""
    remedy = f"install torch ≥ 2.8 for {sys.executable}, choose another interpreter with PYTHON=…, or use TORCH=pinned"
    if not torch.version:
        raise SetupError(f"TORCH=system, but this interpreter has no torch: {remedy}")
    if tuple(int(part) for part in torch.version.split(".")[:2]) < OLDEST_TORCH:
        raise SetupError(f"TORCH=system, but its torch is {torch.version}: {remedy}")


def ask_torch() -> Torch:
    """Which torch the environment's interpreter imports."""
    answer = subprocess.run([str(PYTHON), "-W", "ignore", "-c", ASK], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise SetupError(f"torch is there but cannot be imported:\n{answer.stderr}")
    return Torch(*json.loads(answer.stdout.splitlines()[-1]))


def pip(title: str, what: list[str]) -> None:
    """Install under the constraints; bytecode is left to the first import, which spares half of the time."""
    install = [str(PYTHON), "-m", "pip", "install", "--no-compile", "--constraint", str(SCRATCH / "constraints.txt")]
    run(title, [*install, *what], SCRATCH)


def begin_wheels(torch: Torch) -> dict[str, SetupStep]:
    """Start to build, side by side, the wheels that are not in the cache and can be built here."""
    wanted = {name: script for name, script in COMPILED.items() if not wheel_of(script, torch).exists()}
    return {name: begin_wheel(script, torch) for name, script in wanted.items() if not script.missing_tools()}


def begin_wheel(script: ModuleType, torch: Torch) -> SetupStep:
    """Start to build one wheel into the cache."""
    assert script.__file__ is not None
    path = Path(script.__file__)
    work = SCRATCH / path.stem
    work.mkdir()
    command = [str(PYTHON), str(path), "--work", str(work), "--wheel", str(wheel_of(script, torch))]
    search = f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"
    return begin(script.TITLE, command, SCRATCH, dict(os.environ, PATH=search))


def install_wheel(name: str, torch: Torch, building: SetupStep | None) -> None:
    """Install the wheel when there is one; else one line says what is left out and how to get it."""
    script = COMPILED[name]
    wheel = wheel_of(script, torch)
    reason = " and ".join(script.missing_tools()) + " missing: install, then run 'make clean setup'"
    if building is not None:
        try:
            finish(building)
        except SetupError:
            reason = why_it_did_not_compile(torch, building, wheel.parent)
    package = name.lower()
    if is_installed_from(wheel, package):
        return
    if any(VENV.glob(f"lib/python3*/site-packages/{package}")):
        run(f"older {name} removed", [str(PYTHON), "-m", "pip", "uninstall", "--yes", package], SCRATCH)
    if wheel.exists():
        pip(f"{name} installed from {wheel.parent}", [str(wheel)])
    else:
        say(f"{name} is left out and its systems will be skipped: {reason}")


def is_installed_from(wheel: Path, package: str) -> bool:
    """Whether the environment has the package from this very wheel, as pip has noted; false when in doubt."""
    notes = VENV.glob(f"lib/python3*/site-packages/{package}-*.dist-info/direct_url.json")
    return any(json.loads(note.read_text(encoding="utf-8")).get("url") == wheel.as_uri() for note in notes)


def why_it_did_not_compile(torch: Torch, building: SetupStep, folder: Path) -> str:
    """Keep the compiler's output where it outlives set-up, and say where."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = shutil.copyfile(building.log, folder / f"{building.log.stem}-build.log")
    toolkit = "this is a GPU build of torch, which needs the CUDA toolkit with its headers; " if torch.for_gpu else ""
    return f"it did not compile against torch {torch.version}; {toolkit}see {kept}"


def wheel_of(script: ModuleType, torch: Torch) -> Path:
    """The place of a wheel in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    options = script.build_options(dict(os.environ))
    wheel: Path = script.cached_wheel(Path(home) / "crossover-bench", torch.version, torch.python_tag, options)
    return wheel


if __name__ == "__main__":
    sys.exit(main())
