"""Strangers, garbage and crowds at a live arbiter: nobody gets what is not his, and the turns go on."""

import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import patience_s

from crossover import ArbiterAbsent, ArbiterProcess, Participant, Refused, start
from crossover.arbiter.acceptor import MAX_PENDING
from crossover.arbiter.server import MAX_NUMBER, MAX_SEATS
from crossover.connecting import ask_once
from crossover.protocol import HEADER_BYTES, REPLY_BYTES, REQUEST_BYTES, Reply, ReplyKind, Request, RequestKind
from crossover.status import read_status

SOON_S = patience_s(20.0)  # a bound against hanging, not a speed: the machine may be busy
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
NOBODY = 65534


@pytest.fixture(scope="module")
def arbiter() -> Iterator[ArbiterProcess]:
    with tempfile.TemporaryDirectory() as folder, start(Path(folder) / "host.sock") as process:
        yield process
        assert process.is_running


def raw(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(path))
    connection.settimeout(SOON_S)
    return connection


def take_turns(path: Path, num: int = 1, device: str = "probe") -> None:
    """Both jobs, strictly in turn."""
    with (
        Participant(path, "a", device, wait_limit_s=SOON_S) as a,
        Participant(path, "b", device, wait_limit_s=SOON_S) as b,
    ):
        before = a.next_round
        for _ in range(num):
            for job in (a, b):
                job.release(job.acquire())
        assert a.next_round == before + num


PACKETS = st.one_of(
    st.binary(min_size=1, max_size=2 * REQUEST_BYTES),
    st.integers(1, 1 << 17).map(bytes),
    st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES),
    st.builds(
        lambda kind, number, generation, job: Request(
            kind, number=number, job=job, device="fuzz", generation=generation
        ),
        st.sampled_from(RequestKind),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
        st.sampled_from(["a", "b", "c", ""]),
    ).map(Request.pack),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(visits=st.lists(st.lists(PACKETS, min_size=1, max_size=6), min_size=1, max_size=3))
def test_no_packets_end_the_arbiter_or_get_a_lease_without_joining(
    arbiter: ArbiterProcess, visits: list[list[bytes]]
) -> None:
    for packets in visits:
        has_joined = False
        with raw(arbiter.path) as connection, suppress(BrokenPipeError, ConnectionResetError, OSError):
            connection.settimeout(0.002)
            for packet in packets:
                connection.send(packet)
                has_joined |= len(packet) == REQUEST_BYTES and packet[4:5] == bytes([RequestKind.JOIN])
                answer = connection.recv(1 << 17)
                assert has_joined or Reply.unpack(answer).kind not in (ReplyKind.WELCOME, ReplyKind.GRANTED)
    assert read_status(arbiter.path).pid == arbiter.pid


def test_the_turns_of_others_go_on_under_fuzz(arbiter: ArbiterProcess) -> None:
    ended = threading.Event()

    def shout() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            with raw(arbiter.path) as connection, suppress(OSError):
                connection.send(os.urandom(1 + number % 300))
                connection.send(Request(RequestKind.RELEASE, number=number).pack())

    thread = threading.Thread(target=shout)
    thread.start()
    try:
        take_turns(arbiter.path, 100, "loud")
    finally:
        ended.set()
        thread.join()
    assert read_status(arbiter.path).pid == arbiter.pid


@pytest.mark.parametrize(
    ("kind", "expected"), [(RequestKind.JOIN, ReplyKind.REFUSED), (RequestKind.EXCUSE, ReplyKind.EXCUSED)]
)
def test_numbers_that_would_outgrow_their_field_are_refused_or_harmless(
    arbiter: ArbiterProcess, kind: RequestKind, expected: ReplyKind
) -> None:
    for number, generation in ((MAX_NUMBER + 1, 1), (0, 2**64 - 1), (2**64 - 1, 2**64 - 1)):
        with raw(arbiter.path) as connection:
            connection.send(Request(kind, number=number, job="a", device="big", generation=generation).pack())
            assert Reply.unpack(connection.recv(REPLY_BYTES)).kind is expected
    take_turns(arbiter.path, device="big")


def test_a_release_of_a_lease_that_one_never_had_ends_the_seat(arbiter: ArbiterProcess) -> None:
    with (
        raw(arbiter.path) as thief,
        Participant(arbiter.path, "b", "theft", wait_limit_s=SOON_S) as b,
    ):
        thief.send(Request(RequestKind.JOIN, job="a", device="theft").pack())
        assert Reply.unpack(thief.recv(REPLY_BYTES)).kind is ReplyKind.WELCOME
        thief.send(Request(RequestKind.RELEASE, number=1).pack())
        assert Reply.unpack(thief.recv(REPLY_BYTES)).kind is ReplyKind.REFUSED
        b.release(b.acquire())


def test_a_thousand_connects_and_half_open_ones_leave_room(arbiter: ArbiterProcess) -> None:
    silent = [raw(arbiter.path) for _ in range(2 * MAX_PENDING)]
    for connection in silent[:10]:
        connection.shutdown(socket.SHUT_WR)
    for _ in range(1000):
        raw(arbiter.path).close()
    take_turns(arbiter.path)
    for connection in silent:
        connection.close()
    num_files = len(os.listdir(f"/proc/{arbiter.pid}/fd"))
    deadline_s = time.monotonic() + SOON_S
    while num_files > 20 and time.monotonic() < deadline_s:
        num_files = len(os.listdir(f"/proc/{arbiter.pid}/fd"))
    assert num_files <= 20


def test_more_seats_than_there_is_room_for_are_refused(tmp_path: Path) -> None:
    jobs = [f"j{n}" for n in range(64)]
    num_devices = MAX_SEATS // len(jobs)
    with start(tmp_path / "full.sock", jobs) as arbiter, ExitStack() as seats:
        for device in map(str, range(num_devices)):
            for job in jobs:
                seats.enter_context(Participant(arbiter.path, job, device, wait_limit_s=SOON_S))
        with pytest.raises(Refused, match=f"{MAX_SEATS} seats taken"):
            Participant(arbiter.path, jobs[0], str(num_devices))
        assert read_status(arbiter.path).pid == arbiter.pid


def test_clients_that_say_nothing_are_disconnected(arbiter: ArbiterProcess) -> None:
    with raw(arbiter.path) as silent:
        assert silent.recv(1) == b""  # after HELLO_LIMIT_S


def test_a_question_may_be_asked_again_on_the_same_connection(arbiter: ArbiterProcess) -> None:
    with raw(arbiter.path) as client:
        for _ in range(3):
            client.send(Request(RequestKind.STATUS).pack())
            assert Reply.unpack(client.recv(1 << 16)).kind is ReplyKind.REPORT


def test_an_undeclared_job_is_excused_from_nothing(arbiter: ArbiterProcess) -> None:
    with pytest.raises(ValueError, match="unknown job 'z'"):
        ask_once(arbiter.path, Request(RequestKind.EXCUSE, job="z", device="0"), ReplyKind.EXCUSED, limit_s=SOON_S)


def _as_nobody(action: str, path: Path) -> bytes:
    """What another user gets: the answer to a packet, or the name of the error."""
    source, sink = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(sink, _try(action, path))
            code = 0
        finally:
            os._exit(code)
    os.close(sink)
    with os.fdopen(source, "rb") as stream:
        told = stream.read()
    assert os.waitpid(pid, 0)[1] == 0
    return told


def _try(action: str, path: Path) -> bytes:
    try:
        with raw(path) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # it may have been turned away already
                connection.send(Request(RequestKind[action], job="a", device="0").pack())
                return connection.recv(REPLY_BYTES)
            return connection.recv(REPLY_BYTES)
    except (PermissionError, ArbiterAbsent) as error:
        return type(error).__name__.encode()


@AS_ROOT
@pytest.mark.parametrize("action", ["JOIN", "STATUS", "EXCUSE"])
def test_another_user_is_stopped_by_folder_and_socket_modes(action: str) -> None:
    with tempfile.TemporaryDirectory() as folder, start(Path(folder) / "u.sock") as arbiter:
        assert _as_nobody(action, arbiter.path) == b"PermissionError"  # the folder's
        os.chmod(folder, 0o755)
        assert _as_nobody(action, arbiter.path) == b"PermissionError"  # the socket's
        assert read_status(arbiter.path).tokens == ()


@AS_ROOT
@pytest.mark.parametrize("action", ["JOIN", "STATUS", "EXCUSE"])
def test_another_user_whom_the_modes_let_in_is_refused_by_his_credentials(action: str) -> None:
    with tempfile.TemporaryDirectory() as folder, start(Path(folder) / "u.sock") as arbiter:
        os.chmod(folder, 0o755)
        os.chmod(arbiter.path, 0o666)
        reply = Reply.unpack(_as_nobody(action, arbiter.path))
        assert reply.kind is ReplyKind.REFUSED
        assert f"not user {NOBODY}" in reply.text
        take_turns(arbiter.path)


@AS_ROOT
def test_a_job_refuses_the_arbiter_of_another_user() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, NOBODY)
        ready, told = os.pipe()
        pid = os.fork()
        if not pid:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as fake:
                fake.bind(f"{folder}/fake.sock")
                fake.listen()
                os.write(told, b".")
                time.sleep(SOON_S)
            os._exit(0)
        assert os.read(ready, 1)
        try:
            with pytest.raises(ValueError, match=f"belongs to user {NOBODY}"):
                Participant(f"{folder}/fake.sock", "a")
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(ready)
            os.close(told)
