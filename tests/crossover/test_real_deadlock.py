"""The positive control with real arbiters and processes: what the model says deadlocks does, and is caught.

Two arbiters stand for two hosts, two jobs have a worker on each, and a collective is a byte each way between a job's
workers.
"""

import multiprocessing
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from patience import patience_s

from crossover import ArbiterLost, CrossoverError, Extent, LeaseLost, Participant, Sharing, start
from crossover.status import read_status
from crossover.tokens import Phase

SOON_S = patience_s(20.0)  # a bound against hanging, not a speed: the machine may be busy
FORK = multiprocessing.get_context("fork")
SAME, INVERTED = (("a", "b"), ("a", "b")), (("a", "b"), ("b", "a"))
Orders = tuple[tuple[str, ...], tuple[str, ...]]


def collective(other: socket.socket) -> None:
    other.sendall(b".")
    if not other.recv(1):
        raise ConnectionError("the job's other worker is gone")


def train(path: Path, job: str, other: socket.socket, wait_limit_s: float | None) -> str:
    """Three steps; what ended them."""
    try:
        with other, Participant(path, job, wait_limit_s=wait_limit_s) as seat:
            for _ in range(3):
                with seat.turn():
                    if seat.extent is Extent.MESSAGES:
                        collective(other)
                if seat.extent is not Extent.MESSAGES:
                    collective(other)
    except (CrossoverError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "done"


@contextmanager
def workers(paths: list[Path], folder: Path, wait_limit_s: float | None) -> Iterator[dict[str, BaseProcess]]:
    """The four workers, named by job and host; each writes how it ended into `folder`."""
    pairs = {job: socket.socketpair() for job in "ab"}
    running = {}

    def work(job: str, host: int) -> None:
        for name, pair in pairs.items():
            for end, sock in enumerate(pair):
                if (name, end) != (job, host):
                    sock.close()
        (folder / f"{job}{host}").write_text(train(paths[host], job, pairs[job][host], wait_limit_s))

    try:
        for job in "ab":
            for host in (0, 1):
                running[f"{job}{host}"] = FORK.Process(target=work, args=(job, host))
                running[f"{job}{host}"].start()
        for pair in pairs.values():
            for sock in pair:
                sock.close()
        yield running
    finally:
        for process in running.values():
            with suppress(ValueError):
                process.kill()
            process.join()


@contextmanager
def arbiters(folder: Path, sharing: Sharing, orders: Orders, lease_limit_s: float | None) -> Iterator[list[Path]]:
    paths = [folder / f"host{host}.sock" for host in (0, 1)]
    with ExitStack() as stack:
        for path, order in zip(paths, orders, strict=True):
            stack.enter_context(start(path, order, sharing, lease_limit_s=lease_limit_s))
        yield paths


def endings(
    folder: Path,
    sharing: Sharing,
    orders: Orders,
    *,
    wait_limit_s: float | None = None,
    lease_limit_s: float | None = None,
) -> dict[str, str]:
    """How each worker ended; those that still run after a long while are not in it."""
    with arbiters(folder, sharing, orders, lease_limit_s) as paths:
        with workers(paths, folder, wait_limit_s) as running:
            for process in running.values():
                process.join(SOON_S)
        return {path.name: path.read_text() for path in folder.glob("[ab][01]")}


def phases(path: Path) -> dict[str, Phase]:
    """What the jobs do at a host's device."""
    return {seat.job: seat.phase for token in read_status(path).tokens for seat in token.seats}


@pytest.mark.parametrize(
    ("sharing", "orders"), [(Sharing.HOLD, SAME), (Sharing.CROSSOVER, SAME), (Sharing.CROSSOVER, INVERTED)]
)
def test_one_order_or_release_before_the_wait_lets_everybody_finish(
    tmp_path: Path, sharing: Sharing, orders: Orders
) -> None:
    assert endings(tmp_path, sharing, orders) == dict.fromkeys(("a0", "a1", "b0", "b1"), "done")


def test_holding_through_communication_in_opposite_orders_stands_still(tmp_path: Path) -> None:
    stuck = [{"a": Phase.HOLDING, "b": Phase.WAITING}, {"b": Phase.HOLDING, "a": Phase.WAITING}]
    with arbiters(tmp_path, Sharing.HOLD, INVERTED, None) as paths, workers(paths, tmp_path, None):
        patient_until_s = time.monotonic() + SOON_S
        while [phases(path) for path in paths] != stuck:
            assert time.monotonic() < patient_until_s
            time.sleep(0.01)
        time.sleep(0.5)
        assert [phases(path) for path in paths] == stuck
        assert [read_status(path).tokens[0].generation for path in paths] == [1, 1]


def test_the_wait_limit_ends_the_deadlock_and_says_so(tmp_path: Path) -> None:
    limit_s = patience_s(1.0)  # for the others' coming too, which must not take so long
    ended = endings(tmp_path, Sharing.HOLD, INVERTED, wait_limit_s=limit_s)
    assert set(ended) == {"a0", "a1", "b0", "b1"}
    waited = [text for text in ended.values() if text.startswith(ArbiterLost.__name__)]
    assert waited, ended
    assert all(f"in {limit_s} s" in text and "holds or delays its turn" in text for text in waited)
    assert "done" not in ended.values() or len(waited) == 1  # a job may finish after the other one gave way


def test_the_lease_limit_ends_the_deadlock_and_fences_who_held(tmp_path: Path) -> None:
    ended = endings(tmp_path, Sharing.HOLD, INVERTED, lease_limit_s=1.0)
    assert set(ended) == {"a0", "a1", "b0", "b1"}
    fenced = [text for text in ended.values() if text.startswith(LeaseLost.__name__)]
    assert fenced, ended
    assert all("lease" in text for text in fenced)
