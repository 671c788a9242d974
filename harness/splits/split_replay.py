"""A split job in replay on one rank: its program's computations take a virtual device, its exchanges go over the link.

A tensor of an exchange has the size that the plan says, scaled, and no meaning. Sums that nobody waits for leave from a
thread, one after the other; on the link an exchange that computation waits for goes behind the one that has begun, as
on the virtual clock (`harness.splits.split_clock`). Two groups per set of ranks keep the two kinds apart: each comes in
the same order on every rank, whatever the timing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from baselines.parallelism.operator_costs import OperatorConfig
from baselines.parallelism.split_programs import Computation, ExchangeKind, SplitExchange
from harness.splits.splitting import SplitPlan
from harness.trace import Recorder
from models.device import VirtualDevice

_BYTES_PER_ELEMENT = 4


class SplitReplay:
    """This rank, all of whose peers are real, or virtual. The process group must be up.

    Tensors are `size_scale` times smaller than the plan's.
    """

    def __init__(
        self,
        plan: SplitPlan,
        device: VirtualDevice,
        recorder: Recorder,
        *,
        size_scale: int,
        overlap: bool,
        is_virtual: bool,
    ) -> None:
        self.num_messages, self.num_sent_bytes = 0, 0.0
        self._plan, self._device, self._recorder = plan, device, recorder
        self._size_scale, self._overlap, self._is_virtual = size_scale, overlap, is_virtual
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._behind = ThreadPoolExecutor(max_workers=1, thread_name_prefix="deferred")
        self._groups: dict[tuple[tuple[int, ...], bool], Any] = {}
        for instruction in plan.program:
            if isinstance(instruction, SplitExchange) and instruction.kind is not ExchangeKind.FETCH:
                self._group_of(instruction)

    def step(self) -> None:
        """The program once. Raises: RuntimeError from torch if a peer is gone."""
        under_way: list[Future[None]] = []
        for instruction in self._plan.program:
            if isinstance(instruction, Computation):
                name = f"{'forward' if instruction.is_forward else 'backward'} {instruction.layer}"
                with self._recorder.span("compute", name):
                    self._device.run(instruction.duration_s)
                continue
            # Counted here, by one thread.
            self.num_messages += 1
            self.num_sent_bytes += instruction.sent_bytes / self._size_scale
            if self._overlap and instruction.is_deferred:
                under_way.append(self._behind.submit(self._exchange, instruction))
            else:
                with self._waiting():
                    self._exchange(instruction)
        with self._waiting():
            for own in under_way:
                own.result()

    def close(self) -> None:
        """End the thread."""
        self._behind.shutdown()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        with self._recorder.span("loop", "wait"):
            yield
        self._device.pause()  # what comes next could not have been launched ahead

    def _exchange(self, exchange: SplitExchange) -> None:
        """Returns when it is through."""
        num_bytes = exchange.num_bytes / self._size_scale
        if exchange.kind is ExchangeKind.FETCH:
            self._fetch(_tensor(num_bytes))
            return
        group = self._group_of(exchange)
        if exchange.kind is ExchangeKind.ALL_REDUCE:
            dist.all_reduce(_tensor(num_bytes), group=group)
            return
        own = _tensor(num_bytes / exchange.num_devices)
        dist.all_gather([torch.empty_like(own) for _ in range(exchange.num_devices)], own, group=group)

    def _fetch(self, own: torch.Tensor) -> None:
        """Around all ranks: what this one lacks comes from one neighbour, and the other lacks as much."""
        sending = dist.isend(own, (self._rank + 1) % self._world)
        if sending is None:
            raise RuntimeError("this rank is not part of its own group")
        # A virtual peer holds nothing to send; what it would takes its own link, at the same time.
        if not self._is_virtual:
            dist.recv(torch.empty_like(own), (self._rank - 1) % self._world)
        sending.wait()

    def _group_of(self, exchange: SplitExchange) -> Any:
        ranks = exchanging_ranks(self._plan.configs[exchange.layer], exchange.dimensions, self._rank)
        key = (ranks, exchange.is_deferred)
        if key not in self._groups:
            self._groups[key] = dist.new_group(list(ranks), use_local_synchronization=True)
        return self._groups[key]


def exchanging_ranks(config: OperatorConfig, dimensions: Sequence[str], rank: int) -> tuple[int, ...]:
    """The ranks with which `rank` exchanges along `dimensions`: those whose parts of the layer differ in these alone.

    Ranks are numbered by their parts, the last dimension's first; a layer on fewer devices than there are is computed
    by each set of them alike.
    """
    first = rank - rank % config.num_devices
    places = list(product(*(range(degree) for degree in config.degrees().values())))
    names = tuple(config.degrees())
    own = places[rank - first]

    def alike(place: tuple[int, ...]) -> bool:
        return all(a == b for name, a, b in zip(names, place, own, strict=True) if name not in dimensions)

    return tuple(first + index for index, place in enumerate(places) if alike(place))


def _tensor(num_bytes: float) -> torch.Tensor:
    return torch.zeros(max(1, round(num_bytes / _BYTES_PER_ELEMENT)))
