"""`crossover run` when something gives way under it: disks, terminals, descriptors, supervisors, jobs that hang."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from patience import patience_s

from crossover.commands.waiting import stalls
from crossover.errors import ArbiterAbsent, ArbiterLost
from crossover.policies import Sharing
from crossover.protocol import Resource
from crossover.settings import Settings
from crossover.status import FRESH_S, HostStatus, SeatStatus, TokenStatus, read_status
from crossover.tokens import Phase

pytestmark = pytest.mark.slow

SOON_S = patience_s(30.0)  # a bound against hanging, not a speed: the machine may be busy
ROOT = Path(__file__).resolve().parents[2]
JOB = f"""\
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
from crossover import Participant
from crossover.process import default_path
from crossover.settings import Settings
def tidy_up(*_):
    open(sys.argv[2] + "." + os.environ["CROSSOVER_JOB"], "w").close()
    sys.exit(3)
signal.signal(signal.SIGTERM, tidy_up)
settings = Settings.from_json(os.environ["CROSSOVER_SETTINGS"])
print("pid", os.getpid(), flush=True)
with Participant(default_path(), os.environ["CROSSOVER_JOB"], settings=settings) as job:
    for step in range(int(sys.argv[1])):
        with job.turn():
            time.sleep(0.01)
        print("step", step, flush=True)
print("done")
"""
Job = Callable[..., str]


@pytest.fixture
def socket_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where this test's arbiter will be; ended with the test."""
    path = tmp_path / "s" / "host.sock"
    monkeypatch.setenv("CROSSOVER_SOCKET", str(path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield path
    with suppress(ArbiterAbsent, ArbiterLost, ProcessLookupError):
        os.kill(read_status(path).pid, signal.SIGTERM)


@pytest.fixture
def job(tmp_path: Path, socket_path: Path) -> Job:
    """NAME=COMMAND of a job that takes so many turns, and notes in tmp_path/tidy.NAME that it was asked to end."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    return lambda name, steps=30: f"{name}={sys.executable} -I -S {script} {steps} {tmp_path / 'tidy'}"


def run(*arguments: str, **others: object) -> "subprocess.Popen[str]":
    """`crossover run …` as a process; both streams are pipes unless told otherwise."""
    streams: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | others
    return subprocess.Popen([sys.executable, "-m", "crossover", "run", *arguments], text=True, **streams)  # type: ignore[call-overload,no-any-return]


def wait_for_turns(path: Path, num_turns: int = 1) -> HostStatus:
    """The arbiter's status once every job has taken so many turns."""
    until_s = time.monotonic() + SOON_S
    while time.monotonic() < until_s:
        with suppress(ArbiterAbsent, ArbiterLost):
            status = read_status(path)
            if status.tokens and all(seat.num_turns >= num_turns for seat in status.tokens[0].seats):
                return status
        time.sleep(0.02)
    raise AssertionError(f"no {num_turns} turns at {path}")


def pid_of(status: HostStatus, name: str) -> int:
    return next(seat.pid for seat in status.tokens[0].seats if seat.job == name)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    return False


def test_a_full_disk_under_the_logs_costs_the_log_alone(job: Job, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.log").symlink_to("/dev/full")
    with run("--log-dir", str(logs), job("a"), job("b")) as process:
        shown, errors = process.communicate(timeout=SOON_S)
    assert (process.returncode, errors) == (0, "")
    assert shown.count("log of a is given up (No space left on device); the job goes on") == 1
    assert (logs / "b.log").read_text().endswith("done\n")


def test_an_output_that_takes_no_more_ends_no_job(job: Job) -> None:
    with open("/dev/full", "w") as full, run(job("a"), stdout=full) as process:
        _, errors = process.communicate(timeout=SOON_S)
    assert process.returncode == 0
    assert errors.count("standard output takes no more") == 1
    assert "Traceback" not in errors


def test_a_reader_that_has_enough_ends_no_job(job: Job, tmp_path: Path) -> None:
    with run(job("a")) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 0
    assert "takes no more" in errors
    assert not list(tmp_path.glob("tidy.*"))


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_end_no_job(job: Job, tmp_path: Path, closed: str) -> None:
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "crossover", "run"]
    process = subprocess.run([*words, "--log-dir", str(tmp_path), job("a")], timeout=SOON_S, check=False)
    assert process.returncode == 0
    assert (tmp_path / "a.log").read_text().endswith("done\n")


def test_an_output_that_is_ascii_shows_the_jobs_all_the_same(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    with run(job("a")) as process:
        shown, errors = process.communicate(timeout=SOON_S)
    assert (process.returncode, errors) == (0, "")
    assert "a ? done" in shown


def test_a_closed_terminal_asks_the_jobs_to_end_and_gives_them_time(
    job: Job, socket_path: Path, tmp_path: Path
) -> None:
    pid, terminal = pty.fork()
    if not pid:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which tests under nohup have inherited ignored
        os.execv(sys.executable, [sys.executable, "-m", "crossover", "run", job("a", 9999), job("b", 9999)])
    status = wait_for_turns(socket_path)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 143
    assert {path.name for path in tmp_path.glob("tidy.*")} == {"tidy.a", "tidy.b"}
    assert not any(is_alive(pid_of(status, name)) for name in "ab")


def test_a_run_under_nohup_outlives_its_terminal(job: Job, socket_path: Path) -> None:
    words = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-m", "crossover", "run"]
    with subprocess.Popen([*words, job("a", 60)], stdout=subprocess.PIPE, text=True) as process:
        wait_for_turns(socket_path)
        process.send_signal(signal.SIGHUP)
        shown, _ = process.communicate(timeout=SOON_S)
    assert process.returncode == 0
    assert "terminated" not in shown


def test_too_few_descriptors_are_told_in_one_line(job: Job) -> None:
    words = ["sh", "-c", 'ulimit -n 8; exec "$@"', "sh", sys.executable, "-m", "crossover", "run"]
    done = subprocess.run([*words, job("a")], timeout=SOON_S, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("crossover: ")


def test_a_killed_supervisor_takes_its_job_along_and_no_other(job: Job, socket_path: Path) -> None:
    with run(job("a", 9999), job("b", 60)) as process:
        a = pid_of(wait_for_turns(socket_path), "a")
        os.kill(parent(a), signal.SIGKILL)
        shown, _ = process.communicate(timeout=SOON_S)
    assert process.returncode == 137
    assert not is_alive(a)
    assert "the supervisor of a was killed" in shown
    assert "b │ done" in shown


FAMILY = """
import os, sys, time
if os.fork() == 0:
    os.setsid()                     # as launchers do with their ranks
    with open(sys.argv[1], "w") as file:
        print(os.getpid(), file=file)
time.sleep(600)
"""


def test_what_a_job_of_a_killed_supervisor_has_started_ends_too(tmp_path: Path, socket_path: Path) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    noted = tmp_path / "pid"
    with run(f"a={sys.executable} -I -S {tmp_path / 'family.py'} {noted}") as process:
        until_s = time.monotonic() + SOON_S
        while not (noted.exists() and noted.read_text().strip()):
            assert time.monotonic() < until_s
        rank = int(noted.read_text())
        os.kill(parent(parent(rank)), signal.SIGKILL)
        process.communicate(timeout=SOON_S)
    assert process.returncode == 137
    assert not is_alive(rank)


def test_a_stopped_supervisor_delays_no_end(job: Job, socket_path: Path) -> None:
    with run(job("a", 9999)) as process:
        a = pid_of(wait_for_turns(socket_path), "a")
        os.kill(parent(a), signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SOON_S)
    assert process.returncode == 143
    assert not is_alive(a)


def test_a_job_that_dies_before_it_attaches_keeps_nobody_waiting(job: Job) -> None:
    """The others would wait for it 300 s, far longer than this test may take."""
    with run(job("a"), "b=false") as process:
        shown, _ = process.communicate(timeout=SOON_S)
    assert process.returncode == 1
    assert "b has ended: the others go on without it" in shown
    assert "a │ done" in shown


def test_a_second_run_of_the_same_jobs_is_refused(job: Job, socket_path: Path) -> None:
    with run(job("a", 9999)) as first:
        wait_for_turns(socket_path)
        with run(job("a")) as second:
            shown, errors = second.communicate(timeout=SOON_S)
        first.terminate()
        first.communicate(timeout=SOON_S)
    assert (second.returncode, shown) == (2, "")
    assert "another `crossover run` uses" in errors


def test_a_job_that_is_stopped_in_its_turn_is_named_while_the_others_wait(job: Job, socket_path: Path) -> None:
    with run(job("a", 9999), job("b", 60)) as process:
        a = pid_of(wait_for_turns(socket_path), "a")
        until_s = time.monotonic() + SOON_S
        while not is_stopped(a) or read_status(socket_path).tokens[0].seats[0].phase is not Phase.HOLDING:
            os.kill(a, signal.SIGCONT)  # until it is stopped in its turn, and not between two
            time.sleep(0.005)
            os.kill(a, signal.SIGSTOP)
            time.sleep(2 * FRESH_S)  # a status may be as old as FRESH_S, and tell of a turn that it had before
            assert time.monotonic() < until_s
        assert process.stdout is not None
        line = next(line for line in process.stdout if "b waits for device 0" in line)
        process.terminate()
        process.communicate(timeout=SOON_S)
    assert re.search(rf"a has held it for .*process {a} is stopped: `kill -CONT {a}`", line)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"


def test_a_job_that_nobody_waits_for_is_not_blamed() -> None:
    status = status_of(("a", Phase.IDLE, 9), ("b", Phase.IDLE, 5), ("c", Phase.WAITING, 4))
    (token,) = status.tokens
    a, b, c = token.seats
    passed = replace(token, seats=(replace(a, next_round=2, passed=True), b, c))
    (stall,) = stalls(replace(status, tokens=(passed,)))
    assert stall.culprits == ("b",)
    assert "it is b's turn" in stall.told


def status_of(
    *seats: tuple[str, Phase, float], is_open: bool = True, sharing: Sharing = Sharing.CROSSOVER
) -> HostStatus:
    """A status of one device: name, phase and seconds in it, per job."""
    settings = Settings(jobs=tuple(name for name, _, _ in seats), sharing=sharing)
    found = tuple(SeatStatus(name, phase, 4, 3, 0.0, 0.0, since_s, 0) for name, phase, since_s in seats)
    return HostStatus(1, 60.0, settings, (TokenStatus("device 0", Resource.DEVICE, "0", is_open, 7, found),))


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (status_of(("a", Phase.HOLDING, 5), ("b", Phase.WAITING, 4)), ["b waits for device 0 since 4.0 s: a has held"]),
        (status_of(("a", Phase.IDLE, 5), ("b", Phase.WAITING, 4)), ["it is a's turn, which has not come for it"]),
        (status_of(("a", Phase.ABSENT, 5), ("b", Phase.WAITING, 4), is_open=False), ["a has not come to it yet"]),
        (status_of(("a", Phase.HOLDING, 5), ("b", Phase.WAITING, 2)), []),
        (status_of(("a", Phase.HOLDING, 5), ("b", Phase.IDLE, 9)), []),
        (status_of(("a", Phase.HOLDING, 5), ("b", Phase.WAITING, 4), sharing=Sharing.EXCLUSIVE), []),
    ],
)
def test_who_keeps_the_others_waiting_is_read_off_the_status(status: HostStatus, told: list[str]) -> None:
    found = [stall.told for stall in stalls(status)]
    assert len(found) == len(told)
    assert all(part in line for part, line in zip(told, found, strict=True))
