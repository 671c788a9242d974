"""Where a record comes from: commit, versions, machine."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil
import torch

from results.record import Environment

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "horovod", "deepspeed", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")


def describe_environment() -> Environment:
    """This machine and checkout, now."""
    commit = _git("rev-parse", "HEAD")
    return Environment(
        commit=commit,
        # Untracked files do not count: records and runs are such.
        dirty=bool(commit and _git("status", "--porcelain", "--untracked-files=no")),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=f"{_processor()}, {platform.system()} {platform.release()}",
        num_cores=psutil.cpu_count() or 0,
        memory_bytes=psutil.virtual_memory().total,
        device=torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu",
        versions={"python": platform.python_version(), **_versions()},
    )


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    # An installed package without its checkout has no commit, and records say so by an empty one.
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
