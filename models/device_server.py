"""The process that holds a host's shared virtual device: `python -m models.device_server SOCKET`.

It sleeps until a request arrives, a process leaves or a piece of work ends; then it serves all
clients up to that moment (`FluidDevice`). It ends with SIGTERM, or with the process that started it, and
removes its socket. The socket has mode 0600 and lies in a folder that only the user may enter.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from models.device import ANSWER, REQUEST, DeviceError, die_with_parent, sharpen_timer
from models.fluid import FluidDevice

_LONGEST_WORK_S = 3600.0


def serve(
    path: Path,
    *,
    parent: int | None = None,
    on_ready: Callable[[], None] | None = None,
    fluid: FluidDevice | None = None,
) -> int:
    """Serve the device at `path` until SIGTERM or SIGINT; return which. Call from the main thread of a process of its
    own.

    It also ends with process `parent`, which must be the one that started this one (default: whichever did).
    `on_ready` is called once clients can connect; `fluid` is how they share (default: as a device).
    Raises: DeviceError if the socket cannot be made there.
    """
    stop_fd = _stop_descriptor()
    listener = _listen(path)
    try:
        die_with_parent(signal.SIGTERM, os.getppid() if parent is None else parent)
        if on_ready is not None:
            on_ready()
        return _Server(listener, fluid or FluidDevice(), stop_fd).run()
    finally:
        listener.close()
        path.unlink(missing_ok=True)


@dataclass(slots=True)
class _Client:
    """A connection: its flows, and the answers that its process has left no room for."""

    socket: socket.socket
    flows: set[int] = field(default_factory=set)
    owed: bytearray = field(default_factory=bytearray)


class _Server:
    def __init__(self, listener: socket.socket, fluid: FluidDevice, stop_fd: int) -> None:
        self._listener = listener
        self._stop_fd = stop_fd
        self._clients: dict[int, _Client] = {}
        self._device = fluid

    def run(self) -> int:
        """The event loop; the number of the signal that ended it."""
        sharpen_timer()
        try:
            while not (number := self._step()):
                pass
        finally:
            for client in self._clients.values():
                client.socket.close()
        return number

    def _step(self) -> int:
        """Serve what has happened; the number of a signal that came, else 0."""
        event_s = self._device.next_event_s()
        timeout_s = None if event_s is None else max(0.0, event_s - time.monotonic())
        # select and not epoll: its timeout is in microseconds, epoll's in milliseconds.
        numbers = [self._stop_fd, self._listener.fileno(), *self._clients]
        owing = [number for number, client in self._clients.items() if client.owed]
        ready, has_room, _ = select.select(numbers, owing, [], timeout_s)
        if self._stop_fd in ready:
            return os.read(self._stop_fd, 1)[0]
        # A client that leaves takes its flows along, and answers of its own may still follow here.
        for number in self._clients.keys() & ready:
            self._receive(number)
        for number, flow in cast("list[tuple[int, int]]", self._device.collect_finished(time.monotonic())):
            if number in self._clients:
                self._answer(number, ANSWER.pack(flow))
        for number in self._clients.keys() & has_room:
            self._answer(number)
        if self._listener.fileno() in ready:
            client, _ = self._listener.accept()
            self._clients[client.fileno()] = _Client(client)
        return 0

    def _receive(self, number: int) -> None:
        client = self._clients[number]
        try:
            request = client.socket.recv(REQUEST.size)
        except ConnectionResetError:
            request = b""
        if len(request) != REQUEST.size:
            self._drop(number)
            return
        flow, work_s, follows = REQUEST.unpack(request)
        if not 0 <= work_s <= _LONGEST_WORK_S:
            self._drop(number)
            return
        client.flows.add(flow)
        self._device.submit((number, flow), work_s, follows=follows, now_s=time.monotonic())

    def _answer(self, number: int, answer: bytes = b"") -> None:
        """Send it and what is owed, as far as there is room: a process that is stopped must not stop the others."""
        client = self._clients[number]
        client.owed += answer
        try:
            del client.owed[: client.socket.send(client.owed, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            return
        except OSError:
            self._drop(number)

    def _drop(self, number: int) -> None:
        client = self._clients.pop(number)
        for flow in client.flows:
            self._device.leave((number, flow), now_s=time.monotonic())
        client.socket.close()


def _listen(path: Path) -> socket.socket:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = stat.S_IMODE(path.parent.stat().st_mode)
    if mode & 0o077 or path.parent.stat().st_uid != os.getuid():
        raise DeviceError(f"{path.parent} has mode {mode:o}; the folder of a device socket must be yours with mode 700")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise DeviceError(
            f"cannot serve a device at {path} ({error.strerror or error}); use a new, short path, or a shorter TMPDIR"
        ) from error
    return listener


def _stop_descriptor() -> int:
    """A descriptor on which the number of the signal arrives that ends the server.

    A handler that raises would not do: a signal that comes just before `select` leaves it asleep for ever.
    """
    stop_fd, signal_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(signal_fd, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return stop_fd


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m models.device_server", description="Serve a shared device.")
    parser.add_argument("socket", type=Path, help="path of the socket; its folder is made with mode 0700")
    parser.add_argument("--parent", type=int, help="id of the starting process, to end with it in any case")
    arguments = parser.parse_args()
    try:
        number = serve(arguments.socket, parent=arguments.parent, on_ready=lambda: print("ready", flush=True))
    except DeviceError as error:
        parser.error(str(error))
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
