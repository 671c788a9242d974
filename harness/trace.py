"""Spans of time on one rank, and their Chrome/Perfetto form.

All times are seconds of `time.perf_counter`, one clock for all processes of a machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from results.files import replacing


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took from `start_s` to `end_s` on a `track` (compute, turn, lane 0, …)."""

    track: str
    name: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class Recorder:
    """Collects spans of one rank. Threads may add at the same time (list.append is atomic)."""

    spans: list[Span] = field(default_factory=list)

    def add(self, track: str, name: str, start_s: float, end_s: float) -> None:
        """Note what went on from `start_s` to `end_s`; from any thread."""
        self.spans.append(Span(track, name, start_s, end_s))

    @contextmanager
    def span(self, track: str, name: str) -> Iterator[None]:
        """Note how long the body takes; nothing if it raises."""
        start_s = perf_counter()
        yield
        self.spans.append(Span(track, name, start_s, perf_counter()))

    def between(self, since_s: float, until_s: float) -> Recorder:
        """The spans that started in between."""
        return Recorder([span for span in self.spans if since_s <= span.start_s <= until_s])

    def total_s(self, track: str, name: str | None = None) -> float:
        """Seconds in spans of a track (and name)."""
        return sum(s.end_s - s.start_s for s in self.spans if s.track == track and name in (None, s.name))

    def total_without_s(self, track: str, without: tuple[str, str]) -> float:
        """Seconds covered by spans of a track less what spans of the track and name `without` cover of them."""
        cuts = [s for s in self.spans if (s.track, s.name) == without]
        return covered_s([s for s in self.spans if s.track == track] + cuts) - covered_s(cuts)


def covered_s(spans: Iterable[Span]) -> float:
    """Length of the union of spans: the time in which at least one of them was open."""
    total, reached = 0.0, float("-inf")
    for span in sorted(spans, key=lambda s: s.start_s):
        total += max(0.0, span.end_s - max(span.start_s, reached))
        reached = max(reached, span.end_s)
    return total


@dataclass(frozen=True, slots=True)
class Process:
    """One rank of one job in a trace."""

    job: str
    rank: int
    spans: Sequence[Span]


def write_trace(path: Path, processes: Sequence[Process]) -> None:
    """Write a Chrome trace-event file (open it in ui.perfetto.dev); atomic."""
    starts = [span.start_s for process in processes for span in process.spans]
    zero_s = min(starts, default=0.0)
    events: list[dict[str, object]] = []
    for number, process in enumerate(processes):
        title = f"{process.job} rank {process.rank}"
        events.append({"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": title}})
        tracks = sorted({span.track for span in process.spans})
        for track_number, track in enumerate(tracks):
            name = {"ph": "M", "name": "thread_name", "pid": number, "tid": track_number, "args": {"name": track}}
            events.append(name)
        events += [_event(span, number, tracks.index(span.track), zero_s) for span in process.spans]
    with replacing(path) as file:
        file.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())


def _event(span: Span, pid: int, tid: int, zero_s: float) -> dict[str, object]:
    start_us, length_us = (span.start_s - zero_s) * 1e6, (span.end_s - span.start_s) * 1e6
    return {"ph": "X", "name": span.name, "pid": pid, "tid": tid, "ts": start_us, "dur": length_us}
