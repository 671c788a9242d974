"""Where the ranks of a job meet, and how they prove to each other that they belong to it.

On one machine they meet in a file of the trial's private folder. torch's own store would listen on every interface and
serve every client. The file holds the job's secret too.

gloo still connects over TCP: a rank takes the first process that connects and sends a small number for its peer. So
before a group is used, both ends of each of its connections send an HMAC of the group's name and of the two ranks, with
the secret as the key. A process of another user can take a peer's place, which ends the trial, but it cannot take part.
NCCL needs no proof: its connections ask for 64 random bits, which only the store gives.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from crossover.protocol import peer
from harness.paced.carried import CarriedGroup

GLOO_INTERFACE, LOOPBACK = "GLOO_SOCKET_IFNAME", "lo"
PROOF_BYTES = 32
PROOF_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.05
REMEDY = "another process may be in its place: look for other users of this machine"
_SECRET = "secret"
_LONGEST_PATH = 4096
_make_group = distributed_c10d._new_process_group_helper


class StrangerError(RuntimeError):
    """In a group there is a process that does not know the job's secret."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """The file `path`; or, for ranks on several machines, torch's store at `address` and `port`, under `prefix`."""

    path: str = ""
    address: str = ""
    port: int = 0
    prefix: str = ""

    def named(self, name: str) -> Meeting:
        """The same place for a group of ranks of its own."""
        path = f"{self.path}-{name.replace('/', '-')}" if self.path else ""
        return Meeting(path, self.address, self.port, f"{self.prefix}/{name}")

    def store(self, world: int, timeout_s: float, *, serves: bool = False) -> dist.Store:
        """The store; with `serves` this process is the one that holds it open at the port."""
        timeout = timedelta(seconds=timeout_s)
        if self.path:
            file = dist.FileStore(self.path, world)
            file.set_timeout(timeout)
            return file
        store = dist.TCPStore(self.address, self.port, world, serves, timeout, wait_for_workers=False)
        return dist.PrefixStore(self.prefix, store)


def join(store: dist.Store, rank: int, world: int, *, backend: str, timeout: timedelta, options: Any = None) -> None:
    """Bring up the default process group on the interface that GLOO_SOCKET_IFNAME names. Every group that this process
    makes from now on proves its ranks.

    Raises: StrangerError.
    """
    if os.environ.get(GLOO_INTERFACE) == LOOPBACK:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={LOOPBACK}")  # by itself it takes any other interface
    secret = _shared_secret(store, rank)
    # In the module, where torch looks it up: systems such as DeepSpeed make groups of their own.
    distributed_c10d._new_process_group_helper = _proving(secret)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout, pg_options=options)


def proof_of(secret: bytes, group: str, sender: int, receiver: int) -> bytes:
    """What rank `sender` of the group shows rank `receiver` alone."""
    return hmac.digest(secret, f"{group} {sender} {receiver}".encode(), "sha256")


def check_proofs(secret: bytes, group: str, rank: int, shown: Mapping[int, bytes]) -> None:
    """Raises: StrangerError unless each rank of `shown` has sent `rank` its proof."""
    for other, word in shown.items():
        if not hmac.compare_digest(word, proof_of(secret, group, other, rank)):
            raise StrangerError(f"rank {rank} got a wrong proof from rank {other} of group {group}; {REMEDY}")


def prove(group: dist.ProcessGroup, name: str, secret: bytes) -> None:
    """Show every rank of `group` that this process knows the secret, and check that each of them does.

    Raises: StrangerError.
    """
    rank, size = group.rank(), group.size()
    others = [other for other in range(size) if other != rank]
    shown = {other: torch.zeros(PROOF_BYTES, dtype=torch.uint8) for other in others}
    own = {other: torch.tensor(list(proof_of(secret, name, rank, other)), dtype=torch.uint8) for other in others}
    # From rank to rank, not by a collective: each connection is shown, and the one that fails is known.
    sent = [group.send([own[other]], other, 0) for other in others]
    for other in others:
        try:
            group.recv([shown[other]], other, 0).wait(timedelta(seconds=PROOF_TIMEOUT_S))
        except RuntimeError as error:
            raise StrangerError(
                f"rank {rank} got no proof from rank {other} of group {name} ({error}); {REMEDY}"
            ) from error
    for work in sent:
        work.wait()
    check_proofs(secret, name, rank, {other: bytes(word.numpy()) for other, word in shown.items()})


def _shared_secret(store: dist.Store, rank: int) -> bytes:
    if rank == 0:
        store.set(_SECRET, secrets.token_hex())
    return bytes(store.get(_SECRET))


def _proving(secret: bytes) -> Callable[..., Any]:
    """torch's maker of process groups, which proves each group that it makes."""

    def proven(*given: Any, **named: Any) -> Any:
        rank, name = given[1], given[5]
        try:
            made = _make_group(*given, **named)
        except RuntimeError as error:
            if "connectFullMesh" not in str(error):
                raise
            raise StrangerError(f"rank {rank} could not connect group {name} ({error}); {REMEDY}") from error
        group = made[0].inner if isinstance(made[0], CarriedGroup) else made[0]
        # No group: the ranks are virtual, or this process is not among them.
        if isinstance(group, dist.ProcessGroup) and torch.device("cpu") in group._device_types:
            prove(group, name, secret)
        return made

    return proven


def hand_out(folder: Path, name: str, num_others: int, timeout_s: float) -> None:
    """Tell `folder` to as many processes of this user on this machine, which ask for `name`.

    Raises: OSError if another process has the name, or not all ask in time.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        # An abstract name: it ends with this process, and leaves no file behind.
        listener.bind(f"\0{name}")
        listener.listen(num_others)
        until_s = monotonic() + timeout_s
        while num_others:
            listener.settimeout(max(0.01, until_s - monotonic()))
            with listener.accept()[0] as connection:
                if peer(connection)[1] == os.geteuid():
                    connection.sendall(bytes(folder))
                    num_others -= 1


def handed_out(name: str, timeout_s: float) -> Path:
    """The folder that another process of this user hands out under `name`.

    Raises: OSError if none does in time, or it is another user's.
    """
    until_s = monotonic() + timeout_s
    while True:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            try:
                connection.connect(f"\0{name}")
            except ConnectionRefusedError:
                if monotonic() > until_s:
                    raise
                sleep(LOOK_EVERY_S)
                continue
            if peer(connection)[1] != os.geteuid():
                raise PermissionError(f"a process of user {peer(connection)[1]} answers for rank 0 of this run")
            if not (told := connection.recv(_LONGEST_PATH)):
                raise ConnectionResetError("rank 0 of this run ended before it told where to meet")
            return Path(os.fsdecode(told))
