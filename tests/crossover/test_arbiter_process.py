"""The arbiter as a real process, and participants in others."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from patience import patience_s

from crossover import (
    Alone,
    ArbiterAbsent,
    ArbiterLost,
    ArbiterProcess,
    CrossoverError,
    Extent,
    Lease,
    LeaseLost,
    Participant,
    Refused,
    Resource,
    Sharing,
    start,
)
from crossover.arbiter.acceptor import MAX_PENDING
from crossover.protocol import REPLY_BYTES, Reply, ReplyKind, Request, RequestKind

SOON_S = patience_s(10.0)  # a bound against hanging, not a speed: the machine may be busy


@pytest.fixture
def arbiter(tmp_path: Path) -> Iterator[ArbiterProcess]:
    with start(tmp_path / "host.sock") as process:
        yield process


@contextmanager
def forked(action: Callable[[], object]) -> Iterator[int]:
    """A child that runs `action`, keeps what it returns, and sleeps; killed at the end."""
    pid = os.fork()
    if not pid:
        with suppress(BaseException):
            kept = action()
            time.sleep(60)
            del kept
        os._exit(3)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def ask_in_thread(participant: Participant) -> tuple[threading.Thread, list[object]]:
    """Acquire elsewhere; the thread, and a list that will hold the lease or the error."""
    outcome: list[object] = []

    def acquire() -> None:
        try:
            outcome.append(participant.acquire())
        except CrossoverError as error:
            outcome.append(error)

    thread = threading.Thread(target=acquire)
    thread.start()
    return thread, outcome


def seat(arbiter: ArbiterProcess, job: str, device: str = "0", *, resource: Resource = Resource.DEVICE) -> Participant:
    """A participant that gives up rather than hang."""
    return Participant(arbiter.path, job, device, resource=resource, wait_limit_s=SOON_S)


def raw(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(path))
    connection.settimeout(SOON_S)
    return connection


def is_alive(path: Path) -> bool:
    """Whether the arbiter still lends its token."""
    with (
        Participant(path, "a", "probe", wait_limit_s=SOON_S) as a,
        Participant(path, "b", "probe", wait_limit_s=SOON_S),
    ):
        a.release(a.acquire())
    return True


def test_jobs_alternate_in_the_declared_order(arbiter: ArbiterProcess) -> None:
    order: list[str] = []

    def run(job: str) -> None:
        with seat(arbiter, job) as mine:
            for _ in range(20):
                with mine.turn():
                    order.append(job)

    threads = [threading.Thread(target=run, args=(job,)) for job in ("b", "a")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "".join(order) == "ab" * 20


def test_leases_are_numbered_and_rounds_counted(arbiter: ArbiterProcess) -> None:
    with Participant(arbiter.path, "a") as a, Participant(arbiter.path, "b") as b:
        with a.turn() as lease:
            assert (lease.generation, lease.round) == (1, 0)
        with b.turn() as lease:
            assert (lease.generation, lease.round) == (2, 0)
        with a.turn() as lease:
            assert (lease.generation, lease.round) == (3, 1)


def test_exclusive_lends_to_the_second_job_when_the_first_has_left(tmp_path: Path) -> None:
    with start(tmp_path / "x.sock", sharing=Sharing.EXCLUSIVE) as arbiter, seat(arbiter, "b") as b:
        thread, outcome = ask_in_thread(b)
        with seat(arbiter, "a") as a:
            for _ in range(3):
                with a.turn():
                    assert not outcome
        thread.join()
        assert isinstance(outcome[0], Lease)


def test_naive_lends_to_both_at_once(tmp_path: Path) -> None:
    with start(tmp_path / "n.sock", sharing=Sharing.NAIVE) as arbiter, seat(arbiter, "a") as a, seat(arbiter, "b") as b:
        leases = [a.acquire(), b.acquire()]
    assert [lease.generation for lease in leases] == [1, 2]


def test_hold_is_told_to_the_participants(tmp_path: Path) -> None:
    with start(tmp_path / "h.sock", ("a",), Sharing.HOLD) as arbiter, Participant(arbiter.path, "a") as a:
        assert a.extent is Extent.MESSAGES


def test_devices_and_the_link_have_tokens_of_their_own(arbiter: ArbiterProcess) -> None:
    tokens = [("0", Resource.DEVICE), ("1", Resource.DEVICE), ("0", Resource.LINK)]
    with ExitStack() as seats:
        pairs = [
            [seats.enter_context(seat(arbiter, job, device, resource=resource)) for job in ("a", "b")]
            for device, resource in tokens
        ]
        leases = [a.acquire() for a, _ in pairs]  # all three at once
    assert [lease.generation for lease in leases] == [1, 1, 1]


def test_the_other_job_goes_on_when_the_holder_is_killed(arbiter: ArbiterProcess) -> None:
    def hold() -> Participant:
        a = Participant(arbiter.path, "a")
        a.acquire()
        os.write(held, b".")
        return a

    holds, held = os.pipe()
    with seat(arbiter, "b") as b, forked(hold) as pid:
        assert os.read(holds, 1)
        thread, outcome = ask_in_thread(b)
        thread.join(0.1)
        assert not outcome
        os.kill(pid, signal.SIGKILL)
        thread.join()
    os.close(holds)
    os.close(held)
    assert isinstance(outcome[0], Lease)


def test_a_killed_holder_is_noticed_though_its_child_keeps_the_socket(arbiter: ArbiterProcess) -> None:
    def hold_and_fork() -> Participant:
        a = Participant(arbiter.path, "a")
        a.acquire()
        assert a._line is not None
        os.dup(a._line._socket.fileno())  # type: ignore[union-attr]  # a child of C code keeps its copy
        child = os.fork()
        if not child:
            time.sleep(SOON_S)
            os._exit(0)
        os.write(held, child.to_bytes(8, "little"))
        return a

    holds, held = os.pipe()
    with Participant(arbiter.path, "b", wait_limit_s=SOON_S / 2) as b, forked(hold_and_fork) as pid:
        grandchild = int.from_bytes(os.read(holds, 8), "little")
        thread, outcome = ask_in_thread(b)
        thread.join(0.1)
        assert not outcome
        os.kill(pid, signal.SIGKILL)
        thread.join()
        assert isinstance(outcome[0], Lease)
        os.kill(grandchild, signal.SIGKILL)
    os.close(holds)
    os.close(held)


def test_the_others_go_on_when_a_waiting_job_is_killed(arbiter: ArbiterProcess) -> None:
    with seat(arbiter, "a") as a:
        with forked(lambda: Participant(arbiter.path, "b").acquire()):
            a.release(a.acquire())  # possible only once b has come
        rounds = []
        for _ in range(2):
            lease = a.acquire()
            rounds.append(lease.round)
            a.release(lease)
    assert rounds == [1, 2]


def test_the_third_job_goes_on_when_the_next_one_dies_waiting(tmp_path: Path) -> None:
    with start(tmp_path / "3.sock", ("a", "b", "c")) as arbiter, seat(arbiter, "a") as a, seat(arbiter, "c") as c:
        with forked(lambda: Participant(arbiter.path, "b").acquire()):
            lease = a.acquire()
            thread, outcome = ask_in_thread(c)
        a.release(lease)
        thread.join()
    assert isinstance(outcome[0], Lease)


def test_a_forked_child_holds_no_seat_and_takes_none_from_its_parent(arbiter: ArbiterProcess) -> None:
    agreed: list[int] = []

    def agree(number: int) -> int:
        agreed.append(number)
        return number

    def use_the_parents(a: Participant, lease: Lease) -> None:
        a.release(lease)
        for aside in (False, True):
            with a.turn(aside=aside) as mine:
                assert mine.generation == 0
        a.pause()
        a.resume()
        a.skip(3)
        a.leave()

    with Participant(arbiter.path, "a", wait_limit_s=SOON_S, agree=agree) as a, seat(arbiter, "b") as b:
        lease = a.acquire()
        before = len(agreed)
        pid = os.fork()
        if not pid:
            code = 1
            with suppress(BaseException):
                use_the_parents(a, lease)
                code = len(agreed) - before
            os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        a.release(lease)
        for job, round_ in ((b, 0), (a, 1), (b, 1)):
            with job.turn() as lease:
                assert lease.round == round_


def test_a_turn_that_fails_is_released(arbiter: ArbiterProcess) -> None:
    with seat(arbiter, "a") as a, seat(arbiter, "b") as b:
        with pytest.raises(ZeroDivisionError), a.turn():
            raise ZeroDivisionError
        with b.turn() as lease:
            assert lease.generation == 2


def test_a_stopped_holder_is_fenced_when_it_wakes(tmp_path: Path) -> None:
    def hold_and_release() -> None:
        a = Participant(arbiter.path, "a")
        lease = a.acquire()
        os.write(held, b"held")
        try:
            os.read(go_on, 1)
            a.release(lease)
        except LeaseLost:
            os.write(held, b"lost")

    (holds, held), (go_on, told) = os.pipe(), os.pipe()
    with (
        start(tmp_path / "s.sock", lease_limit_s=patience_s(0.5)) as arbiter,
        seat(arbiter, "b") as b,
        forked(hold_and_release) as pid,
    ):
        assert os.read(holds, 4) == b"held"
        os.kill(pid, signal.SIGSTOP)
        b.release(b.acquire())
        os.kill(pid, signal.SIGCONT)
        os.write(told, b".")
        assert os.read(holds, 4) == b"lost"
    for fd in (holds, held, go_on, told):
        os.close(fd)


def test_waiting_jobs_get_an_error_when_the_arbiter_is_killed(tmp_path: Path) -> None:
    with (
        start(tmp_path / "k.sock") as arbiter,
        Participant(arbiter.path, "a") as a,
        Participant(arbiter.path, "b") as b,
    ):
        lease = a.acquire()
        thread, outcome = ask_in_thread(b)
        os.kill(arbiter.pid, signal.SIGKILL)
        thread.join(SOON_S)
        assert isinstance(outcome[0], ArbiterLost)
        while arbiter.is_running:  # its sockets close one after the other
            time.sleep(0.001)
        with pytest.raises(ArbiterLost, match="start it again"):
            a.release(lease)
        with pytest.raises(ArbiterLost, match="make a new Participant"):
            a.acquire()


def test_the_starter_of_an_arbiter_that_was_killed_removes_what_it_left(tmp_path: Path) -> None:
    with start(tmp_path / "r.sock") as arbiter, seat(arbiter, "a"):
        os.kill(arbiter.pid, signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []
    with start(tmp_path / "r.sock") as arbiter:
        os.kill(arbiter.pid, signal.SIGKILL)
        while arbiter.is_running:
            time.sleep(0.001)
        with start(tmp_path / "r.sock") as another:
            arbiter.stop()
            with seat(another, "a"):
                assert another.is_running, "the second one's socket is not the first one's to remove"


def test_an_arbiter_replaces_the_socket_of_a_dead_one_and_respects_a_live_one(tmp_path: Path) -> None:
    path = tmp_path / "r.sock"
    with start(path) as arbiter:
        with pytest.raises(Refused, match=r"serves .* already"):
            start(path)
        assert is_alive(path)
        os.kill(arbiter.pid, signal.SIGKILL)
        while arbiter.is_running:
            time.sleep(0.001)
        assert path.exists()
        with start(path):
            assert is_alive(path)
        assert not path.exists()


def test_an_arbiter_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        f"from crossover import start; import os, signal; start({str(tmp_path / 'p.sock')!r}); os.kill(os.getpid(), 9)"
    )
    parent = subprocess.run([sys.executable, "-c", script], check=False, env={"PYTHONPATH": os.getcwd()})
    assert parent.returncode == -signal.SIGKILL
    deadline_s = time.monotonic() + SOON_S
    while (tmp_path / "p.sock").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_withdrawn_lease_is_fenced_and_the_job_may_go_on(tmp_path: Path) -> None:
    with (
        start(tmp_path / "l.sock", lease_limit_s=patience_s(0.5)) as arbiter,
        seat(arbiter, "a") as a,
        seat(arbiter, "b") as b,
    ):
        stale = a.acquire()
        with b.turn():
            pass
        with pytest.raises(LeaseLost, match="raise the arbiter's lease limit"):
            a.release(stale)
        a.release(a.acquire())


def test_absent_jobs_are_waited_for_only_so_long(tmp_path: Path) -> None:
    with start(tmp_path / "g.sock", ("a", "b", "c"), gather_limit_s=0.05) as arbiter, seat(arbiter, "b") as b:
        lease = b.acquire()
        assert lease.generation == 1
        b.release(lease)


def test_a_job_without_patience_gets_an_error(arbiter: ArbiterProcess) -> None:
    limit_s = patience_s(0.5)  # for its joining too, which must not take so long
    with (
        Participant(arbiter.path, "a", wait_limit_s=limit_s) as a,
        pytest.raises(ArbiterLost, match=f"no answer in {limit_s} s"),
    ):
        a.acquire()


def test_the_socket_is_private(arbiter: ArbiterProcess) -> None:
    assert stat.S_IMODE(arbiter.path.stat().st_mode) == 0o600


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(Refused, match="chmod 700"):
        start(tmp_path / "o.sock")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_even_where_the_file_modes_let_him_in() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "u.sock"
        with start(path) as arbiter:
            os.chmod(folder, 0o755)
            os.chmod(path, 0o666)
            answer, told = os.pipe()

            def try_as_nobody() -> None:
                os.setuid(65534)
                with raw(path) as connection:
                    os.write(told, connection.recv(REPLY_BYTES))  # it says nothing, so nothing is reset

            with forked(try_as_nobody):
                reply = Reply.unpack(os.read(answer, REPLY_BYTES))
            os.close(answer)
            os.close(told)
            assert reply.kind is ReplyKind.REFUSED
            assert "not user 65534" in reply.text
            assert is_alive(arbiter.path)


@pytest.mark.parametrize(
    "packet",
    [
        b"x",
        b"\xff" * 4096,
        bytes(300),
        Request(RequestKind.ACQUIRE).pack(),
        Request(RequestKind.RELEASE, number=5).pack(),
        b"\0" * 100_000,
    ],
    ids=["short", "oversized", "zeros", "acquire-first", "release-first", "huge"],
)
def test_a_stranger_packet_is_refused_and_hurts_nobody(arbiter: ArbiterProcess, packet: bytes) -> None:
    with raw(arbiter.path) as connection:
        connection.send(packet)
        assert Reply.unpack(connection.recv(REPLY_BYTES)).kind is ReplyKind.REFUSED
        assert connection.recv(1) == b""
    assert is_alive(arbiter.path)


def test_a_crowd_of_connections_loses_its_oldest_and_keeps_nobody_from_a_seat(arbiter: ArbiterProcess) -> None:
    crowd = [raw(arbiter.path) for _ in range(2 * MAX_PENDING)]
    assert is_alive(arbiter.path)
    assert all(connection.recv(1) == b"" for connection in crowd[:MAX_PENDING])
    for connection in crowd:
        connection.close()
    for _ in range(1000):
        raw(arbiter.path).close()
    assert is_alive(arbiter.path)


def test_a_peer_that_asks_and_never_reads_is_dropped(arbiter: ArbiterProcess) -> None:
    with raw(arbiter.path) as flood, suppress(BrokenPipeError, ConnectionResetError):
        flood.send(Request(RequestKind.JOIN, job="a", device="flood").pack())
        for _ in range(5000):
            flood.send(Request(RequestKind.RELEASE, number=99).pack())
    assert is_alive(arbiter.path)


def test_random_packets_on_many_seats_leave_the_arbiter_serving(arbiter: ArbiterProcess) -> None:
    random = Random(0)
    packets = [
        Request(ask, device="fuzz", job=job, number=n).pack() for ask in RequestKind for job in "abc" for n in range(4)
    ]
    crowd = [raw(arbiter.path) for _ in range(8)]
    for _ in range(2000):
        place = random.randrange(len(crowd))
        packet = bytearray(random.choice(packets))
        if random.random() < 0.1:
            packet[random.randrange(len(packet))] = random.randrange(256)
        try:
            crowd[place].send(packet)
        except (BrokenPipeError, ConnectionResetError):  # refused and hung up: come again
            crowd[place].close()
            crowd[place] = raw(arbiter.path)
    for connection in crowd:
        connection.close()
    assert is_alive(arbiter.path)


def test_errors_name_what_was_wrong_and_what_helps(arbiter: ArbiterProcess, tmp_path: Path) -> None:
    with pytest.raises(ArbiterAbsent, match="start one with"):
        Participant(tmp_path / "nobody.sock", "a")
    with pytest.raises(Refused, match=r"unknown job 'c'.*started for a, b"):
        Participant(arbiter.path, "c")
    with Participant(arbiter.path, "a") as a, Participant(arbiter.path, "b"):
        with pytest.raises(Refused, match="has its seat already"):
            Participant(arbiter.path, "a")
        with a.turn(), pytest.raises(Refused, match="release it first"):
            a.acquire()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jobs": ("a", "a")}, "different names"),
        ({"jobs": ("a b",)}, "job name"),
        ({"lease_limit_s": 0.0}, "positive number of seconds"),
        ({"lead_rounds": 3}, "lead_rounds must be"),
    ],
)
def test_an_arbiter_that_cannot_start_says_why(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(Refused, match=message):
        start(tmp_path / "bad.sock", **options)  # type: ignore[arg-type]


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="use a shorter folder"):
        start(tmp_path / ("x" * 120))


def test_a_job_alone_has_every_turn_at_once() -> None:
    with Alone() as job:
        for number in range(3):
            with job.turn() as lease:
                assert (lease.round, lease.waited_s) == (number, 0.0)


def test_importing_the_package_does_not_import_torch() -> None:
    script = "import crossover, crossover.arbiter.main, crossover.simulator, sys; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=False, env={"PYTHONPATH": os.getcwd()})
    assert done.returncode == 0


def test_the_hand_over_benchmark_runs() -> None:
    command = [sys.executable, "benchmarks/handover.py", "--hand-overs=40", "--turn-ms=0.1", "--json"]
    output = subprocess.run(command, check=True, env={"PYTHONPATH": os.getcwd()}, capture_output=True).stdout
    assert set(json.loads(output)) >= {"arbiter_p50_us", "relay_p50_us", "ratio_p99"}


def test_a_job_that_does_not_come_for_its_turn_is_passed_over_until_it_does(tmp_path: Path) -> None:
    with start(tmp_path / "i.sock", idle_limit_s=0.2) as arbiter, seat(arbiter, "a") as a, seat(arbiter, "b") as b:
        a.release(a.acquire())
        rounds = []
        for _ in range(2):
            b.release(b.acquire())  # the second one only after a's turn, for which a does not come
            rounds.append(b.next_round)
        assert rounds == [1, 2]
        assert a.acquire().round == 2


@pytest.mark.parametrize("sharing", [Sharing.EXCLUSIVE, Sharing.HOLD])
def test_who_waits_for_messages_in_its_turn_is_not_passed_over(tmp_path: Path, sharing: Sharing) -> None:
    with (
        start(tmp_path / "e.sock", sharing=sharing, idle_limit_s=0.05) as arbiter,
        seat(arbiter, "b") as b,
        seat(arbiter, "a") as a,
    ):
        thread, outcome = ask_in_thread(b)
        thread.join(0.3)
        assert not outcome
        a.leave()
        thread.join()
