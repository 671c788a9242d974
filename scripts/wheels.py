"""What building a package from its source and keeping the wheel have in common. Run by the environment's python."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

COMPILER_BYTES = 1_500_000_000  # what one compilation of torch's headers takes


def missing(*tools: str) -> list[str]:
    """What this machine lacks of a C++ compiler and `tools`, as names to install."""
    has_compiler = any(shutil.which(name) for name in (os.environ.get("CXX") or "c++", "g++", "clang++"))
    lacks = [] if has_compiler else ["a C++ compiler (g++)"]
    return lacks + [name for name in tools if shutil.which(name) is None]


def cached(cache: Path, release: str, torch_version: str, python_tag: str, options: Mapping[str, str]) -> Path:
    """Where a wheel lies in the cache folder, built or not; `options` are what the user changed of its build.

    The folder carries the key because a wheel's own name has no place for torch's version.
    """
    key = f"torch-{torch_version}-{python_tag}"
    if options:
        key += "-" + hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()[:8]
    platform = os.uname().sysname.lower() + "_" + os.uname().machine
    return cache / "wheels" / key / f"{release}-{python_tag}-{python_tag}-{platform}.whl"


def parallel_jobs() -> int:
    """As many compilations at once as there are cores, and memory to hold them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // COMPILER_BYTES))


def unpacked_source(work: Path, package: str, version: str) -> Path:
    """Download a source package into the empty folder `work` and unpack it there."""
    download = ["download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(work)]
    subprocess.run([sys.executable, "-m", "pip", *download, f"{package}=={version}"], check=True)
    subprocess.run(["tar", "-xf", f"{package}-{version}.tar.gz"], cwd=work, check=True)
    return work / f"{package}-{version}"


def compiled(work: Path, source: Path, options: Mapping[str, str]) -> Path:
    """Compile an unpacked source with `options` in the environment; returns the wheel, in `work`."""
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", str(work), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *wheel], env={**os.environ, **options}, check=True)
    return next(work.glob("*.whl"))


def keep(built: Path, wheel: Path) -> None:
    """Move a wheel into the cache in one stroke: other set-ups see a whole wheel or none."""
    wheel.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    arriving = wheel.with_name(f".{wheel.name}.{os.getpid()}")
    try:
        shutil.copyfile(built, arriving)
        arriving.replace(wheel)
    finally:
        arriving.unlink(missing_ok=True)


def build_and_keep(name: str, build: Callable[[Path], Path]) -> None:
    """The command line of a build script: `--work EMPTY_FOLDER --wheel WHEEL_TO_MAKE`."""
    parser = argparse.ArgumentParser(description=f"build the {name} wheel")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--wheel", type=Path, required=True)
    chosen = parser.parse_args()
    try:
        keep(build(chosen.work), chosen.wheel)
    except (subprocess.CalledProcessError, ValueError) as error:
        sys.exit(f"{name}: {error}")
