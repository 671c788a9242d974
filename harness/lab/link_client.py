"""A process's side of its host's paced link: asks for link time, and hears when it has been served."""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from crossover.arbiter.scheduling import short_slices
from fabric.api import FabricError
from models.device import DONE, REQUEST

Paid = Callable[[FabricError | None], None]


class Carrier(Protocol):
    """Serves link time; one operation of a flow after the other."""

    def carry(self, flow: int, work_s: float, paid: Paid) -> None:
        """Call `paid` from any thread once `work_s` seconds of link time are served, or the link is lost."""

    def close(self) -> None: ...


class LinkClient:
    """A process's flows on the host's link, a connection each; one thread hears what has been served.

    Raises: FabricError if no link serves at `path`.
    """

    def __init__(self, path: Path, flows: Iterable[int]) -> None:
        self._path, self._lock = path, threading.Lock()
        self._selector = selectors.SelectSelector()  # epoll would do as well; sockets are few
        self._wake, woken = socket.socketpair()
        self._selector.register(woken, selectors.EVENT_READ)
        self._sockets = {flow: self._connect(flow) for flow in flows}
        self._queues: dict[int, deque[tuple[float, Paid]]] = {flow: deque() for flow in self._sockets}
        self._lost: FabricError | None = None
        self._thread = threading.Thread(target=self._run, name="paced link", daemon=True)
        self._thread.start()

    def _connect(self, flow: int) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(self._path))
        except OSError as error:
            connection.close()
            self._close_sockets()
            raise FabricError(f"no paced link at {self._path} ({error.strerror}); run the trial again") from error
        self._selector.register(connection, selectors.EVENT_READ, flow)
        return connection

    def carry(self, flow: int, work_s: float, paid: Paid) -> None:
        if work_s == 0.0:
            paid(None)
            return
        with self._lock:
            lost, queue = self._lost, self._queues[flow]
            if lost is None:
                queue.append((work_s, paid))
                if len(queue) == 1:
                    lost = self._ask(flow)
        if lost is not None:
            paid(lost)

    def _ask(self, flow: int) -> FabricError | None:
        """Send the first request of a flow's queue; on failure take it out and say why."""
        work_s, _ = self._queues[flow][0]
        try:
            self._sockets[flow].sendall(REQUEST.pack(work_s, False))
        except OSError:
            self._queues[flow].popleft()
            return self._gone()
        return None

    def _run(self) -> None:
        with short_slices():
            while True:
                for key, _ in self._selector.select():
                    if key.data is None:
                        return  # closed
                    if not self._hear(key.data):
                        return

    def _hear(self, flow: int) -> bool:
        """Take one answer; false when the link is gone, which everybody who waits is told."""
        try:
            served = self._sockets[flow].recv(1) == DONE
        except OSError:
            served = False
        told: list[Paid] = []
        with self._lock:
            queue = self._queues[flow]
            if served:
                told.append(queue.popleft()[1])
                served = not queue or self._ask(flow) is None
            if not served:
                self._lost = self._gone()
                told += [paid for queue in self._queues.values() for _, paid in queue]
        for paid in told:
            paid(self._lost)
        return served

    def _gone(self) -> FabricError:
        return FabricError(f"the paced link at {self._path} has ended; run the trial again")

    def close(self) -> None:
        """End the thread and the connections; nothing may be under way."""
        self._wake.close()
        self._thread.join(timeout=10)
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._wake.close()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
