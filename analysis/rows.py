"""The values that tables, figures and the report are made of. One source, so that they cannot disagree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from analysis.cells import LOCAL, MEASURED, VIRTUAL, SettingKey
from analysis.claims import ClaimRow
from analysis.codes.rows import CompressionStudy
from analysis.collectives.rows import CollectiveRow
from analysis.flows.rows import FlowRow
from analysis.naming import Method
from analysis.pipelines.timelines import TimelineRow
from analysis.problems.rows import ProblemRow
from analysis.sharing.rows import OptimiserRow, PaperCase, SweepRow
from analysis.sharing.rows import PairRow as PairRow
from analysis.sharing.rows import SharingRow as SharingRow
from analysis.stats import Interval
from analysis.steps.adapting import AdaptedRow
from analysis.steps.rows import ErrorRow, StudyRow
from analysis.steps.wire_bytes import bytes_a_step
from analysis.targets.rows import TargetStudy
from results.facts import Role
from results.record import Environment, FabricFacts, Phases, Status

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRow:
    """Loss, and accuracy where it was taken, at the steps that every repeat reached: medians, and the range of all."""

    step: tuple[int, ...]
    time_s: tuple[float, ...]
    loss: tuple[float, ...]
    loss_low: tuple[float, ...]
    loss_high: tuple[float, ...]
    accuracy: tuple[float, ...] = ()
    accuracy_low: tuple[float, ...] = ()
    accuracy_high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow:
    """One system and strategy in one setting.

    `label` says all that was run (`method` as text), `name` leaves out what no cell differs in. `samples_per_s`
    counts all workers; the line `local`, of one, is multiplied by the setting's workers. `speedup` is its throughput
    over the baseline's, repeat by repeat: above 1 is faster.
    `num_control_rounds` are those of a step in which ranks agreed on messages.
    `time_to_target_s` holds ∞ for repeats that did not get there; `target_speedup` is the baseline's over this one's,
    repeat by repeat, 0 where this one did not get there. `phases` are medians over repeats. `repeat_samples_per_s` has
    one value a repeat, `steps_s` every step of the slowest rank of all repeats. `training` is the loss on the batches
    trained on (a trailing mean), `held_out` what evaluation found; `final_loss` and `final_accuracy` are held-out ones.
    `clock` is that of its steps, see `JobResult.clock`. `unused` are parameters that had no gradient in some step.
    """

    cell: str
    label: str
    method: Method
    name: str
    system: str
    strategy: str
    num_workers: int
    num_repeats: int
    num_parameters: int
    role: Role = Role.METHOD
    clock: str = MEASURED
    step_time_s: Interval
    step_p50_s: Interval
    step_p90_s: Interval
    samples_per_s: Interval
    speedup: Interval | None = None
    unused: str = ""
    phases: Phases
    num_messages: float | None = None
    num_control_rounds: float | None = None
    wire_bytes: Mapping[str, float]
    interface_bytes: float | None = None
    peak_memory_bytes: int = 0
    final_loss: Interval | None = None
    final_accuracy: Interval | None = None
    time_to_target_s: Interval | None = None
    target_speedup: Interval | None = None
    repeat_samples_per_s: tuple[float, ...] = ()
    steps_s: tuple[float, ...] = ()
    training: CurveRow | None = None
    held_out: CurveRow | None = None
    record_ids: tuple[str, ...] = ()
    is_baseline: bool = False

    @property
    def is_ideal(self) -> bool:
        """Whether this is the line without communication rather than a competitor."""
        return self.system == LOCAL

    @property
    def sent_bytes(self) -> float | None:
        """Bytes a host sent per step: by its interface, else as the engine counted them."""
        return bytes_a_step(self.wire_bytes, self.interface_bytes)

    @property
    def overhead(self) -> float | None:
        """What the interface counted beyond the engine's bytes, as a share of these: headers and acknowledgements."""
        counted = sum(self.wire_bytes.values())
        return self.interface_bytes / counted - 1.0 if counted and self.interface_bytes is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One workload on one fabric: cells in order of throughput, the baseline of their ratios by its label.

    `left_out` holds the parameters that the cells' names leave out, `target_loss` is one of training.
    """

    key: SettingKey
    fabric: FabricFacts
    num_workers: int
    cells: tuple[CellRow, ...]
    baseline: str | None = None
    target_loss: float | None = None
    left_out: str = ""

    @property
    def title(self) -> str:
        """The workload and where it ran."""
        return self.key.describe()

    @property
    def evidence(self) -> str:
        """What kind of number this is: measured, emulated, replay or simulated."""
        return self.key.fabric.label

    @property
    def is_exact(self) -> bool:
        """Whether every cell is of a virtual clock, which says the same every time."""
        return all(row.clock == VIRTUAL for row in self.cells)

    @property
    def baseline_name(self) -> str:
        """The baseline's short name."""
        return next((row.name for row in self.cells if row.is_baseline), "")

    @property
    def num_repeats(self) -> tuple[int, ...]:
        """The numbers of repeats that cells have, in order."""
        return tuple(sorted({row.num_repeats for row in self.cells}))

    @property
    def ideal(self) -> CellRow | None:
        """The line without communication."""
        return next((row for row in self.cells if row.is_ideal), None)

    @property
    def competitors(self) -> tuple[CellRow, ...]:
        """Every cell that communicates, fastest first."""
        return tuple(row for row in self.cells if not row.is_ideal)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRow:
    """Trials of one cell that did not end well, by status and reason."""

    cell: str
    status: Status
    reason: str
    num_repeats: int
    num_tried: int


class Tone(StrEnum):
    """What a verdict says: something pays, nothing does, or there is not enough to tell."""

    PAYS = "pays"
    NOTHING_PAYS = "nothing pays"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """The answer for one setting or pair: a headline sentence and the facts that qualify it."""

    title: str
    evidence: str
    tone: Tone
    headline: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenanceRow:
    """One environment that records came from, and how many."""

    environment: Environment
    num_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Everything the records say. `questions` are the suites' own, `pairs` the sets of sharing jobs that lie on no
    sweep, `studies` step times by method, workers and link, `errors` how far predictions lie from them, `adapted` what
    strategies chose meanwhile, `flows` experiments without jobs, `problems` the papers' own, `timelines` passes of
    pipelines that share devices."""

    suites: tuple[str, ...]
    questions: tuple[str, ...] = ()
    num_records: int
    verdicts: tuple[VerdictRow, ...]
    settings: tuple[SettingRow, ...]
    pairs: tuple[PairRow, ...]
    sweeps: tuple[SweepRow, ...] = ()
    papers: tuple[PaperCase, ...] = ()
    optimisers: tuple[OptimiserRow, ...] = ()
    claims: tuple[ClaimRow, ...] = ()
    studies: tuple[StudyRow, ...] = ()
    errors: tuple[ErrorRow, ...] = ()
    targets: tuple[TargetStudy, ...] = ()
    adapted: tuple[AdaptedRow, ...] = ()
    flows: tuple[FlowRow, ...] = ()
    problems: tuple[ProblemRow, ...] = ()
    compression: CompressionStudy = field(default_factory=CompressionStudy)
    collectives: tuple[CollectiveRow, ...] = ()
    timelines: tuple[TimelineRow, ...] = ()
    outcomes: tuple[OutcomeRow, ...]
    provenance: tuple[ProvenanceRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure with the words and the records that belong to it. `topic` is the report's section."""

    name: str
    topic: str
    caption: str
    figure: Figure
    record_ids: tuple[str, ...]
