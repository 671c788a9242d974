"""A worker's side of the servers: `push` and `pull`, one connection per server, which holds its part of the model."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from harness.asynchrony.virtual import StaleReadError
from harness.asynchrony.wire import Frame, FrameKind, FrameReader, header_of, prepare, raw

CONNECT_TIMEOUT_S = 30.0
MOST_NAMED = 3


class ServerLostError(RuntimeError):
    """A server's process has ended, and with it the parameters that it held."""


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where a server listens, the token that it asks for, and the elements `start:stop` that it holds."""

    address: str
    port: int
    token: bytes
    start: int
    stop: int


def parts_of(numel: int, num_servers: int) -> list[tuple[int, int]]:
    """Elements start:stop of each server: equal parts, the first ones one element longer where they do not divide."""
    each, more = divmod(numel, num_servers)
    starts = [server * each + min(server, more) for server in range(num_servers + 1)]
    return list(pairwise(starts))


def names_within(parameters: Mapping[str, nn.Parameter], start: int, stop: int) -> list[str]:
    """The parameters that have elements within `start:stop` of the flat model."""
    found, offset = [], 0
    for name, parameter in parameters.items():
        if offset < stop and offset + parameter.numel() > start:
            found.append(name)
        offset += parameter.numel()
    return found


class ServersLink:
    """Worker `worker`'s connections to all servers; `keys` names what each holds, for the report of its loss."""

    def __init__(self, worker: int, servers: Sequence[ServerPlace], keys: Sequence[Sequence[str]]) -> None:
        self._worker, self._servers, self._keys = worker, servers, keys
        self._sockets = [self._connect(server) for server in servers]
        self._readers = [FrameReader(4 * (server.stop - server.start)) for server in servers]
        self._recorded: list[int] = []  # how many of this worker's updates each server has, once that is heard
        self.num_pushed_bytes = 0
        self.was_lost = False

    @property
    def first_clock(self) -> int:
        """Where to go on: 0, or in a run that was broken off the first update that a server lacks."""
        return min(self._welcomed())

    def _connect(self, server: ServerPlace) -> socket.socket:
        connection = socket.create_connection((server.address, server.port), CONNECT_TIMEOUT_S)
        connection.settimeout(None)  # a server may make a worker wait as long as the policy asks for
        prepare(connection)
        connection.sendall(header_of(FrameKind.HELLO, self._worker, 0, len(server.token)) + server.token)
        return connection

    def push(self, clock: int, update: Tensor) -> None:
        """Send the update [numel] of `clock`, to every server its part. Raises: ServerLostError."""
        recorded = self._welcomed()
        for number, server in enumerate(self._servers):
            # After a run was broken off one server may have an update that another one lacks.
            if clock < recorded[number]:
                continue
            part = raw(update[server.start : server.stop])
            self._send(number, header_of(FrameKind.PUSH, self._worker, clock, len(part)))
            self._send(number, part)
            self.num_pushed_bytes += len(part)

    def pull(self, at_least: int, *, is_last: bool = False) -> Tensor:
        """Parameters [numel] that hold every worker's updates up to clock `at_least`; waits for them.

        The last one, after the training, is no read that counts. Raises: ServerLostError; StaleReadError if a server
        breaks the promise.
        """
        kind = FrameKind.LAST_PULL if is_last else FrameKind.PULL
        self._welcomed()  # which comes before any answer
        # All are asked before the first answers, so that their answers travel side by side.
        for number in range(len(self._servers)):
            self._send(number, header_of(kind, self._worker, at_least))
        frames = [self._receive(number) for number in range(len(self._servers))]
        if stale := [number for number, frame in enumerate(frames) if frame.clock <= at_least]:
            raise StaleReadError(
                f"server {stale[0]} answers worker {self._worker} with clock {frames[stale[0]].clock}, where all "
                f"updates up to clock {at_least} are asked for"
            )
        parts = [frame.payload.view(torch.float32) for frame in frames]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _welcomed(self) -> list[int]:
        if not self._recorded:
            # Not as soon as connected: a server may still have to meet others before it serves.
            welcomes = [self._receive(number) for number in range(len(self._servers))]
            self._recorded = [welcome.clock for welcome in welcomes]
            first = min(self._recorded)
            self.was_lost = any(own.clock == first and own.kind is FrameKind.WELCOME_BACK for own in welcomes)
        return self._recorded

    def close(self) -> None:
        """Say goodbye to all servers."""
        for number, connection in enumerate(self._sockets):
            self._send(number, header_of(FrameKind.DONE, self._worker, 0))
            connection.close()

    def _send(self, number: int, data: bytes | memoryview) -> None:
        with self._lost_if_it_ends(number):
            self._sockets[number].sendall(data)

    def _receive(self, number: int) -> Frame:
        with self._lost_if_it_ends(number):
            while (frame := self._readers[number].read(self._sockets[number])) is None:
                pass
        return frame

    @contextlib.contextmanager
    def _lost_if_it_ends(self, number: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # not ConnectionError alone: a host that is gone is no route, or a time-out
            for connection in self._sockets:
                connection.close()
            server, names = self._servers[number], self._keys[number]
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            raise ServerLostError(
                f"server {number} is gone and with it elements {server.start} to {server.stop - 1}: "
                f"{', '.join(names[:MOST_NAMED])}{more} ({error}); start the run again"
            ) from error
