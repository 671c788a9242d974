"""Commands under a supervisor: real processes, and nothing left of them."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path

import pytest
from patience import patience_s

from crossover.commands.job_group import JobGroup
from crossover.commands.launching import JobCommand, SupervisedJob, parse_job, told_end
from crossover.commands.screen import LineSplitter, Screen
from crossover.errors import Refused
from crossover.supervisor import descendants

SOON_S = patience_s(15.0)  # a bound against hanging, not a speed: the machine may be busy


def python(code: str, *arguments: object) -> tuple[str, ...]:
    """The words of a command that runs some Python, quick to start."""
    return (sys.executable, "-I", "-S", "-c", textwrap.dedent(code), *map(str, arguments))


def run_jobs(
    *commands: JobCommand, fail_fast: bool = False, logs: Path | None = None
) -> tuple[dict[str, int], str, int | None]:
    """The jobs' exit codes in the order of their ends, what was shown, and the code of a signal."""
    shown = StringIO()
    group = JobGroup(Screen(shown, [c.name for c in commands]), logs, lambda now_s: None, fail_fast=fail_fast)
    ends = group.run(commands, {c.name: os.environ for c in commands})
    return {end.name: end.code for end in ends}, shown.getvalue(), group.code


def is_alive(pid: int) -> bool:
    """Whether the process runs: a zombie, which some parent has yet to bury, does not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    return False


def wait_for_numbers(path: Path, count: int) -> list[int]:
    """Process ids that a job writes to a file, one a line."""
    until_s = time.monotonic() + SOON_S
    while time.monotonic() < until_s:
        lines = path.read_text().split() if path.exists() else []
        if len(lines) >= count:
            return [int(line) for line in lines]
        time.sleep(0.02)
    raise AssertionError(f"{path} has fewer than {count} lines")


def wait_until_gone(pids: list[int]) -> None:
    """Return when none of them runs."""
    until_s = time.monotonic() + SOON_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < until_s, f"of {pids} still alive: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.02)


FAMILY = """
    import os, sys, time
    def note():
        with open(sys.argv[1], "a") as file:
            print(os.getpid(), file=file, flush=True)
    if os.fork() == 0:
        os.setsid()                 # as launchers do with their ranks
        if os.fork() == 0:
            note(); time.sleep(600)
        os._exit(0)                 # its child is an orphan now
    note()
    while len(open(sys.argv[1]).read().split()) < 2:
        time.sleep(0.01)            # the other has not noted itself yet
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def no_handlers_left() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


def test_every_job_keeps_its_own_exit_code(no_handlers_left: None) -> None:
    codes, shown, signalled = run_jobs(
        JobCommand("good", python("print('hello')")), JobCommand("bad", python("import sys; sys.exit(7)"))
    )
    assert codes == {"good": 0, "bad": 7}
    assert signalled is None
    assert "good │ hello\n" in shown
    assert "bad  │ [exit 7 after" in shown


def test_somebody_elses_handler_for_the_end_of_a_child_disturbs_nothing() -> None:
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        codes, _, signalled = run_jobs(
            JobCommand("good", python("")), JobCommand("bad", python("import sys; sys.exit(7)"))
        )
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert codes == {"good": 0, "bad": 7}
    assert signalled is None


def test_a_killed_job_is_told_by_its_signal_and_does_not_end_the_other() -> None:
    codes, shown, _ = run_jobs(
        JobCommand("killed", python("import os; os.kill(os.getpid(), 9)")),
        JobCommand("other", python("import time; time.sleep(0.3); print('went on')")),
    )
    assert codes == {"killed": 137, "other": 0}
    assert "[SIGKILL after" in shown
    assert "went on" in shown


def test_fail_fast_ends_the_others() -> None:
    codes, _, _ = run_jobs(
        JobCommand("bad", python("import sys; sys.exit(7)")),
        JobCommand("long", python("import time; time.sleep(600)")),
        fail_fast=True,
    )
    assert list(codes.items()) == [("bad", 7), ("long", 143)]


def test_logs_hold_the_whole_output_of_both_streams(tmp_path: Path) -> None:
    code = (
        "import sys; sys.stdout.write('x' * 200000 + chr(10)); sys.stdout.flush(); sys.stderr.write('no end of line')"
    )
    _, shown, _ = run_jobs(JobCommand("a", python(code)), logs=tmp_path / "logs")
    assert (tmp_path / "logs" / "a.log").read_text() == "x" * 200000 + "\n" + "no end of line"
    assert "a │ no end of line\n" in shown


def test_what_a_job_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    codes, _, _ = run_jobs(JobCommand("a", python(FAMILY, tmp_path / "pids", 0.3)))
    assert codes == {"a": 0}
    assert not any(is_alive(pid) for pid in wait_for_numbers(tmp_path / "pids", 2))


GENTLE = """
    import os, sys, time
    try:
        with open(sys.argv[1], "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)
    except KeyboardInterrupt:
        print("bye")
"""
STUBBORN = """
    import os, signal, sys, time
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with open(sys.argv[1], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
"""


def test_ctrl_c_reaches_the_jobs_and_the_second_kills_a_stubborn_one(tmp_path: Path) -> None:
    code = f"""
        import os, sys
        sys.path.insert(0, {str(Path.cwd())!r})
        from crossover.commands.job_group import JobGroup
        from crossover.commands.launching import JobCommand
        from crossover.commands.screen import Screen
        commands = [JobCommand("gentle", {python(GENTLE, tmp_path / "gentle")!r}),
                    JobCommand("stubborn", {python(STUBBORN, tmp_path / "stubborn")!r})]
        group = JobGroup(Screen(sys.stdout, ["gentle", "stubborn"]), None, lambda now_s: None)
        ends = group.run(commands, {{c.name: os.environ for c in commands}})
        print([(end.name, end.code) for end in ends], group.code, flush=True)
    """
    with subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True) as process:
        pids = wait_for_numbers(tmp_path / "gentle", 1) + wait_for_numbers(tmp_path / "stubborn", 1)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "[ok after" in line:  # the gentle one has gone
                process.send_signal(signal.SIGINT)
    assert "gentle   │ bye\n" in lines
    assert lines[-1] == "[('gentle', 0), ('stubborn', 137)] 130\n"
    assert not any(is_alive(pid) for pid in pids)


def test_a_starter_that_is_killed_takes_the_whole_family_with_it(tmp_path: Path) -> None:
    code = f"""
        import sys, time
        sys.path.insert(0, {str(Path.cwd())!r})
        from crossover.commands.launching import JobCommand, SupervisedJob
        import os
        job = SupervisedJob(JobCommand("a", {python(FAMILY, tmp_path / "pids", 600)!r}), os.environ)
        time.sleep(600)
    """
    with subprocess.Popen(python(code)) as process:
        pids = wait_for_numbers(tmp_path / "pids", 2)
        assert all(is_alive(pid) for pid in pids)
        process.kill()
    wait_until_gone(pids)


STARTS_ARBITER = """
    import subprocess, sys, time
    words = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)", "crossover.arbiter"]
    arbiter = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    with open(sys.argv[1], "w") as file:
        file.write(str(arbiter.pid))
    time.sleep(0.2)
"""


def test_an_arbiter_that_a_job_started_outlives_it(tmp_path: Path) -> None:
    assert run_jobs(JobCommand("a", python(STARTS_ARBITER, tmp_path / "pid")))[0] == {"a": 0}
    (pid,) = wait_for_numbers(tmp_path / "pid", 1)
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until_gone([pid])


def test_a_job_has_no_terminal_to_read_and_finds_its_output_unbuffered() -> None:
    _, shown, _ = run_jobs(JobCommand("a", python("import sys; print(repr(sys.stdin.read()))")))
    assert "a │ ''\n" in shown


def test_a_supervised_job_that_is_closed_leaves_nothing(tmp_path: Path) -> None:
    job = SupervisedJob(JobCommand("a", python(FAMILY, tmp_path / "pids", 600)), os.environ)
    pids = wait_for_numbers(tmp_path / "pids", 2)
    job.close()
    assert not any(is_alive(pid) for pid in pids)
    assert not set(pids) & set(descendants(os.getpid()))


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("python train.py", "is no job"),
        ("a=", "has no command"),
        ("a='python", "mend its quotes"),
        ("a=no-such-program-here x", "correct it"),
        ("a=X=1 python train.py", "begin it with `env`"),
        ("a b=python train.py", "job name"),
        ("=python", "job name"),
    ],
)
def test_what_is_no_job_is_refused_with_the_remedy(text: str, remedy: str) -> None:
    with pytest.raises(Refused, match=remedy):
        parse_job(text)


def test_words_are_split_as_a_shell_would_and_nothing_is_expanded() -> None:
    assert parse_job("""a=env X='1 2' python -c "print('$HOME; *')" """).words == (
        "env",
        "X=1 2",
        "python",
        "-c",
        "print('$HOME; *')",
    )


def test_ends_are_told_in_words() -> None:
    assert [told_end(code) for code in (0, 3, 137, 143, 255)] == ["ok", "exit 3", "SIGKILL", "SIGTERM", "exit 255"]


def test_lines_come_whole_whatever_the_pieces() -> None:
    text = "one\r\ntwo\nünï\n\nrest".encode()
    for size in range(1, len(text)):
        splitter = LineSplitter()
        lines = [line for at in range(0, len(text), size) for line in splitter.feed(text[at : at + size], 0.0)]
        assert [*lines, *splitter.end()] == ["one", "two", "ünï", "", "rest"]


def test_a_progress_bar_is_shown_once_a_second_and_at_its_end() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\r 10 %", 0.0) == []
    assert splitter.feed(b"\r 20 %", 0.1) == [" 10 %"]
    assert splitter.feed(b"\r 30 %", 0.2) == []
    assert splitter.feed(b"\r 40 %", 1.5) == [" 30 %"]
    assert splitter.feed(b"\r100 %\n", 1.6) == ["100 %"]


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    lines = LineSplitter().feed(b"x" * 100_000, 0.0)
    assert [len(line) for line in lines] == [100_000]
