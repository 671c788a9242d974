"""Servers and workers as processes that are killed and go on: each writes where it is, and the clocks say the rest.

A server writes all that it holds whenever `every` more versions are complete, before it answers who waited for them. A
worker writes what it has to itself before each push, under the clock that follows. When all start again, servers take
the last version that every one of them has written and tell each worker how many of its updates are in it; the worker
goes on there, with what it had then. So every clock of every worker counts exactly once, whenever the kill came.

    version = last_common_version(folder, num_servers)
    server.go_on_from(states, version)          # in each server
    train_on_servers(…, states=WorkerStates(…)) # in each worker
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from harness.asynchrony.training import Training
from harness.engine.checkpoint import CheckpointError, Saved


def write_whole(path: Path, saved: Saved) -> None:
    """Replace the file at `path`; a process killed in here leaves the last whole one as it was."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        torch.save(saved, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)  # of a full disk it would take what is left


def read_whole(path: Path) -> Saved:
    """What `write_whole` has written. Raises: CheckpointError if the file is absent, damaged or something else."""
    try:
        saved = torch.load(path, weights_only=True)
    except Exception as error:  # torch names no errors for what is not its own
        raise CheckpointError(f"{path} cannot be read ({error!r:.200}); go on from another checkpoint") from error
    if not isinstance(saved, dict):
        raise CheckpointError(f"{path} is no checkpoint; go on from another one")
    return saved


@dataclass(frozen=True, slots=True)
class ServerStates:
    """Files of server `number` of `num_servers` in `folder`, one each `every` versions. Raises: CheckpointError."""

    folder: Path
    number: int
    num_servers: int = 1
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise CheckpointError(f"every is {self.every}; write each 1 or more versions")

    def is_due(self, before: int, after: int) -> bool:
        """Whether to write now that `after` versions are complete and `before` were."""
        return after // self.every > before // self.every

    def save(self, version: int, saved: Saved) -> None:
        """Write, and forget what is older than the last version that all servers have."""
        # A worker's loss completes several versions at once, and not the same ones in every server.
        write_whole(self._path(version - version % self.every), saved)
        # Not by number: what a worker sends to one server after the other another worker may pass by many clocks.
        common = last_common_version(self.folder, self.num_servers) or 0
        for old in versions_of(self.folder, self.number):
            if old < common:
                self._path(old).unlink()

    def load(self, version: int) -> Saved:
        """What was written when `version` versions were complete; what is newer is given up."""
        if version not in (there := versions_of(self.folder, self.number)):
            raise CheckpointError(
                f"server {self.number} has written versions {there} and not {version}; use one of them"
            )
        for newer in there[there.index(version) + 1 :]:
            self._path(newer).unlink()
        return read_whole(self._path(version))

    def _path(self, version: int) -> Path:
        return self.folder / f"server-{self.number}.version-{version}.pt"


@dataclass(frozen=True, slots=True)
class WorkerStates:
    """Files of one worker in `folder`, one per clock. Raises: CheckpointError."""

    folder: Path
    worker: int
    num_servers: int = 1

    def save(self, clock: int, training: Training) -> None:
        """Write where the worker is at the beginning of `clock`, and forget what servers cannot ask for any more."""
        write_whole(self._path(clock), training.worker_state(self.worker))
        # A version holds at least as many of this worker's updates, and servers never go further back.
        common = last_common_version(self.folder, self.num_servers) or 0
        for old in self._clocks():
            if old < common:
                self._path(old).unlink()

    def load(self, clock: int, training: Training, *, was_lost: bool) -> None:
        """Bring `training` to the beginning of `clock`. One that the others had gone on without has no state of that
        clock, and takes its last one."""
        if not clock:
            return
        there = [own for own in self._clocks() if own == clock or (was_lost and own < clock)]
        if there:
            training.load_worker_state(self.worker, read_whole(self._path(there[-1])))
        elif not was_lost:
            raise CheckpointError(
                f"worker {self.worker} has written clocks {self._clocks()} in {self.folder} and servers go on at its "
                f"clock {clock}; give it the folder that it wrote to"
            )

    def _clocks(self) -> list[int]:
        return _numbers(self.folder, rf"worker-{self.worker}\.clock-(\d+)\.pt")

    def _path(self, clock: int) -> Path:
        return self.folder / f"worker-{self.worker}.clock-{clock}.pt"


def versions_of(folder: Path, server: int) -> list[int]:
    """What a server has written, ascending."""
    return _numbers(folder, rf"server-{server}\.version-(\d+)\.pt")


def last_common_version(folder: Path, num_servers: int) -> int | None:
    """The version that all servers can go on from, or None where they have to begin anew."""
    common = set.intersection(*(set(versions_of(folder, server)) for server in range(num_servers)))
    return max(common, default=None)


def _numbers(folder: Path, pattern: str) -> list[int]:
    found = (re.fullmatch(pattern, path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in found if match is not None)
