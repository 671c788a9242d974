"""What a trial needs on its hosts beside ranks: an arbiter each, a shared virtual device, a paced link."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import crossover
from fabric.api import FabricError, FabricKind, Host
from harness.lab.fluid_server import shared_fluid
from harness.lab.meeting import Meeting
from harness.lab.rank import Place
from harness.systems import system_of
from harness.systems.api import RunsPaced
from harness.trial import Trial
from models.fluid import FluidDevice
from models.workload import Device


@contextlib.contextmanager
def places(trial: Trial | None, kind: FabricKind, hosts: tuple[Host, ...], scratch: Path) -> Iterator[list[Place]]:
    """Where every rank of the trial sits; its arbiters, devices and links run until the context ends. Without a trial
    links are timed, by one rank a host.

    Raises: CrossoverError or DeviceError if one cannot be started, FabricError if the fabric cannot hold a job back.
    """
    num_jobs, num_ranks = (len(trial.jobs), trial.ranks_per_host) if trial is not None else (1, 1)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch)))
        arbiters = {host.index: "" for host in hosts}
        devices, links = dict(arbiters), dict(arbiters)
        if trial is not None and trial.sharing is not None:
            for host in hosts:
                arbiters[host.index] = _start_arbiter(stack, folder / f"arbiter{host.index}", trial)
        if trial is not None and _shares_device(trial):
            for host in hosts:
                devices[host.index] = stack.enter_context(shared_fluid(folder / f"device{host.index}", FluidDevice()))
        if kind is FabricKind.PACED:
            if trial is not None:
                check_paced(trial)
            for host in hosts:
                # A device's queue holds a process's next work already, so it lingers; nothing waits inside a link.
                links[host.index] = stack.enter_context(
                    shared_fluid(folder / f"link{host.index}", FluidDevice(linger_s=0))
                )
        yield [
            Place(
                job=job,
                rank=host.index * num_ranks + seat,
                host=host,
                slot=host.index * num_ranks + seat,
                meeting=Meeting(str(folder / f"store{job}")),
                arbiter_socket=arbiters[host.index],
                device_socket=devices[host.index],
                link_socket=links[host.index],
                scratch=str(folder),
            )
            for job in range(num_jobs)
            for host in hosts
            for seat in range(num_ranks)
        ]


def _start_arbiter(stack: contextlib.ExitStack, path: Path, trial: Trial) -> str:
    assert trial.sharing is not None, "a job alone has no arbiter"
    rules = {name: getattr(trial, name) for name in ("shares", "groups", "beats")}
    stack.enter_context(crossover.start(path, [job.name for job in trial.jobs], trial.sharing, **rules))
    return str(path)


def _shares_device(trial: Trial) -> bool:
    """Jobs that compute at the same time on a replayed device divide it among them."""
    return (
        trial.sharing is not None and trial.sharing.computes_at_once and trial.jobs[0].workload.device is Device.REPLAY
    )


def check_paced(trial: Trial) -> None:
    """Raises: FabricError if a job's system communicates past the link's model."""
    for job in trial.jobs:
        system = system_of(job.system)
        if not isinstance(system, RunsPaced):
            reason: str | None = "it brings its own communication, which the paced fabric cannot hold back"
        else:
            reason = system.why_unpaced(among_virtual=trial.fabric.num_virtual > 0)
        if reason is not None:
            raise FabricError(
                f"{job.system} on the paced fabric: {reason}; or run it on the emulated or the native fabric"
            )
