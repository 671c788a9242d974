"""Every wrong request ends with code 2 and a message that names the value and the remedy, before anything starts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from commands import ONE_TRIAL, Command
from own_data import make_images

import harness.memory
import suites.commands.run
from baselines import outside
from results.record import Environment, FabricFacts, JobResult, RankTimes, Record, Status, write_record

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("run", "quick")
WRONG = {
    "unknown suite": (("run", "quik"), r"unknown suite 'quik'; there are: .*quick"),
    "unknown baseline": ((*QUICK, "--strategy", "topp"), r"unknown baseline 'topp'; known: .*topk"),
    "unknown parameter": ((*QUICK, "--strategy", "topk(share=0.1)"), r"no parameter 'share'; it has: density"),
    "refused parameter": ((*QUICK, "--strategy", "topk(density=2)"), r"density.*2.*above 0 and up to 1"),
    "unreadable strategy": ((*QUICK, "--strategy", "topk("), r"'topk\(.* cannot be read; write e\.g\. "),
    "illegal pair": ((*QUICK, "--strategy", "topk+ring"), r"topk\+ring.*: .*(use|all-gather)"),
    "two packings": (
        (*QUICK, "--strategy", "unfused+fixed-buckets"),
        r"fixed-buckets and unfused both decide packing; name one",
    ),
    "unknown fabric": ((*QUICK, "--fabric", "emulatd"), r"unknown fabric 'emulatd'; use one of: native, emulated"),
    "unknown paths": ((*QUICK, "--network", "torus(sides=(2, 2))", "--paths", "rail"), r"--paths 'rail'.*first-fit"),
    "paths of no network": ((*QUICK, "--paths", "first-fit"), r"--paths without --network; name one"),
    "unknown device": ((*QUICK, "--device", "tpu"), r"unknown device 'tpu'; use cpu or cuda"),
    "no repeats": ((*QUICK, "--repeats", "0"), r"--repeats is 0; it must be at least 1"),
    "a seed that no generator takes": ((*QUICK, "--seed", "9" * 23), r"--seed is 9{23}; choose one from 0 to"),
    "a budget that is no time": ((*QUICK, "--dry-run", "--budget", "nan"), r"--budget 'nan' is no time"),
    "no steps": ((*QUICK, "--steps", "-3"), r"--steps is -3; it must be at least 1"),
    "no hosts": ((*QUICK, "--hosts", "0"), r"--hosts is 0; it must be at least 1"),
    "too many hosts": ((*QUICK, "--hosts", "65"), r"num_hosts=65 is out of range; choose 1 to 64"),
    "more ranks than samples": (
        (*QUICK, "--only", "real/resnet20", "--hosts", "40"),
        r"batch_size 64 on 40 ranks wants 2560 samples.*use a smaller batch \(--batch-size\)",
    ),
    "a rate of nothing": ((*QUICK, "--rate", "0"), r"'0' is no line rate; write a rate such as 200mbit"),
    "a rate of no bits": ((*QUICK, "--rate", "0mbit"), r"'0mbit' .*cannot carry a message; write a rate such as"),
    "a native rate": ((*QUICK, "--fabric", "native", "--rate", "1gbit"), r"native .*cannot be shaped.*--rate none"),
    "no such cell": ((*QUICK, "--only", "resnet21"), r"--only 'resnet21' matches no cell; parts .*resnet20-digits"),
    "absent data": ((*QUICK, "--data", "/absent/images"), r"--data '/absent/images' does not exist; give an ImageNet"),
    "nothing to resume": ((*QUICK, "--resume"), r"--resume: there is no earlier run in runs/quick; leave --resume out"),
    "no records": (("report",), r"no records in runs; run a suite first"),
    "absent records": (("report", "/absent/records"), r"/absent/records: no such folder of records; run a suite"),
    "nothing to compare": (("compare", "/absent/a", "/absent/b"), r"/absent/a: no such folder of records; run a suite"),
    "unknown fabric to examine": (
        ("doctor", "--fabric", "wifi"),
        r"fabric 'wifi' has no links to measure; use emulated or",
    ),
    "a fabric without links to examine": (("doctor", "--fabric", "lockstep"), r"'lockstep' has no links to measure"),
    "repeats without end": ((*QUICK, "--repeats", "1000000000"), r"--repeats is 1,000,000,000; at most 1,000"),
    "hosts in another script": (
        ("predict", "--workload", "resnet50", "--alpha", "0", "--hosts", "²"),
        r"--hosts '²': give",
    ),
    "an empty folder of records": ((*QUICK, "--out", ""), r"--out: '' names nothing; name a path, or \."),
    "an empty part of a name": ((*QUICK, "--only", ""), r"--only '' names no cell; give a part"),
    "no suite of a paper": (("paper", "--only", ""), r"--only '' is no suite"),
    "a paper's empty budget": (("paper", "--budget", ""), r"--budget '' is no time"),
    "empty data": ((*QUICK, "--data", ""), r"--data '' names nothing; give an ImageNet folder"),
    "empty rates": (("predict", "--workload", "resnet50", "--alpha", "0", "--rates", ""), r"'' is no line rate"),
    "empty hosts": (("predict", "--workload", "resnet50", "--alpha", "0", "--hosts", ""), r"--hosts '': give whole"),
    "an empty fabric": (("predict", "--calibrate", "--fabric", ""), r"--fabric '': costs are measured on"),
    "a loss that no cell knows": ((*QUICK, "--on-loss", "stop"), r"--on-loss stop, but none .*run consistency-hosts"),
    "one host to examine": (
        ("doctor", "--fabric", "native", "--hosts", "1"),
        r"--hosts 1: an all-reduce needs at least 2",
    ),
    "hosts of no fabric": (("doctor", "--hosts", "0"), r"--hosts 0 says what to measure; add --fabric emulated or"),
    "a rate of no fabric": (("doctor", "--rate", "1gbit"), r"--rate 1gbit says what to measure; add --fabric"),
    "an empty fabric to examine": (("doctor", "--fabric", ""), r"fabric '' has no links to measure"),
    "no folder for the claims": (("claims", "--out", "absent/page.md"), r"there is no folder absent; make it, or name"),
    "a strategy that no file's name can hold": (
        (*QUICK, "--strategy", f"fixed-buckets+topk(density=0.{'0' * 180}1)+error-feedback"),
        r"name of its record has 2\d\d bytes, and at most 240 .*; give a shorter strategy",
    ),
    "no start-up time": (
        ("predict", "--workload", "resnet50", "--alpha", "nan"),
        r"--alpha 'nan' is no time; write one",
    ),
    "a start-up time without a unit": (
        ("predict", "--workload", "resnet50", "--alpha", "20"),
        r"--alpha '20' is no time without a unit: it would be 20 s; write one such as 20us",
    ),
    "two rates": (
        ("predict", "--workload", "resnet50", "--alpha", "20us", "--beta", "0.8ns", "--rates", "1gbit,10gbit"),
        r"--beta 0.8ns and --rates 1gbit,10gbit both say the rate",
    ),
    "a rate beside the cells' own": (
        ("predict", "fusion", "--alpha", "20us", "--beta", "0.8ns"),
        r"--beta 0.8ns and the cells of fusion both say the rate",
    ),
    "an unknown network to predict": (
        ("predict", "--workload", "nope", "--alpha", "0"),
        r"'nope'; there are .*resnet50",
    ),
    "a network without a profile": (
        ("predict", "--workload", "resnet20", "--alpha", "0"),
        r"no profile.*or use one of",
    ),
    "another network's profile": (
        ("predict", "--workload", "vgg16", "--profile", "resnet50-v100", "--alpha", "0"),
        r"is of 'resnet50', not of --workload 'vgg16'",
    ),
    "nothing that can be predicted": (
        ("predict", "consistency", "--alpha", "0"),
        r"15 cells: computes on cpu.*ask for other cells",
    ),
    "a name beyond what file systems take": ((*QUICK, "--data", "a" * 300), r"File name too long; give a shorter"),
    "a full disk": (("run", "quick", "--smoke", "--out", "/dev/full/x"), r"cannot write to /dev/full/x"),
    "not a number": ((*QUICK, "--hosts", "two"), r"--hosts: invalid int value: 'two'"),
    "unknown option": ((*QUICK, "--host", "2", "--hots"), r"--hots"),
    "another fabric than a suite's own": (
        ("run", "convergence", "--dry-run", "--fabric", "emulated"),
        r"--fabric emulated: this suite is for the lockstep fabric alone; leave it out",
    ),
    "a rate of no cell": (
        ("run", "parallelism", "--dry-run", "--rate", "3mbit"),
        r"--rate 3 Mbit/s is taken up by none of these cells; choose other cells, or leave it out",
    ),
    "hosts of no cell": (
        ("run", "largebatch", "--dry-run", "--hosts", "3"),
        r"--hosts 3 is taken up by none of these cells",
    ),
    "steps of no cell": (
        ("run", "collectives", "--dry-run", "--steps", "7"),
        r"--steps 7 is taken up by none of these cells",
    ),
    "unknown command": (("rum",), r"invalid choice: 'rum'"),
}


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_request_is_refused(command: Command, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    ended = command(*words)
    assert ended.code == 2
    assert re.search(message, ended.words), ended.err
    assert "Traceback" not in ended.err
    assert not list(tmp_path.iterdir())


def test_a_message_is_printed_as_it_is_with_its_brackets(command: Command) -> None:
    assert "[bold]" in command(*QUICK, "--only", "[bold]").err


def test_an_empty_data_folder_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    ended = command(*QUICK, "--data", "nothing")
    assert ended.code == 2
    assert "--data 'nothing' holds neither images by class nor text; give an ImageNet folder" in ended.words


def test_a_class_without_images_is_refused(command: Command, tmp_path: Path) -> None:
    for folder in ("train/cat", "val/cat"):
        (tmp_path / "images" / folder).mkdir(parents=True)
    ended = command(*QUICK, "--data", "images", "--only", "real/resnet20")
    assert ended.code == 2
    assert "images/train/cat has no images" in ended.words


def test_a_broken_image_is_named_before_anything_starts(command: Command, tmp_path: Path) -> None:
    images = make_images(tmp_path / "images")
    for path in (images / "train" / "dog").iterdir():
        path.write_bytes(path.read_bytes()[:200])
    ended = command(*ONE_TRIAL, "--data", images, "--only", "real/resnet20", "--out", "records")
    assert ended.code == 2
    assert re.search(r"train/dog/\d+\.JPEG cannot be read as an image .*replace or remove it", ended.words)
    assert not (tmp_path / "records").exists()


def test_too_few_images_are_refused_with_an_option_that_helps(command: Command, tmp_path: Path) -> None:
    images = make_images(tmp_path / "images")
    for path in sorted((images / "train" / "dog").iterdir())[:-2]:
        path.unlink()
    few = (*ONE_TRIAL, "--data", images, "--only", "real/resnet20", "--dry-run")
    ended = command(*few)
    assert ended.code == 2
    assert "use a smaller batch (--batch-size)" in ended.words
    assert command(*few, "--batch-size", 8).code == 0
    assert "give --data as well" in command(*QUICK, "--loaders", 1).words
    assert "changes none of these cells" in command("run", "parallelism", "--dry-run", "--batch-size", 7).words


def test_data_that_no_chosen_cell_takes_is_refused(command: Command, images: Path) -> None:
    ended = command(*QUICK, "--data", images, "--only", "replay-8-25")
    assert ended.code == 2
    assert "fits none of resnet50-replay; choose other cells, or leave it out" in ended.words


def test_a_trial_larger_than_memory_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = namedtuple("memory", "available total")(200_000_000, 400_000_000)
    monkeypatch.setattr(harness.memory.psutil, "virtual_memory", lambda: memory)
    ended = command(*QUICK, "--only", "replay/")
    assert ended.code == 2
    assert re.search(r"needs about \d\.\d GB on this machine and 0\.2 GB are free; use fewer hosts", ended.words)


def test_an_unwritable_folder_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # a path below a file: root may write anywhere else
    for words in (ONE_TRIAL, ("report", tmp_path)):
        if words[0] == "report":
            copy_reference_record(tmp_path)
        ended = command(*words, "--out", tmp_path / "file" / "records")
        assert ended.code == 2
        assert re.search(r"cannot write to .*file/records \(.*\); name another folder with --out", ended.words)


def copy_reference_record(folder: Path) -> None:
    record = {"schema": 1, "id": "a", "suite": "quick", "cell": "real/x/y", "repeat": 0, "seed": 1, "status": "ok"}
    fabric = {"kind": "native", "label": "measured", "num_hosts": 2}
    (folder / "a.json").write_text(json.dumps({**record, "fabric": fabric}))


def test_a_baseline_that_no_record_has_is_refused_with_those_there_are(command: Command, tmp_path: Path) -> None:
    records = sorted((ROOT / "results" / "reference" / "parity").glob("*.r00.json"))[:4]
    ended = command("report", *records, "--out", tmp_path / "page", "--baseline", "torch-dpp")
    assert ended.code == 2
    assert re.search(r"--baseline 'torch-dpp' is no system of these records; there are: .*ours", ended.words)
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize("version", [0, 3, "1", None])
def test_a_record_of_another_schema_is_refused(command: Command, tmp_path: Path, version: object) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"schema": version, "id": "a"}))
    ended = command("report", tmp_path)
    assert ended.code == 2
    assert f"schema version {version!r}, this checkout reads 2 and 1; run the trial again" in ended.words


def test_a_gpu_that_is_not_there_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites.commands.run.torch.cuda, "is_available", lambda: False)
    ended = command(*QUICK, "--device", "cuda")
    assert ended.code == 2
    assert "torch sees no GPU; use --device cpu" in ended.words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--only", "real/resnet20"), "NCCL goes around the emulated links"),
        (("--only", "replay/", "--fabric", "native"), "none of these cells computes on a GPU"),
        (("--only", "real/resnet20", "--fabric", "native"), "2 ranks here want a GPU each and there are 1"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_refused(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(suites.commands.run.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(suites.commands.run.torch.cuda, "device_count", lambda: 1)
    ended = command(*QUICK, "--device", "cuda", *words)
    assert ended.code == 2
    assert message in ended.words


def test_folders_without_records_are_not_compared(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ended = command("compare", tmp_path / "empty", tmp_path / "empty")
    assert (ended.code, "no records in" in ended.words) == (2, True)


def _record(name: str, machine: str, jobs: tuple[JobResult, ...]) -> Record:
    return Record(
        id=name, suite="quick", cell="real/resnet20-digits/unfused", repeat=0, seed=1, status=Status.OK, jobs=jobs,
        fabric=FabricFacts(kind="native", label="measured", num_hosts=1), environment=Environment(machine=machine),
    )  # fmt: skip


def test_records_without_step_times_are_not_said_to_be_no_slower(command: Command, tmp_path: Path) -> None:
    write_record(_record("one", "here", ()), tmp_path)
    ended = command("compare", tmp_path, tmp_path)
    assert (ended.code, "can be compared: no cell has trials with step times" in ended.words) == (2, True)
    assert not ended.out  # no table without a row


@pytest.mark.parametrize("name", ["report", "claims"])
def test_one_cell_of_two_machines_is_shown_only_on_request(command: Command, tmp_path: Path, name: str) -> None:
    timed = JobResult(
        name="job", workload="resnet20-digits", system="ours", strategy="unfused", device="cpu", batch_size=1,
        num_steps=1, ranks=(RankTimes(rank=0, warmup_s=(), steps_s=(1.0,)),),
    )  # fmt: skip
    write_record(_record("one", "here", (timed,)), tmp_path / "records")
    write_record(_record("two", "there", (timed,)), tmp_path / "records")
    ended = command(name, tmp_path / "records", "--out", tmp_path / "out")
    assert (ended.code, "(--allow-different)" in ended.words) == (2, True)
    assert not (tmp_path / "out").exists()


def test_a_side_of_a_comparison_counts_a_record_once_and_is_one_run(command: Command, tmp_path: Path) -> None:
    """Three repeats and a link to them are no six, which would decide."""
    for run, steps_s in (("before", 2.0), ("after", 1.0), ("again", 1.5)):
        job = JobResult(
            name="job", workload="resnet20-digits", system="ours", strategy="unfused", device="cpu", batch_size=1,
            num_steps=1, ranks=(RankTimes(rank=0, warmup_s=(), steps_s=(steps_s,)),),
        )  # fmt: skip
        for repeat in range(3):
            write_record(replace(_record(f"one.r{repeat:02}", "here", (job,)), repeat=repeat), tmp_path / run / "1")
        (tmp_path / run / "latest").symlink_to("1")
        for path in (tmp_path / run / "1").glob("*.json"):
            (tmp_path / run / f"copy of {path.name}").write_text(path.read_text())
    (found,) = json.loads(command("compare", tmp_path / "before", tmp_path / "after", "--json").out)
    assert (found["time_ratio"]["n"], found["change"]) == (3, "too few repeats")
    (tmp_path / "again" / "1").rename(tmp_path / "after" / "3")
    ended = command("compare", tmp_path / "before", tmp_path / "after")
    assert (ended.code, "two different records of one.r00" in ended.words) == (2, True)


@pytest.mark.parametrize("text", ["raise RuntimeError('boom')", "def (", "raise SystemExit(3)"])
def test_a_plug_in_that_cannot_be_imported_is_named(
    command: Command, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(outside.VARIABLE, "")  # what --plugins adds goes with the test
    folder = tmp_path / "plugins_that_raise"
    folder.mkdir()
    (folder / "bad.py").write_text(text)
    ended = command("--plugins", folder, "list")
    assert ended.code == 2
    assert "bad.py cannot be imported" in ended.words
    assert "mend the file" in ended.words


def test_a_reader_that_has_had_enough_ends_a_command_as_it_ends_others(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = [sys.executable, "-m", "suites", "list", "--json"]
    with os.fdopen(write_end, "wb") as nobody:
        ended = subprocess.run(words, cwd=ROOT, stdout=nobody, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (141, "")
