"""Every signal on every kind of process of `crossover run`: afterwards nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leftovers import SIGNALS, SOON_S, Marked, marked_run, parent, words

JOB = """\
import os, subprocess, sys, time
if len(sys.argv) > 2:                                   # a launcher, with its rank in a session of its own
    sys.exit(subprocess.Popen([sys.executable, "-P", __file__, sys.argv[1]], start_new_session=True).wait())
from crossover import Participant
from crossover.process import default_path
from crossover.settings import Settings
settings = Settings.from_json(os.environ["CROSSOVER_SETTINGS"])
with Participant(default_path(), os.environ["CROSSOVER_JOB"], settings=settings) as job:
    for step in range(int(sys.argv[1])):
        with job.turn():
            time.sleep(0.01)
"""
ROLES = ("run", "supervisor", "launcher", "rank", "arbiter")


def roles(marked: Marked, run: int, script: Path, socket: Path) -> dict[str, int]:
    """The processes of job a, and the arbiter, once all of them are there."""
    deadline_s = time.monotonic() + SOON_S
    while time.monotonic() < deadline_s:
        is_served = socket.exists()  # before that the arbiter may be the process that only starts it
        found = {pid: words(pid) for pid in marked.processes()}
        ranks = [pid for pid, line in found.items() if line.strip().endswith(f"{script} 100")]
        arbiters = [pid for pid, line in found.items() if "crossover.arbiter" in line]
        if is_served and len(ranks) == 2 and arbiters:
            rank = min(ranks)
            launcher = parent(rank)
            chain = {"rank": rank, "launcher": launcher, "supervisor": parent(launcher)}
            return {"run": run, "arbiter": arbiters[-1], **chain}
        time.sleep(0.02)
    raise AssertionError("the jobs did not begin")


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("role", ROLES)
def test_nothing_of_a_run_is_left(role: str, number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    with marked_run() as marked:
        jobs = [f"{name}={sys.executable} -P {script} 100 launch" for name in "ab"]
        socket = tmp_path / "s" / "host.sock"
        command = [sys.executable, "-m", "crossover", "run", *jobs]
        environment = marked.environment | {"CROSSOVER_SOCKET": str(socket)}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            victim = roles(marked, process.pid, script, socket)[role]
            os.kill(victim, number)
            if number is signal.SIGSTOP:
                time.sleep(0.5)
                process.send_signal(signal.SIGKILL if role == "run" else signal.SIGINT)
            shown, _ = process.communicate(timeout=SOON_S)
            if number is signal.SIGSTOP and role == "arbiter":
                os.kill(victim, signal.SIGCONT)  # nobody's child: it ends by itself once it runs
        assert b'Traceback (most recent call last):\n  File "<frozen runpy>' not in shown
        assert marked.wait_until_gone() == []
    assert {path.name for path in socket.parent.iterdir()} <= {"host.sock.log", "host.sock.roster"}
