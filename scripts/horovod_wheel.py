"""Build Horovod from its source package against the torch at hand, and keep the wheel in the user's cache folder.

The last release of Horovod asks for C++14, which current torch headers refuse; `EDITS` is all that must change. Its
default build type carries debugging symbols and takes three to five times as long. Run by the environment's python:

    python scripts/horovod_wheel.py --work EMPTY_FOLDER --wheel WHEEL_TO_MAKE
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "0.28.1"
CXX17 = ("CMAKE_CXX_STANDARD 14", "CMAKE_CXX_STANDARD 17")
EDITS = (
    ("CMakeLists.txt", *CXX17),
    ("horovod/torch/CMakeLists.txt", *CXX17),
    ("setup.py", "'RelWithDebInfo'", "'Release'"),
)
OPTIONS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
}
BUILD_SWITCHES = (
    "HOROVOD_WITH",
    "HOROVOD_BUILD_",
    "HOROVOD_CPU_",
    "HOROVOD_CUDA_",
    "HOROVOD_GPU_",
    "HOROVOD_NCCL_",
    "HOROVOD_ROCM_",
)
COMPILER_BYTES = 1_500_000_000  # what one compilation of torch's headers takes


def missing_tools() -> list[str]:
    """What this machine lacks to build C++ extensions, as names to install."""
    has_compiler = any(shutil.which(name) for name in (os.environ.get("CXX") or "c++", "g++", "clang++"))
    lacks = [] if has_compiler else ["a C++ compiler (g++)"]
    lacks += [name for name in ("cmake", "make") if shutil.which(name) is None]
    return lacks


def build_options(environment: dict[str, str]) -> dict[str, str]:
    """The switches of Horovod's build: ours, and over them the user's (HOROVOD_GPU_OPERATIONS=NCCL, …)."""
    asked = {name: value for name, value in environment.items() if name.startswith(BUILD_SWITCHES)}
    refused = {name.replace("_WITH_", "_WITHOUT_") for name in asked if "_WITH_" in name}
    return {name: value for name, value in OPTIONS.items() if name not in refused} | asked


def cached_wheel(cache: Path, torch_version: str, python_tag: str, options: dict[str, str]) -> Path:
    """Where the wheel for this Horovod, torch, Python and set of options lies, built or not.

    The folder carries the key because a wheel's own name has no place for torch's version.
    """
    key = f"torch-{torch_version}-{python_tag}"
    if options != OPTIONS:
        key += "-" + hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()[:8]
    platform = os.uname().sysname.lower() + "_" + os.uname().machine
    return cache / "wheels" / key / f"horovod-{VERSION}-{python_tag}-{python_tag}-{platform}.whl"


def patch(source: Path) -> None:
    """Apply `EDITS` to an unpacked source tree; ValueError when the text to change is not there."""
    for name, old, new in EDITS:
        text = (source / name).read_text(encoding="utf-8")
        if old not in text:
            raise ValueError(f"{name} of Horovod has no {old!r}: these edits are for Horovod {VERSION}")
        (source / name).write_text(text.replace(old, new), encoding="utf-8")


def parallel_jobs() -> int:
    """As many compilations at once as there are cores, and memory to hold them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // COMPILER_BYTES))


def build(work: Path) -> Path:
    """Download, patch and compile in the empty folder `work`; returns the wheel, still in it."""
    pip = [sys.executable, "-m", "pip"]
    download = ["download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(work)]
    subprocess.run([*pip, *download, f"horovod=={VERSION}"], check=True)
    subprocess.run(["tar", "-xf", f"horovod-{VERSION}.tar.gz"], cwd=work, check=True)
    source = work / f"horovod-{VERSION}"
    patch(source)
    environment = os.environ | build_options(dict(os.environ)) | {"MAKEFLAGS": f"-j{parallel_jobs()}"}
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work), str(source)]
    subprocess.run([*pip, *wheel], env=environment, check=True)
    return next(work.glob("horovod-*.whl"))


def keep(built: Path, wheel: Path) -> None:
    """Move a wheel into the cache in one stroke: other set-ups see a whole wheel or none."""
    wheel.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    arriving = wheel.with_name(f".{wheel.name}.{os.getpid()}")
    try:
        shutil.copyfile(built, arriving)
        arriving.replace(wheel)
    finally:
        arriving.unlink(missing_ok=True)


def main() -> None:
    """Build and keep one wheel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--wheel", type=Path, required=True)
    chosen = parser.parse_args()
    try:
        keep(build(chosen.work), chosen.wheel)
    except (subprocess.CalledProcessError, ValueError) as error:
        sys.exit(f"horovod: {error}")


if __name__ == "__main__":
    main()
