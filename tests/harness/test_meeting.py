"""Ranks of one machine meet where no other user can, and take part only with the secret of their job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from lab_tasks import digest, spec_of, task
from listening import LOOPBACK, LabsOnLoopback, listening_at
from patience import patience_s

from harness.bench import Bench
from harness.lab import meeting
from harness.lab.labs import OnEvent
from harness.lab.meeting import Meeting, StrangerError, check_proofs, hand_out, handed_out, proof_of, prove
from harness.lab.messages import Answer, Task, failed
from harness.systems.horovod import _Rendezvous
from results.record import Status

STRANGER = Path(__file__).with_name("stranger.py")
SECRET = b"s" * 32
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is started by root alone")


@contextmanager
def stranger(*ports: int) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, str(STRANGER), str(patience_s(60)), *map(str, ports)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            yield process
        finally:
            process.terminate()


def made(store: dist.Store, rank: int, world: int, device: Any, secret: bytes) -> None:
    """A group of gloo on `device`, whose ranks prove themselves; one rank of it, in a thread."""
    options = dist.ProcessGroupGloo._Options()
    options._devices, options._timeout = [device], timedelta(seconds=20)
    prove(dist.ProcessGroupGloo(store, rank, world, options), "lane", secret)


def outcomes(devices: list[Any], secrets: list[bytes]) -> list[str]:
    """What each rank says of its group."""
    store, world = dist.HashStore(), len(devices)
    with ThreadPoolExecutor(world) as pool:
        ranks = [pool.submit(made, store, rank, world, devices[rank], secrets[rank]) for rank in range(world)]
    return [str(rank.exception() or "") for rank in ranks]


def devices(count: int) -> list[Any]:
    return [dist.ProcessGroupGloo.create_device(hostname=LOOPBACK) for _ in range(count)]


def test_ranks_of_one_job_prove_themselves_and_a_wrong_secret_is_named() -> None:
    assert outcomes(devices(3), [SECRET] * 3) == [""] * 3
    told = outcomes(devices(3), [SECRET, SECRET, b"x" * 32])
    assert all("got a wrong proof from rank 2 of group lane; another process may be" in said for said in told[:2])
    assert "got a wrong proof from rank 0 of group lane" in told[2]


def test_a_proof_is_of_one_group_and_one_way() -> None:
    """So what a stranger is shown in one place proves nothing in another."""
    given = proof_of(SECRET, "lane", 1, 0)
    check_proofs(SECRET, "lane", 0, {1: given})
    for group, rank, other in (("0", 0, 1), ("lane", 1, 0), ("lane", 2, 1), ("lane", 0, 2)):
        with pytest.raises(StrangerError, match=f"rank {rank} got a wrong proof from rank {other} of group {group}"):
            check_proofs(SECRET, group, rank, {other: given})


@as_root
def test_another_user_who_takes_a_place_in_a_group_of_gloo_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo itself takes it for the peer. It connects before the ranks do, so it always gets the place."""
    monkeypatch.setattr(meeting, "PROOF_TIMEOUT_S", 0.5)
    before = listening_at(os.getpid())
    own = devices(2)
    ports = [port for _, port in listening_at(os.getpid()) - before]
    assert len(ports) == 2
    with stranger(*ports) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        told = outcomes(own, [SECRET] * 2)
    assert any("got no proof from rank" in said for said in told), told


@as_root
@pytest.mark.slow
@pytest.mark.parametrize("system", ["ours", pytest.param("horovod", marks=pytest.mark.horovod)])
def test_another_user_gets_nothing_of_a_trial(labs: LabsOnLoopback, system: str) -> None:
    """Neither of its stores, which used to answer every client, nor of its files."""
    with stranger() as process:
        digest(labs.ask(task(spec_of("native"), system=system, num_steps=2)))
        assert labs.seen == {LOOPBACK}
        process.terminate()
        assert process.stdout is not None
        assert process.stdout.read() == ""


class IntrudedLabs:
    """Whatever they are asked, a stranger was in the way."""

    def ask(self, task: Task, on_event: OnEvent) -> Answer:
        return failed("job a rank 0 on localhost failed: StrangerError: rank 0 got no proof from rank 1 of group 0")

    def close(self) -> None:
        """Nothing was started."""


def test_a_stranger_makes_the_trial_invalid_also_while_its_link_is_measured() -> None:
    asked = task(spec_of("native")).trial
    assert asked is not None
    with closing(Bench(IntrudedLabs())) as bench:
        record = bench.run(asked, lambda event: None)
    assert record.status is Status.INVALID
    assert "StrangerError: rank 0 got no proof from rank 1" in record.reason


@pytest.mark.horovod
def test_horovods_store_answers_those_who_know_its_secret() -> None:
    server = _Rendezvous(LOOPBACK, 2)
    address, port = socket.inet_ntoa(server.told[:4]), int.from_bytes(server.told[4:6], "big")
    assert (address, port) in listening_at(os.getpid())
    secret = server.told[6:].hex()
    said = []
    for method, path in product(
        ("GET", "PUT", "DELETE"), ("global/0", f"{'0' * 64}?:0/global/0", f"{secret}?:0/global/0")
    ):
        connection = HTTPConnection(address, port, timeout=patience_s(5))
        connection.request(method, f"/{path}", body=b"value" if method == "PUT" else None)
        said.append(connection.getresponse().status)
        connection.close()
    server.stop()
    assert said == [403, 403, 404, 403, 403, 200, 403, 403, 200]
    assert (address, port) not in listening_at(os.getpid())


def test_a_folder_is_handed_to_those_of_this_user_who_ask_for_the_run(tmp_path: Path) -> None:
    name = f"crossover-bench-test-{os.getpid()}"
    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(handed_out, name, 20.0) for _ in range(2)]
        hand_out(tmp_path, name, 2, 20.0)
        assert [each.result() for each in asking] == [tmp_path] * 2
    with pytest.raises(ConnectionRefusedError):
        handed_out(name, 0.0)
    with pytest.raises(TimeoutError):
        hand_out(tmp_path, name, 1, 0.0)


@as_root
def test_another_user_is_handed_nothing_and_hands_nothing_out(tmp_path: Path) -> None:
    """A rank would otherwise meet where that user says."""
    name = f"crossover-bench-test-{os.getpid()}"
    code = (
        "import os, socket; os.setgid(65534); os.setuid(65534); own = socket.socket(socket.AF_UNIX); "
        f"own.bind('\\0{name}'); own.listen(); print('here', flush=True); "
        "own.accept()[0].sendall(b'/tmp'); own.accept()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "here\n"
        with pytest.raises(PermissionError, match="a process of user 65534 answers for rank 0 of this run"):
            handed_out(name, 5.0)
        with pytest.raises(OSError, match="in use"):
            hand_out(tmp_path, name, 1, 5.0)
        squatter.terminate()


def test_a_meeting_for_each_task_is_its_own(tmp_path: Path) -> None:
    here = Meeting(str(tmp_path / "store")).named("task1").named("job0")
    there = Meeting(address="node7", port=1, prefix="run").named("task1").named("job0")
    assert (here.path, there.prefix) == (str(tmp_path / "store-task1-job0"), "run/task1/job0")
    store = here.store(1, 5.0)
    assert isinstance(store, dist.FileStore)
    assert store.timeout == timedelta(seconds=5)
