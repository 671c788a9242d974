"""The record of one trial: what was asked, what ran, what it cost.

A record is one immutable JSON file. It is the only thing `analysis` reads, so whatever a
figure needs stands here, with its unit in its name. Files appear whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Any

from results import schema1
from results.bounds import check_numbers
from results.codec import CodecError, from_jsonable, to_jsonable
from results.collectives import CollectiveFacts
from results.facts import ChargeFacts, CheckFacts, CodeFacts, MachineFacts, PipelineFacts, PluginFacts, Role, SplitFacts
from results.files import field_names, read_json, write_json
from results.problem import ProblemFacts
from results.traffic import TrafficFacts

SCHEMA_VERSION = 2
TRACES = "traces"  # the folder beside records that holds their traces, which are JSON too
CALIBRATION = "calibration"  # likewise, for what messages cost
STARTED = "paper.json"  # what a run of all suites was started from, beside their folders
UNUSED = "unused_parameters"  # a key of `JobResult.notes`


class RecordError(ValueError):
    """A record file that cannot be read: names the file, what is wrong and what to do."""


class Status(StrEnum):
    """How a trial ended. Everything but OK carries a reason; no outcome is dropped.

    INVALID: it ended well, outside a limit that was set beforehand (`Record.checks`), such as a machine busy with
    something else; or a process of another user took the place of a rank. It is kept, not counted, and run again.
    """

    OK = "ok"
    SKIPPED = "skipped"
    ERROR = "error"
    TIMEOUT = "timeout"
    DIVERGED = "diverged"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """Raw step times of one rank in seconds, in order, warm-up apart."""

    rank: int
    warmup_s: tuple[float, ...]
    steps_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Training state after `step` steps and `time_s` seconds of training (evaluation excluded; None where nobody knows,
    see `JobResult.clock`), in which the rank of `JobResult.wire_bytes` sent `sent_bytes` (None: not noted by step)."""

    step: int
    time_s: float | None
    loss: float
    accuracy: float | None = None
    sent_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Mean seconds per step on the slowest rank.

    `compute_s` forward + backward + update; `communication_s` the time in which at least one
    message was under way; `exposed_s` the time the loop waited for messages; `turn_wait_s` the
    time it waited for the device; `compress_s` the time spent in compressors, `decompress_s` the
    part of it after the first answer; `cpu_s` processor time of the whole process. `None` where a system does not let
    us see it.
    """

    compute_s: float | None = None
    communication_s: float | None = None
    exposed_s: float | None = None
    turn_wait_s: float | None = None
    compress_s: float | None = None
    decompress_s: float | None = None
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCosts:
    """Seconds a step of one job alone, on its slowest rank: compute without communication (c), communication without
    compute (m), both (t). `interference` is by how much other communication slows the computation (0.1: a tenth
    longer)."""

    compute_s: float
    communication_s: float
    solo_s: float
    interference: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """A change of a strategy while it trained, made before the messages of step `step` (from 0, warm-up included).

    `what` is `bound`: it plans with the costs in `values` from now on (again where they have drifted); `tried`: these
    settings were in use until now and gave steps of `step_s` seconds, the median over the trial; `chosen`: these are
    kept, `step_s` as it was tried.
    """

    step: int
    what: str
    values: Mapping[str, float]
    step_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyFacts:
    """How far workers were apart. `ahead` counts reads by how many clocks the reader was ahead of the slowest worker,
    `missed` updates by how many of the others' came between read and push, in `missed_by` by worker; keys are whole
    numbers as text. `waited_s` and `clocks` are by worker. `lost` are workers that ended early and the others went on
    without; `server_cpu_s_per_mb` is a server's processor time per 10⁶ bytes in and out (None: no process served,
    or none was reached)."""

    ahead: Mapping[str, int]
    missed: Mapping[str, int]
    waited_s: tuple[float, ...]
    clocks: tuple[int, ...]
    missed_by: tuple[Mapping[str, int], ...] = ()
    lost: tuple[int, ...] = ()
    server_cpu_s_per_mb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """One job of the trial. `wire_bytes` are the bytes that a rank sends per step, by tag, counted by the engine
    (empty for systems that are not ours); `interface_bytes` those that a host sends, by its interface counters,
    TCP/IP headers included (None where the fabric has no counters). A step is `accumulate` micro-batches of
    `batch_size`. `notes` are what the system said of itself (`UNUSED`: which parameters had no gradient in some
    step), `adaptation` how our engine changed the strategy while it trained, in order, `num_control_rounds` in how
    many rounds per step, warm-up included, ranks agreed on what to send (None where nobody counts), `num_rounds` how
    many rounds of flows a step's collectives took one after the other, by the table of collectives (None where nobody
    counts). `ranks` train; `num_servers` more only serve. Where ranks send unequally, `wire_bytes` are those of the
    one that sent most, servers included. `precision` is what layers computed in where the job says so; with a loss
    scale, `num_skipped_steps` of all steps, warm-up included, were not applied because gradients overflowed, and
    `loss_scale` is the last one. `clock` says what the curve's times are: measured, virtual, predicted (a number of
    steps times the predicted one) or none. `plugins` are the strategy as values, those of its text first and in its
    order; `role` is what the job is for beside others, `code` what its gradients travel in, `charge` what compressing
    them cost in replay (None: not in replay), `tuned` the settings that a tuner chose, by slot and name,
    `consistency` how old parameters were on the virtual clock, `pipeline` how it went through its stages, if it has
    any; a step is then `accumulate` micro-batches of `batch_size` over all ranks together; `split` how its operators
    were spread, where each rank had a part of them."""

    name: str
    workload: str
    system: str
    strategy: str
    device: str
    batch_size: int
    num_steps: int
    num_parameters: int = 0
    ranks: tuple[RankTimes, ...] = ()
    phases: Phases = Phases()
    num_messages: float | None = None
    wire_bytes: Mapping[str, float] = field(default_factory=dict)
    interface_bytes: float | None = None
    curve: tuple[CurvePoint, ...] = ()
    weights_digest: str = ""
    peak_memory_bytes: int = 0
    gpu_allocated_bytes: int = 0
    gpu_reserved_bytes: int = 0
    costs: JobCosts | None = None
    start_s: float = 0.0
    end_s: float = 0.0
    accumulate: int = 1
    num_servers: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)
    adaptation: tuple[Adapted, ...] = ()
    num_control_rounds: float | None = None
    num_rounds: float | None = None
    precision: str = "float32"
    num_skipped_steps: int = 0
    loss_scale: float | None = None
    clock: str = "measured"
    plugins: tuple[PluginFacts, ...] = ()
    role: Role = Role.METHOD
    code: CodeFacts | None = None
    charge: ChargeFacts | None = None
    tuned: Mapping[str, float] = field(default_factory=dict)
    consistency: ConsistencyFacts | None = None
    pipeline: PipelineFacts | None = None
    split: SplitFacts | None = None

    @property
    def is_timed(self) -> bool:
        """Whether there are step times: of every rank, or of one at least where they may be steps apart."""
        timed = [bool(rank.steps_s) for rank in self.ranks]
        return any(timed) if self.consistency is not None else bool(timed) and all(timed)

    def step_times_s(self) -> tuple[float, ...]:
        """Step times of the slowest rank, step by step. Empty if nothing was measured.

        Workers that may be steps apart have no step in common: theirs are those of the one that is slowest in the mean.
        """
        if self.consistency is not None:
            return max((rank.steps_s for rank in self.ranks if rank.steps_s), key=fmean, default=())
        return tuple(max(times) for times in zip(*(r.steps_s for r in self.ranks), strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFacts:
    """The network the ranks ran over. `label` is one of measured, emulated, paced, replay, lockstep,
    simulated.

    `equivalent_rate_bps` = size_scale · rate_bps: what the link stands for when tensors are
    `size_scale` times smaller. `alpha_s`, `beta_s_per_byte`: all-reduce time = α + β · bytes,
    with `fit_residual` the largest relative error of that fit. `num_virtual` peers beside the real
    hosts do not exist: a real rank pays their link time and takes them for equals of itself. On a simulated network
    `network` is its topology, `rate_bps` that of a host's link, `transport` what carries flows and `placement` where
    the ranks are.
    """

    kind: str
    label: str
    num_hosts: int
    num_virtual: int = 0
    rate_bps: float | None = None
    equivalent_rate_bps: float | None = None
    size_scale: int = 1
    alpha_s: float | None = None
    beta_s_per_byte: float | None = None
    fit_residual: float | None = None
    ranks_per_host: int = 1
    network: str = ""
    transport: str = ""
    placement: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The theory beside the measurement: period T* of one step of every job, and the gain
    Σt/T* over running them one after the other, from measured c, m, t. The expected ones are the same
    with the hand-over's cost and with the measured slowing of computation by communication."""

    source: str
    step_time_s: float | None = None
    period_s: float | None = None
    gain: float | None = None
    expected_period_s: float | None = None
    expected_gain: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingFacts:
    """What sharing did, on the host where it was worst. A hand-over lasts from a job's release to the next job's start,
    counted where the next one was waiting. `device_busy` and `link_busy` are fractions of the time in which all jobs
    ran; `peak_memory_bytes` is the sum over a host's jobs. `rules` are the arbiter's settings beside the name."""

    num_handovers: int = 0
    handover_p50_s: float | None = None
    handover_p99_s: float | None = None
    device_busy: float | None = None
    link_busy: float | None = None
    peak_memory_bytes: int = 0
    rules: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where and from what a record came."""

    commit: str = ""
    dirty: bool = False
    started_at: str = ""
    machine: str = ""
    num_cores: int = 0
    memory_bytes: int = 0
    device: str = "cpu"
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One trial. `cell` names the question (repeats of one cell share it); `axis` and `at` say which quantity a
    sweep varies and where on it this cell lies; `traffic` is what flows did, `collective` what a library took and
    `problem` what a paper's own problem gave, in trials without jobs; `trial` is the resolved trial as plain JSON,
    enough to run it again. `started_at` and `ended_at` are this trial's own times (UTC, ISO 8601), `machine` is what
    else went on meanwhile, `checks` what was found against each limit of validity; empty and None in records of schema
    1, and where nothing is checked. `attempt` counts, from 1, how often this repeat of the cell was run: earlier
    attempts were invalid, and have records of their own.
    """

    id: str
    suite: str
    cell: str
    repeat: int
    seed: int
    status: Status
    reason: str = ""
    sharing: str = "none"
    link: str = ""
    axis: str = ""
    at: float | None = None
    fabric: FabricFacts
    jobs: tuple[JobResult, ...] = ()
    makespan_s: float | None = None
    prediction: Prediction | None = None
    sharing_facts: SharingFacts | None = None
    traffic: TrafficFacts | None = None
    trial: Mapping[str, Any] = field(default_factory=dict)
    environment: Environment = Environment()
    started_at: str = ""
    ended_at: str = ""
    machine: MachineFacts | None = None
    checks: tuple[CheckFacts, ...] = ()
    attempt: int = 1
    collective: CollectiveFacts | None = None
    problem: ProblemFacts | None = None
    schema: int = SCHEMA_VERSION

    @property
    def group(self) -> str:
        """The suite's name for the question: the first part of the cell."""
        return self.cell.split("/", 1)[0]

    @property
    def label(self) -> str:
        """What the suite calls the method: the third part of the cell, `group/workloads/label`; empty without one."""
        parts = self.cell.split("/")
        return parts[2] if len(parts) > 2 else ""


RECORD_FIELDS = field_names(Record)


def write_record(record: Record, folder: Path) -> Path:
    """Write `record` to `folder/<id>.json` atomically and return the path.

    Raises: OSError where the folder cannot be written.
    """
    path = folder / f"{record.id}.json"
    write_json(path, to_jsonable(record))
    return path


def read_record(path: Path) -> Record:
    """Read one record, of this schema or of schema 1.

    Raises: RecordError if the file is not JSON, has another schema version or a wrong field.
    """
    try:
        data = read_json(path, fields=RECORD_FIELDS)
    except (OSError, CodecError) as error:
        raise RecordError(f"{path}: not a readable record ({error}); delete it and run the trial again") from error
    version = data.get("schema") if isinstance(data, dict) else None
    if version == schema1.VERSION:
        return _decoded(_upgraded(data, path), path)
    if version != SCHEMA_VERSION:
        raise RecordError(
            f"{path}: schema version {version!r}, this checkout reads {SCHEMA_VERSION} and {schema1.VERSION}; "
            "run the trial again or use the checkout that wrote it"
        )
    return _decoded(data, path)


def _upgraded(data: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    try:
        return schema1.upgraded(data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a job that is no object, a text that is none
        raise RecordError(f"{path}: no record of schema 1 ({error!r}); run the trial again") from error


def _decoded(data: Mapping[str, Any], path: Path) -> Record:
    try:
        record = from_jsonable(Record, data)
        check_numbers(record)
        return record
    except CodecError as error:
        raise RecordError(f"{path}: {error}; the file was changed or is incomplete, run the trial again") from error


def read_records(folders: Iterable[Path], *, of_several_runs: bool = False) -> Iterator[Record]:
    """Read every record below `folders`, in order of path, each once however many paths and copies there are of it.

    `of_several_runs` admits records of one trial that different sessions made; `analysis` then divides each run by
    itself alone.
    Raises: RecordError for the first unreadable record, a folder that does not exist, or two different records of one
    id.
    """
    paths: dict[str, Path] = {}  # by what links lead to, so that `latest` is no second run
    for folder in folders:
        if not folder.exists():
            raise RecordError(f"{folder}: no such folder of records; run a suite first, e.g. make bench-quick")
        for path in [folder] if folder.is_file() else sorted(_record_paths(folder)):
            paths.setdefault(os.path.realpath(path), path)
    first: dict[tuple[str, ...], Path] = {}
    for path in paths.values():
        record = read_record(path)
        session = (record.environment.started_at, record.environment.machine) if of_several_runs else ()
        other = first.setdefault((record.id, *session), path)
        if other is path:
            yield record
        elif _as_text(record) != _as_text(read_record(other)):
            raise RecordError(
                f"{other} and {path}: two different records of {record.id}; name the folder of one run, or report on "
                "several runs together with --allow-different, which still refuses a record that was changed"
            )


def _as_text(record: Record) -> str:
    """All that it says; NaN equals NaN."""
    return json.dumps(to_jsonable(record), sort_keys=True)


def _record_paths(folder: Path) -> Iterator[Path]:
    others = {TRACES, CALIBRATION, STARTED}
    return (path for path in folder.rglob("*.json") if others.isdisjoint(path.relative_to(folder).parts))
