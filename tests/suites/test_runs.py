"""Real runs on the native fabric, as short as they can be."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from io import StringIO
from pathlib import Path
from time import monotonic, sleep

import pytest
from commands import ONE_TRIAL, Command, Started
from own_data import make_images
from patience import patience_s
from rich.console import Console

from fabric.api import FabricKind
from harness.bench import Bench
from harness.lab.labs import OnEvent
from harness.lab.messages import Answer, Ending
from harness.outcome import Background, record_of
from harness.trial import Trial
from models.data.sampling import Shard, index_batches
from results.codec import from_jsonable
from results.record import Environment, Record, Status, read_records, write_record
from suites.api import Options
from suites.catalogue import suite_of
from suites.earlier import finished_before
from suites.folders import held
from suites.runner import run_trials

pytestmark = pytest.mark.slow

DIGITS = ("--only", "real/resnet20-digits/fixed-buckets")


def records_in(folder: Path) -> list[Record]:
    return list(read_records([folder]))


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, preloaded: list[str]) -> Path:
    """The folder of a finished run of one trial with `--trace`."""
    folder = tmp_path_factory.mktemp("traced") / "records"
    words = (*preloaded[1:], "-m", "suites", *ONE_TRIAL, *DIGITS, "--trace", "--out", str(folder))
    ended = Started(words).ended()
    assert ended.code == 0, ended.err
    assert "fixed-buckets" in ended.out
    return folder


@pytest.fixture
def finished(traced: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to change."""
    return Path(shutil.copytree(traced, tmp_path / "finished"))


def test_a_run_leaves_records_a_report_and_nothing_half_written(traced: Path) -> None:
    (record,) = records_in(traced)
    assert record.status is Status.OK
    assert [len(ranks.steps_s) for ranks in record.jobs[0].ranks] == [2, 2]
    assert (traced / "report.html").stat().st_size > 1_000
    assert not [path for path in traced.rglob("*") if path.name.startswith(".") or path.suffix == ".part"]


def test_a_trace_is_valid_chrome_json_with_every_rank(traced: Path) -> None:
    (record,) = records_in(traced)
    (path,) = (traced / "traces").iterdir()
    assert path.name == f"{record.id}.json"
    events = json.loads(path.read_text())["traceEvents"]
    titles = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert titles == {"job rank 0", "job rank 1"}
    spans = [event for event in events if event["ph"] == "X"]
    assert {"forward", "backward", "message 0"} <= {span["name"] for span in spans}
    assert all(span["ts"] >= 0 and span["dur"] >= 0 for span in spans)


def test_report_is_made_from_records_alone(command: Command, finished: Path, tmp_path: Path) -> None:
    ended = command("report", finished, "--out", tmp_path / "report", "--json")
    assert ended.code == 0
    assert json.loads(ended.out)
    assert (tmp_path / "report" / "report.html").exists()


def test_compare_of_equal_folders_finds_nothing_slower(command: Command, finished: Path) -> None:
    ended = command("compare", finished, finished, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)


def test_resume_skips_what_is_finished(command: Command, finished: Path) -> None:
    (path,) = finished.glob("*.json")
    before = path.stat().st_mtime_ns
    ended = command(*ONE_TRIAL, *DIGITS, "--trace", "--resume", "--out", finished)
    assert ended.code == 0
    assert path.stat().st_mtime_ns == before


def test_records_of_two_runs_do_not_meet_in_one_folder(command: Command, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    ended = command(*ONE_TRIAL, *DIGITS, "--out", tmp_path)
    assert ended.code == 2
    assert "holds records already; go on with them with --resume, or name another folder" in ended.words


@pytest.mark.parametrize("words", [(*ONE_TRIAL, *DIGITS, "--resume"), ("paper", "--only", "parity")])
def test_two_runs_do_not_write_to_one_folder_at_once(command: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    with held(tmp_path):
        ended = command(*words, "--out", tmp_path)
    assert ended.code == 2
    assert f"another run writes to {tmp_path} now; wait for its end" in ended.words
    with held(tmp_path):  # it was let go of
        assert not list(tmp_path.iterdir())


def test_resume_refuses_records_of_other_options_and_keeps_them(command: Command, finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.glob("*.json")}
    ended = command(*ONE_TRIAL, *DIGITS, "--steps", "3", "--trace", "--resume", "--out", finished)
    assert ended.code == 2
    assert re.search(r"r00\.json is the .* \(num_steps is 2 there and 3 here\); go on with the options", ended.words)
    assert {path: path.read_bytes() for path in finished.glob("*.json")} == before


def test_resume_runs_again_what_cannot_be_read_or_failed(command: Command, finished: Path) -> None:
    (record,) = records_in(finished)
    trial = from_jsonable(Trial, dict(record.trial))
    assert finished_before(trial, finished) == record
    write_record(from_jsonable(Record, {**as_json(finished), "status": "error", "reason": "it failed"}), finished)
    assert finished_before(trial, finished) is None
    (finished / f"{trial.id}.json").write_text("{")
    assert finished_before(trial, finished) is None


def as_json(folder: Path) -> dict[str, object]:
    (path,) = folder.glob("*.json")
    data: dict[str, object] = json.loads(path.read_text())
    return data


def image_of_step(images: Path, step: int) -> Path:
    """A training image that no rank reads before `step`, and one reads then."""
    listed = [path for name in ("cat", "dog") for path in sorted((images / "train" / name).iterdir())]
    read: list[set[int]] = [set() for _ in range(step + 1)]
    for rank in range(2):
        batches = index_batches(Shard(num_samples=len(listed), batch_size=64, rank=rank, world=2, seed=1))
        for seen in read:
            seen.update(next(batches)[1])
    return listed[min(read[step] - set().union(*read[:step]))]


def test_a_trial_that_fails_is_recorded_and_the_others_go_on(command: Command, tmp_path: Path) -> None:
    images = make_images(tmp_path / "images")
    broken = image_of_step(images, step=1)
    broken.write_bytes(b"no image")
    cells = ("--only", "real/resnet20-imagefolder/fixed", "--only", "resnet50-replay/fixed", "--hosts", "2")
    ended = command(*ONE_TRIAL, *cells, "--data", images, "--out", "records")
    failed, good = sorted(records_in(tmp_path / "records"), key=lambda record: record.cell)
    assert ended.code == 1
    assert (failed.status, good.status) == (Status.ERROR, Status.OK)
    assert f"{broken} cannot be read as an image" in failed.reason
    assert "rank" in failed.reason
    assert str(broken) in ended.err


def test_images_and_text_of_the_users_own_are_trained_on(command: Command, images: Path, corpus: Path) -> None:
    for data, cell, label in (
        (images, "real/resnet20-imagefolder/fixed", "resnet20-imagefolder"),
        (corpus, "real/bert_tiny-textfile/fixed", "bert_tiny-textfile"),
    ):
        ended = command(*ONE_TRIAL, "--only", cell, "--data", data, "--out", label)
        assert ended.code == 0, ended.err
        assert {record.jobs[0].workload for record in records_in(Path(label))} == {label}


class Failing(Bench):
    """A bench of which no trial ends well."""

    def run(self, trial: Trial, on_event: OnEvent = lambda event: None) -> Record:
        reason = "[/pair.cc:537] connection closed [rank 1]"  # what is in brackets is no style of ours
        return record_of(trial, Answer(ending=Ending.FAILED, reason=reason), Background(Environment()))


def test_a_reason_is_shown_and_recorded_as_it_is(tmp_path: Path) -> None:
    trials = suite_of("quick").grid(Options(fabric=FabricKind.NATIVE, smoke=True))
    console = Console(file=StringIO(), width=200)
    outcome = run_trials(trials, Failing(), tmp_path, console, resume=False)
    assert (outcome.num_failed, outcome.num_asked) == (len(trials), len(trials))
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().count("[/pair.cc:537] connection closed [rank 1]") == len(trials)
    assert len(records_in(tmp_path)) == len(trials)


@pytest.mark.parametrize("fabric", ["native", pytest.param("emulated", marks=pytest.mark.emulated)])
def test_ctrl_c_keeps_what_is_done_and_leaves_nothing_else(tmp_path: Path, scratch: Path, fabric: str) -> None:
    folder = tmp_path / "records"
    words = (
        "run",
        "quick",
        "--any-machine",
        "--fabric",
        fabric,
        "--strategy",
        "fixed-buckets",
        *DIGITS,
        "--steps",
        "12",
    )
    started = Started(("-m", "suites", *words, "--repeats", "9", "--out", str(folder)), {"TMPDIR": str(scratch)})
    wait_for_record(folder, started)
    sleep(0.3)  # into the second trial
    os.kill(started.process.pid, signal.SIGINT)
    ended = started.ended()
    assert ended.code == 130, ended.err
    assert f"the same command and --resume --out {folder}" in ended.words
    assert all(record.status is Status.OK for record in records_in(folder))
    assert [path for path in folder.rglob("*") if path.suffix != ".json"] == []
    assert not list(scratch.glob("crossover-bench-*"))
    assert not started.alive()


def wait_for_record(folder: Path, started: Started) -> None:
    deadline_s = monotonic() + patience_s(100)  # links are measured before the first trial
    while not list(folder.glob("*.json")) and monotonic() < deadline_s and started.process.poll() is None:
        sleep(0.02)
