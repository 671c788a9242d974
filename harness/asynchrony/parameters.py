"""What servers hold: the parameters, and every update that is not part of a complete version yet.

A version is all workers' updates of one clock. Updates count in order of clock and worker, never of arrival, so equal
sets of updates give equal parameters bit for bit, whatever the network did in between. That is why staleness 0 equals
BSP exactly, and why a version of DynSSP is the mean of its updates in any order. When a worker is lost, versions are
complete without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.engine.checkpoint import CheckpointError, Saved


class ClockError(RuntimeError):
    """An update out of turn: lost, or applied twice."""


@dataclass(slots=True)
class Parameters:
    """Flat parameters `values` [numel] under updates from `num_workers`; `share` weighs a version's updates."""

    values: Tensor
    num_workers: int
    share: Callable[[int, int], float]
    clocks: list[int] = field(init=False)
    num_pushed: int = 0
    gone: set[int] = field(default_factory=set)
    _open: dict[int, dict[int, Tensor]] = field(default_factory=dict)  # by clock and worker
    _num_complete: int = 0

    def __post_init__(self) -> None:
        self.values = self.values.clone()
        self.clocks = [0] * self.num_workers

    def push(self, worker: int, clock: int, update: Tensor) -> None:
        """Take in the update [numel] that `worker` has computed in `clock`.

        Raises: ClockError unless it is the worker's next one.
        """
        if clock != self.clocks[worker]:
            raise ClockError(f"worker {worker} pushes clock {clock} after {self.clocks[worker]} updates")
        self._open.setdefault(clock, {})[worker] = update
        self.clocks[worker] += 1
        self.num_pushed += 1
        self._complete()

    def lose(self, worker: int) -> None:
        """Wait for no more updates of `worker`; those that have come stay."""
        self.gone.add(worker)
        self._complete()

    def readmit(self) -> set[int]:
        """Let lost workers come back, at the clock at which the others are; who they are."""
        back = {worker for worker in self.gone if self.clocks[worker] < self._num_complete}
        # Versions that are complete without them stay so.
        for worker in back:
            self.clocks[worker] = self._num_complete
        self.gone.clear()
        return back

    def _complete(self) -> None:
        # Complete versions are added once and forgotten; only open ones must be added anew at each read.
        while self._num_complete < self.slowest:
            self.values = self._added(self.values, self._open.pop(self._num_complete))
            self._num_complete += 1

    def read(self, up_to: int | None = None) -> Tensor:
        """The parameters with every update that has come [numel], or with those of clocks up to `up_to` only. Not to be
        changed: where no version is open, all readers get the same ones.

        Complete versions are in either way: none beyond the reader's own clock is complete.
        """
        values = self.values
        for clock in sorted(self._open):
            if up_to is None or clock <= up_to:
                values = self._added(values, self._open[clock])
        return values

    def holds_all_up_to(self, clock: int) -> bool:
        """Whether every worker's update of `clock` and of all clocks before it has come."""
        return self.slowest > clock

    @property
    def slowest(self) -> int:
        """The least clock of the workers that are there; if none is, the greatest of all."""
        there = [clock for worker, clock in enumerate(self.clocks) if worker not in self.gone]
        return min(there, default=max(self.clocks))

    def state_dict(self) -> Saved:
        """All that later reads depend on; for `torch.save`."""
        return {
            "values": self.values.clone(),
            "clocks": list(self.clocks),
            "num_pushed": self.num_pushed,
            "gone": sorted(self.gone),
            "open": {clock: dict(version) for clock, version in self._open.items()},
            "num_complete": self._num_complete,
        }

    def load_state_dict(self, saved: Saved) -> None:
        """Go on from what `state_dict` gave. Raises: CheckpointError if it is of other workers or another model."""
        kept = len(saved["clocks"]), saved["values"].numel()
        if kept != (self.num_workers, self.values.numel()):
            raise CheckpointError(
                f"the checkpoint is of {kept[0]} workers and {kept[1]} parameters; here are {self.num_workers} and "
                f"{self.values.numel()}"
            )
        self.values, self.clocks, self.gone = saved["values"].clone(), list(saved["clocks"]), set(saved["gone"])
        self._open = {clock: dict(version) for clock, version in saved["open"].items()}
        self.num_pushed, self._num_complete = saved["num_pushed"], saved["num_complete"]

    def _added(self, values: Tensor, version: dict[int, Tensor]) -> Tensor:
        """New values: the old ones may be on their way to a worker."""
        weight = self.share(len(version), self.num_workers)
        # Floating-point sums depend on their order, so it is that of workers and not of arrival.
        first, *others = sorted(version)
        added = torch.add(values, version[first], alpha=weight)
        for worker in others:
            added.add_(version[worker], alpha=weight)
        return added
