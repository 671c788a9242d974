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


TRAIN = """\
import os, sys
import torch
import crossover
torch.manual_seed(1)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
crossover.attach(model, optimizer)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 3)).square().sum().backward()
    optimizer.step()
print("trained", model.weight.sum().item(), flush=True)
"""
MACHINES = {  # what is done to this machine, in a mount namespace
    "a full disk": "mount -t tmpfs -o size=8k,mode=700 none {disk}; head -c 8k /dev/zero > {disk}/fill || true",
    "little room": "mount -t tmpfs -o size=8k,mode=700 none {disk}",
    "no inode left": "mount -t tmpfs -o nr_inodes=1,mode=700 none {disk}",
    "a read-only disk": "mount -t tmpfs -o ro,mode=700 none {disk}",
    "no /proc": "mount -t tmpfs none /proc",
    # without the capability every process from before is as another user's
    "hidepid": "mount -t proc -o hidepid=1,gid=12345 proc /proc; "
    'set -- setpriv --bounding-set=-sys_ptrace --inh-caps=-sys_ptrace "$@"',
    "files of no length": "ulimit -f 0",
}


def on_machine(
    name: str, disk: Path, command: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """A command's end there."""
    if os.geteuid() != 0:
        pytest.skip("only root can make such a machine")
    disk.mkdir(mode=0o700)
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(disk)}  # without it torch's import wants to write a file
    words = ["unshare", "--mount", "sh", "-c", f'{MACHINES[name].format(disk=disk)}; exec "$@"', "sh", *command]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=4 * SOON_S, check=False)


@pytest.mark.parametrize("name", MACHINES)
def test_turns_end_no_job_or_nothing_starts(name: str, tmp_path: Path) -> None:
    disk, script = tmp_path / "disk", tmp_path / "train.py"
    script.write_text(TRAIN)
    with marked_run() as marked:
        jobs = [f"{job}={sys.executable} {script}" for job in "ab"]
        environment = marked.environment | {"CROSSOVER_SOCKET": str(disk / "host.sock")}
        done = on_machine(name, disk, [sys.executable, "-m", "crossover", "run", *jobs], environment)
        assert marked.wait_until_gone() == []
    shown = done.stdout + done.stderr
    assert "Traceback" not in shown, shown
    if done.returncode:
        assert "trained" not in shown, "nothing was to start"
        assert done.stderr.startswith("crossover: ")
        assert name in ("no inode left", "a read-only disk")
    else:
        assert shown.count("trained") == 2
        assert len({line.partition("trained")[2] for line in shown.splitlines() if "trained" in line}) == 1


@pytest.mark.parametrize("command", ["verify", "profile"])
def test_results_that_no_disk_takes_start_nothing(command: str, tmp_path: Path) -> None:
    disk, job = tmp_path / "disk", f"touch {tmp_path / 'began'}"
    words = {"verify": ["verify", job], "profile": ["run", "--profile", str(disk), f"a={job}"]}[command]
    with marked_run() as marked:
        environment = marked.environment | {"TMPDIR": str(disk), "CROSSOVER_SOCKET": str(tmp_path / "s" / "host.sock")}
        done = on_machine("little room", disk, [sys.executable, "-m", "crossover", *words], environment)
        assert marked.wait_until_gone() == []
    assert done.returncode == 2, done.stderr
    assert "No space left on device): free some of it" in done.stderr
    assert not (tmp_path / "began").exists()
