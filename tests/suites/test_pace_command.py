"""An unmodified script among virtual peers: what it sees, what is measured of it, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience_s

from fabric.cluster import FabricError
from harness.paced.pacing import PacedTraffic
from harness.paced.settings import parse_pace
from harness.paced.steps import FREE_EVERY, NUM_WARMUP, StepMeter, report_of
from suites.cli import main

NUM_BYTES = 4 * (64 * 64 + 64)
SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
import models  # the script's own, which has the name of a package of the project
torch.set_num_threads(1)
dist.init_process_group(os.environ["ASKED"])
assert (dist.get_rank(), dist.get_world_size()) == (0, 4)
model = torch.nn.parallel.DistributedDataParallel(models.network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(NUM_STEPS):
    model(torch.ones(2, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def pace(folder: Path, script: str, *options: str, asked: str = "gloo") -> subprocess.CompletedProcess[str]:
    (folder / "models.py").write_text("import torch\n\ndef network():\n    return torch.nn.Linear(64, 64)\n")
    (folder / "train.py").write_text(script)
    command = ["env", f"ASKED={asked}", sys.executable, "-W", "ignore", str(folder / "train.py")]
    line = [sys.executable, "-m", "suites", "pace", "--hosts", "4", "--rate", "1gbit", *options, "--", *command]
    return subprocess.run(line, capture_output=True, text=True, timeout=patience_s(150), check=False)


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["gloo", "nccl"])
def test_an_unmodified_script_runs_as_rank_0_and_its_steps_are_told(asked: str, tmp_path: Path) -> None:
    out = tmp_path / "told.json"
    done = pace(tmp_path, SCRIPT.replace("NUM_STEPS", "23"), "--alpha", "5ms", "--out", str(out), asked=asked)
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    assert (told["num_steps"], told["num_free_steps"]) == (15, 5)
    assert told["bytes_per_step"] == pytest.approx(2 * 3 / 4 * NUM_BYTES)
    assert told["messages_per_step"] == 1
    assert told["link_s"] == pytest.approx(6 * 5e-3 + 2 * 3 / 4 * NUM_BYTES * 8 / 1e9)
    assert told["step_s"] >= told["link_s"]
    assert "exposed time" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import torch.distributed as d\nd.init_process_group('gloo', rank=1, world_size=4)", "asks to be rank 1"),
        ("import torch.distributed as d\nd.init_process_group('gloo', rank=0, world_size=2)", "with --hosts 2"),
        (
            "import torch, torch.distributed as d\nd.init_process_group()\nd.broadcast(torch.ones(1), src=2)",
            "a broadcast from rank 2, needs peers that hold something",
        ),
        ("print('no torch')", "nothing was paced"),
    ],
)
def test_what_cannot_be_paced_is_refused_with_the_reason(script: str, said: str, tmp_path: Path) -> None:
    done = pace(tmp_path, script)
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hosts", "1"], "num_virtual=1 is out of range"),
        (["--rate", "fast"], "'fast' is no line rate"),
        (["--alpha", "20"], "'20' is no time"),
        ([], "name a command after --"),
    ],
)
def test_a_wrong_request_is_refused(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pace", *options, *([] if not options else ["--", "true"])]) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_the_variable_names_what_is_wrong_in_it() -> None:
    assert parse_pace("hosts=4,alpha=1.5ms").spec.alpha_s == pytest.approx(1.5e-3)
    for wrong in ("host=4", "hosts=many", "hosts"):
        with pytest.raises(FabricError, match="hosts=8,rate=10gbit,alpha=20us"):
            parse_pace(wrong)


def test_exposed_time_is_what_steps_take_longer_than_free_ones() -> None:
    """A script of 10 ms steps whose messages are exposed for 4 ms, on a clock of its own."""
    now_s, traffic, optimizer = 0.0, PacedTraffic(), object()
    meter = StepMeter(traffic, lambda: now_s)
    for _ in range(40):
        now_s += 0.010 if meter.is_free else 0.014
        traffic.num_messages += 2
        meter.ended(optimizer)
        meter.ended(object())  # another optimizer of the same step
    report = report_of(parse_pace("hosts=8").spec, meter.steps)
    assert report.exposed_s == pytest.approx(0.004)
    assert report.step_s == pytest.approx(0.014)
    assert report.messages_per_step == 2
    assert report.num_free_steps == pytest.approx((40 - NUM_WARMUP) / FREE_EVERY, abs=1)


def test_too_few_steps_are_said_to_be_too_few() -> None:
    report = report_of(parse_pace("hosts=8").spec, [])
    assert report.step_s is None
    assert "there must be" in report.text()
