"""A Horovod job over the hosts of an emulated cluster: ranks meet, and a failing one ends the job."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience_s

from fabric.enclosure import refusal

JOB = [
    sys.executable,
    "-m",
    "harness.hosted",
    "--hosts",
    "2",
    "--",
    sys.executable,
    "-m",
    "harness.lab.horovod_hosts",
    "--",
]
pytestmark = [
    pytest.mark.emulated,
    pytest.mark.horovod,
    pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not installed: make setup"),
]


@pytest.fixture(autouse=True)
def enclosure_is_allowed() -> None:
    if reason := refusal():
        pytest.skip(f"the kernel forbids the emulated fabric: {reason}")


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(script)
    return subprocess.run(
        [*JOB, sys.executable, str(path)], capture_output=True, text=True, timeout=patience_s(120), check=False
    )


def test_ranks_on_two_hosts_reduce_over_the_shaped_link(tmp_path: Path) -> None:
    script = (
        "import horovod.torch as hvd, torch, socket\n"
        "hvd.init()\n"
        "total = hvd.allreduce(torch.ones(1) * (hvd.rank() + 1), op=hvd.Sum)\n"
        "print(f'{socket.gethostname()} {int(total)}\\n', end='', flush=True)\n"
    )
    told = run(script, tmp_path)
    assert told.returncode == 0, told.stderr
    assert sorted(told.stdout.split("\n"))[-2:] == ["host0 3", "host1 3"]


def test_a_rank_that_fails_ends_the_job_with_its_code(tmp_path: Path) -> None:
    script = "import os, sys, time\nsys.exit(5) if os.environ['HOROVOD_RANK'] == '1' else time.sleep(600)\n"
    assert run(script, tmp_path).returncode == 5
