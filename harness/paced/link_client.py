"""A process's side of its host's paced link: asks for link time, and hears when it has been served."""

from __future__ import annotations

import selectors
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Protocol

from crossover.arbiter.scheduling import short_slices
from fabric.cluster import FabricError
from models.device import DONE, REQUEST

Paid = Callable[[FabricError | None], None]
News = list[tuple[Paid, FabricError | None]]  # who is to be told, and what
SWITCH_INTERVAL_S = 0.0002  # a thread in pure Python would keep an answer waiting for 5 ms
HELD_UP_S = 0.1  # what is told takes under a millisecond unless it waits, or another process has the processor


class Carrier(Protocol):
    """Serves link time; one operation of a flow after the other."""

    def carry(self, flow: Hashable, work_s: float, paid: Paid) -> None:
        """Call `paid` from any thread once `work_s` seconds of link time are served, or the link is lost."""

    def close(self) -> None:
        """End what it holds; nothing may be under way."""


class LinkClient:
    """A process's flows on the host's link, a connection each, made when a flow first carries something.

    One thread listens, and tells what it hears before it listens again: handing over to another thread takes 0.1 ms of
    the interpreter per message. But what is told may wait for operations that come later, as torch's PowerSGD hook
    does. Once a listener has been held up so, another one listens while it tells, from then on. While a client is open,
    threads of its process change hands every 0.2 ms.
    Raises: FabricError if no link serves at `path`.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock, self._listening = path, threading.Lock(), threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake, woken = socket.socketpair()
        self._selector.register(woken, selectors.EVENT_READ)
        self._sockets: dict[Hashable, socket.socket] = {}
        self._queues: dict[Hashable, deque[Paid]] = {}
        self._lost: FabricError | None = None
        self._threads: list[threading.Thread] = []
        self._num_free = 0
        self._hands_over = False
        self._num_told = 0
        self._closing = threading.Event()
        self._unused: socket.socket | None = None
        try:
            self._unused = self._connect()
        except FabricError:
            self._close_sockets()
            raise
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch_interval_s, SWITCH_INTERVAL_S))
        self._add_thread(self._run)
        self._add_thread(self._watch)

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(self._path))
        except OSError as error:
            connection.close()
            raise FabricError(f"no paced link at {self._path} ({error.strerror}); run the trial again") from error
        return connection

    def carry(self, flow: Hashable, work_s: float, paid: Paid) -> None:
        """Queue behind what the flow carries already; without link time `paid` is called at once, in this thread."""
        if work_s == 0.0:
            paid(None)
            return
        with self._lock:
            lost = self._lost or self._enqueue(flow, work_s, paid)
        # Told outside the lock: what follows may ask for link time again.
        if lost is not None:
            paid(lost)

    def _enqueue(self, flow: Hashable, work_s: float, paid: Paid) -> FabricError | None:
        try:
            queue = self._queue_of(flow)
        except FabricError as error:
            return error
        # Asked for at once: the link goes from one operation of a flow to the next without this process.
        lost = self._ask(flow, work_s)
        if lost is None:
            queue.append(paid)
        return lost

    def _queue_of(self, flow: Hashable) -> deque[Paid]:
        if flow not in self._queues:
            connection, self._unused = self._unused or self._connect(), None
            self._queues[flow], self._sockets[flow] = deque(), connection
            self._selector.register(connection, selectors.EVENT_READ, (flow,))
        return self._queues[flow]

    def _ask(self, flow: Hashable, work_s: float) -> FabricError | None:
        """Send a request of a flow; on failure say why."""
        try:
            self._sockets[flow].sendall(REQUEST.pack(work_s, False))
        except OSError:
            return self._gone()
        return None

    def _add_thread(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name="paced link", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        """Until the listener is held up: then add another one."""
        before = None
        while not self._closing.wait(HELD_UP_S):
            with self._lock:
                telling = self._num_told if self._num_free == 0 else None
                if telling is not None and telling == before:
                    self._hands_over = True
                    self._add_thread(self._run)
                    return
            before = telling

    def _run(self) -> None:
        with short_slices():
            while (told := self._listen()) is not None:
                for paid, error in told:
                    try:
                        paid(error)
                    except Exception:  # noqa: BLE001  others wait for what this thread tells next
                        traceback.print_exc()

    def _listen(self) -> News | None:
        """Wait for a turn to listen and then for answers; None when the client closes or the link is gone."""
        with self._lock:
            self._num_free += 1
        with self._listening:
            ready = [key.data for key, _ in self._selector.select()]
            told = None if None in ready or self._lost is not None else self._hear_all(ready)
        with self._lock:
            self._num_free -= 1
            self._num_told += 1
            if told is not None and self._num_free == 0 and self._hands_over:
                self._add_thread(self._run)
        return told

    def _hear_all(self, ready: list[tuple[Hashable]]) -> News:
        return [told for (flow,) in ready for told in self._hear(flow)]

    def _hear(self, flow: Hashable) -> News:
        """Take one answer: who is to be told what. If the link is gone, everybody who waits hears of it."""
        try:
            served = self._sockets[flow].recv(1) == DONE
        except OSError:
            served = False
        with self._lock:
            # Another connection may have ended just before, and then everybody has been told.
            if self._lost is not None:
                return []
            if served:
                return [(self._queues[flow].popleft(), None)]
            self._lost = lost = self._gone()
            # Everybody who waits hears of the loss once; nobody would answer them any more.
            waiting = [paid for queue in self._queues.values() for paid in queue]
            self._queues = {flow: deque() for flow in self._queues}
            return [(paid, lost) for paid in waiting]

    def _gone(self) -> FabricError:
        return FabricError(f"the paced link at {self._path} has ended; run the trial again")

    def close(self) -> None:
        """End the threads and the connections; nothing may be under way. May be called again."""
        if self._wake.fileno() < 0:
            return
        self._closing.set()
        # The other end becomes readable, which wakes whoever listens.
        self._wake.close()
        for thread in self._threads:
            thread.join(timeout=10)
        self._close_sockets()
        sys.setswitchinterval(self._switch_interval_s)

    def _close_sockets(self) -> None:
        self._wake.close()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        if self._unused is not None:
            self._unused.close()
        self._selector.close()
