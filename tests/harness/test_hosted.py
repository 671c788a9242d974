"""Any command inside an emulated cluster: it sees its hosts, its exit code comes back, and nothing stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from patience import patience_s

from fabric.cluster import FabricError
from fabric.enclosure import refusal
from harness import hosted

HOSTED = [sys.executable, "-m", "harness.hosted"]
pytestmark = pytest.mark.emulated


@pytest.fixture(autouse=True)
def enclosure_is_allowed() -> None:
    if reason := refusal():
        pytest.skip(f"the kernel forbids the emulated fabric: {reason}")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HOSTED, *arguments], capture_output=True, text=True, timeout=patience_s(90), check=False)


def test_a_command_may_run_parts_of_itself_on_the_hosts_and_its_exit_code_comes_back() -> None:
    """After an interrupt as well; from a terminal it reaches every process of the cluster."""
    enter = f"{sys.executable} -m harness.hosted --enter host1 --"
    interrupt = f"kill -INT $(echo ${hosted.VARIABLE} | tr ',' '\\n' | cut -d= -f2); sleep 0.2"
    script = f"{enter} hostname; {interrupt}; {enter} sh -c 'hostname; cat /etc/hosts'; hostname; exit 7"
    told = run("--hosts", "2", "--", "sh", "-c", script)
    lines = told.stdout.splitlines()
    assert lines[:2] == ["host1", "host1"]
    assert "10.77.0.1 host0" in told.stdout
    assert lines[-1] not in ("host0", "host1")
    assert told.returncode == 7


def test_a_command_may_run_on_every_host_as_a_rank_of_one_job() -> None:
    told = run("--hosts", "2", "--everywhere", "--", "sh", "-c", "echo $(hostname) $RANK/$WORLD_SIZE $MASTER_ADDR")
    assert sorted(told.stdout.splitlines()) == ["host0 0/2 10.77.0.1", "host1 1/2 10.77.0.1"]
    assert told.returncode == 0


def test_a_rank_that_ends_badly_ends_the_others_and_its_exit_code_comes_back(tmp_path: Path) -> None:
    """Others that do not heed the request to end are killed."""
    begun_s = time.monotonic()
    deaf = f"trap '' TERM; touch {tmp_path}/deaf; exec sleep {patience_s(60):.0f}"
    script = f"[ $RANK = 0 ] && {{ {deaf}; }}; until [ -e {tmp_path}/deaf ]; do sleep 0.05; done; exit 5"
    assert run("--everywhere", "--", "sh", "-c", script).returncode == 5
    assert time.monotonic() - begun_s < patience_s(50)
    assert run("--everywhere", "--", "no-such-command").returncode == 127


def test_a_host_that_cannot_be_entered_is_an_error_with_the_reason() -> None:
    def refuse(host: int) -> None:
        raise FabricError(f"cannot enter host {host}: no such namespace")

    with pytest.raises(FabricError, match="live on host 1: cannot enter host 1: no such namespace"):
        hosted._keeper(SimpleNamespace(enter=refuse), 1)  # type: ignore[arg-type]


def test_a_host_that_is_not_there_is_named_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(hosted.VARIABLE, "host0=11,host1=12")
    assert hosted.main(["--enter", "host9", "--", "true"]) == 2
    assert capsys.readouterr().err == "error: no host 'host9' in the cluster around; its hosts are host0, host1\n"


def test_without_a_cluster_around_it_says_how_to_get_one() -> None:
    for ask in (hosted.keepers, hosted.addresses):
        with pytest.raises(FabricError, match="start this under"):
            ask({})


def test_a_command_that_is_not_there_is_named_with_a_shells_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert hosted._run_as_first_process(["no-such-command"], os.environ) == 127
    assert capsys.readouterr().err == "error: cannot start no-such-command: No such file or directory\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--hosts", "2"], "name a command after --"),
        (["--hosts", "2", "--"], "name a command after --"),
        (["--rate", "fast", "--", "true"], "'fast'"),
    ],
)
def test_a_bad_request_is_refused_before_anything_starts(
    arguments: list[str], reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "execvpe", Mock(side_effect=AssertionError("it has started")))
    assert hosted.main(arguments) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ranks_may_tidy_up_after_a_signal(number: signal.Signals) -> None:
    """SIGTERM reaches the launcher alone, Ctrl-C every process of the terminal."""
    script = f"trap 'echo tidied; exit 0' INT TERM; echo begun; while :; do sleep {patience_s(0.05):.2f}; done"
    process = subprocess.Popen(
        [*HOSTED, "--everywhere", "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
    if number is signal.SIGTERM:
        process.send_signal(number)
    else:
        os.killpg(process.pid, number)
    out, err = process.communicate(timeout=patience_s(30))
    assert (process.returncode, out) == (130, "tidied\n" * 2)
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_an_ended_launcher_takes_the_cluster_and_its_keepers_along(number: signal.Signals) -> None:
    process = subprocess.Popen([*HOSTED, "--", "sh", "-c", "exec sleep 3141"])
    has_slept = _sleeps_within_patience(True)
    process.send_signal(number)
    try:
        process.wait(patience_s(30))
    finally:
        process.kill()
    assert has_slept
    assert _sleeps_within_patience(False)


def test_the_cluster_ends_with_whoever_started_it() -> None:
    starter = subprocess.Popen(["sh", "-c", '"$@" & wait', "sh", *HOSTED, "--", "sh", "-c", "exec sleep 3141"])
    has_slept = _sleeps_within_patience(True)
    starter.kill()
    starter.wait()
    assert has_slept
    assert _sleeps_within_patience(False)


def _sleeps_within_patience(expected: bool) -> bool:
    """Whether it comes, before a deadline of its own, that the command is there or is not."""
    deadline_s = time.monotonic() + patience_s(30)
    while ("sleep\x003141" in "".join(_command_lines())) is not expected:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def _command_lines() -> list[str]:
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_text())
        except OSError:  # it ended meanwhile
            continue
    return lines
