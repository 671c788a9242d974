"""The arbiter is killed, and its jobs go on: nobody is overtaken, no turn is lost, nothing is left behind."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from patience import patience_s

from crossover import ArbiterAbsent, ArbiterLost, Lease, Participant, Refused, Sharing
from crossover.arbiter.listening import locked_folder, private_folder
from crossover.arbiter.roster import (
    Roster,
    RosterEntry,
    RosterFile,
    birth_ticks,
    open_process,
    process_state,
)
from crossover.arbiter.server import GENERATIONS_AN_ARBITER
from crossover.commands.waiting import stalls
from crossover.connecting import Line
from crossover.process import ensure
from crossover.protocol import Resource
from crossover.settings import Settings
from crossover.status import HostStatus, read_status
from crossover.tokens import Phase

pytestmark = pytest.mark.slow

SOON_S = patience_s(20.0)  # a bound against hanging, not a speed: the machine may be busy
SETTINGS = Settings(jobs=("a", "b"))


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where an arbiter may be started; it is gone at the end."""
    yield tmp_path / "host.sock"
    with suppress(ArbiterAbsent, ArbiterLost):
        os.kill(read_status(tmp_path / "host.sock").pid, signal.SIGTERM)


@contextmanager
def forked(action: Callable[[], object]) -> Iterator[int]:
    """A child that runs `action` and ends; killed at the latest at the end."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def kill(path: Path, how: signal.Signals = signal.SIGKILL) -> None:
    """End the arbiter that serves `path`, and return when it is gone."""
    pid = read_status(path).pid
    os.kill(pid, how)
    eventually(lambda: birth_ticks(pid) == 0)


def eventually(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def seat(path: Path, job: str, settings: Settings = SETTINGS) -> Participant:
    return Participant(path, job, settings=settings, wait_limit_s=SOON_S)


def phases(status: HostStatus) -> dict[str, Phase]:
    return {seat.job: seat.phase for token in status.tokens for seat in token.seats}


def in_thread(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def test_the_holder_ends_its_turn_and_is_not_overtaken(path: Path) -> None:
    with seat(path, "a") as a, seat(path, "b") as b:
        lease = a.acquire()
        granted: list[Lease] = []
        thread = in_thread(lambda: granted.append(b.acquire()))
        eventually(lambda: phases(read_status(path)).get("b") is Phase.WAITING)
        kill(path)
        eventually(lambda: _serves(path) and phases(read_status(path)).get("b") is Phase.WAITING)
        thread.join(0.3)
        assert not granted
        a.release(lease)
        thread.join(SOON_S)
        assert granted[0].round == 0
        assert granted[0].generation > lease.generation


def _serves(path: Path) -> bool:
    with suppress(ArbiterAbsent, ArbiterLost):
        return bool(read_status(path))
    return False


def test_rounds_go_on_where_they_were(path: Path) -> None:
    with seat(path, "a") as a, seat(path, "b") as b:
        for number in range(3):
            for job in (a, b):
                with job.turn() as lease:
                    assert lease.round == number
        kill(path)
        thread = in_thread(lambda: b.release(b.acquire()))  # it comes back first and waits for a
        with a.turn() as lease:
            assert lease.round == 3
            assert lease.generation > GENERATIONS_AN_ARBITER
        thread.join(SOON_S)
        with a.turn() as lease:
            assert lease.round == 4


def test_a_process_that_died_with_the_arbiter_is_not_waited_for(path: Path) -> None:
    ready, told = os.pipe()

    def hold_for_ever() -> None:
        mine = seat(path, "a")
        mine.acquire()
        os.write(told, b".")
        time.sleep(SOON_S)

    with forked(hold_for_ever) as pid, seat(path, "b") as b:
        assert os.read(ready, 1)
        kill(path)
        os.kill(pid, signal.SIGKILL)
        assert b.acquire().round == 0
    os.close(ready)
    os.close(told)


def test_a_process_that_dies_later_is_waited_for_until_then(path: Path) -> None:
    ready, told = os.pipe()

    def hold_for_ever() -> None:
        mine = seat(path, "a")
        mine.acquire()
        os.write(told, b".")
        time.sleep(SOON_S)

    with forked(hold_for_ever) as pid, seat(path, "b") as b:
        assert os.read(ready, 1)
        kill(path)
        granted: list[Lease] = []
        thread = in_thread(lambda: granted.append(b.acquire()))
        thread.join(0.3)
        assert not granted
        os.kill(pid, signal.SIGKILL)
        thread.join(SOON_S)
        assert granted
    os.close(ready)
    os.close(told)


def test_a_job_that_left_under_no_arbiter_is_not_waited_for(path: Path) -> None:
    with seat(path, "b") as b:
        a = seat(path, "a")
        a.release(a.acquire())
        kill(path)
        a.leave()
        assert b.acquire().round == 0


def test_a_job_that_left_before_is_not_waited_for(path: Path) -> None:
    with seat(path, "b") as b:
        with seat(path, "a") as a:
            a.release(a.acquire())
        kill(path)
        b.release(b.acquire())
        assert phases(read_status(path)) == {"a": Phase.LEFT, "b": Phase.IDLE}


def test_a_lease_aside_does_not_meet_a_turn_of_the_dead_arbiter(path: Path) -> None:
    with seat(path, "a") as a, seat(path, "b") as b:
        lease = a.acquire()
        kill(path)
        granted: list[Lease] = []
        thread = in_thread(lambda: granted.append(b.acquire(aside=True)))
        thread.join(0.3)
        assert not granted
        a.release(lease)
        thread.join(SOON_S)
        assert granted


def test_an_arbiter_that_is_ended_in_mid_turn_is_replaced_with_the_same_care(path: Path) -> None:
    with seat(path, "a") as a, seat(path, "b") as b:
        lease = a.acquire()
        kill(path, signal.SIGTERM)
        granted: list[Lease] = []
        thread = in_thread(lambda: granted.append(b.acquire(aside=True)))
        thread.join(0.3)
        assert not granted
        a.release(lease)
        thread.join(SOON_S)
        assert granted


def test_a_hung_process_is_waited_for_as_long_as_a_lease_may_last(path: Path) -> None:
    settings = Settings(jobs=("a", "b"), lease_limit_s=patience_s(0.3))
    with seat(path, "a", settings) as a, seat(path, "b", settings) as b:
        a.acquire()
        kill(path)
        assert b.acquire().round == 0  # a never comes back


def test_who_is_waited_for_after_a_replacement_is_told_with_its_process(path: Path) -> None:
    with seat(path, "a") as a, seat(path, "b") as b:
        lease = a.acquire()
        kill(path)
        thread = in_thread(lambda: b.release(b.acquire()))
        eventually(lambda: _serves(path) and phases(read_status(path)).get("b") is Phase.WAITING)
        (stall,) = stalls(read_status(path), patience_s=0.0)
        a.release(lease)
        thread.join(SOON_S)
    assert stall.culprits == ("a",)
    assert f"has not come back (process {os.getpid()})" in stall.told


def test_another_process_cannot_take_the_place_of_one_that_is_awaited(path: Path) -> None:
    with seat(path, "a") as a:
        seat_of_b = seat(path, "b")
        a.acquire()
        kill(path)
        ensure(path, SETTINGS)

        def intrude() -> None:
            with pytest.raises(Refused, match="has its seat already"):
                seat(path, "a")

        with forked(intrude) as pid:
            assert os.waitpid(pid, 0)[1] == 0
        seat_of_b.leave()


def test_a_wait_that_was_broken_off_frees_the_seat_until_the_next_request(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(line: Line, packet: bytes, *_: object) -> bytes:
        line._socket.send(packet)
        raise KeyboardInterrupt

    with seat(path, "a") as a, seat(path, "b") as b:
        lease = a.acquire()
        with monkeypatch.context() as patch:
            patch.setattr(Line, "_answered", interrupted)
            with pytest.raises(KeyboardInterrupt):
                b.acquire()
        a.release(lease)
        a.release(a.acquire())  # nobody waits for b
        with b.turn(aside=True):
            assert phases(read_status(path))["b"] is Phase.HOLDING
        b.leave()
        with pytest.raises(ArbiterLost, match="has left"):
            b.acquire()


def test_without_settings_a_participant_does_not_come_back(path: Path) -> None:
    ensure(path, SETTINGS)
    with Participant(path, "a", wait_limit_s=SOON_S) as a:
        kill(path)
        with pytest.raises(ArbiterLost, match="start it again"):
            a.acquire()


@pytest.mark.parametrize("sharing", [Sharing.CROSSOVER, Sharing.EXCLUSIVE, Sharing.SLOT_BARRIER])
def test_random_kills_never_let_two_jobs_in(path: Path, sharing: Sharing) -> None:
    """Twenty kills in a run of turns; the jobs themselves check with a file's lock that each is alone."""
    settings = Settings(jobs=("a", "b"), sharing=sharing)
    num_turns, num_kills = 120, 20 if sharing is Sharing.CROSSOVER else 5
    lock = path.with_name("device")
    lock.touch()

    def take_turns(job: str) -> None:
        random = Random(job)
        rounds, generations = [], []
        with seat(path, job, settings) as mine, lock.open() as device:
            for _ in range(num_turns):
                with mine.turn() as lease:
                    fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if the other job is at its turn
                    time.sleep(random.uniform(0, 0.01))
                    fcntl.flock(device, fcntl.LOCK_UN)
                rounds.append(lease.round)
                generations.append(lease.generation)
                time.sleep(random.uniform(0, 0.01))
        assert rounds == list(range(num_turns))
        assert generations == sorted(set(generations))

    random = Random(sharing.value)
    with forked(lambda: take_turns("a")) as a, forked(lambda: take_turns("b")) as b:
        for _ in range(num_kills):
            time.sleep(random.uniform(0.0, 0.08))
            with suppress(ArbiterAbsent, ArbiterLost, ProcessLookupError):
                os.kill(read_status(path).pid, signal.SIGKILL)
        assert [os.waitpid(pid, 0)[1] for pid in (a, b)] == [0, 0]


def test_both_jobs_replace_their_arbiter_at_once(path: Path) -> None:
    num_rounds = 5
    barrier = threading.Barrier(2)

    def take_turns(job: str) -> None:
        with seat(path, job) as mine:
            for number in range(num_rounds):
                if not barrier.wait(SOON_S):
                    _kill_if_there(path)
                barrier.wait(SOON_S)
                with mine.turn() as lease:
                    assert lease.round == number

    threads = [in_thread(lambda job=job: take_turns(job)) for job in ("a", "b")]  # type: ignore[misc]
    for thread in threads:
        thread.join(3 * SOON_S)
        assert not thread.is_alive()


def _kill_if_there(path: Path) -> None:
    with suppress(ArbiterAbsent):
        kill(path)


def test_the_roster_lists_who_is_here_and_is_gone_at_the_end(path: Path) -> None:
    ensure(path, SETTINGS, linger_s=0.1)
    a = seat(path, "a")
    with private_folder(path.parent) as folder:
        roster = RosterFile(folder, path.name).read()
    assert roster is not None
    assert [(entry.job, entry.is_here, entry.pid) for entry in roster.entries] == [("a", True, os.getpid())]
    assert path.with_name("host.sock.roster").stat().st_mode & 0o777 == 0o600
    a.leave()
    eventually(lambda: not path.exists())
    assert {file.name for file in path.parent.iterdir()} <= {"host.sock.log"}


def test_a_roster_is_read_as_written(tmp_path: Path) -> None:
    entries = (
        RosterEntry(Resource.DEVICE, "0", "a", stint=2, is_here=True, pid=7, birth_ticks=9),
        RosterEntry(Resource.LINK, "0", "b", stint=1, is_here=False),
    )
    tmp_path.chmod(0o700)
    with private_folder(tmp_path) as folder:
        RosterFile(folder, "r").write(Roster(SETTINGS, 5, entries))
        assert RosterFile(folder, "r").read() == Roster(SETTINGS, 5, entries)
        assert RosterFile(folder, "absent").read() is None


def test_a_damaged_roster_is_refused_by_name(path: Path) -> None:
    with locked_folder(path.parent):
        path.with_name("host.sock.roster").write_text("{")
    with pytest.raises(Refused, match="damaged: end the jobs on it and remove it"):
        ensure(path, SETTINGS)


def test_other_settings_are_refused_while_jobs_of_the_dead_arbiter_run(path: Path) -> None:
    others = Settings(jobs=("a", "c"))
    with seat(path, "a") as a:
        kill(path)
        with pytest.raises(Refused, match="or end that job"):
            ensure(path, others)
        a.leave()
    assert ensure(path, others).jobs == ("a", "c")


def test_a_number_that_is_used_again_is_another_process() -> None:
    me = RosterEntry(
        Resource.DEVICE, "0", "a", stint=0, is_here=True, pid=os.getpid(), birth_ticks=birth_ticks(os.getpid())
    )
    fd = open_process(me)
    assert fd is not None
    os.close(fd)
    stranger = RosterEntry(Resource.DEVICE, "0", "a", stint=0, is_here=True, pid=os.getpid(), birth_ticks=1)
    assert open_process(stranger) is None


def test_an_arbiter_whose_starter_dies_before_it_listens_serves_others(path: Path) -> None:
    """The kernel tells a stopped process with SIGHUP that its group is orphaned, and nobody reads its `ready`."""
    with locked_folder(path.parent) as folder:
        fd = os.dup(folder.fd)
        words = [sys.executable, "-c", STARTS, str(fd), str(path), SETTINGS.to_json()]
        with subprocess.Popen(words, pass_fds=[fd], stdout=subprocess.PIPE, text=True) as starter:
            assert starter.stdout is not None
            pid = int(starter.stdout.readline())
        os.close(fd)
        eventually(lambda: process_state(pid) == "T")
        os.kill(pid, signal.SIGHUP)
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: _serves(path))  # the socket is there before it is listened at
    assert read_status(path, limit_s=SOON_S).pid == pid
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: not path.exists())


STARTS = """
import os, signal, sys
from crossover.arbiter import main as arbiter
source, sink = os.pipe()
def stop_first():
    print(os.getpid(), flush=True)
    os.dup2(sink, 1)
    os.close(source)
    os.kill(os.getpid(), signal.SIGSTOP)
arbiter._raise_file_limit = stop_first
arbiter._detach = lambda: os._exit(0) if os.fork() else os.setsid()
sys.exit(arbiter.main(["--linger=60", f"--folder-fd={sys.argv[1]}", "--", *sys.argv[2:]]))
"""
