"""Holds a job's collectives to the model of a host's link (`fabric.paced`), which all jobs of the host share.

An operation asks the host's link for its time when it starts, and is complete when the link has served that *and*
the collective has run, whichever is later. The link is a fluid server in a process of its own (`shared_fluid`): the
lanes of all jobs that have something to carry progress at 1/n each, as TCP's flows do, and with link turns there is
only one job's. It keeps the time, so a job's own interpreter delays an answer and never the link.

With virtual peers no rank is elsewhere: the answer is what equal peers would give (`VirtualRing`).
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from baselines.api import AllGather, AllReduce, AllToAll, Broadcast, Gather, Payload, Primitive, Serve, Transfer
from fabric.api import FabricError, FabricSpec
from fabric.paced import PacedLink, Pattern, paced_link
from harness.calibrate import LinkModel
from harness.engine.traffic import bytes_received, bytes_sent
from harness.engine.transport import CONTROL, Done, ProcessGroupTransport, Transport
from harness.lab.link_client import Carrier, LinkClient, Paid

PATTERNS: dict[type[Primitive], Pattern] = {
    AllReduce: Pattern.ALL_REDUCE,
    AllGather: Pattern.ALL_GATHER,
    Gather: Pattern.GATHER,
    Broadcast: Pattern.BROADCAST,
}
SWITCH_INTERVAL_S = 0.0002  # a thread in pure Python would keep an answer waiting for 5 ms


@dataclass(frozen=True, slots=True)
class Pacing:
    """The link model of a job's host and the socket of its server."""

    link: PacedLink
    socket: Path
    is_virtual: bool


def pacing_of(spec: FabricSpec, link_socket: str) -> Pacing | None:
    """How a rank on `spec` is paced; None on the other fabrics."""
    link = paced_link(spec)
    return Pacing(link, Path(link_socket), spec.num_virtual > 0) if link is not None else None


def link_model(spec: FabricSpec) -> LinkModel | None:
    """All-reduce time on a paced fabric, as asked for and not measured; None on the other fabrics."""
    link = paced_link(spec)
    if link is None:
        return None
    alpha_s = link.seconds(Pattern.ALL_REDUCE, 0)
    return LinkModel(
        alpha_s=alpha_s,
        beta_s_per_byte=(link.seconds(Pattern.ALL_REDUCE, 1_000_000) - alpha_s) / 1_000_000,
        residual=0.0,
    )


def open_transport(num_lanes: int, pacing: Pacing | None) -> Transport:
    """The transport of an engine: process groups, held back where the fabric is paced.

    Raises: FabricError if the link's server is not there.
    """
    if pacing is None:
        return ProcessGroupTransport(num_lanes)
    carrier = LinkClient(pacing.socket, (CONTROL, *range(num_lanes)))
    inner = VirtualRing(pacing.link.num_ranks) if pacing.is_virtual else ProcessGroupTransport(num_lanes)
    return PacedTransport(inner, pacing.link, carrier, num_lanes)


class PacedTransport:
    """`inner`, each answer held back until `carrier` has carried the operation too."""

    def __init__(self, inner: Transport, link: PacedLink, carrier: Carrier, num_lanes: int) -> None:
        self._inner, self._link, self._carrier = inner, link, carrier
        self._waiting = ThreadPoolExecutor(max_workers=max(1, num_lanes), thread_name_prefix="paced")
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch_interval_s, SWITCH_INTERVAL_S))

    @property
    def rank(self) -> int:
        return self._inner.rank

    @property
    def world(self) -> int:
        return self._inner.world

    def start(self, primitive: Primitive, lane: int, done: Done) -> None:
        work_s = link_seconds(primitive, self._link)
        both = _Both(done)
        if _is_on_device(primitive):
            self._pay_when_ready(lane, work_s, both.paid)
        else:
            self._carrier.carry(lane, work_s, both.paid)
        self._inner.start(primitive, lane, both.carried)

    def _pay_when_ready(self, lane: int, work_s: float, paid: Paid) -> None:
        """On a GPU the operation starts when the present stream comes to it, which Python runs ahead of."""
        ready = torch.cuda.Event(blocking=True)
        ready.record()

        def pay() -> None:
            try:
                ready.synchronize()
            except RuntimeError as error:
                paid(FabricError(f"the device failed before a message could start: {error}; see the rank's log"))
            else:
                self._carrier.carry(lane, work_s, paid)

        self._waiting.submit(pay)

    def close(self) -> None:
        self._inner.close()
        self._waiting.shutdown(wait=True)
        self._carrier.close()
        sys.setswitchinterval(self._switch_interval_s)


def link_seconds(primitive: Primitive, link: PacedLink) -> float:
    """Time of the asking rank's host's link. Transfers and all-to-all take one step and the bytes of the fuller
    direction, since a link carries both ways at once; a rank that sits a round out pays nothing."""
    match primitive:
        case Serve() | Transfer(send=None, into=None):
            return 0.0
        case Transfer() | AllToAll():
            busiest = max(bytes_sent(primitive, link.num_ranks), bytes_received(primitive))
            return link.seconds(Pattern.SHIFT, int(busiest))
    tensor = primitive.tensor
    return link.seconds(PATTERNS[type(primitive)], tensor.numel() * tensor.element_size())


def _is_on_device(primitive: Primitive) -> bool:
    match primitive:
        case Transfer(send, _, into, _):
            return any(tensor is not None and tensor.is_cuda for tensor in (send, into))
        case AllToAll(parts):
            return parts[0].is_cuda
        case Serve(tensor) | AllReduce(tensor) | AllGather(tensor) | Gather(tensor) | Broadcast(tensor):
            return tensor.is_cuda


class _Both:
    """Calls `done` once: with the answer when it is both carried and paid, or with the first error."""

    def __init__(self, done: Done) -> None:
        self._done, self._lock = done, threading.Lock()
        self._missing = {"carried", "paid"}
        self._answer: Payload | Exception = ()

    def carried(self, answer: Payload | Exception) -> None:
        self._answer = answer
        self._settle("carried", answer if isinstance(answer, Exception) else None)

    def paid(self, error: FabricError | None) -> None:
        self._settle("paid", error)

    def _settle(self, part: str, error: Exception | None) -> None:
        with self._lock:
            if part not in self._missing:
                return  # an error has been told already
            self._missing = set() if error is not None else self._missing - {part}
            complete = not self._missing
        if complete:
            self._done(self._answer if error is None else error)


@dataclass(frozen=True, slots=True)
class VirtualRing:
    """Rank 0 among `world` equal ranks, of which it is the only one: what each primitive would then give."""

    world: int
    rank: int = 0

    def start(self, primitive: Primitive, lane: int, done: Done) -> None:
        done(_among_equals(primitive, self.world))

    def close(self) -> None:
        """Nothing is held."""


def _among_equals(primitive: Primitive, world: int) -> Payload | FabricError:
    match primitive:
        case AllReduce(tensor):
            return (tensor.mul_(world),)
        case AllGather(tensor) | Gather(tensor):
            return tuple(tensor.clone() for _ in range(world))
        case Broadcast(tensor):
            return (tensor,)
        case Transfer(send=None, into=None):
            return ()
        case Transfer() | AllToAll() | Serve():
            return FabricError(
                "an exchange that sends different parts to different ranks needs ranks that hold different parts, and "
                "virtual peers hold none; use the exchange 'all-reduce', or real ranks (num_virtual=0)"
            )
