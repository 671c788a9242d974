"""How a Horovod job's launcher ends: with its ranks or with a signal. Needs neither Horovod nor hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience_s

from crossover.arbiter.roster import birth_ticks
from harness.lab.horovod_hosts import _Running, _wait

SLEEP = f"exec sleep {patience_s(60):.0f}"
CHECKOUT = Path(__file__).parents[2]


def child(script: str) -> _Running:
    return _Running(["sh", "-c", script], text=True)


@pytest.mark.parametrize(("script", "code"), [("exit 5", 5), ("kill -KILL $$", 128 + signal.SIGKILL)])
def test_the_first_rank_to_fail_gives_the_exit_code_and_no_other_childs_is_lost(script: str, code: int) -> None:
    stop_fd, unused_fd = os.pipe()
    with child("exit 3") as other, child(SLEEP) as waits, child(script) as fails:
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
        assert _wait([waits, fails], stop_fd) == code
        assert other.wait() == 3
    assert waits.returncode == -signal.SIGTERM
    os.close(stop_fd)
    os.close(unused_fd)


def test_ranks_that_all_succeed_are_a_success() -> None:
    stop_fd, unused_fd = os.pipe()
    with child("exit 0") as first, child("exit 0") as second:
        assert _wait([first, second], stop_fd) == 0
    os.close(stop_fd)
    os.close(unused_fd)


# a launcher on one host that is this one, whose rendezvous server is given
LAUNCHER = """
import sys
from harness.lab import horovod_hosts
horovod_hosts.addresses = lambda: {"host0": "127.0.0.1"}
horovod_hosts.on_host = lambda name, command: list(command)
horovod_hosts._SERVE = sys.argv[1]
sys.exit(horovod_hosts.main(sys.argv[2:]))
"""
TELLS_PORT = "print(7, flush=True); import sys; sys.stdin.read()"
TELLS_NOTHING = "import os, sys; print(os.getpid(), file=sys.stderr, flush=True); sys.stdin.read()"


@pytest.mark.parametrize("serve", [TELLS_PORT, TELLS_NOTHING], ids=["training", "starting"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_launcher_and_all_that_it_started(serve: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", LAUNCHER, serve, "sh", "-c", f"echo $$ >&2; {SLEEP}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT) as launcher:
        assert launcher.stderr is not None
        pid = int(launcher.stderr.readline())
        launcher.send_signal(number)
        try:
            assert launcher.wait(patience_s(30)) == 128 + number
        finally:
            launcher.kill()
    assert birth_ticks(pid) == 0
