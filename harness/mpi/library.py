"""Whether there is an MPI, and what to do where there is none."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

REMEDY = "run `pip install mpi4py mpich` in the project's .venv"


class MpiError(ValueError):
    """MPI cannot do what was asked, or is not there; the message names the remedy."""


def load_mpi() -> Any:
    """The module `mpi4py.MPI`, which starts MPI when it is imported. Raises: MpiError."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MpiError(f"no MPI here ({error}); {REMEDY}") from error
    return MPI


def mpiexec() -> Path:
    """The process manager beside this Python. Raises: MpiError if there is none."""
    path = Path(sys.prefix) / "bin" / "mpiexec.hydra"
    if not path.exists():
        raise MpiError(f"no {path}; {REMEDY}")
    return path


def why_no_mpi() -> str | None:
    """The reason and the remedy where ranks cannot be started, without starting MPI; None where they can."""
    if importlib.util.find_spec("mpi4py") is None:
        return f"mpi4py is not installed; {REMEDY}"
    try:
        mpiexec()
    except MpiError as error:
        return str(error)
    return None
