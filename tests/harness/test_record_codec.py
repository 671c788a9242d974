"""Trials and records through JSON and back; what does not fit is named."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover import Sharing
from fabric.api import FabricKind, FabricSpec
from harness.checks.trial import check
from harness.lab.messages import Answer, Ending, Event, Task, event_from, task_from, to_line
from harness.trial import Job, Trial, TrialError
from models.workload import Device, WorkloadSpec
from results.codec import CodecError, from_jsonable, to_jsonable
from results.record import (
    SCHEMA_VERSION,
    CurvePoint,
    Environment,
    FabricFacts,
    JobResult,
    Record,
    RecordError,
    Status,
    read_record,
    read_records,
    write_record,
)

LOSSES = st.floats(-1e18, 1e300) | st.sampled_from([math.nan, math.inf])


def job(name: str = "a", **changes: Any) -> Job:
    return Job(name=name, workload=WorkloadSpec(network="resnet20"), **changes)


def trial(**changes: Any) -> Trial:
    asked = {"suite": "s", "cell": "c", "jobs": (job(),), "fabric": FabricSpec(kind=FabricKind.EMULATED)}
    return Trial(**{**asked, **changes})


def record(**changes: Any) -> Record:
    facts = FabricFacts(kind="native", label="measured", num_hosts=2)
    asked = {"id": "s.c.r00", "suite": "s", "cell": "c", "repeat": 0, "seed": 1, "status": Status.OK, "fabric": facts}
    return Record(**{**asked, **changes})


def trained(losses: Sequence[float], **changes: Any) -> JobResult:
    curve = tuple(CurvePoint(step=step, time_s=0.0, loss=loss) for step, loss in enumerate(losses))
    asked = {"name": "a", "workload": "w", "system": "ours", "strategy": "unfused", "device": "cpu", "batch_size": 1}
    return JobResult(**{**asked, "num_steps": 2, "curve": curve, **changes})


def same(one: object, other: object) -> bool:
    """Equality by text, in which NaN equals NaN."""
    return json.dumps(to_jsonable(one)) == json.dumps(to_jsonable(other))


@given(seed=st.integers(0, 10**9), timeout_s=st.floats(0.1, 1e6), rate_bps=st.none() | st.floats(1e6, 3e10))
def test_trials_survive_the_line_to_the_lab(seed: int, timeout_s: float, rate_bps: float | None) -> None:
    asked = trial(
        jobs=(job("a", strategy="topk(density=0.5)+error-feedback"), job("b", system="torch-ddp")),
        sharing=Sharing.CROSSOVER,
        fabric=FabricSpec(kind=FabricKind.EMULATED, rate_bps=rate_bps),
        seed=seed,
        timeout_s=timeout_s,
    )
    line = to_line(Task(trial=asked))
    assert line.count(b"\n") == 1
    assert task_from(line) == Task(trial=asked)


@given(losses=st.lists(LOSSES, max_size=5), makespan_s=st.none() | st.floats(1e-12, 1e18))
def test_records_survive_their_file_with_nan_and_infinity(
    losses: list[float], makespan_s: float | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    written = record(jobs=(trained(losses),), makespan_s=makespan_s, trial=to_jsonable(trial()))
    path = write_record(written, tmp_path_factory.mktemp("records"))
    assert [entry.name for entry in path.parent.iterdir()] == ["s.c.r00.json"]
    read = read_record(path)
    assert same(read, written)
    assert all(math.isnan(p.loss) == math.isnan(loss) for p, loss in zip(read.jobs[0].curve, losses, strict=True))
    assert from_jsonable(Trial, dict(read.trial)) == trial()


def test_events_survive_the_line_from_a_rank() -> None:
    event = Event(kind="answer", answer=Answer(ending=Ending.FAILED, reason="rank 1 — gone\nreally"))
    assert event_from(to_line(event)) == event


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surprise": 1}, "Trial: unknown field 'surprise'"),
        ({"seed": "1"}, "Trial.seed: expected int, got '1'"),
        ({"seed": True}, "Trial.seed: expected int, got True"),
        ({"seed": 1.5}, "Trial.seed: expected int"),
        ({"timeout_s": "soon"}, "Trial.timeout_s: expected float"),
        ({"sharing": "often"}, "Trial.sharing: 'often' is none of"),
        ({"jobs": {}}, "Trial.jobs: expected a list"),
        ({"jobs": [1]}, r"Trial.jobs\[0\]: expected an object"),
        ({"trace": 0}, "Trial.trace: expected bool"),
    ],
)
def test_a_field_that_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        from_jsonable(Trial, {**to_jsonable(trial()), **change})


def test_a_missing_field_is_named() -> None:
    data = to_jsonable(trial())
    del data["suite"]
    with pytest.raises(CodecError, match="Trial: field 'suite' is missing"):
        from_jsonable(Trial, data)


def test_what_is_no_plain_value_is_not_written() -> None:
    with pytest.raises(CodecError, match="cannot write a set"):
        to_jsonable({"a": {1}})


def changed(folder: Path, **fields: Any) -> Path:
    path = write_record(record(), folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return path


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema": SCHEMA_VERSION + 1}, f"schema version {SCHEMA_VERSION + 1}, this checkout reads {SCHEMA_VERSION}"),
        ({"schema": None}, "schema version None"),
        ({"surprise": 1}, "unknown field 'surprise'"),
        ({"seed": "x"}, "Record.seed: expected int"),
        ({"status": "fine"}, "'fine' is none of"),
    ],
)
def test_a_record_that_does_not_fit_names_file_and_fault(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = changed(tmp_path, **fields)
    with pytest.raises(RecordError, match=message) as refused:
        read_record(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch_size", 0), ("batch_size", -1), ("num_parameters", 10**400), ("num_parameters", -1), ("start_s", "nan"),
     ("wire_bytes", {"gradient": "inf"}), ("ranks", [{"rank": 0, "warmup_s": [], "steps_s": [0.0]}]),
     ("ranks", [{"rank": 0, "warmup_s": [], "steps_s": [1.0, "nan"]}]), ("loss_scale", "-inf"),
     ("curve", [{"step": 0, "time_s": 0, "loss": "-inf"}]), ("curve", [{"step": 0, "time_s": 0, "loss": 1e301}]),
     ("curve", [{"step": 0, "time_s": 0, "loss": 0, "accuracy": "nan"}])],
)  # fmt: skip
def test_a_number_that_cannot_be_is_refused_with_its_field_and_bounds(field: str, value: Any, tmp_path: Path) -> None:
    path = write_record(record(jobs=(trained([1.0]),)), tmp_path)
    data = json.loads(path.read_text())
    data["jobs"][0][field] = value
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match=r"c\.r00\.json: \w+ is .*it must be a number from .* run the trial again"):
        read_record(path)


def test_what_diverges_and_settings_are_read_as_they_are(tmp_path: Path) -> None:
    diverged = trained([math.nan, math.inf, 1e38, -0.5], tuned={"bucket_bytes": -1.0})
    assert same(read_record(write_record(record(jobs=(diverged,)), tmp_path)).jobs[0], diverged)


def test_texts_of_a_record_hold_nothing_that_moves_a_terminal_or_has_no_encoding(tmp_path: Path) -> None:
    hostile = record(cell="a\x1b[2Jb\ud800", reason="first\nsecond\x9b31m\u202e")
    read = read_record(write_record(hostile, tmp_path))
    assert (read.cell, read.reason) == (r"a\x1b[2Jb\ud800", "first\nsecond\\x9b31m\\u202e")
    written = tmp_path / "raw.json"  # unescaped, as another program may write it
    written.write_text(json.dumps(to_jsonable(record(reason="µ\x9b\x7f")), ensure_ascii=False))
    assert read_record(written).reason == r"µ\x9b\x7f"


def test_a_file_that_begins_unlike_a_record_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.write(b'[[], {"a": ')
        file.truncate(200_000_000)  # of which no block is on the disk
    tracemalloc.start()
    with pytest.raises(RecordError, match=r"huge\.json: .*it begins with b'\[\[\], .*not with one of the fields id, "):
        read_record(path)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"'])
def test_what_is_no_record_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"x\.json"):
        read_record(path)


def test_an_absent_folder_of_records_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such folder of records; run a suite"):
        list(read_records([tmp_path / "none"]))


def test_a_record_counts_once_however_many_paths_and_copies_there_are_of_it(tmp_path: Path) -> None:
    runs = tmp_path / "quick"
    for name in ("a", "b"):  # NaN is equal to itself here
        path = write_record(record(id=name, jobs=(trained([math.nan]),)), runs / "20260101-000000")
    (runs / "latest").symlink_to("20260101-000000")
    (runs / "20260101-000000" / "b (1).json").write_text(path.read_text())
    (runs / "unpacked").mkdir()
    (runs / "unpacked" / "b.json").write_text(json.dumps(json.loads(path.read_text())))
    os.link(path, runs / "linked.json")
    for folders in (sorted(runs.iterdir()), [runs], [runs, runs / "latest", path]):
        assert [found.id for found in read_records(folders)] == ["a", "b"]


def test_two_different_records_of_one_id_are_refused_by_both_names(tmp_path: Path) -> None:
    one = write_record(record(seed=1), tmp_path / "one")
    other = write_record(record(seed=2), tmp_path / "other")
    for several in (False, True):  # of one session they are no two runs either
        with pytest.raises(RecordError, match=f"{one} and {other}: two different records of s.c.r00"):
            list(read_records([tmp_path], of_several_runs=several))


def test_runs_are_pooled_only_on_request_and_each_counts_once(tmp_path: Path) -> None:
    for day in ("01", "02"):
        write_record(record(environment=Environment(started_at=f"2026-01-{day}")), tmp_path / day)
    (tmp_path / "latest").symlink_to("02")
    folders = sorted(tmp_path.iterdir())
    with pytest.raises(RecordError, match="report on several runs together with --allow-different"):
        list(read_records(folders))
    found = [own.environment.started_at for own in read_records(folders, of_several_runs=True)]
    assert found == ["2026-01-01", "2026-01-02"]


def test_records_are_read_in_order_of_path(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write_record(record(id=name), tmp_path)
    assert [found.id for found in read_records([tmp_path])] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jobs": ()}, "no jobs"),
        ({"num_steps": 0}, "num_steps is 0"),
        ({"num_warmup": 0}, "num_warmup 0"),
        ({"sharing": Sharing.NAIVE}, r"1 job\(s\) with sharing=naive"),
        ({"jobs": (job("a"), job("a")), "sharing": Sharing.NAIVE}, "called alike"),
    ],
)
def test_a_trial_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TrialError, match=message):
        trial(**changes)


def test_turns_that_would_wait_for_messages_are_refused() -> None:
    eager = job("a", strategy="unfused+at-pre-hook")
    with pytest.raises(TrialError, match="update after-all"):
        check(trial(jobs=(eager, job("b")), sharing=Sharing.CROSSOVER))


def test_a_trial_says_its_place_in_a_file_name() -> None:
    named = trial(cell="a/b c", repeat=3)
    assert named.id == "s.a_b_c.r03"
    assert dataclasses.replace(named, repeat=4).id != named.id
    assert job().workload.device is Device.CPU


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        (float | int, 3, 3),
        (int | float, 3, 3),
        (float | int, 3.0, 3.0),
        (float | str, "inf", "inf"),
        (float | None, "inf", math.inf),
        (int | bool, True, True),
        (tuple[int, ...] | str, "a", "a"),
        (Status | int, "ok", Status.OK),
    ],
)
def test_of_a_union_a_scalar_is_of_its_own_type_whatever_stands_before_that(
    kind: Any, data: Any, expected: Any
) -> None:
    decoded = from_jsonable(kind, data)
    assert (decoded, type(decoded)) == (expected, type(expected))


def test_a_kind_that_refuses_a_value_leaves_nothing_for_the_collector() -> None:
    """Thousands of records of which each leaves a hundred frames take a third longer to read."""
    kind: Any = tuple[int, ...] | dict[str, int]
    from_jsonable(kind, {})
    gc.disable()
    try:  # what other threads of this process leave now and then is theirs
        assert any(_left_by(lambda: from_jsonable(kind, {"a": 1})) < 100 for _ in range(3))
    finally:
        gc.enable()


def _left_by(call: Callable[[], object]) -> int:
    gc.collect()
    for _ in range(100):
        call()
    return gc.collect()
