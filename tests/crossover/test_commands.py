"""`crossover run | top | status` with real jobs that take turns."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from patience import patience_s

from crossover import Participant
from crossover.commands.main import main
from crossover.errors import ArbiterAbsent, ArbiterLost
from crossover.planning import JobProfile, read_profile, write_profile
from crossover.process import clear_dead, start
from crossover.status import HostStatus, read_status

pytestmark = pytest.mark.slow

SOON_S = patience_s(20.0)  # a bound against hanging, not a speed: the machine may be busy
ROOT = Path(__file__).resolve().parents[2]
JOB = f"""\
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from crossover import Participant
from crossover.process import default_path
from crossover.settings import Settings
compute_s, communicate_s, num_steps = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
settings = Settings.from_json(os.environ["CROSSOVER_SETTINGS"])
print("pid", os.getpid())
with Participant(default_path(), os.environ["CROSSOVER_JOB"], settings=settings) as job:
    for step in range(num_steps):
        with job.turn():
            time.sleep(compute_s)
        time.sleep(communicate_s)
print("done", num_steps)
"""


@pytest.fixture
def socket_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where this test's arbiter will be; ended with the test."""
    path = tmp_path / "s" / "host.sock"
    monkeypatch.setenv("CROSSOVER_SOCKET", str(path))
    monkeypatch.setenv("COLUMNS", "120")
    yield path
    with suppress(ArbiterAbsent, ArbiterLost, ProcessLookupError):
        os.kill(read_status(path).pid, signal.SIGTERM)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A job that takes turns: python job.py COMPUTE_S COMMUNICATE_S STEPS."""
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def job(name: str, script: Path, *arguments: object) -> str:
    """NAME=COMMAND for that script, quick to start."""
    return f"{name}={sys.executable} -I -S {script} {' '.join(map(str, arguments))}"


def started(*arguments: str) -> "subprocess.Popen[str]":
    """`crossover …` as a process of its own."""
    words = [sys.executable, "-m", "crossover", *arguments]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rest_of(process: "subprocess.Popen[str]") -> str:
    """What it writes until its end."""
    assert process.stdout is not None
    return process.stdout.read()


def wait_for_status(path: Path, num_turns: int = 1) -> HostStatus:
    """The arbiter's status once every job has taken so many turns."""
    until_s = time.monotonic() + SOON_S
    while time.monotonic() < until_s:
        with suppress(ArbiterAbsent, ArbiterLost):
            status = read_status(path)
            if status.tokens and all(seat.num_turns >= num_turns for seat in status.tokens[0].seats):
                return status
        time.sleep(0.05)
    raise AssertionError(f"no job took {num_turns} turns at {path}")


def pids_in(text: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"│ pid (\d+)", text)]


def is_alive(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    return False


def test_two_jobs_run_in_turns_and_the_summary_counts_them(
    socket_path: Path,
    script: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("crossover.commands.run._GLANCE_S", SOON_S)  # the last turns are counted by one last look
    jobs = [job("first", script, 0.01, 0.01, 30), job("second", script, 0.01, 0.01, 30)]
    assert main(["run", "--log-dir", str(tmp_path / "logs"), *jobs]) == 0
    shown = capsys.readouterr().out
    assert "first  │ done 30" in shown
    assert re.search(r"first +ok +[0-9.]+ s +30 ", shown)
    assert re.search(r"second +ok +[0-9.]+ s +30 ", shown)
    assert "device 0 was busy" in shown
    assert "done 30\n" in (tmp_path / "logs" / "second.log").read_text()


def test_a_killed_job_gives_its_turns_to_the_other_and_the_exit_code_is_its(socket_path: Path, script: Path) -> None:
    with started("run", job("victim", script, 0.01, 0, 9999), job("other", script, 0.01, 0.01, 60)) as process:
        victim = next(s.pid for s in wait_for_status(socket_path, 2).tokens[0].seats if s.job == "victim")
        os.kill(victim, signal.SIGKILL)
        shown = rest_of(process)
    assert process.returncode == 137
    assert "other  │ done 60" in shown
    assert re.search(r"other +ok +[0-9.]+ s +60 ", shown)


def test_ctrl_c_ends_everything_and_still_tells_the_sums(socket_path: Path, script: Path) -> None:
    with started("run", job("a", script, 0.01, 0.01, 9999), job("b", script, 0.01, 0.01, 9999)) as process:
        wait_for_status(socket_path, 2)
        process.send_signal(signal.SIGINT)
        shown = rest_of(process)
    assert process.returncode == 130
    assert re.search(r"a +SIGINT", shown)
    assert not any(is_alive(pid) for pid in pids_in(shown))


def test_killing_the_command_ends_its_jobs(socket_path: Path, script: Path) -> None:
    with started("run", job("a", script, 0.01, 0.01, 9999), job("b", script, 0.01, 0.01, 9999)) as process:
        seats = wait_for_status(socket_path, 2).tokens[0].seats
        process.kill()
    until_s = time.monotonic() + SOON_S
    while any(is_alive(seat.pid) for seat in seats):
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_an_arbiter_that_is_replaced_loses_no_turn_of_the_sums(socket_path: Path, script: Path) -> None:
    with started("run", job("a", script, 0.005, 0.005, 150), job("b", script, 0.005, 0.005, 150)) as process:
        os.kill(wait_for_status(socket_path, 40).pid, signal.SIGKILL)
        shown = rest_of(process)
    assert process.returncode == 0, shown
    counted = re.findall(r"^[ab] +ok +[0-9.]+ s +(\d+) ", shown, re.MULTILINE)
    # between two looks an arbiter takes its numbers with it: few on an idle machine, any number on a busy one
    assert [1 <= int(turns) <= 150 for turns in counted] == [True, True], shown


def test_a_script_that_does_not_attach_is_told_so(socket_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "a=true", "b=true"]) == 0
    assert "no turns of a, b on this host: does the script call crossover.attach" in capsys.readouterr().out


def test_one_job_alone_is_warned_about(socket_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "a=false"]) == 1
    assert "one job alone takes turns with nobody" in capsys.readouterr().out


def test_profiles_are_taken_alone_one_after_the_other(
    socket_path: Path, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "profiles"
    # Two looks in the same phase make a profile, four come in a second, and a busy machine misses some.
    jobs = [job("short", script, 0.005, 0.02, 80), job("long", script, 0.02, 0.002, 80)]
    began_s = time.monotonic()
    assert main(["run", "--profile", str(folder), *jobs]) == 0
    wall_s = time.monotonic() - began_s
    short, long = (read_profile(folder / f"{name}.json") for name in ("short", "long"))
    for profile, compute_s, solo_s in ((short, 0.005, 0.025), (long, 0.02, 0.022)):
        assert compute_s <= profile.compute_s <= profile.solo_s
        assert solo_s <= profile.solo_s <= wall_s / 16  # the median of 32 steps or more, so 16 of them took no less
        assert profile.communication_s == pytest.approx(profile.solo_s - profile.compute_s)
    assert short.exposed_only
    assert "a step takes" in capsys.readouterr().out


def test_a_job_without_turns_has_no_profile(
    socket_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--profile", str(tmp_path / "p"), "a=true"]) == 1
    assert "took too few turns" in capsys.readouterr().out
    assert not list((tmp_path / "p").iterdir())


def test_a_job_that_fails_takes_no_profile_from_the_next_one(
    socket_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--profile", str(tmp_path / "p"), 'a=sh -c "exit 3"', "b=true"]) == 3
    assert "job 'b' took too few turns" in capsys.readouterr().out


def test_a_folder_for_profiles_that_cannot_be_written_is_refused_before_a_job_runs(
    socket_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "profiles"
    assert main(["run", "--profile", str(folder), f"a=touch {tmp_path / 'began'}"]) == 2
    assert f"results cannot be written to {folder} (Not a directory)" in capsys.readouterr().err
    assert not (tmp_path / "began").exists()


def test_settings_of_a_file_give_the_order_and_the_command_line_goes_on_top(
    socket_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"jobs": ["b", "a"], "sharing": "weighted", "shares": [2, 1]}')
    show = "python -c \"import os; print(os.environ['CROSSOVER_JOB'], os.environ['CROSSOVER_SETTINGS'])\""
    command = ["run", "--settings", str(file), "--lease-limit", "7", f"a={show}", f"b={show}"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert '"jobs": ["b", "a"], "sharing": "weighted"' in shown
    assert '"shares": [2, 1]' in shown
    assert '"lease_limit_s": 7.0' in shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "a"], "is no job"),
        (["run", "a=true", "a=true"], "named twice"),
        (["run", "--settings", "/no/such/file", "a=true"], "cannot be read"),
        (["run", "--lease-limit", "-1", "a=true", "b=true"], "lease_limit_s must be a positive"),
        (["run", "--sharing", "cassini", "a=true", "b=true"], "cassini needs beats"),
        (["top", "--interval", "0"], "--interval must be"),
        (["top", "--once", "--profiles", "/no/such/folder"], "no profiles in"),
    ],
)
def test_a_wrong_request_is_one_line_with_a_remedy(
    arguments: list[str], told: str, socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.err.startswith("crossover: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_limit_that_is_no_number_is_told_with_what_may_stand_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--idle-limit", "never", "a=true"])
    assert "'never' is no number of seconds: write 10, or none" in capsys.readouterr().err


def test_settings_for_other_jobs_are_refused(
    socket_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.json"
    for text, told in (('{"jobs": ["x"]}', "use the same names"), ("[]", "no JSON object"), ('{"job": 1}', "unknown")):
        file.write_text(text)
        assert main(["run", "--settings", str(file), "a=true", "b=true"]) == 2
        assert told in capsys.readouterr().err


def test_a_socket_in_use_with_other_settings_is_refused_before_anything_starts(
    socket_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with start(socket_path), Participant(socket_path, "a"):
        assert main(["run", f"c=touch {tmp_path / 'began'}", "d=true"]) == 2
    assert "serves a, b under crossover already" in capsys.readouterr().err
    assert not (tmp_path / "began").exists()


def test_help_has_examples_and_codes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("run", "top", "status"):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        shown = capsys.readouterr().out
        assert ended.value.code == 0
        assert "examples:" in shown
        assert "exit codes: 0" in shown
        assert all(len(line) <= 80 for line in shown.splitlines())


def test_no_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: crossover" in capsys.readouterr().err


def test_status_says_who_is_there_and_fails_where_nobody_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there, nowhere = tmp_path / "s" / "a.sock", tmp_path / "s" / "b.sock"
    with start(there, jobs=("resnet", "bert")):
        assert main(["status", "--socket", str(there)]) == 0
        assert "crossover of resnet, bert" in capsys.readouterr().out
        assert main(["status", "--json", "--socket", str(there), "--socket", str(nowhere)]) == 1
        first, second = map(json.loads, capsys.readouterr().out.splitlines())
        assert first["status"]["settings"]["jobs"] == ["resnet", "bert"]
        assert second == {"socket": str(nowhere), "status": None}
    assert main(["status", "--socket", str(there)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"no arbiter serves {there}" in captured.err


def test_status_without_a_socket_finds_those_beside_the_own_one(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with start(socket_path.with_name("other.sock")), start(socket_path):
        assert main(["status", "--json"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 2


def test_what_killed_arbiters_left_is_removed_and_not_shown(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One with a roster whose job lives keeps that: who replaces it must know of the job."""
    others = [socket_path.with_name(name) for name in ("ended.sock", "lives.sock")]
    with ExitStack() as stack:
        ended, lives = [stack.enter_context(start(path)) for path in others]
        served = stack.enter_context(start(socket_path))
        job = stack.enter_context(Participant(lives.path, "a"))
        for arbiter in (ended, lives):
            os.kill(arbiter.pid, signal.SIGKILL)
            while arbiter.is_running:
                time.sleep(0.001)
        assert main(["top", "--once", "--interval", "0.05"]) == 0
        shown = capsys.readouterr().out
        assert socket_path.name in shown
        assert not [path.name for path in others if path.stem in shown]
        assert main(["status"]) == 0
        os.kill(served.pid, signal.SIGSTOP)
        clear_dead(socket_path)
        assert {path.name for path in socket_path.parent.iterdir()} == {"host.sock", "lives.sock.roster"}
        os.kill(served.pid, signal.SIGCONT)
        job.leave()


def test_top_shows_rates_busy_and_gain(
    socket_path: Path, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        profile = JobProfile(name=name, compute_s=0.01, communication_s=0.01, solo_s=0.02)
        write_profile(profile, tmp_path / "profiles" / f"{name}.json")
    with started("run", job("a", script, 0.01, 0.01, 9999), job("b", script, 0.01, 0.01, 9999)) as process:
        wait_for_status(socket_path)
        assert main(["top", "--once", "--interval", "0.5", "--profiles", str(tmp_path / "profiles")]) == 0
        process.terminate()
        rest_of(process)
    shown = capsys.readouterr().out
    assert "device 0" in shown
    assert re.search(r"busy [█░]{10} +\d+ % · gain [012]\.\d\d", shown)
    assert "crossover · up 0:" in shown


def test_top_once_without_an_arbiter_fails(socket_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--interval", "0.05"]) == 1
    assert "nobody serves it now" in capsys.readouterr().out


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_top_survives_the_end_of_an_arbiter_and_ends_by_a_key(socket_path: Path, key: bytes) -> None:
    pid, terminal = pty.fork()
    if not pid:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
        os.execve(
            sys.executable,
            [sys.executable, "-m", "crossover", "top", "--interval", "0.1"],
            {**os.environ, "TERM": "xterm"},
        )
    shown = b""

    def read_until(text: bytes) -> None:
        nonlocal shown
        until_s = time.monotonic() + SOON_S
        while text not in shown:
            assert time.monotonic() < until_s, shown[-500:]
            shown += os.read(terminal, 65536)
        shown = b""

    try:
        read_until(b"nobody serves it now")
        with start(socket_path):
            read_until(b"up 0:")
        read_until(b"nobody serves it now")
        os.write(terminal, key)
        with suppress(OSError):  # the terminal ends with its last process
            while os.read(terminal, 65536):
                pass
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
