"""What a rank process leaves when it ends, and what is left when one cannot be started."""

from __future__ import annotations

import errno
import faulthandler
import io
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
from lab_tasks import spec_of, task
from patience import patience_s

from fabric.api import Cluster, build
from harness.lab import rank_process
from harness.lab.messages import Ending, Event, Task, to_line
from harness.lab.process import Lab
from harness.lab.rank import Place
from harness.lab.rank_process import RankProcess, fork_rank
from harness.outcome import STATUS
from results.record import Status

NATIVE = spec_of("native")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Hosts that nobody enters: the ranks of these tests do not train."""
    built = build(NATIVE)
    yield built
    built.close()


def places(cluster: Cluster) -> list[Place]:
    return [Place(job=0, rank=rank, host=host, slot=rank) for rank, host in enumerate(cluster.hosts)]


def with_a_worker(pipe: int, *, ends: bool) -> NoReturn:
    """A rank that starts a process, as a loader does, says so, and ends or goes on."""
    if os.fork() == 0:
        time.sleep(patience_s(5))
        os._exit(0)
    os.write(pipe, to_line(Event(kind="step", step=3)))
    while not ends:
        signal.pause()
    os._exit(0)


def started(cluster: Cluster, folder: Path, patch: pytest.MonkeyPatch, *, ends: bool) -> RankProcess:
    patch.setattr(rank_process, "_child", lambda *place: with_a_worker(place[4], ends=ends))
    go = os.pipe()
    try:
        return fork_rank(task(NATIVE), places(cluster)[0], cluster, folder, go)
    finally:
        for end in go:
            os.close(end)


def all_hung_up(pipe: int) -> bool:
    """Whether nobody holds the other end any more."""
    ready, _, _ = select.select([pipe], [], [], patience_s(2))
    return bool(ready) and not os.read(pipe, 1)


def test_an_ended_rank_is_heard_while_its_worker_lives_which_then_ends(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = started(cluster, tmp_path, monkeypatch, ends=True)
    select.select([rank.pidfd], [], [])
    assert rank.drain() == [Event(kind="step", step=3)]
    assert not select.select([rank.pipe], [], [], 0)[0], "the worker's end was waited for"
    assert rank.ended_how() == "exited with code 0"
    assert all_hung_up(rank.pipe)
    rank.end()


def test_a_rank_that_is_ended_takes_its_worker_along(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = started(cluster, tmp_path, monkeypatch, ends=False)
    select.select([rank.pipe], [], [])
    assert rank.read() == [Event(kind="step", step=3)]
    pipe = os.dup(rank.pipe)
    rank.end()
    assert all_hung_up(pipe)
    os.close(pipe)


@pytest.mark.parametrize("name", ["fork", "pidfd_open"])
def test_a_rank_that_cannot_be_started_leaves_none_of_those_before_it(
    name: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = psutil.Process()
    before = own.children(), own.num_fds()
    really, calls = getattr(os, name), list[Any]()

    def second_fails(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.EAGAIN, "there are too many")
        return really(*arguments)

    monkeypatch.setattr(rank_process, "_child", lambda *place: signal.pause())
    monkeypatch.setattr(os, name, second_fails)
    with pytest.raises(OSError, match="too many"):
        Lab(io.BytesIO(), io.BytesIO(), tmp_path)._run(task(NATIVE), cluster, places(cluster))
    assert (own.children(), own.num_fds()) == before


NO_PROOF = "StrangerError: rank 1 got no proof from rank 0 of group 0"
UNCAUGHT = "terminate called after throwing an instance of 'gloo::IoException'\n  what():  [pair.cc:1] Timed out\n"
ENDS = {
    "both find a stranger": ((NO_PROOF, NO_PROOF), False, Ending.INTRUDED, f"failed: {NO_PROOF} before its first step"),
    "a peer had failed": ((NO_PROOF, "ValueError: no"), False, Ending.FAILED, "rank 1 on localhost failed: ValueError"),
    "a library aborts": (
        (UNCAUGHT, ""),
        False,
        Ending.INTRUDED,
        "(SIGABRT) by gloo::IoException: [pair.cc:1] Timed ou",
    ),
    "a peer is lost later": ((UNCAUGHT, ""), True, Ending.FAILED, "(SIGABRT) by gloo::IoException: [pair.cc:1] Timed"),
    "a peer was lost": ((UNCAUGHT, "ValueError: no"), False, Ending.FAILED, "failed: ValueError: no"),
}


@pytest.mark.parametrize("what", ENDS)
def test_a_trial_in_which_a_stranger_took_a_place_is_told_from_one_that_failed(
    what: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of such a trial is invalid, and the trial is run again."""
    says, begins, ending, reason = ENDS[what]

    def child(task: Task, place: Place, cluster: Cluster, log: Path, pipe: int, go: int) -> NoReturn:
        said = says[place.rank]
        if begins:
            os.write(pipe, to_line(Event(kind="ready")))
            os.read(go, 1)
        if said.startswith("terminate"):
            log.write_text(said)
            faulthandler.disable()  # its traceback would be taken for a fault of the tests
            os.abort()
        if said:
            os.write(pipe, to_line(Event(kind="error", message=said)))
            os._exit(1)
        while True:
            signal.pause()

    monkeypatch.setattr(rank_process, "_child", child)
    read, write = os.pipe()
    with os.fdopen(read, "rb") as commands, os.fdopen(write, "wb"):
        answer = Lab(commands, io.BytesIO(), tmp_path)._run(task(NATIVE), cluster, places(cluster))
    assert answer.ending is ending
    assert reason in answer.reason
    assert STATUS[answer.ending] is (Status.INVALID if ending is Ending.INTRUDED else Status.ERROR)
