"""Build DeepSpeed with its CPU extension compiled inside, and keep the wheel in the user's cache folder.

Otherwise DeepSpeed compiles the extension (collectives in shared memory) when the first script starts, for tens of
seconds, again for each user and each environment. Everything else of DeepSpeed stays compiled at first use, as a GPU
needs it. Run by the environment's python:

    python scripts/deepspeed_wheel.py --work EMPTY_FOLDER --wheel WHEEL_TO_MAKE
"""

from __future__ import annotations

import os
from pathlib import Path

import wheels

VERSION = "0.19.8"
TITLE = "DeepSpeed wheel (about 30 s on two cores)"
OPTIONS = {
    "DS_ACCELERATOR": "cpu",
    "DS_BUILD_SHM_COMM": "1",
    "DS_ENABLE_NINJA": "1",
    "CFLAGS": "-g0",  # Python's own flags ask for debugging symbols: 15 MB instead of 0.3, and twice the time
}


def missing_tools() -> list[str]:
    """What this machine lacks to build it; ninja comes with the environment."""
    return wheels.missing()


def build_options(environment: dict[str, str]) -> dict[str, str]:
    """What DeepSpeed's build reads from its environment: ours, and over it the user's (DS_BUILD_FUSED_ADAM=1, …)."""
    return OPTIONS | {name: value for name, value in environment.items() if name.startswith("DS_BUILD_")}


def cached_wheel(cache: Path, torch_version: str, python_tag: str, options: dict[str, str]) -> Path:
    """Where the wheel for this DeepSpeed, torch, Python and set of options lies, built or not."""
    release = f"deepspeed-{VERSION}"
    return wheels.cached(cache, release, torch_version, python_tag, options if options != OPTIONS else {})


def build(work: Path) -> Path:
    """Download and compile in the empty folder `work`; returns the wheel, still in it."""
    options = build_options(dict(os.environ)) | {"MAX_JOBS": str(wheels.parallel_jobs())}
    return wheels.compiled(work, wheels.unpacked_source(work, "deepspeed", VERSION), options)


if __name__ == "__main__":
    wheels.build_and_keep("deepspeed", build)
