"""What fell when the arbiter was attacked: links in its folder, a stopped one, limits out of range, no descriptors."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest
from patience import patience_s

from crossover import ArbiterAbsent, ArbiterLost, LeaseLost, Participant, Refused, start
from crossover.arbiter.acceptor import MAX_PENDING, Acceptor
from crossover.arbiter.event_loop import Loop
from crossover.arbiter.listening import private_folder
from crossover.arbiter.roster import process_state
from crossover.arbiter.server import RESERVED_FILES
from crossover.process import default_path, ensure, runtime_folder_remark
from crossover.protocol import Request, RequestKind
from crossover.settings import Settings
from crossover.status import excuse, read_status
from crossover.tokens import Phase

SOON_S = patience_s(20.0)  # a bound against hanging, not a speed: the machine may be busy
SETTINGS = Settings(jobs=("a", "b"))


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A socket in a private folder; who serves it at the end is ended."""
    path = tmp_path / "s" / "host.sock"
    yield path
    with suppress(ArbiterAbsent, ArbiterLost, Refused, ProcessLookupError):
        os.kill(read_status(path).pid, signal.SIGTERM)


def test_a_folder_that_is_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(Refused, match="symbolic link"):
        ensure(tmp_path / "link" / "host.sock", SETTINGS)
    with pytest.raises(Refused, match="symbolic link"):
        start(tmp_path / "link" / "host.sock")
    assert not list(victim.iterdir())


@pytest.mark.parametrize("name", ["host.sock.log", "host.sock.roster", "host.sock"])
def test_no_link_in_the_folder_is_followed(path: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "precious"
    victim.write_text("precious")
    path.parent.mkdir(mode=0o700)
    (path.parent / name).symlink_to(victim)
    with pytest.raises(Refused, match=r"link|no socket"):
        ensure(path, SETTINGS)
    assert victim.read_text() == "precious"


def test_a_folder_that_is_exchanged_behind_its_descriptor_is_not_written_to(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    other.mkdir(mode=0o700)
    with private_folder(mine) as folder:
        mine.rename(tmp_path / "away")
        mine.symlink_to(other)
        folder.replace("roster", "text")
        os.close(folder.append_to("log"))
    assert not list(other.iterdir())
    assert {file.name for file in (tmp_path / "away").iterdir()} == {"roster", "log"}


def test_a_named_pipe_as_a_roster_is_refused_and_not_read_for_ever(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    os.mkfifo(path.with_name("host.sock.roster"), 0o600)
    with pytest.raises(Refused, match="is no file"):
        ensure(path, SETTINGS)


@pytest.mark.parametrize("text", ['{"settings": ' + "[" * 100_000, '{"jobs": 1' + "0" * 5000 + "}"])
def test_a_roster_that_no_arbiter_wrote_is_refused_by_name(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700)
    path.with_name("host.sock.roster").write_text(text)
    with pytest.raises(Refused, match="damaged: end the jobs on it"):
        ensure(path, SETTINGS)


@pytest.mark.parametrize("runtime", ["/run/user/no-such", "relative", "/dev/null", "x" * 5000])
def test_a_runtime_folder_that_is_not_there_is_left_for_tmp_and_said(
    runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CROSSOVER_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    assert default_path().parent == Path(f"/tmp/crossover-{os.geteuid()}")
    assert "is no folder of yours" in str(runtime_folder_remark())


def test_a_runtime_folder_of_ones_own_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CROSSOVER_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_path().parent == tmp_path / "crossover"
    assert runtime_folder_remark() is None


def test_the_others_go_on_at_once_when_a_job_is_said_to_have_died_before_it_came(path: Path) -> None:
    with start(path, gather_limit_s=300.0), Participant(path, "b", wait_limit_s=SOON_S) as b:
        assert excuse(path, "a") == 1
        b.release(b.acquire())
        (token,) = read_status(path).tokens
        assert [seat.phase for seat in token.seats] == [Phase.LEFT, Phase.IDLE]
        with Participant(path, "a", wait_limit_s=SOON_S) as a:  # started again after all
            a.release(a.acquire())


def test_a_job_that_has_come_is_not_excused(path: Path) -> None:
    with start(path), Participant(path, "a") as a, Participant(path, "b", wait_limit_s=SOON_S):
        assert excuse(path, "a") == 0
        a.release(a.acquire())


def test_an_undeclared_job_is_not_excused(path: Path) -> None:
    with start(path), Participant(path, "a"), pytest.raises(Refused, match="unknown job"):
        excuse(path, "z")


def test_nobody_waits_again_for_a_job_whose_lease_was_withdrawn(path: Path) -> None:
    """With an idle limit far beyond the test's own, only the withdrawal itself can let the other job go on."""
    with (
        start(path, lease_limit_s=patience_s(0.5), idle_limit_s=1000.0),
        Participant(path, "a", wait_limit_s=SOON_S) as a,
        Participant(path, "b", wait_limit_s=SOON_S) as b,
    ):
        stuck = a.acquire()
        for _ in range(3):
            b.release(b.acquire())
        with pytest.raises(LeaseLost):
            a.release(stuck)
        a.release(a.acquire())


@pytest.mark.parametrize("limit_s", [3e6, 1e300])
def test_a_limit_of_months_is_no_reason_to_die(path: Path, limit_s: float) -> None:
    with start(path, gather_limit_s=limit_s, idle_limit_s=limit_s, lease_limit_s=limit_s) as arbiter:
        with Participant(path, "a") as a, Participant(path, "b"):
            a.release(a.acquire())
        time.sleep(0.1)
        assert arbiter.is_running


def test_a_stopped_arbiter_is_named_and_freezes_nobody(path: Path) -> None:
    with start(path, lease_limit_s=9.0) as arbiter:
        os.kill(arbiter.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ArbiterLost, match=rf"process {arbiter.pid}\) is stopped: `kill -CONT"):
                ensure(path, SETTINGS)
            with _full_queue(path), pytest.raises(ArbiterLost, match="accepts nobody: is it stopped"):
                read_status(path)
        finally:
            os.kill(arbiter.pid, signal.SIGCONT)


def test_a_job_whose_programs_name_the_kernel_has_cut_in_mid_character_takes_its_turns(path: Path) -> None:
    own_name = Path("/proc/self/comm")
    before = own_name.read_bytes().strip()
    own_name.write_bytes("entraînement-été".encode())
    try:
        with start(path), Participant(path, "a", wait_limit_s=SOON_S) as a, Participant(path, "b"):
            a.release(a.acquire())
        assert process_state(os.getpid()) == "R"
    finally:
        own_name.write_bytes(before)


def test_a_seat_that_fails_in_a_way_nobody_foresaw_leaves_an_acceptor_that_can_be_closed(tmp_path: Path) -> None:
    def seat(sock: socket.socket, *_: object) -> None:
        sock.close()  # which is the arbiter's from here on
        raise RuntimeError("unforeseen")

    listener, loop = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), Loop()
    listener.bind(str(tmp_path / "l.sock"))
    listener.listen()
    acceptor = Acceptor(listener, loop, SimpleNamespace(seat=seat))  # type: ignore[arg-type]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(tmp_path / "l.sock"))
        client.send(Request(RequestKind.JOIN, job="a", device="0").pack())
        with pytest.raises(RuntimeError, match="unforeseen"):
            loop.run(lambda now_s: inf)
        acceptor.close()
    loop.close()


def _full_queue(path: Path) -> socket.socket:
    """Fill the queue of a server that accepts nobody. Closing what this returns empties it again."""
    connections = []
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        try:
            connection.connect(str(path))
        except BlockingIOError:
            connections.append(connection)
            break
        connections.append(connection)
    keeper = connections[-1]
    _KEPT.extend(connections)
    return keeper


_KEPT: list[socket.socket] = []


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Connections of `_full_queue` end with their test."""
    yield
    while _KEPT:
        _KEPT.pop().close()


SERVE = """
import resource, sys
soft = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
sys.argv = ["arbiter", *sys.argv[2:]]
from crossover.arbiter.main import main
sys.exit(main())
"""


def _limited(path: Path, num_files: int) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", SERVE, str(num_files), str(path), json.dumps({"jobs": ["a", "b"]})]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_too_few_descriptors_for_one_seat_are_told_with_the_remedy(path: Path) -> None:
    with _limited(path, RESERVED_FILES + MAX_PENDING) as process:
        told, _ = process.communicate(timeout=SOON_S)
    assert process.returncode == 2
    assert "ulimit -n" in told


def test_out_of_descriptors_the_arbiter_accepts_nobody_and_lives(path: Path) -> None:
    """The limit falls below what is open, as if the whole machine had run out of descriptors."""
    with _limited(path, 256) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (4, 256))
            with pytest.raises(ArbiterLost):
                read_status(path, limit_s=0.5)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (256, 256))
            assert read_status(path, limit_s=SOON_S).pid == process.pid
        finally:
            process.terminate()


def test_turns_go_on_while_descriptors_are_short(path: Path) -> None:
    with _limited(path, 256) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            with Participant(path, "a", wait_limit_s=SOON_S) as a, Participant(path, "b", wait_limit_s=SOON_S) as b:
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (4, 256))
                crowd = threading.Thread(target=_knock, args=(path,))
                crowd.start()
                for _ in range(50):
                    for job in (a, b):
                        job.release(job.acquire())
                crowd.join()
        finally:
            process.terminate()


def _knock(path: Path) -> None:
    for _ in range(10):
        with suppress(ArbiterLost):
            read_status(path, limit_s=0.05)
