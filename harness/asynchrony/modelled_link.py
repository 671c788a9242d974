"""The servers' link as a server of the paced fabric keeps it: what crosses it counts when it would have been carried.

Each way carries what was asked for first. Without a model everything crosses at once: a real link has had its time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from harness.asynchrony.cluster import VirtualCluster


@dataclass(slots=True)
class ModelledLink:
    """The link of `cluster`, and what is still to happen on it; times are of the monotonic clock."""

    cluster: VirtualCluster | None
    _timers: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _num_timers: int = 0
    _inbound_free_s: float = 0.0
    _outbound_free_s: float = 0.0
    _push_lands_s: dict[int, float] = field(default_factory=dict)

    @property
    def pause_s(self) -> float | None:
        """How long nothing happens; None if nothing is on its way."""
        return max(0.0, self._timers[0][0] - monotonic()) if self._timers else None

    def fire(self) -> None:
        """Do what has become due."""
        while self._timers and self._timers[0][0] <= monotonic():
            heapq.heappop(self._timers)[2]()

    def carry_push(self, worker: int, num_bytes: int, then: Callable[[], None]) -> None:
        """Do `then` when an update of `num_bytes` has come from `worker`."""
        if self.cluster is None:
            then()
            return
        until_s = max(monotonic() + self.cluster.alpha_s, self._inbound_free_s)
        self._inbound_free_s = until_s + self.cluster.transfer_s(worker, num_bytes)
        self._push_lands_s[worker] = self._inbound_free_s
        self._at(self._inbound_free_s, then)

    def carry_answer(self, worker: int, num_bytes: int, then: Callable[[], None]) -> None:
        """Do `then` when `num_bytes` have gone to `worker`."""
        if self.cluster is None:
            then()
            return
        until_s = max(monotonic() + self.cluster.alpha_s, self._outbound_free_s)
        self._outbound_free_s = until_s + self.cluster.transfer_s(worker, num_bytes)
        self._at(self._outbound_free_s, then)

    def after_push(self, worker: int, then: Callable[[], None]) -> None:
        """Do `then` when the worker's last update has come: a pull does not overtake its push."""
        if worker in self._push_lands_s:
            self._at(self._push_lands_s[worker], then)
        else:
            then()

    def _at(self, time_s: float, then: Callable[[], None]) -> None:
        # In the order in which it was asked for where times are equal.
        self._num_timers += 1
        heapq.heappush(self._timers, (time_s, self._num_timers, then))
