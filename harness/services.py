"""What a trial needs on its hosts beside ranks: an arbiter each, and a shared virtual device."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import crossover
from fabric.api import Host
from harness.rank import Place
from harness.trial import Sharing, Trial
from models.device import DeviceError
from models.device_server import serve
from models.workload import Device


@contextlib.contextmanager
def places(trial: Trial | None, hosts: tuple[Host, ...], scratch: Path, first_port: int) -> Iterator[list[Place]]:
    """Where every rank of the trial sits; its arbiters and devices run until the context ends.

    Raises: CrossoverError or DeviceError if one cannot be started.
    """
    num_jobs = len(trial.jobs) if trial is not None else 1
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch)))
        arbiters = {host.index: "" for host in hosts}
        devices = dict(arbiters)
        if trial is not None and trial.sharing is not Sharing.NONE:
            for host in hosts:
                arbiters[host.index] = _start_arbiter(stack, folder / f"arbiter{host.index}", trial)
        if trial is not None and _shares_device(trial):
            for host in hosts:
                devices[host.index] = stack.enter_context(_shared_device(folder / f"device{host.index}"))
        yield [
            Place(
                job=job,
                rank=host.index,
                host=host,
                slot=host.index,
                rendezvous_address=hosts[0].address,
                rendezvous_port=first_port + job,
                arbiter_socket=arbiters[host.index],
                device_socket=devices[host.index],
            )
            for job in range(num_jobs)
            for host in hosts
        ]


def _start_arbiter(stack: contextlib.ExitStack, path: Path, trial: Trial) -> str:
    jobs = [job.name for job in trial.jobs]
    stack.enter_context(crossover.start(path, jobs=jobs, sharing=crossover.Sharing(trial.sharing.value)))
    return str(path)


def _shares_device(trial: Trial) -> bool:
    """Jobs that compute at the same time on a replayed device divide it among them."""
    return trial.sharing is Sharing.NAIVE and trial.jobs[0].workload.device is Device.REPLAY


@contextlib.contextmanager
def _shared_device(path: Path) -> Iterator[str]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read_end)
            serve(path, on_ready=lambda: os.close(write_end))
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    try:
        os.read(read_end, 1)  # end of file: ready, or dead
        if not path.exists():
            raise DeviceError(f"the shared virtual device at {path} did not start; is the folder writable?")
        yield str(path)
    finally:
        os.close(read_end)
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
