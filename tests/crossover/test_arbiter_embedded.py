"""An arbiter that the first job starts, that serves whoever comes, and that ends by itself; and what it tells."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import patience_s

from crossover import ArbiterAbsent, ArbiterLost, Participant, Refused, Sharing, start
from crossover.process import default_path, ensure
from crossover.protocol import REPORT_BYTES, Resource
from crossover.settings import Settings
from crossover.status import HostStatus, SeatStatus, TokenStatus, read_status
from crossover.tokens import Phase

SOON_S = patience_s(20.0)  # a bound against hanging, not a speed: the machine may be busy
SETTINGS = Settings(jobs=("a", "b"))


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where an arbiter may be started; it is gone at the end."""
    yield tmp_path / "host.sock"
    with suppress(ArbiterAbsent, ArbiterLost):
        os.kill(read_status(tmp_path / "host.sock").pid, signal.SIGTERM)


def eventually(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_many_first_jobs_start_one_arbiter(path: Path) -> None:
    pids: list[int] = []
    threads = [threading.Thread(target=lambda: pids.append(ensure(path, SETTINGS).pid)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 6
    assert len(set(pids)) == 1


def test_an_arbiter_ends_by_itself_and_leaves_nothing_but_its_log(path: Path) -> None:
    linger_s = patience_s(0.5)  # the job must come before it is over
    pid = ensure(path, SETTINGS, linger_s=linger_s).pid
    with Participant(path, "a", settings=SETTINGS):
        time.sleep(2 * linger_s)
        assert read_status(path).pid == pid
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert [file.name for file in path.parent.iterdir()] == ["host.sock.log"]
    assert (path.parent / "host.sock.log").stat().st_mode & 0o777 == 0o600


def test_an_arbiter_that_nobody_comes_to_ends_too(path: Path) -> None:
    pid = ensure(path, SETTINGS, linger_s=0.1).pid
    eventually(lambda: not path.exists())
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert [file.name for file in path.parent.iterdir()] == ["host.sock.log"]


def test_pending_clients_do_not_keep_an_arbiter_alive(path: Path) -> None:
    ensure(path, SETTINGS, linger_s=0.3)
    eventually(lambda: not _answers(path) and not path.exists())  # it is asked all the time
    assert [file.name for file in path.parent.iterdir()] == ["host.sock.log"]


def _answers(path: Path) -> bool:
    with suppress(ArbiterAbsent, ArbiterLost):
        return bool(read_status(path))
    return False


def test_the_arbiter_outlives_the_job_that_started_it(path: Path) -> None:
    script = (
        "import os, sys; from crossover.process import ensure; from crossover.settings import Settings; "
        f"ensure({str(path)!r}, Settings(jobs=('a', 'b'))); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, env={"PYTHONPATH": os.getcwd()})
    assert done.returncode == -signal.SIGKILL
    status = read_status(path)
    assert status.settings == SETTINGS
    fields = Path(f"/proc/{status.pid}/stat").read_text().rpartition(")")[2].split()
    assert int(fields[3]) not in (0, os.getsid(0))  # a session of its own: no signal of a job's group reaches it
    assert Path(f"/proc/{status.pid}/cwd").resolve() == Path("/")
    assert Path(f"/proc/{status.pid}/fd/0").resolve() == Path("/dev/null")


def test_other_settings_are_refused_and_both_are_named(path: Path) -> None:
    ensure(path, SETTINGS)
    with pytest.raises(Refused, match=r'"sharing": "crossover".*"sharing": "hold".*another path'):
        ensure(path, Settings(jobs=("a", "b"), sharing=Sharing.HOLD))


def test_an_embedded_arbiter_that_cannot_start_says_why(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(Refused, match="chmod 700"):
        ensure(tmp_path / "o.sock", SETTINGS)
    with pytest.raises(Refused, match="use a shorter folder"):
        ensure(tmp_path / ("x" * 120), SETTINGS)


def test_a_participant_with_settings_starts_its_arbiter(path: Path) -> None:
    with (
        Participant(path, "a", settings=SETTINGS, wait_limit_s=SOON_S) as a,
        Participant(path, "b", settings=SETTINGS, wait_limit_s=SOON_S) as b,
    ):
        for job in (a, b, a):
            job.release(job.acquire())
        turns = {seat.job: seat.num_turns for token in read_status(path).tokens for seat in token.seats}
        assert turns == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"CROSSOVER_SOCKET": "/x/y.sock", "XDG_RUNTIME_DIR": "/run/user/7"}, "/x/y.sock"),
        ({}, f"/tmp/crossover-{os.geteuid()}/{socket.gethostname()}.sock"),
    ],
)
def test_the_default_path_is_private_to_user_and_host(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("CROSSOVER_SOCKET", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_path() == Path(expected)


def test_a_late_job_enters_at_the_round_that_its_workers_agree_on(tmp_path: Path) -> None:
    with (
        start(tmp_path / "l.sock", gather_limit_s=0.05) as arbiter,
        Participant(arbiter.path, "a", wait_limit_s=SOON_S) as a,
    ):
        for _ in range(5):
            a.release(a.acquire())
        told: list[int] = []

        def agree(entry: int) -> int:
            told.append(entry)
            return entry + 3 if entry else 0  # as if another worker were ahead

        with Participant(arbiter.path, "b", agree=agree, wait_limit_s=SOON_S) as b:
            assert told == [0, 5]  # before it has a seat, and with the round at which that lets it in
            assert b.next_round == 8
            for _ in range(3):  # rounds 5 to 7 are a's alone
                a.release(a.acquire())
            a.release(a.acquire())
            assert b.acquire().round == 8


def test_after_some_seconds_it_is_said_which_job_is_missing(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        start(path.with_name("all.sock")) as whole,
        Participant(whole.path, "a"),
        Participant(whole.path, "b"),
        Participant(path, "a", settings=SETTINGS),
    ):
        eventually(lambda: "no process has joined as b yet" in path.with_name("host.sock.log").read_text())
        assert "a waits at device 0" in path.with_name("host.sock.log").read_text()
    assert "waits" not in capfd.readouterr().err  # where all have come nothing is said


def test_the_first_jobs_agree_on_round_zero(path: Path) -> None:
    with Participant(path, "a", settings=SETTINGS, agree=lambda entry: entry) as a:
        assert a.next_round == 0


def test_status_tells_phases_rounds_and_times(tmp_path: Path) -> None:
    with (
        start(tmp_path / "s.sock") as arbiter,
        Participant(arbiter.path, "a", wait_limit_s=SOON_S) as a,
        Participant(arbiter.path, "b", wait_limit_s=SOON_S) as b,
    ):
        lease = a.acquire()
        thread = threading.Thread(target=lambda: b.release(b.acquire()))
        thread.start()
        eventually(lambda: _seats(read_status(arbiter.path))["b"].phase is Phase.WAITING)
        time.sleep(0.1)
        before = _seats(read_status(arbiter.path))
        a.release(lease)
        thread.join()
        eventually(lambda: all(seat.phase is Phase.IDLE for seat in _seats(read_status(arbiter.path)).values()))
        status = read_status(arbiter.path)
        after = _seats(status)
        assert (before["a"].phase, before["b"].phase) == (Phase.HOLDING, Phase.WAITING)
        assert before["a"].held_s >= 0.05
        assert 0 < before["b"].waited_s <= before["a"].held_s
        assert [(seat.phase, seat.num_turns, seat.next_round) for seat in after.values()] == [(Phase.IDLE, 1, 1)] * 2
        assert after["b"].waited_s >= before["b"].waited_s
        assert {seat.pid for seat in after.values()} == {os.getpid()}
        assert (status.pid, status.jobs, status.sharing) == (arbiter.pid, ("a", "b"), Sharing.CROSSOVER)
        assert status.tokens[0].is_open
        assert status.tokens[0].generation == 2
        a.pause()
        eventually(lambda: _seats(read_status(arbiter.path))["a"].passed)
        assert [seat.passed for seat in _seats(read_status(arbiter.path)).values()] == [True, False]


def _seats(status: HostStatus) -> dict[str, SeatStatus]:
    return {seat.job: seat for token in status.tokens for seat in token.seats}


def test_a_flood_of_questions_takes_no_seat_and_stops_no_turn(tmp_path: Path) -> None:
    ended = threading.Event()

    def ask_on_and_on() -> None:
        while not ended.is_set():
            read_status(arbiter.path, limit_s=SOON_S)

    with (
        start(tmp_path / "f.sock") as arbiter,
        Participant(arbiter.path, "a", wait_limit_s=SOON_S) as a,
        Participant(arbiter.path, "b", wait_limit_s=SOON_S) as b,
    ):
        threads = [threading.Thread(target=ask_on_and_on) for _ in range(3)]
        for thread in threads:
            thread.start()
        rounds = []
        for _ in range(50):
            for job in (a, b):
                with job.turn() as lease:
                    rounds.append(lease.round)
        ended.set()
        for thread in threads:
            thread.join()
    assert rounds == [number for number in range(50) for _ in "ab"]


def test_nobody_to_ask_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArbiterAbsent, match="start one with"):
        read_status(tmp_path / "nobody.sock")


def test_a_stopped_arbiter_is_reported_and_not_waited_for(tmp_path: Path) -> None:
    with start(tmp_path / "t.sock") as arbiter:
        os.kill(arbiter.pid, signal.SIGSTOP)
        with pytest.raises(ArbiterLost, match=r"no answer in 0\.1 s"):
            read_status(arbiter.path, limit_s=0.1)
        os.kill(arbiter.pid, signal.SIGCONT)


SECONDS = st.floats(0, 1e9)
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
COUNTS = st.integers(0, 2**40)
SEATS = st.builds(
    SeatStatus, NAMES, st.sampled_from(Phase), COUNTS, COUNTS, SECONDS, SECONDS, SECONDS, COUNTS, st.booleans()
)
TOKENS = st.builds(
    TokenStatus, NAMES, st.sampled_from(Resource), NAMES, st.booleans(), COUNTS, st.lists(SEATS, max_size=3).map(tuple)
)


@given(pid=COUNTS, uptime_s=st.integers(0, 10**6), tokens=st.lists(TOKENS, max_size=3).map(tuple))
def test_a_status_is_read_as_written(pid: int, uptime_s: int, tokens: tuple[TokenStatus, ...]) -> None:
    status = HostStatus(pid, float(uptime_s), SETTINGS, tokens)
    assert HostStatus.from_json(status.to_json()) == status


@given(text=st.text(max_size=50))
def test_what_is_no_status_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="is no status"):
        HostStatus.from_json(text)
    with pytest.raises(Refused):
        HostStatus.from_json(json.dumps({"pid": 1, "settings": {"jobs": ["a"]}, "tokens": [text]}))


def test_a_status_that_has_no_room_says_what_it_leaves_off() -> None:
    seats = tuple(SeatStatus("j" * 60, Phase.IDLE, 1, 2, 3.0, 4.0, 5.0, 6) for _ in range(64))
    tokens = tuple(TokenStatus(f"device {n}", Resource.DEVICE, str(n), True, 1, seats) for n in range(64))
    text = HostStatus(1, 2.0, SETTINGS, tokens).to_json(REPORT_BYTES)
    assert len(text) <= REPORT_BYTES
    again = HostStatus.from_json(text)
    assert again.tokens == tokens[: len(again.tokens)]
    assert again.num_left_off == 64 - len(again.tokens) > 0
