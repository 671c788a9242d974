"""A host's paced link on a virtual clock, and process groups on it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import torch.distributed as dist

from fabric.cluster import FabricError
from fabric.paced import PACED, PacedLink
from harness.paced.group import register
from harness.paced.link_client import Carrier, Paid
from harness.paced.pacing import Pacing
from models.fluid import FluidDevice

LINK = PacedLink(num_ranks=8, alpha_s=1e-4, rate_bps=1e9)


Queues = dict[int, deque[Paid]]


class ClockedLink:
    """A host's link; each job has its own carrier on it."""

    def __init__(self) -> None:
        self.now_s, self._fluid, self._queues = 0.0, FluidDevice(linger_s=0), Queues()
        self._num_flows = 0

    def carrier(self) -> ClockedCarrier:
        return ClockedCarrier(self)

    def new_flow(self) -> int:
        self._num_flows += 1
        return self._num_flows

    def submit(self, flow: int, work_s: float, paid: Paid) -> None:
        """A flow's operations follow each other."""
        self._queues.setdefault(flow, deque()).append(paid)
        self._fluid.submit(flow, work_s, follows=False, now_s=self.now_s)

    def run(self) -> None:
        """Let time pass until nothing is under way."""
        while (event_s := self._fluid.next_event_s()) is not None:
            self.now_s = event_s
            for flow in self._fluid.collect_finished(event_s):
                self._queues[flow].popleft()(None)


class ClockedCarrier:
    def __init__(self, link: ClockedLink) -> None:
        self._link, self._flows = link, dict[Hashable, int]()

    def carry(self, flow: Hashable, work_s: float, paid: Paid) -> None:
        if flow not in self._flows:
            self._flows[flow] = self._link.new_flow()
        self._link.submit(self._flows[flow], work_s, paid)

    def close(self) -> None:
        """Nothing is held."""


class Driven(ClockedCarrier):
    """A carrier whose clock runs on at once."""

    def __init__(self, link: ClockedLink) -> None:
        super().__init__(link)
        self._lock = threading.RLock()

    def carry(self, flow: Hashable, work_s: float, paid: Paid) -> None:
        with self._lock:
            super().carry(flow, work_s, paid)
            self._link.run()


class Lost:
    """A carrier whose link has gone."""

    def carry(self, flow: Hashable, work_s: float, paid: Paid) -> None:
        paid(FabricError("the link has ended"))

    def close(self) -> None:
        """Nothing is held."""


@contextmanager
def virtual_world(carrier: Carrier, link: PacedLink = LINK) -> Iterator[Pacing]:
    """This process as rank 0 among virtual peers, the default group of torch.distributed."""
    register()
    pacing = Pacing(link, carrier, is_virtual=True)
    dist.init_process_group(PACED, store=dist.HashStore(), rank=0, world_size=link.num_ranks, pg_options=pacing)
    try:
        yield pacing
    finally:
        dist.destroy_process_group()
