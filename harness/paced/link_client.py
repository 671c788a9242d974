"""A process's side of its host's paced link: asks for link time, and hears when it has been served."""

from __future__ import annotations

import os
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from crossover.arbiter.scheduling import short_slices
from fabric.cluster import FabricError
from models.device import ANSWER, REQUEST

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
    """A process's flows on the host's link, over one connection.

    One thread listens, and tells what it hears before it listens again: handing over to another thread takes 0.1 ms of
    the interpreter per message. But what is told may wait for operations that come later, as torch's PowerSGD hook
    does. Once a listener has been held up so, another one listens while it tells, from then on. While a client is open,
    threads of its process change hands every 0.2 ms.

    A forked child does not use its parent's connection: its operations take no link time.
    Raises: FabricError if no link serves at `path`.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock, self._listening = path, threading.Lock(), threading.Lock()
        self._socket, self._process = self._connect(), os.getpid()
        self._flows: dict[Hashable, int] = {}
        self._queues: list[deque[Paid]] = []  # of each flow, by its number
        self._lost: FabricError | None = None
        self._threads: list[threading.Thread] = []
        self._num_free = 0
        self._hands_over = False
        self._num_told = 0
        self._closing = threading.Event()
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
        # Before the lock, which another thread of the parent may have held when it forked.
        if work_s == 0.0 or os.getpid() != self._process:
            paid(None)
            return
        with self._lock:
            lost = self._lost or self._ask(flow, work_s, paid)
        # Told outside the lock: what follows may ask for link time again.
        if lost is not None:
            paid(lost)

    def _ask(self, flow: Hashable, work_s: float, paid: Paid) -> FabricError | None:
        """Send a request at once, so that the link goes from one operation of a flow to the next without this process;
        on failure say why."""
        number = self._flows.setdefault(flow, len(self._flows))
        if number == len(self._queues):
            self._queues.append(deque())
        try:
            self._socket.sendall(REQUEST.pack(number, work_s, False))
        except OSError:
            return self._gone()
        self._queues[number].append(paid)
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
        """Wait for a turn to listen and then for an answer; None when the client closes or the link is gone."""
        with self._lock:
            self._num_free += 1
        with self._listening:
            told = self._hear()
        with self._lock:
            self._num_free -= 1
            self._num_told += 1
            if told is not None and self._num_free == 0 and self._hands_over:
                self._add_thread(self._run)
        return told

    def _hear(self) -> News | None:
        """Take one answer. If the link is gone, every waiter gets an error, once."""
        try:
            answer = self._socket.recv(ANSWER.size)
        except OSError:
            answer = b""
        with self._lock:
            if len(answer) == ANSWER.size:
                return [(self._queues[ANSWER.unpack(answer)[0]].popleft(), None)]
            if self._lost is not None or self._closing.is_set():
                return None
            self._lost = lost = self._gone()
            waiting = [paid for queue in self._queues for paid in queue]
            return [(paid, lost) for paid in waiting]

    def _gone(self) -> FabricError:
        return FabricError(f"the paced link at {self._path} has ended; run the trial again")

    def close(self) -> None:
        """End the threads and the connection; nothing may be under way. May be called again."""
        if self._socket.fileno() < 0:
            return
        if os.getpid() == self._process:
            self._closing.set()
            with suppress(OSError):  # the link has gone before
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the listening thread
            for thread in self._threads:
                thread.join(timeout=10)
        self._socket.close()
        sys.setswitchinterval(self._switch_interval_s)
