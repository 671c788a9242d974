"""An unmodified script among virtual peers: what it sees, what is measured of it, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest
from commands import Started
from hypothesis import given
from hypothesis import strategies as st
from patience import patience_s

from fabric.cluster import FabricError
from harness.paced.pacing import PacedTraffic
from harness.paced.script import at_end
from harness.paced.settings import VARIABLE, parse_pace
from harness.paced.steps import NUM_ENOUGH, PacedStep, StepMeter, is_free_round, report_of
from suites.cli import main

NUM_BYTES = 4 * (64 * 64 + 64)
SCRIPT = """
import sys
import psutil
import torch
import torch.distributed as dist
import models  # the script's own, which has the name of a package of the project

def refused(ask, **named):
    try:
        ask(**named)
    except Exception as error:
        print(error, file=sys.stderr)

for rank, size in ((1, 4), (0, 2)):
    refused(dist.init_process_group, backend="gloo", rank=rank, world_size=size)
network = models.network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for asked, num_steps in (("gloo", 1), ("nccl", 22)):  # what is sent once lies in the first three steps
    dist.init_process_group(asked)
    assert (dist.get_rank(), dist.get_world_size()) == (0, 4)
    model = torch.nn.parallel.DistributedDataParallel(network)
    for step in range(num_steps):
        model(torch.ones(2, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    refused(dist.broadcast, tensor=torch.ones(1), src=2)
    dist.destroy_process_group()
(link,) = psutil.Process().children()
link.kill()
"""


def pace(folder: Path, script: str, *options: str, temporary: Path | None = None) -> subprocess.CompletedProcess[str]:
    (folder / "models.py").write_text("import torch\n\ndef network():\n    return torch.nn.Linear(64, 64)\n")
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-W", "ignore", str(folder / "train.py")]
    line = [sys.executable, "-m", "suites", "pace", "--hosts", "4", "--rate", "1gbit", *options, "--", *command]
    environment = {**os.environ, **({} if temporary is None else {"TMPDIR": str(temporary)})}
    return subprocess.run(line, capture_output=True, text=True, timeout=patience_s(150), check=False, env=environment)


@pytest.mark.slow
def test_an_unmodified_script_runs_as_rank_0_and_its_steps_are_told(tmp_path: Path, scratch: Path) -> None:
    """Whichever backend it asks for; with the first it takes the steps that are not counted. What cannot be paced is
    refused with the reason. Nothing stays in the folder for temporary files, although the link is killed."""
    out, temporary = tmp_path / "told.json", scratch / "of job 7,hosts=2"
    temporary.mkdir()
    done = pace(tmp_path, SCRIPT, "--alpha", "5ms", "--out", str(out), temporary=temporary)
    assert done.returncode == 0, done.stderr
    assert list(temporary.glob("crossover-bench-*")) == []
    told = json.loads(out.read_text())
    assert (told["num_steps"], told["num_free_steps"]) == (9, 4)
    assert told["bytes_per_step"] == pytest.approx(2 * 3 / 4 * NUM_BYTES)
    assert told["messages_per_step"] == 1
    assert told["link_s"] == pytest.approx(6 * 5e-3 + 2 * 3 / 4 * NUM_BYTES * 8 / 1e9)
    assert told["median_step_s"] >= told["link_s"]
    assert "exposed time" in done.stderr
    refused = ("asks to be rank 1", "with --hosts 2", "a broadcast from rank 2, needs peers that hold something")
    assert [words for words in refused if words not in done.stderr] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("raise SystemExit('it cannot go on')", "it cannot go on"),
        ("print('no torch')", "nothing was paced"),
    ],
)
def test_a_script_that_fails_or_has_no_steps_fails_with_the_reason(script: str, said: str, tmp_path: Path) -> None:
    done = pace(tmp_path, script)
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hosts", "1"], "--hosts 1 (hosts=1 in CROSSOVER_BENCH_PACE): a script is paced as one of 2 ranks or more"),
        (["--hosts", "0"], "--hosts 0 (hosts=0 in CROSSOVER_BENCH_PACE): a script is paced as one of 2 ranks or more"),
        (["--hosts", "-1"], "the others virtual; give 2 or more"),
        (["--rate", "fast"], "'fast' is no line rate"),
        (["--alpha", "20"], "'20' is no time"),
        ([], "name a command after --"),
    ],
)
def test_a_wrong_request_is_refused(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pace", *options, *([] if not options else ["--", "true"])]) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_a_command_that_is_not_there_is_refused_with_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pace", "--", "no-such-command"]) == 2
    assert "cannot start no-such-command" in capsys.readouterr().err


def test_an_earlier_report_stays_until_there_is_a_new_one(tmp_path: Path) -> None:
    out = tmp_path / "told.json"
    out.write_text("earlier")
    assert main(["pace", "--rate", "fast", "--out", str(out), "--", "true"]) == 2
    assert main(["pace", "--out", str(out), "--", "true"]) == 1  # nothing was paced
    assert out.read_text() == "earlier"


def test_a_report_that_cannot_be_written_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file" / "told.json", tmp_path):
        assert main(["pace", "--out", str(out), "--", "touch", str(tmp_path / "began")]) == 2
        assert "name another" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "began").exists()


def test_the_name_of_a_report_may_hold_what_ends_a_setting(tmp_path: Path) -> None:
    out = tmp_path / "hosts=2,rate=none.json"
    reporting = f"import os; open(os.environ['{VARIABLE}'].partition('report=')[2], 'w').write('new')"
    assert main(["pace", "--out", str(out), "--", sys.executable, "-c", reporting]) == 0
    assert out.read_text() == "new"


def test_a_report_takes_an_earlier_ones_place_whole(tmp_path: Path) -> None:
    path = tmp_path / "told.json"
    path.write_text("earlier")
    with path.open() as held:
        report_of(parse_pace("hosts=8").spec, []).write(path)
        assert held.read() == "earlier"
    assert json.loads(path.read_text())["num_ranks"] == 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_whatever_ends_the_command_ends_all_of_the_script(number: signal.Signals, scratch: Path) -> None:
    script = f"sleep {patience_s(60):.0f} & echo begun; wait"
    started = Started(("-m", "suites", "pace", "--", "sh", "-c", script), {"TMPDIR": str(scratch)})
    assert started.process.stdout is not None
    assert started.process.stdout.readline() == "begun\n"
    started.process.send_signal(number)
    assert started.left() == []
    assert "Traceback" not in started.ended().err
    assert number is signal.SIGKILL or not list(scratch.iterdir())  # who is killed cannot clear up


def test_a_script_keeps_the_environment_that_this_project_does_not_heed() -> None:
    words = ("-m", "suites", "pace", "--", "sh", "-c", 'echo "told: $PYTHONDONTWRITEBYTECODE"')
    assert "told: 1\n" in Started(words, {"PYTHONDONTWRITEBYTECODE": "1"}).ended().out


def test_a_link_whose_script_was_killed_before_it_served_ends_and_leaves_nothing(tmp_path: Path) -> None:
    """Whoever has become its parent is not the script."""
    folder = tmp_path / "link"
    folder.mkdir(0o700)
    words = ["-P", "-m", "harness.paced.link_server", str(folder / "link"), str(os.getppid())]
    done = subprocess.run([sys.executable, *words], capture_output=True, timeout=patience_s(60), check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert not folder.exists()


def test_a_forked_worker_ends_what_is_its_own_and_not_its_parents(tmp_path: Path) -> None:
    """A worker of multiprocessing ends without the calls of `atexit`, and would not report its steps."""

    def work() -> None:
        at_end((tmp_path / "own").touch)

    parent = os.getpid()
    at_end(lambda: os.getpid() == parent or (tmp_path / "parent's").touch())
    worker = get_context("fork").Process(target=work)
    worker.start()
    worker.join(patience_s(30))
    assert worker.exitcode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_the_variable_names_what_is_wrong_in_it() -> None:
    assert parse_pace("hosts=4,alpha=1.5ms").spec.alpha_s == pytest.approx(1.5e-3)
    assert parse_pace("hosts=4,report=/a,hosts=5/b").report == Path("/a,hosts=5/b")
    for wrong in ("host=4", "hosts=many", "hosts"):
        with pytest.raises(FabricError, match="hosts=8,rate=10gbit,alpha=20us"):
            parse_pace(wrong)


STEP_S, LINK_S = 0.010, 0.004


@pytest.mark.parametrize(
    ("sends", "delay", "per_step"),
    [
        pytest.param(lambda step: [1], 0, 1.0, id="DDP"),
        pytest.param(lambda step: [1] if step % 2 == 0 else [], 0, 1 / 2, id="local SGD, H = 2"),
        pytest.param(lambda step: [1] if step % 3 == 0 else [], 0, 1 / 3, id="local SGD, H = 3"),
        pytest.param(lambda step: [1] if step % 4 == 0 else [], 0, 1 / 4, id="local SGD, H = 4"),
        pytest.param(lambda step: [1] if step % 8 == 5 else [], 0, 1 / 8, id="H = 8, a shorter period first"),
        pytest.param(lambda step: [1], 1, 1.0, id="waiting one step later"),
        pytest.param(lambda step: [1] if step % 4 == 0 else [], 1, 1 / 4, id="local SGD, waiting one step later"),
        pytest.param(lambda step: [1, *[1] * 3 * (step % 6 == 0)], 0, 9 / 6, id="an evaluation every 6 steps"),
        pytest.param(lambda step: [0.25] if step % 2 else [4], 0, 4.25 / 2, id="two sorts of messages in turn"),
        pytest.param(lambda step: [1] if step < 43 or step % 4 == 3 else [], 0, 52 / 85, id="local SGD after DDP"),
        pytest.param(lambda step: [], 0, 0.0, id="no messages"),
    ],
)
def test_bytes_and_times_are_means_over_whole_periods(
    sends: Callable[[int], list[float]], delay: int, per_step: float
) -> None:
    """A script on a clock of its own, 91 steps of 10 ms plus what it waits for messages, `delay` steps later."""
    now_s, traffic, optimizer = 0.0, PacedTraffic(), object()
    meter = StepMeter(traffic, lambda: now_s)
    waits_s = [0.0] * 100
    for step in range(91):
        for size in sends(step):
            traffic.num_messages += 1
            traffic.num_bytes += 1e6 * size
            traffic.link_s += LINK_S * size
            waits_s[step + delay] += 0.0 if meter.is_free else LINK_S * size
        now_s += STEP_S + waits_s[step]
        meter.ended(optimizer)
        meter.ended(object())  # another optimizer of the same step
    report = report_of(parse_pace("hosts=8").spec, meter.steps)
    assert report.num_uncompared == 0
    assert report.bytes_per_step == pytest.approx(1e6 * per_step)
    assert report.link_s == pytest.approx(LINK_S * per_step)
    assert report.exposed_s == pytest.approx(LINK_S * per_step)
    assert report.mean_step_s == pytest.approx(STEP_S + LINK_S * per_step)
    assert ("steps are not alike" in report.text()) == (per_step not in (0.0, 1.0))


def test_steps_that_were_never_free_are_named() -> None:
    """One evaluation in a run cannot be compared with anything."""
    steps = [PacedStep(0.01, 1e6, 1, 0.004, is_free=is_free_round(number)) for number in range(40)]
    steps[21] = PacedStep(0.5, 50e6, 9, 0.4, is_free=False)
    report = report_of(parse_pace("hosts=8").spec, steps)
    assert report.bytes_per_step == pytest.approx((39 * 1e6 + 50e6) / 40)
    assert report.num_uncompared == 1
    assert "Exposed time leaves out 1 step, " in report.text()
    assert (
        "1.000 MB in 1 message every 1 step (39 times); 50.000 MB in 9 messages every 1 step (1 time)" in report.text()
    )


@given(st.integers(1, 40), st.integers(0, 39))
def test_free_rounds_come_in_pairs_and_meet_every_place_of_a_period(period: int, offset: int) -> None:
    free = [is_free_round(number) for number in range(offset % period, 80 * period, period)]
    assert 0 < sum(free) < len(free)
    assert all(is_free_round(number) == is_free_round(number ^ 1) for number in range(2 * period))


def test_too_few_steps_are_said_to_be_too_few() -> None:
    report = report_of(parse_pace("hosts=8").spec, [])
    assert report.mean_step_s is None
    assert f"there must be {NUM_ENOUGH} optimizer steps" in report.text()
