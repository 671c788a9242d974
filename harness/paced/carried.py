"""A process group whose operations are carried by a link: complete when each has run *and* its link has carried it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fabric.cluster import FabricError
from fabric.collectives import Collective, load_of
from fabric.paced import PACED
from harness.paced.equal_peers import refusal
from harness.paced.link_client import Paid
from harness.paced.pacing import Pacing
from harness.paced.work import Both, PacedWork, follow

DEVICES = ("cpu", "cuda")
_numbers = count()  # of groups in this process: flows of their own each


class CarriedGroup(dist.ProcessGroup):
    """A process group on a paced link: what torch asks of a group, and the one way of every operation."""

    def __init__(self, name: str, rank: int, size: int, pacing: Pacing, inner: dist.ProcessGroup | None) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.pacing = pacing
        # Kept here: torch's own `rank()` and `size()` take 3 µs each, which a small message asks for several times.
        self._own_rank, self._num_ranks = rank, size
        self._name, self._inner = name, inner
        self._link, self._number = pacing.link.among(size), next(_numbers)
        self._to_send: deque[tuple[Both, Callable[[], dist.Work]]] = deque()
        self._handing_over = threading.Lock()
        self._coalesced: list[PacedWork] | None = None
        self._on_device = ThreadPoolExecutor(thread_name_prefix="paced device")
        # One thread: operations of a flow start in the order in which they were launched.
        self._starting = ThreadPoolExecutor(1, thread_name_prefix="paced start")

    # ---- what torch asks of a group

    @property
    def inner(self) -> dist.ProcessGroup | None:
        """The group that does the work; None among virtual peers."""
        return self._inner

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """The name under which torch keeps the group."""
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in DEVICES]

    def getBackendName(self) -> str:
        """What `dist.get_backend` answers."""
        return PACED

    def getGroupName(self) -> str:
        """The same as `group_name`."""
        return self._name

    def shutdown(self) -> None:
        """End the inner group; the default group also leaves the link."""
        self._starting.shutdown(wait=True)
        self._on_device.shutdown(wait=True)
        if self._inner is not None:
            self._inner.shutdown()
        if self is dist.group.WORLD:
            self.pacing.carrier.close()

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> PacedWork:
        """The last work of those begun since `_start_coalescing`, which are carried in order."""
        begun, self._coalesced = self._coalesced or [], None
        return PacedWork(torch.futures.collect_all([work.get_future() for work in begun]))

    # ---- the one way of every collective

    def _run(
        self,
        collective: Collective,
        num_bytes: float,
        answer: Any,
        *,
        on: Tensor | None,
        virtually: Callable[[], object],
        really: Callable[[dist.ProcessGroup], dist.Work],
    ) -> PacedWork:
        """Begin `collective` on `num_bytes`, n of the table of collectives. `virtually` is what equal peers do to the
        outputs and `really` what the inner group does; `on` is a tensor of the device whose work comes before it."""
        both = Both(answer, on)
        # Both at once: in a real network an operation's work and its way through the link overlap.
        self._pay((self._number, "collective"), collective, num_bytes, on, both.paid)
        if self._inner is None:
            virtually()
            both.carried(None)
        else:
            follow(really(self._inner), both.carried, on, self._on_device)
        work = PacedWork(both.future)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _pay(
        self, flow: tuple[int, str], collective: Collective, num_bytes: float, on: Tensor | None, paid: Paid
    ) -> None:
        work_s = self._link.seconds(collective, num_bytes)
        sent = self.pacing.traffic
        sent.num_messages += self._num_ranks > 1
        sent.num_bytes += load_of(collective, self._num_ranks).sent_bytes * num_bytes
        sent.link_s += work_s
        if on is None or not on.is_cuda:
            self.pacing.carrier.carry(flow, work_s, paid)
            return
        ready = torch.cuda.Event(blocking=True)
        ready.record()

        def pay() -> None:
            """The operation starts when the present stream comes to it, which Python runs ahead of."""
            try:
                ready.synchronize()
            except RuntimeError as error:
                paid(FabricError(f"the device failed before a message could start: {error}; see the rank's log"))
            else:
                self.pacing.carrier.carry(flow, work_s, paid)

        self._starting.submit(pay)

    def _check_root(self, root: int, what: str) -> None:
        if self._inner is None and root != self._own_rank:
            raise refusal(f"{what} from rank {root}")
