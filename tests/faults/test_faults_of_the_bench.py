"""Every signal on every kind of process of `crossover-bench run`: nothing is left, and `--resume` completes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leftovers import SIGNALS, SOON_S, Marked, marked_run, networks_of, numbers, parent, state, torn, words

from fabric.enclosure import refusal

ROLES = {
    "emulated": ("bench", "supervisor", "unshare", "init", "lab", "rank"),
    "native": ("bench", "supervisor", "lab", "rank"),
}
CASES = [(fabric, role, number) for fabric, names in ROLES.items() for role in names for number in SIGNALS]


def bench(marked: Marked, tmp_path: Path, *more: str) -> subprocess.Popen[bytes]:
    """One short cell on two hosts, its records in a folder of this test."""
    command = [sys.executable, "-m", "suites", "run", "quick", "--smoke", "--only", "real/resnet20-digits/fixed"]
    environment = marked.environment | {"TMPDIR": str(tmp_path / "tmp")}
    words = [*command, "--out", str(tmp_path / "out"), *more]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def children(pid: int) -> list[int]:
    return [other for other in numbers() if parent(other) == pid and state(other) not in "ZX"]


def chain(launcher: int, fabric: str) -> dict[str, int]:
    """Each kind of process by its role, once two ranks of a trial are there."""
    deadline_s = time.monotonic() + SOON_S
    while time.monotonic() < deadline_s:
        found, below = {}, launcher
        for role in ROLES[fabric]:
            found[role] = below
            down = sorted(pid for pid in children(below) if role != "lab" or "harness.lab" in words(pid))
            if role == "lab" and len(down) >= 2:
                return found | {"rank": down[0]}
            if not down:
                break
            below = down[0]
        time.sleep(0.02)
    raise AssertionError(f"no ranks under {launcher}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("fabric", "role", "number"), CASES, ids=lambda value: getattr(value, "name", value))
def test_nothing_is_left_and_resume_completes(fabric: str, role: str, number: signal.Signals, tmp_path: Path) -> None:
    if fabric == "emulated" and (reason := refusal()) is not None:
        pytest.skip(f"the kernel forbids the emulated fabric: {reason}")
    (tmp_path / "tmp").mkdir()
    with marked_run() as marked:
        with bench(marked, tmp_path, "--fabric", fabric) as process:
            victim = chain(process.pid, fabric)[role]
            networks = marked.networks()
            assert bool(networks) is (fabric == "emulated")
            os.kill(victim, number)
            if number is signal.SIGSTOP:
                time.sleep(0.5)
                process.send_signal(signal.SIGKILL if role == "bench" else signal.SIGINT)
            process.communicate(timeout=4 * SOON_S)
        assert marked.wait_until_gone() == []
        assert not networks & networks_of(numbers())
        assert torn(tmp_path / "out") == []
        with bench(marked, tmp_path, "--fabric", fabric, "--resume") as again:
            shown, _ = again.communicate(timeout=4 * SOON_S)
        assert again.returncode == 0, shown.decode(errors="replace")[-2000:]
        assert marked.wait_until_gone() == []
    assert torn(tmp_path / "out") == []
    assert not list((tmp_path / "tmp").glob("crossover-bench-*"))


def test_a_full_disk_under_the_records_is_told_in_one_line(tmp_path: Path) -> None:
    if os.geteuid() != 0 or refusal() is not None:
        pytest.skip("only root can mount a small disk here")
    out = tmp_path / "out"
    out.mkdir()
    run = [sys.executable, "-m", "suites", "run", "quick", "--smoke", "--fabric", "lockstep", "--out", str(out)]
    small = f'mount -t tmpfs -o size=8k none {out} && exec "$@"'
    with marked_run() as marked:
        command = ["unshare", "--mount", "sh", "-c", small, "sh", *run, "--only", "real/resnet20-digits/fixed"]
        done = subprocess.run(
            command, env=marked.environment, capture_output=True, text=True, timeout=2 * SOON_S, check=False
        )
        assert done.returncode == 2
        assert "No space left on device); make room" in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
        assert marked.wait_until_gone() == []


LOCKSTEP = ("run", "quick", "--smoke", "--fabric", "lockstep", "--only", "real/resnet20-digits/fixed")


def test_a_name_that_no_disk_takes_is_told_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "suites", *LOCKSTEP, "--out", str(tmp_path / ("n" * 300))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * SOON_S, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("crossover-bench: cannot write to ")
    assert "Traceback" not in done.stderr


def test_a_closed_terminal_leaves_nothing(tmp_path: Path) -> None:
    """Whatever it writes afterwards fails with EIO; the kernel sends SIGHUP."""
    with marked_run() as marked:
        pid, terminal = pty.fork()
        if not pid:
            words = [sys.executable, "-m", "suites", *LOCKSTEP, "--out", str(tmp_path / "out")]
            os.execve(sys.executable, words, dict(marked.environment))
        os.read(terminal, 1)  # it has begun
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) != 0
        assert marked.wait_until_gone() == []
    assert torn(tmp_path / "out") == []
