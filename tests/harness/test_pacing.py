"""A process's side of the paced link, its server, and what is left when the link goes."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest
from patience import patience_s

from fabric.api import FabricError, FabricKind, FabricSpec
from fabric.collectives import Collective
from fabric.paced import PacedLink
from harness.calibrate import paced_link_model
from harness.lab.fluid_server import shared_fluid
from harness.lab.services import check_paced
from harness.paced.link_client import SWITCH_INTERVAL_S, LinkClient
from harness.paced.pacing import pacing_of
from harness.trial import Job, Trial
from models.device import ANSWER, REQUEST, DeviceError
from models.fluid import FluidDevice
from models.workload import WorkloadSpec

VIRTUAL = FabricSpec(kind=FabricKind.PACED, num_hosts=1, num_virtual=8, rate_bps=1e9, alpha_s=1e-4)


def test_without_bytes_or_rounds_nothing_is_paid_and_nobody_waits(tmp_path: Path) -> None:
    with link_at(tmp_path) as path:
        client = LinkClient(path)
        told: list[object] = []
        client.carry(0, 0.0, told.append)
        assert told == [None]
        client.close()


def test_the_link_model_of_a_record_is_the_one_asked_for() -> None:
    model = paced_link_model(VIRTUAL)
    assert model is not None
    assert model.alpha_s == pytest.approx(14e-4)
    link = PacedLink(num_ranks=8, alpha_s=1e-4, rate_bps=1e9)
    assert model.all_reduce_s(1_000_000) == pytest.approx(link.seconds(Collective.ALL_REDUCE, 1_000_000))
    assert paced_link_model(FabricSpec(kind=FabricKind.NATIVE, rate_bps=None)) is None


@pytest.mark.parametrize(
    ("system", "reason"),
    [("horovod", "brings its own communication"), ("deepspeed(zero=1)", "virtual peers keep none; use zero=0")],
)
def test_a_job_that_the_link_cannot_carry_is_refused_by_name(system: str, reason: str) -> None:
    job = Job(name="a", workload=WorkloadSpec(network="resnet20"), system=system)
    with pytest.raises(FabricError, match=f"{system.partition('(')[0]}.*{reason}"):
        check_paced(Trial(suite="test", cell="test", jobs=(job,), fabric=VIRTUAL))


# ---- the link's own process


@contextmanager
def link_at(folder: Path) -> Iterator[Path]:
    """A host's link in a process of its own, in a private folder."""
    with shared_fluid(folder / "private" / "link", FluidDevice(linger_s=0)) as path:
        yield Path(path)


def test_answers_come_no_sooner_than_the_link_allows_and_in_order(tmp_path: Path) -> None:
    with link_at(tmp_path) as path:
        client, told = LinkClient(path), SimpleQueue[int]()
        begun_s = time.monotonic()
        for number in range(5):
            client.carry(0, 0.004, lambda error, number=number: told.put(number))
        assert [told.get(timeout=patience_s(10)) for _ in range(5)] == list(range(5))
        assert time.monotonic() - begun_s >= 0.02
        client.close()


def test_two_clients_share_the_link(tmp_path: Path) -> None:
    with link_at(tmp_path) as path:
        clients, told = [LinkClient(path) for _ in range(2)], SimpleQueue[float]()
        begun_s = time.monotonic()
        for client in clients:
            client.carry(0, 0.03, lambda error: told.put(time.monotonic()))
        ends_s = [told.get(timeout=patience_s(10)) - begun_s for _ in clients]
        assert max(ends_s) >= 0.06  # two pieces of 30 ms cannot be over before
        for client in reversed(clients):  # each gives back how threads changed hands before it
            client.close()


def test_a_link_that_cannot_be_served_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(DeviceError, match=r"\(AF_UNIX path too long\); use a new, short path"),
        link_at(tmp_path / ("x" * 100)),
    ):
        pass


def test_the_links_socket_is_private_and_goes_with_it(tmp_path: Path) -> None:
    with link_at(tmp_path) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


def test_whoever_waits_for_a_link_that_dies_is_told(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with link_at(tmp_path) as path:
        (server,) = set(psutil.Process().children()) - before
        client, told = LinkClient(path), SimpleQueue[object]()
        client.carry(0, 30.0, told.put)
        client.carry(1, 30.0, told.put)
        server.send_signal(signal.SIGKILL)
        errors = [told.get(timeout=patience_s(10)) for _ in range(2)]
        client.carry(0, 1.0, told.put)
        errors.append(told.get(timeout=patience_s(10)))
        assert [type(error) for error in errors] == [FabricError] * 3
        client.close()


@contextmanager
def played_link(folder: Path) -> Iterator[tuple[LinkClient, socket.socket]]:
    """A client, and the socket at which the test itself is the link."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "link"))
        server.listen()
        client = LinkClient(folder / "link")
        try:
            yield client, server
        finally:
            client.close()


def test_a_link_that_ends_after_an_answer_fails_only_what_it_has_not_served(tmp_path: Path) -> None:
    with played_link(tmp_path) as (client, server):
        connection, _ = server.accept()
        told = SimpleQueue[tuple[int, object]]()
        for number in range(3):
            client.carry(0, 0.001, lambda error, number=number: told.put((number, error)))
        with client._lock:  # so that the client can ask for the next one only when the link has ended
            connection.send(ANSWER.pack(0))
            connection.close()
        answers = dict(told.get(timeout=patience_s(10)) for _ in range(3))
    assert answers[0] is None
    assert [type(answers[number]) for number in (1, 2)] == [FabricError] * 2


def test_thousands_of_flows_take_one_connection(tmp_path: Path) -> None:
    """A process may have no more than 1,024 descriptors by default, and torch as many process groups as it likes."""
    with played_link(tmp_path) as (client, server):
        connection, _ = server.accept()
        told = SimpleQueue[int]()
        for flow in range(2000):
            client.carry(("group", flow), 0.001, lambda error, flow=flow: told.put(flow))
            request = connection.recv(REQUEST.size)
            assert REQUEST.unpack(request) == (flow, 0.001, False)
            connection.send(ANSWER.pack(flow))
        assert [told.get(timeout=patience_s(10)) for _ in range(2000)] == list(range(2000))
        connection.close()


def test_a_forked_child_takes_no_link_time_and_leaves_its_parents_connection_alone(tmp_path: Path) -> None:
    with played_link(tmp_path) as (client, server):
        connection, _ = server.accept()
        told = SimpleQueue[object]()
        client.carry(0, 0.001, told.put)
        connection.recv(REQUEST.size)
        with client._lock:  # as another thread of the parent may hold it
            pid = os.fork()
            if pid == 0:
                heard = list[object]()
                client.carry(0, 0.001, heard.append)
                client.carry(1, 0.001, heard.append)
                client.close()
                os._exit(len(heard) if heard == [None, None] else 9)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
        connection.send(ANSWER.pack(0))
        assert told.get(timeout=patience_s(10)) is None
        client.carry(0, 0.002, told.put)
        assert REQUEST.unpack(connection.recv(REQUEST.size)) == (0, 0.002, False)
        connection.send(ANSWER.pack(0))
        assert told.get(timeout=patience_s(10)) is None
        connection.close()


def test_what_fails_when_it_is_told_does_not_end_the_listener(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with played_link(tmp_path) as (client, server):
        connection, _ = server.accept()
        told = SimpleQueue[object]()
        for paid in (lambda error: [][0], told.put):
            client.carry(0, 0.001, paid)
        for _ in range(2):
            connection.recv(REQUEST.size)
            connection.send(ANSWER.pack(0))
        assert told.get(timeout=patience_s(10)) is None
        connection.close()
    assert "IndexError" in capfd.readouterr().err


def test_a_rank_without_its_link_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FabricError, match="run the trial again"):
        pacing_of(VIRTUAL, str(tmp_path / "link"))


def test_what_is_told_may_wait_for_what_comes_later(tmp_path: Path) -> None:
    """As torch's PowerSGD hook does in its callbacks; here three deep."""
    with link_at(tmp_path) as path:
        client, told = LinkClient(path), SimpleQueue[int]()

        def nested(depth: int) -> None:
            later = threading.Event()
            client.carry(0, 0.001, lambda error: later.set() if depth == 0 else (nested(depth - 1), later.set()))
            assert later.wait(timeout=patience_s(10))
            told.put(depth)

        client.carry(0, 0.001, lambda error: nested(3))
        assert [told.get(timeout=patience_s(10)) for _ in range(4)] == [0, 1, 2, 3]
        client.close()


def test_threads_change_hands_quickly_while_a_client_is_open(tmp_path: Path) -> None:
    before_s = sys.getswitchinterval()
    with link_at(tmp_path) as path:
        client = LinkClient(path)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
        client.close()
    assert sys.getswitchinterval() == pytest.approx(before_s)


def test_clients_leave_no_descriptor_and_no_thread_behind(tmp_path: Path) -> None:
    own = psutil.Process(os.getpid())
    with link_at(tmp_path) as path:
        LinkClient(path).close()
        before = own.num_fds(), threading.active_count()
        for _ in range(10):
            LinkClient(path).close()
        assert (own.num_fds(), threading.active_count()) == before


def test_a_link_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        before = psutil.Process().children()
        with link_at(tmp_path):
            (server,) = [child for child in psutil.Process().children() if child not in before]
            os.write(write_end, str(server.pid).encode())
            while True:
                signal.pause()
    server = psutil.Process(int(os.read(read_end, 20)))
    os.kill(pid, signal.SIGKILL)  # only now: a server that has ended already could not be looked up
    os.waitpid(pid, 0)
    assert not psutil.wait_procs([server], timeout=patience_s(10))[1]
    for end in (read_end, write_end):
        os.close(end)
