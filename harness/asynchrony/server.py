"""A server of parameters in a process of its own: it answers each worker by itself, as soon as the policy allows.

One thread and one selector. Nothing that a worker does, or fails to do, keeps the others: sockets never block, and
what cannot be sent yet waits in the worker's own queue. Answers leave one after the other: workers that are answered at
once would compute and push at once too, and each wait for the whole of both (decision 62). On the paced fabric the
server keeps the time of its link (`harness.asynchrony.modelled_link`).
"""

from __future__ import annotations

import errno
import secrets
import selectors
import socket
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, process_time

import torch

from harness.asynchrony.cluster import OnLoss, VirtualCluster
from harness.asynchrony.modelled_link import ModelledLink
from harness.asynchrony.parameters import Parameters
from harness.asynchrony.recovery import ServerStates
from harness.asynchrony.tally import StalenessTally
from harness.asynchrony.wire import TOKEN_BYTES, Frame, FrameKind, FrameReader, WireError, header_of, prepare, raw

# What the kernel takes of an answer ahead of the link: more, and it would send the next one beside it.
SEND_BUFFER_BYTES = 1 << 17
# Who takes nothing for so long lets the next one's answer go first. Below 14 Mbit/s a line that is merely slow
# looks so too, and is shared.
STALLED_S = 0.05
MOST_UNKNOWN = 64  # connections beside one a worker that have not shown the token; beyond it the oldest is closed
_OUT_OF_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class WorkerLostError(RuntimeError):
    """A worker's process has ended before its work."""


class WorkerFaultError(RuntimeError):
    """A worker of this run sends what none of its kind sends."""


@dataclass(slots=True, eq=False)
class _Seat:
    """A connection: who is there, what came in part, what is still to be sent."""

    socket: socket.socket
    reader: FrameReader
    worker: int | None = None
    unsent: deque[memoryview] = field(default_factory=deque)


@dataclass(slots=True)
class _Wanted:
    """A pull that waits since `since_s`."""

    at_least: int
    since_s: float
    is_last: bool


@dataclass(slots=True)
class ServerReport:
    """What a server did: who was lost, bytes both ways and those that it sent, its processor time."""

    tally: StalenessTally
    lost: list[int] = field(default_factory=list)
    num_bytes: int = 0
    num_sent_bytes: int = 0
    cpu_s: float = 0.0

    @property
    def cpu_s_per_mb(self) -> float | None:
        """Processor time per 10⁶ bytes; None where all workers were lost before any came."""
        return self.cpu_s / (self.num_bytes / 1e6) if self.num_bytes else None


class ParameterServerProcess:
    """Serves `parameters` on `address` until every worker has sent `num_clocks` updates and said goodbye.

    With `paced_by` the link is that cluster's; else it is whatever carries the sockets. Under `exact_reads` an answer
    holds what was asked for and nothing later: a worker's pull follows its push after a while, and in between another
    worker may have been answered and have pushed again. BSP needs that to be exact.
    """

    def __init__(
        self,
        parameters: Parameters,
        address: str,
        *,
        num_clocks: int,
        exact_reads: bool,
        on_loss: OnLoss,
        paced_by: VirtualCluster | None = None,
    ) -> None:
        self._exact_reads, self._num_clocks = exact_reads, num_clocks
        self.parameters, self.on_loss, self._link = parameters, on_loss, ModelledLink(paced_by)
        self.report = ServerReport(StalenessTally.of(parameters.num_workers))
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._listener = socket.create_server((address, 0), backlog=parameters.num_workers)
        # A worker may give up between the selector's word and our accept; then accept must not wait.
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._seats: dict[int, _Seat] = {}
        self._unknown: deque[_Seat] = deque()  # who has not shown the token, the oldest first
        self._sending: deque[_Seat] = deque()  # who is still to be sent something, in that order
        self._sent_s = 0.0  # when the first of them last took something
        self._wanted: dict[int, _Wanted] = {}
        self._held = [0] * parameters.num_workers  # pushes that each worker's last read held
        self._pushed_s = [0.0] * parameters.num_workers
        self._left: set[int] = set()
        self._states: ServerStates | None = None
        self._back: set[int] = set()  # lost before the run was broken off, and let in again

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def keep(self, states: ServerStates, version: int | None = None) -> None:
        """Write to `states` from now on; with `version`, go on from what was written then.

        Raises: CheckpointError.
        """
        self._states = states
        if version is None:
            return
        saved = states.load(version)
        self.parameters.load_state_dict(saved["parameters"])
        self.report.tally.load_state_dict(saved["tally"])
        self.report.lost, self.report.num_bytes = list(saved["lost"]), saved["num_bytes"]
        self.report.num_sent_bytes = saved["num_sent_bytes"]
        self._back = self.parameters.readmit()

    def serve(self) -> ServerReport:
        """Raises: WorkerLostError if a worker ends early and losses stop the run; WorkerFaultError."""
        started_cpu_s = process_time()
        try:
            while len(self._left) < self.parameters.num_workers:
                self._link.fire()
                self._pass_over_stalled()
                for key, events in self._selector.select(self._pause_s()):
                    if key.data is None:
                        self._accept()
                    else:
                        self._serve(key.data, events)
        finally:
            self.close()
        self.report.cpu_s = process_time() - started_cpu_s
        return self.report

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            # It gave up meanwhile, or its network failed. A lack here would come again and again.
            if error.errno in _OUT_OF_ROOM:
                raise
            return
        connection.setblocking(False)
        prepare(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        seat = _Seat(connection, FrameReader(TOKEN_BYTES))  # a stranger's bytes are not waited for
        self._selector.register(connection, selectors.EVENT_READ, seat)
        self._unknown.append(seat)
        # Descriptors are few, and clients that only connect would take all of them.
        if len(self._unknown) > MOST_UNKNOWN + self.parameters.num_workers:
            self._end(self._unknown[0], WireError("no token"))

    def _serve(self, seat: _Seat, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._begin_first()
        # Sending may have found the connection at its end.
        if events & selectors.EVENT_READ and seat.socket.fileno() >= 0:
            self._read(seat)

    def _read(self, seat: _Seat) -> None:
        try:
            frame = seat.reader.read(seat.socket)
        except BlockingIOError:
            return
        except (OSError, WireError) as error:  # OSError: a host that is gone is no route, or a time-out
            self._end(seat, error)
            return
        try:
            if frame is not None:
                self._take(seat, frame)
        except WireError as error:
            self._end(seat, error)

    def _take(self, seat: _Seat, frame: Frame) -> None:
        if seat.worker is None:
            self._seat(seat, frame)
            return
        self._check(seat.worker, frame)
        if frame.kind is FrameKind.PUSH:
            self.report.num_bytes += frame.payload.numel()
            self._link.carry_push(seat.worker, frame.payload.numel(), partial(self._push, seat.worker, frame))
        elif frame.kind in (FrameKind.PULL, FrameKind.LAST_PULL):
            self._link.after_push(seat.worker, partial(self._pull, seat.worker, frame))
        else:
            self._left.add(seat.worker)

    def _check(self, worker: int, frame: Frame) -> None:
        """Raises: WireError for what would end the server, or keep it waiting for ever."""
        kind, size, clock = frame.kind, frame.payload.numel(), self.parameters.clocks[worker]
        is_push, expected = kind is FrameKind.PUSH, 4 * self.parameters.values.numel()
        if kind not in (FrameKind.PUSH, FrameKind.PULL, FrameKind.LAST_PULL, FrameKind.DONE):
            raise WireError(f"a frame of kind {kind.name}, which no worker sends to a server that knows it")
        if is_push and size != expected:
            raise WireError(f"an update of {size} bytes, where {expected} are expected")
        if frame.clock >= self._num_clocks or (is_push and frame.clock < 0):
            raise WireError(f"a {kind.name} of clock {frame.clock}, where the last one is {self._num_clocks - 1}")
        if kind is FrameKind.DONE and clock < self._num_clocks and worker not in self.parameters.gone:
            raise WireError(f"its goodbye after {clock} of {self._num_clocks} updates")

    def _seat(self, seat: _Seat, frame: Frame) -> None:
        # In constant time: how long the comparison takes must not tell how much of a guess was right.
        # On a host that others use too, anybody can connect; the token went over the process group alone.
        known = secrets.compare_digest(bytes(frame.payload.numpy()), self.token)
        if frame.kind is not FrameKind.HELLO or not known:
            raise WireError("no worker of this run")
        if frame.worker >= self.parameters.num_workers or frame.worker in self._seats:
            raise WorkerFaultError(f"rank {frame.worker} greets as a worker, and there is none or already one")
        seat.worker = frame.worker
        self._unknown.remove(seat)
        # Only who has shown the token may send as much as a whole update.
        seat.reader.most_bytes = 4 * self.parameters.values.numel()
        self._seats[frame.worker] = seat
        clock = self.parameters.clocks[seat.worker]
        if not clock:
            self.report.tally.ahead[0] += 1  # everybody begins with the same parameters, which nobody has to send
        kind = FrameKind.WELCOME_BACK if seat.worker in self._back else FrameKind.WELCOME
        self._queue(seat.worker, header_of(kind, seat.worker, clock))

    def _push(self, worker: int, frame: Frame) -> None:
        # Lost while this was on its way over a modelled link: its version is complete without it.
        if worker in self.parameters.gone:
            return
        tally, own, before = self.report.tally, self.parameters, self.parameters.slowest
        tally.missed_by[worker][own.num_pushed - self._held[worker]] += 1
        own.push(worker, frame.clock, frame.payload.view(torch.float32))
        self._pushed_s[worker] = monotonic()
        self._write_if_due(before)
        self._answer_all()

    def _write_if_due(self, before: int) -> None:
        """Before anybody hears of more versions than `before`."""
        if self._states is None or not self._states.is_due(before, self.parameters.slowest):
            return
        saved = {
            "parameters": self.parameters.state_dict(),
            "tally": self.report.tally.state_dict(),
            "lost": list(self.report.lost),
            "num_bytes": self.report.num_bytes,
            "num_sent_bytes": self.report.num_sent_bytes,
        }
        self._states.save(self.parameters.slowest, saved)

    def _pull(self, worker: int, frame: Frame) -> None:
        if worker in self.parameters.gone:
            return
        if frame.clock >= (own := self.parameters.clocks[worker]):
            raise WorkerFaultError(
                f"rank {worker}, a worker, asks for clock {frame.clock} after {own} updates of its own"
            )
        since_s = self._pushed_s[worker] or monotonic()
        self._wanted[worker] = _Wanted(frame.clock, since_s, frame.kind is FrameKind.LAST_PULL)
        self._answer_all()

    def _answer_all(self) -> None:
        # A copy, since an answer takes its entry out and may end a seat.
        for worker, wanted in list(self._wanted.items()):
            if self.parameters.holds_all_up_to(wanted.at_least):
                del self._wanted[worker]
                self._answer(worker, wanted)

    def _answer(self, worker: int, wanted: _Wanted) -> None:
        own, tally = self.parameters, self.report.tally
        slowest = own.slowest
        if not wanted.is_last:
            tally.ahead[own.clocks[worker] - slowest] += 1
            tally.waited_s[worker] += monotonic() - wanted.since_s
        self._held[worker] = own.num_pushed
        values = own.read(wanted.at_least if self._exact_reads else None)
        payload = raw(values)
        self.report.num_bytes += len(payload)
        self.report.num_sent_bytes += len(payload)
        header = header_of(FrameKind.PARAMETERS, worker, slowest, len(payload))
        self._link.carry_answer(worker, len(payload), partial(self._queue, worker, header, payload))

    def _queue(self, worker: int, *parts: bytes | memoryview) -> None:
        seat = self._seats.get(worker)
        if seat is None:
            return  # lost while the answer was on its way over a modelled link
        seat.unsent.extend(memoryview(part) for part in parts)
        if seat not in self._sending:
            self._sending.append(seat)
        if seat is self._sending[0]:
            self._begin_first()

    def _begin_first(self) -> None:
        """Send to the first in the queue, and to those behind it that take everything at once."""
        while self._sending:
            seat = self._sending[0]
            self._sent_s = monotonic()
            try:
                self._send(seat)
            except OSError as error:
                self._end(seat, error)
            if self._sending and seat is self._sending[0]:
                return

    def _pass_over_stalled(self) -> None:
        """Let the next one's answer go before that of a worker which takes nothing."""
        if len(self._sending) > 1 and monotonic() - self._sent_s >= STALLED_S:
            stalled = self._sending[0]
            self._selector.modify(stalled.socket, selectors.EVENT_READ, stalled)
            self._sending.rotate(-1)
            self._begin_first()

    def _pause_s(self) -> float | None:
        """How long nothing happens by itself; None for as long as nothing comes."""
        pause_s = self._link.pause_s
        if len(self._sending) < 2:
            return pause_s
        return STALLED_S if pause_s is None else min(STALLED_S, pause_s)

    def _send(self, seat: _Seat) -> None:
        """As much as the socket takes; the rest when it is writable again. Who has everything leaves the queue."""
        while seat.unsent:
            try:
                num_sent = seat.socket.send(seat.unsent[0])
            except BlockingIOError:
                break
            self._sent_s = monotonic()
            if num_sent < len(seat.unsent[0]):
                seat.unsent[0] = seat.unsent[0][num_sent:]
                break
            seat.unsent.popleft()
        if not seat.unsent:
            self._sending.remove(seat)
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if seat.unsent else 0)
        self._selector.modify(seat.socket, wanted, seat)

    def _end(self, seat: _Seat, error: Exception) -> None:
        """A connection is over: a goodbye came before, or a stranger left, or a worker is lost."""
        self._selector.unregister(seat.socket)
        seat.socket.close()
        if seat in self._sending:
            was_first = seat is self._sending[0]
            self._sending.remove(seat)
            # Nobody else would begin the answer behind it.
            if was_first:
                self._begin_first()
        if seat.worker is None:
            self._unknown.remove(seat)
            return
        self._seats.pop(seat.worker)
        if seat.worker in self._left:
            return
        # A push that came in part is forgotten with its reader, so that none counts by halves.
        clock = self.parameters.clocks[seat.worker]
        # No loss that the others could go on without: what else it has sent is not to be trusted either.
        if isinstance(error, WireError):
            raise WorkerFaultError(f"rank {seat.worker}, a worker, sends {error}")
        if self.on_loss is OnLoss.STOP:
            raise WorkerLostError(
                f"worker {seat.worker} is gone after {clock} updates ({error}); "
                f"the others go on with --on-loss continue"
            )
        self.report.lost.append(seat.worker)
        self._left.add(seat.worker)
        self._wanted.pop(seat.worker, None)
        # Others may be waiting for an update that will never come.
        before = self.parameters.slowest
        self.parameters.lose(seat.worker)
        self._write_if_due(before)
        self._answer_all()

    def close(self) -> None:
        """Close every socket; `serve` does so when it ends."""
        sockets = [self._listener, *(key.data.socket for key in self._selector.get_map().values() if key.data)]
        for own in sockets:
            own.close()
        self._selector.close()
