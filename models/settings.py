"""The only place where `models` reads the process environment."""

from __future__ import annotations

import os
from pathlib import Path

DEVICE_SOCKET_VARIABLE = "CROSSOVER_BENCH_DEVICE"


def cache_folder() -> Path:
    """The user's cache folder for this project (not created here)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "crossover-bench"


def device_socket() -> Path | None:
    """Socket of the host's shared virtual device, or None when jobs do not share one."""
    path = os.environ.get(DEVICE_SOCKET_VARIABLE, "")
    return Path(path) if path else None
