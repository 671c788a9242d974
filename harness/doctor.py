"""What this machine can do for a benchmark, and what to do about each thing it cannot.

    for finding in diagnose():
        print(finding.name, finding.ok, finding.detail, finding.remedy)

Nothing here changes the machine; the whole examination takes a few seconds.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from models.settings import cache_folder

# Shorter windows see single scheduler ticks, longer ones make the command feel slow.
LOAD_WINDOW_S = 0.5
IDLE_CORES_WANTED = 2.0
BUSY_SHARE = 0.25
MEMORY_WANTED_BYTES = 4 * 2**30
CGROUP = Path("/sys/fs/cgroup")
OLDEST_TORCH = (2, 8)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; `remedy` says what to do when it is not `ok`, and is empty when it is."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


Check = Callable[[], Iterator[Finding]]


def diagnose() -> list[Finding]:
    """Look at everything that a suite may want; a missing thing is a finding, never an error."""
    return [finding for check in CHECKS for finding in check()]


def check_python() -> Iterator[Finding]:
    """The interpreter: 3.11 or later."""
    yield judged("python", sys.version_info >= (3, 11), platform.python_version(), "run 'make setup PYTHON=python3.11'")


def check_torch() -> Iterator[Finding]:
    """torch and the GPUs that it sees."""
    remedy = "install torch ≥ 2.8, or run 'make setup TORCH=pinned'"
    # A broken torch is one finding among others; a library that is there but does not load raises OSError.
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("torch", False, f"not importable: {error}", remedy)
        return
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    detail = f"{torch.__version__}, {build}, {torch.get_num_threads()} threads"
    yield judged("torch", version >= OLDEST_TORCH, detail, remedy)
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    detail = ", ".join(names) if names else "no CUDA device"
    yield judged("gpu", bool(names), detail, "none needed: suites run on cpu and replay; GPU clusters use TORCH=system")


def check_fabric() -> Iterator[Finding]:
    """Whether the kernel lets us emulate a network."""
    from fabric.probe import capabilities

    for capability in capabilities():
        yield Finding(capability.name, capability.ok, capability.detail, capability.remedy)


def check_horovod() -> Iterator[Finding]:
    """Horovod, which set-up compiles, with its gloo transport."""
    remedy = "install g++ and cmake, then run 'make clean setup'; until then its systems are skipped"
    try:
        horovod = importlib.import_module("horovod.torch")
    # A library that is there but does not load (another C++ ABI, another torch) raises OSError.
    except (ImportError, OSError) as error:
        yield Finding("horovod", False, f"not importable: {error}", remedy)
        return
    # Horovod also compiles without any transport, and is then of no use.
    means = [name for name in ("gloo", "mpi", "nccl") if getattr(horovod, f"{name}_built")()]
    detail = f"{importlib.metadata.version('horovod')} with {', '.join(means) or 'no transport'}"
    yield judged("horovod", "gloo" in means, detail, remedy)


def check_deepspeed() -> Iterator[Finding]:
    """DeepSpeed with its CPU extension, by its metadata only: importing it takes seconds and prints."""
    try:
        package = importlib.metadata.distribution("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        remedy = "install g++, then run 'make clean setup'; until then its systems are skipped"
        yield Finding("deepspeed", False, "not installed", remedy)
        return
    is_compiled = any(file.name.startswith("deepspeed_shm_comm_op") for file in package.files or ())
    detail = "CPU extension compiled" if is_compiled else "CPU extension compiles at its first use"
    yield Finding("deepspeed", True, f"{package.version}, {detail}")


def check_mpi() -> Iterator[Finding]:
    """An MPI launcher."""
    launcher = shutil.which("mpirun")
    detail = first_line([launcher, "--version"]) if launcher else "no mpirun on the path"
    yield judged(
        "mpi", bool(launcher), detail, "none needed for gloo; Debian: apt-get install openmpi-bin libopenmpi-dev"
    )


def check_compiler() -> Iterator[Finding]:
    """What Horovod and DeepSpeed are compiled with."""
    for name, package in (("g++", "g++"), ("cmake", "cmake")):
        found = shutil.which(name)
        detail = first_line([found, "--version"]) if found else "not on the path"
        yield judged(
            name, bool(found), detail, f"only to compile Horovod and DeepSpeed; Debian: apt-get install {package}"
        )


def check_cores() -> Iterator[Finding]:
    """How much of the processor other work leaves: a busy machine spoils measurements."""
    cores = len(os.sched_getaffinity(0))
    busy = psutil.cpu_percent(LOAD_WINDOW_S) / 100
    idle = cores * (1 - busy)
    detail = f"{idle:.1f} of {cores} idle over {LOAD_WINDOW_S} s"
    remedy = "stop other work before measuring" if busy > BUSY_SHARE else "expect noise: suites need two cores"
    yield judged("idle cores", busy <= BUSY_SHARE and cores >= IDLE_CORES_WANTED, detail, remedy)


def check_memory() -> Iterator[Finding]:
    """Memory that a trial may take, within the control group's limit where there is one."""
    available = min(psutil.virtual_memory().available, control_group_room(CGROUP))
    detail = f"{available / 2**30:.1f} GiB available"
    yield judged("memory", available >= MEMORY_WANTED_BYTES, detail, "free memory, or run with fewer hosts or --smoke")


def check_cache() -> Iterator[Finding]:
    """The user's cache folder can be written."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            yield Finding("cache folder", True, str(folder))
    except OSError as error:
        yield Finding(
            "cache folder", False, f"{folder}: {error.strerror}", "set XDG_CACHE_HOME to a folder you can write"
        )


def check_sockets() -> Iterator[Finding]:
    """Where the sockets of trials lie: the folder for temporary files, where its name is short enough."""
    from crossover.arbiter.listening import socket_place
    from crossover.errors import Refused

    try:
        given, place = Path(tempfile.gettempdir()), socket_place()
    except Refused as error:
        yield Finding("sockets", False, str(error), "set TMPDIR to a short folder that you can write")
        return
    reason = "" if place == given else f": TMPDIR={given} is too long for sockets"
    yield Finding("sockets", True, f"private folders in {place}{reason}")


CHECKS: tuple[Check, ...] = (
    check_python,
    check_torch,
    check_fabric,
    check_horovod,
    check_deepspeed,
    check_mpi,
    check_compiler,
    check_cores,
    check_memory,
    check_cache,
    check_sockets,
)


def judged(name: str, ok: bool, detail: str, remedy: str) -> Finding:
    """A finding that shows its remedy only when there is something to mend."""
    return Finding(name, ok, detail, "" if ok else remedy)


def control_group_room(group: Path) -> float:
    """Bytes below the control group's memory limit (version 2); infinite where there is no limit."""
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = (group / "memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return float("inf")
    return float("inf") if limit == "max" else max(0.0, float(limit) - float(used))


def first_line(command: list[str | None]) -> str:
    """The first line with a number of what a program says about itself, or why it says nothing."""
    try:
        said = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not answer: {error}"
    lines = [" ".join(line.split()) for line in (said.stdout or said.stderr).splitlines()]
    return next((line for line in lines if any(map(str.isdigit, line))), next(iter(lines), ""))
