"""Build Horovod from its source package against the torch at hand, and keep the wheel in the user's cache folder.

The last release of Horovod asks for C++14, which current torch headers refuse; `EDITS` is all that must change. Its
default build type carries debugging symbols and takes three to five times as long. Run by the environment's python:

    python scripts/horovod_wheel.py --work EMPTY_FOLDER --wheel WHEEL_TO_MAKE
"""

from __future__ import annotations

import os
from pathlib import Path

import wheels

VERSION = "0.28.1"
TITLE = "Horovod wheel (about 90 s on two cores)"
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


def missing_tools() -> list[str]:
    """What this machine lacks to build it, as names to install."""
    return wheels.missing("cmake", "make")


def build_options(environment: dict[str, str]) -> dict[str, str]:
    """The switches of Horovod's build: ours, and over them the user's (HOROVOD_GPU_OPERATIONS=NCCL, …)."""
    asked = {name: value for name, value in environment.items() if name.startswith(BUILD_SWITCHES)}
    refused = {name.replace("_WITH_", "_WITHOUT_") for name in asked if "_WITH_" in name}
    return {name: value for name, value in OPTIONS.items() if name not in refused} | asked


def cached_wheel(cache: Path, torch_version: str, python_tag: str, options: dict[str, str]) -> Path:
    """Where the wheel for this Horovod, torch, Python and set of options lies, built or not."""
    return wheels.cached(cache, f"horovod-{VERSION}", torch_version, python_tag, options if options != OPTIONS else {})


def patch(source: Path) -> None:
    """Apply `EDITS` to an unpacked source tree; ValueError when the text to change is not there."""
    for name, old, new in EDITS:
        text = (source / name).read_text(encoding="utf-8")
        if old not in text:
            raise ValueError(f"{name} of Horovod has no {old!r}: these edits are for Horovod {VERSION}")
        (source / name).write_text(text.replace(old, new), encoding="utf-8")


def build(work: Path) -> Path:
    """Download, patch and compile in the empty folder `work`; returns the wheel, still in it."""
    source = wheels.unpacked_source(work, "horovod", VERSION)
    patch(source)
    options = build_options(dict(os.environ)) | {"MAKEFLAGS": f"-j{wheels.parallel_jobs()}"}
    return wheels.compiled(work, source, options)


if __name__ == "__main__":
    wheels.build_and_keep("horovod", build)
