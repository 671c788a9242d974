"""Machines that give less than usual: no room on a disk, no /proc, no working folder. Turns end no job there."""

from __future__ import annotations

import builtins
import json
import logging
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import torch
from patience import patience_s
from torch import nn

from crossover import ArbiterAbsent, ArbiterLost, Participant, Refused
from crossover.arbiter import scheduling
from crossover.arbiter.listening import PrivateSocket, private_folder
from crossover.arbiter.roster import process_state
from crossover.attach import DIGESTS, Attachment, attach
from crossover.commands.launching import check_room
from crossover.commands.main import main
from crossover.commands.verify import _read
from crossover.digests import write_digest, write_numbered
from crossover.planning import write_text_whole
from crossover.process import ensure
from crossover.settings import Settings
from crossover.status import excuse, read_status
from crossover.supervisor import descendants, end_descendants
from harness.machine import processor_times
from suites.__main__ import main as bench

SOON_S = patience_s(20.0)
SETTINGS = Settings(jobs=("a", "b"))


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where an arbiter may be started; it is gone at the end."""
    yield tmp_path / "s" / "host.sock"
    (tmp_path / "s").exists() and (tmp_path / "s").chmod(0o700)
    with suppress(ArbiterAbsent, ArbiterLost):
        os.kill(read_status(tmp_path / "s" / "host.sock").pid, signal.SIGTERM)


@contextmanager
def no_room(limit_bytes: int = 0) -> Iterator[None]:
    """Files that this process, and those that it starts, write may not be longer: as under `ulimit -f`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def train(job: str, path: Path, settings: Settings | None, num_steps: int = 3) -> tuple[torch.Tensor, Attachment]:
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, optimizer, job=job, path=path, settings=settings) as attachment:
        for _ in range(num_steps):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().sum().backward()
            optimizer.step()
    return model.weight.detach(), attachment


WRITERS: dict[str, Callable[[Path], object]] = {
    "a digest": lambda folder: write_digest(str(folder), [nn.Linear(3, 2)], 7),
    "a report": lambda folder: write_numbered(str(folder), "0-7", {"layers": ["x" * 9000]}),
    "a profile": lambda folder: write_text_whole("x" * 9000, folder / "a.json"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_an_error_and_leaves_no_part_of_a_file(name: str, tmp_path: Path) -> None:
    with no_room(10), pytest.raises(OSError, match="too large"):
        WRITERS[name](tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_jobs_take_turns_under_an_arbiter_that_can_write_neither_roster_nor_log(path: Path) -> None:
    with no_room():
        pid = ensure(path, SETTINGS).pid
    with Participant(path, "a", settings=SETTINGS, wait_limit_s=SOON_S) as a:
        with Participant(path, "b", settings=SETTINGS, wait_limit_s=SOON_S) as b:
            for number in range(3):
                for job in (a, b):
                    with job.turn() as lease:
                        assert lease.round == number
        with Participant(path, "b", "1", settings=SETTINGS, wait_limit_s=SOON_S):
            assert excuse(path, "a") == 1  # of which it says a line in its log
        with a.turn() as lease:
            assert lease.round == 3
    assert read_status(path).pid == pid
    assert path.with_name("host.sock.log").stat().st_size == 0


def test_where_no_arbiter_can_start_jobs_go_on_without_turns_and_say_so_once(
    path: Path, tmp_path: Path, logged: list[logging.LogRecord]
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "host.sock"
    with pytest.raises(Refused, match="cannot be used"):
        Participant(place, "a", settings=SETTINGS)
    numbers: list[int] = []

    def agree(number: int) -> int:
        numbers.append(number)
        return 7  # another host's arbiter has let the job in there

    with Participant(place, "a", settings=SETTINGS, agree=agree, keeps_going=True) as a:
        assert (numbers, a.next_round) == ([0, 0], 7), "its other workers have their seats, and wait for its answers"
        with a.turn() as lease:
            assert (lease.round, lease.generation) == (7, 0)
        a.pause()
        a.resume()
        assert numbers == [0, 0, 0, 9]
    weights, attachment = train("a", place, SETTINGS)
    assert torch.equal(weights, train("a", path, Settings(jobs=("a",)))[0])
    assert attachment.statistics.num_turns == 0, "`crossover verify` must not call these turns"
    assert ["goes on without turns" in record.getMessage() for record in logged] == [True, True]


def test_a_seat_that_is_lost_while_training_ends_the_turns_and_not_the_job(
    path: Path, logged: list[logging.LogRecord]
) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pid = ensure(path, Settings(jobs=("a",))).pid
    with attach(model, optimizer, job="a", path=path, settings=Settings(jobs=("a",))) as attachment:
        for step in range(6):
            if step == 3:
                os.kill(pid, signal.SIGKILL)
                path.parent.chmod(0o755)  # in which no arbiter starts
            model(torch.ones(4, 3)).square().sum().backward()
            optimizer.step()
    assert 3 <= attachment.statistics.num_turns <= 4
    assert sum("goes on without turns" in record.getMessage() for record in logged) == 1


def test_a_digest_that_cannot_be_written_is_told_and_ends_no_job(
    path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[logging.LogRecord]
) -> None:
    monkeypatch.setenv(DIGESTS, str(path))
    train("a", path, Settings(jobs=("a",)))
    assert ["cannot tell what it has trained" in record.getMessage() for record in logged] == [True]


@pytest.mark.parametrize(
    "arguments",
    [["verify", "touch began"], ["run", "--profile", "profiles", "a=touch began"]],
    ids=["verify", "profile"],
)
def test_nothing_starts_whose_results_no_disk_takes(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CROSSOVER_SOCKET", str(tmp_path / "s" / "host.sock"))
    with no_room(5000):
        assert main(arguments) == 2
    told = capsys.readouterr().err
    assert "results cannot be written to" in told
    assert "(File too large): free some of it, or " in told
    assert not Path("began").exists()


def test_a_disk_that_filled_up_during_a_verification_gives_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "0-0.json").write_text(json.dumps({"sha256": "x", "num_turns": 3}))
    assert [digest.worker for digest in _read(tmp_path)] == ["0-0"]
    with no_room(5000), pytest.raises(Refused, match="results cannot be written"):
        _read(tmp_path)
    check_room(tmp_path, "free some of it")


def test_processes_that_may_not_be_looked_at_are_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's under hidepid."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", refuse)
        state, below = process_state(1), descendants(os.getpid())
        end_descendants()
    assert (state, below) == ("", [])
    monkeypatch.setattr("psutil._pslinux.ppid_map", refuse)
    assert processor_times(psutil.Process()).own_s > 0


def test_without_proc_an_arbiter_serves_and_commands_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: str = ".") -> list[str]:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os.path, "exists", lambda path: False)
    monkeypatch.setattr(scheduling, "_LOAD", tmp_path / "loadavg")
    scheduling.TimeSlices().adapt()
    with private_folder(tmp_path / "s") as folder, PrivateSocket(folder, "x.sock") as listener:
        assert folder.is_served("x.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(tmp_path / "s" / "x.sock"))
        listener.close()
        assert not folder.is_served("x.sock")
    monkeypatch.setattr(os, "listdir", absent)
    assert descendants(os.getpid()) == []


def test_a_working_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["run", "--socket", "s/host.sock", "a=true"]) == 1
    assert "the working folder was deleted: change to another one" in capsys.readouterr().err
    monkeypatch.setenv("CROSSOVER_SOCKET", str(tmp_path / "s" / "host.sock"))
    assert main(["run", "a=true"]) == 0
    assert bench() == 2
    assert capsys.readouterr().err.startswith("crossover-bench: the working folder was deleted")
    monkeypatch.chdir("/")
    with no_room():
        assert bench() == 2
    assert capsys.readouterr().err.startswith("crossover-bench: a file may have 0 bytes")
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", None)
        patch.setattr(tempfile, "_candidate_tempdir_list", list)
        assert bench() == 2
    assert "No usable temporary directory found in [" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert bench() == 2
    assert capsys.readouterr().err.startswith("crossover-bench: /proc cannot be read: mount it")
