"""What launcher, lab and ranks say to each other: JSON lines of these values. No pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fabric.api import FabricSpec, Host
from harness.lab.meeting import Meeting, StrangerError
from harness.lab.rank import RankResult
from harness.trial import Trial
from results.codec import from_jsonable, to_jsonable


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimes:
    """Raw all-reduce times of one rank in seconds, by bytes; or those of the rows asked for, in their order."""

    rank: int
    num_bytes: tuple[int, ...]
    times_s: tuple[tuple[float, ...], ...]


class Probe(StrEnum):
    """What a row times: messages through the engine, the engine alone, an update of all parameters or of each."""

    EXCHANGE = "exchange"
    ENGINE = "engine"
    UPDATE = "update"
    EAGER_UPDATE = "eager-update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A micro-benchmark: `num_tensors` gradients of `num_bytes` each, all ready at once, under a strategy."""

    probe: Probe
    num_tensors: int
    num_bytes: int
    strategy: str = "unfused"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkQuestion:
    """Time all-reduces of these sizes over a fabric, `num_repeats` times each, or `rows` instead."""

    fabric: FabricSpec
    num_bytes: tuple[int, ...] = ()
    num_repeats: int = 5
    timeout_s: float = 120.0
    rows: tuple[Row, ...] = ()


class Ending(StrEnum):
    """How a task ended in the lab."""

    DONE = "done"
    FAILED = "failed"
    TIMEOUT = "timeout"
    INTRUDED = "intruded"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The lab's answer to one task. `reason` names the rank and host where it did not end well. Each host's interface
    sent `sent_bytes` in `sent_packets`, headers included, of which `resent_segments` were lost or thought so before."""

    ending: Ending
    reason: str = ""
    ranks: tuple[RankResult, ...] = ()
    links: tuple[LinkTimes, ...] = ()
    sent_bytes: tuple[int, ...] | None = None
    sent_packets: tuple[int, ...] | None = None
    resent_segments: tuple[int, ...] | None = None


def failed(reason: str) -> Answer:
    """The answer to a task that failed, or in which another process took the place of a rank."""
    return Answer(ending=Ending.INTRUDED if StrangerError.__name__ in reason else Ending.FAILED, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One rank's part of a task whose other ranks belong to other labs.

    `host` is where it sits, its index the rank; `slot` is its core or GPU on that machine. `meeting` is the task's own.
    """

    host: Host
    slot: int
    meeting: Meeting


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Exactly one of `trial` and `links`; of all its ranks, or of the one that `part` names."""

    trial: Trial | None = None
    links: LinkQuestion | None = None
    part: Part | None = None

    @property
    def fabric(self) -> FabricSpec:
        """The fabric that the trial or the question names."""
        question = self.trial or self.links
        assert question is not None
        return question.fabric

    @property
    def world(self) -> int:
        """Ranks of a job."""
        return self.trial.world if self.trial is not None else self.fabric.num_hosts

    @property
    def timeout_s(self) -> float:
        """Seconds that ranks may take, building and importing apart."""
        question = self.trial or self.links
        assert question is not None
        return question.timeout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line from a rank to the lab, or from the lab to the launcher."""

    kind: str  # ready | step | result | links | error | answer | began
    step: int = 0
    message: str = ""
    result: RankResult | None = None
    links: LinkTimes | None = None
    answer: Answer | None = None


def to_line(value: Task | Event | Answer) -> bytes:
    """One line of JSON."""
    return json.dumps(to_jsonable(value), allow_nan=False).encode() + b"\n"


def task_from(line: bytes) -> Task:
    """Raises: CodecError."""
    return from_jsonable(Task, _loads(line))


def answer_from(line: bytes) -> Answer:
    """Raises: CodecError."""
    return from_jsonable(Answer, _loads(line))


def event_from(line: bytes) -> Event:
    """Raises: CodecError."""
    return from_jsonable(Event, _loads(line))


def _loads(line: bytes) -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads(line)
    return data
