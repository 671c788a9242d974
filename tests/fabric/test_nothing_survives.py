"""Whichever process of a lab is killed outright, nothing of the lab is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_process import (
    CHECKOUT,
    PROGRAMS,
    environment,
    networks_in_use,
    processes,
    skip_if_refused,
    wait_until_gone,
    wait_until_unused,
)
from patience import patience_s

from crossover.supervisor import ending_with_me, supervised
from fabric.enclosure import enclosure

# started as a process of its own, which starts the lab as a launcher does and waits for it
LAUNCHER = """
import subprocess, sys
from crossover.supervisor import ending_with_me, supervised
from fabric.enclosure import enclosure
kind, rootless, *lab = sys.argv[1:]
inner = [*enclosure(rootless=rootless == "True"), *supervised()] if kind == "emulated" else []
sys.exit(subprocess.Popen([*supervised(ending_with_me()), *inner, sys.executable, *lab]).wait())
"""


def launch(kind: str, *, rootless: bool, token: str) -> subprocess.Popen[str]:
    """Start a launcher whose lab waits to be killed; every process has the token as an argument."""
    lab = [PROGRAMS, "wait_for_end", kind, "2", "none", token]
    command = [sys.executable, "-c", LAUNCHER, kind, str(rootless), *lab]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=CHECKOUT)


@pytest.fixture
def token() -> Iterator[str]:
    name = f"lab-{uuid.uuid4()}"
    yield name
    for pid in processes(name):
        os.kill(pid, signal.SIGKILL)


def find(token: str, role: str) -> int:
    """Return the process of a role: the launcher, a supervisor, unshare, process 1 inside, or the lab itself."""
    found = processes(token)
    labs = {pid for pid, line in found.items() if line[1] == PROGRAMS}
    (lab,) = (pid for pid in labs if parent(pid) not in labs)
    (launcher,) = (pid for pid, line in found.items() if LAUNCHER in line)
    chain = [lab]
    while chain[-1] != launcher:
        chain.append(parent(chain[-1]))
    names = ["lab", "init", "unshare", "supervisor"] if len(chain) == 5 else ["lab", "supervisor"]
    return dict(zip([*names, "launcher"], chain, strict=True))[role]


def parent(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.emulated
@pytest.mark.parametrize("rootless", [False, True], ids=["as root", "without root"])
@pytest.mark.parametrize("role", ["launcher", "supervisor", "unshare", "init", "lab"])
def test_killing_any_process_of_an_enclosed_lab_ends_all(role: str, rootless: bool, token: str) -> None:
    skip_if_refused(rootless=rootless)
    with launch("emulated", rootless=rootless, token=token) as launcher:
        assert launcher.stdout is not None
        networks = set(json.loads(launcher.stdout.readline()))
        assert len(networks) == 2
        assert networks <= networks_in_use()
        os.kill(find(token, role), signal.SIGKILL)
        launcher.wait(patience_s(20))
    assert wait_until_gone(token) == {}
    assert wait_until_unused(networks) == set()
    assert not [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if networks & set(line.split())]


@pytest.mark.parametrize("role", ["launcher", "supervisor", "lab"])
def test_killing_any_process_of_a_native_lab_ends_all(role: str, token: str) -> None:
    with launch("native", rootless=False, token=token) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        os.kill(find(token, role), signal.SIGKILL)
        launcher.wait(patience_s(20))
    assert wait_until_gone(token) == {}


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("program", "status"),
    [("import sys; sys.exit(7)", 7), ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL)],
    ids=["exits", "killed"],
)
def test_an_enclosure_ends_with_the_labs_status(program: str, status: int) -> None:
    skip_if_refused(rootless=None)
    command = [*supervised(ending_with_me()), *enclosure(), *supervised(), sys.executable, "-c", program]
    assert subprocess.run(command, env=environment(), timeout=patience_s(60), check=False).returncode == status


def test_a_supervised_command_does_not_start_for_a_parent_that_is_gone() -> None:
    command = [*supervised(f"--parent={os.getppid()}"), sys.executable, "-c", "print('started')"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=patience_s(60), check=False
    )
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stdout == ""
