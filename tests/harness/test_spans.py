"""Spans and their Chrome form."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.engine import messages
from harness.trace import Process, Recorder, Span, covered_s, write_trace

TICKS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=25)


def spans(ticks: list[tuple[int, int]], track: str = "lane 0") -> list[Span]:
    return [Span(track, "message", float(start), float(start + length)) for start, length in ticks]


@given(ticks=TICKS)
def test_covered_time_is_the_length_of_the_union(ticks: list[tuple[int, int]]) -> None:
    union = {tick for start, length in ticks for tick in range(start, start + length)}
    assert covered_s(spans(ticks)) == len(union)


@given(ticks=TICKS)
def test_covered_time_is_at_most_the_sum_and_at_least_the_longest(ticks: list[tuple[int, int]]) -> None:
    lengths = [length for _, length in ticks]
    assert max(lengths, default=0) <= covered_s(spans(ticks)) <= sum(lengths)


def test_totals_are_by_track_name_and_start() -> None:
    recorder = Recorder()
    recorder.add("compute", "forward", 0.0, 1.0)
    recorder.add("compute", "backward", 1.0, 3.0)
    recorder.add("lane 0", "message 0", 1.0, 9.0)
    assert recorder.total_s("compute") == 3.0
    assert recorder.total_s("compute", "forward") == 1.0
    assert recorder.between(0.5, 9.0).total_s("compute") == 2.0
    assert recorder.between(0.0, 0.5).total_s("compute") == 1.0
    with recorder.span("turn", "wait"):
        pass
    assert recorder.total_s("turn") >= 0.0


def test_what_a_forward_waits_for_messages_is_no_computation() -> None:
    recorder = Recorder()
    recorder.add("loop", "exposed", 1.0, 4.0)  # at a pre-hook, within the forward
    recorder.add("compute", "forward", 0.5, 5.0)
    recorder.add("compute", "backward", 5.0, 7.0)
    recorder.add("loop", "exposed", 7.0, 9.0)
    recorder.add("loop", "wait", 7.0, 9.0)
    assert recorder.total_without_s("compute", ("loop", "exposed")) == 1.5 + 2.0
    assert recorder.between(0.9, 9.0).total_without_s("compute", ("loop", "exposed")) == 2.0


def test_a_codecs_time_holds_neither_gathering_nor_scattering(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def takes(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def codec() -> Generator[SimpleNamespace, tuple[Tensor, ...], SimpleNamespace]:
        takes(1.0)
        yield SimpleNamespace(primitive=None)
        takes(2.0)
        return SimpleNamespace(value=None)

    def begin(run: messages.GradientRun) -> None:
        takes(4.0)
        run._flat, run._run = torch.zeros(1), codec()  # type: ignore[assignment]

    monkeypatch.setattr(messages, "perf_counter", lambda: now_s)
    monkeypatch.setattr(messages.GradientRun, "_begin", begin)
    streams = SimpleNamespace(lane=lambda number: nullcontext())
    recorder = Recorder()
    own = SimpleNamespace(recorder=recorder, hand_back=lambda *_: takes(8.0), streams=streams)
    run = messages.GradientRun(own, SimpleNamespace(segments=()), 0)  # type: ignore[arg-type]
    assert run.advance(None) is not None
    assert run.advance(()) is None
    assert (recorder.total_s("codec"), recorder.total_s("codec", "decode"), now_s) == (3.0, 2.0, 15.0)


@given(
    first=TICKS,
    second=TICKS,
)
def test_a_trace_is_valid_and_keeps_every_span(
    first: list[tuple[int, int]], second: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("trace")
    path = folder / "deeper" / "trace.json"
    write_trace(path, [Process("a", 0, spans(first)), Process("b", 1, spans(second, "compute"))])
    events = json.loads(path.read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == len(first) + len(second)
    for event in complete:
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert {"name", "pid", "tid"} <= event.keys()
    if complete:
        assert min(event["ts"] for event in complete) == 0
    titles = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert titles == ["a rank 0", "b rank 1"]
    assert [entry.name for entry in path.parent.iterdir()] == ["trace.json"]


def test_tracks_are_named_and_a_track_keeps_its_place(tmp_path: Path) -> None:
    recorded = [Span("lane 1", "m", 0.0, 1.0), Span("compute", "f", 0.5, 2.0), Span("lane 1", "m", 1.0, 2.0)]
    write_trace(tmp_path / "t.json", [Process("a", 0, recorded)])
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [tracks[event["tid"]] for event in events if event["ph"] == "X"] == ["lane 1", "compute", "lane 1"]
    starts_us = [event["ts"] for event in events if event["ph"] == "X" and tracks[event["tid"]] == "lane 1"]
    assert starts_us == sorted(starts_us) == [0.0, 1e6]
