"""What a job ran, as values: its plug-ins with their parameters, what its code costs, and the machine meanwhile.

A record's texts (`JobResult.strategy`) are for people; whoever computes with a strategy reads these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

LARGEST_PLAIN = 1e10  # from here on whole numbers are written out, since `.10g` would turn to powers of ten


class Role(StrEnum):
    """What a job is for among the cells that it is compared with.

    DENSE sends every gradient in full: it sets the target, and a code is measured against it. RIVAL is another simple
    way that a method has to beat, such as half precision. IDEAL does not communicate at all.
    """

    METHOD = "method"
    DENSE = "dense"
    RIVAL = "rival"
    IDEAL = "ideal"


class Unit(StrEnum):
    """What a parameter counts where it is a size, which shrinks along with the tensors of a replayed network.

    SCALE is no size but the number by which sizes were divided: only a run needs it, and names leave it out.
    """

    BYTES = "bytes"
    ELEMENTS = "elements"
    MEGABYTES = "MB"
    SCALE = "scale"


class Combine(StrEnum):
    """How ranks combine what a compressor sends: sum; every rank's to every rank; to servers; pairwise up a tree."""

    SUM = "sum"
    CONCAT = "concat"
    SCATTER = "scatter"
    MERGE = "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """One parameter of a plug-in: the value that it ran with, and the text that was `given` (None: the default)."""

    name: str
    value: bool | int | str | float | None
    given: str | None = None
    unit: Unit | None = None

    def in_real_sizes(self, size_scale: int) -> str:
        """The given text; a size times `size_scale`, to three figures."""
        if self.given is None or self.unit is None:
            return self.given or ""
        try:
            return real_size(float(self.given), size_scale)
        except ValueError:  # a record of others: what is no number is no size
            return self.given


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFacts:
    """One plug-in, update point or system. `slot` is what it decides: a strategy's slot, `update` or `system`.

    Those that nobody named, and which fill a slot by default, are not `written`.
    """

    name: str
    slot: str
    parameters: tuple[ParameterFacts, ...] = ()
    written: bool = True

    @property
    def given(self) -> tuple[ParameterFacts, ...]:
        """The parameters that were written down, in that order."""
        return tuple(parameter for parameter in self.parameters if parameter.given is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFacts:
    """The code in which gradients travel.

    `bits_per_element` is what it needs by its definition (32: as they are; None: nobody says): positions are included,
    and scales unless the method counts its bits without them, as 1-bit SGD, 1-bit Adam and SBC do, which in networks of
    many small tensors or rows send more. `combine` is how ranks combine it. The first `dense_steps` steps (with local
    steps: exchanges) are sent in full, and in the first `ramp_steps` more is sent than later. `sent_share` is how many
    times its code the rank sends that sends most, a server too, and `dense_share` how many times float32 in the dense
    steps, both by the exchange that the job ran with (None: not known, as in older records and of other systems).
    """

    bits_per_element: float | None
    combine: Combine | None = None
    lossy: bool = False
    dense_steps: int = 0
    ramp_steps: int = 0
    sent_share: float | None = None
    dense_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeFacts:
    """What compression cost in replay, where it is charged and not computed: seconds per element of the real tensor,
    by stage and per merge, of `method` on `device`; or the `reason` why nothing was charged."""

    method: str = ""
    stages_s: tuple[float, ...] = ()
    merge_s: float = 0.0
    device: str = ""
    num_ranks: int = 0
    reason: str = ""

    @property
    def text(self) -> str:
        """What was charged, or why nothing was, in a sentence."""
        if self.reason:
            return self.reason
        total_ns = 1e9 * sum(self.stages_s)
        return f"charged: {self.method} takes {total_ns:.3g} ns an element among {self.num_ranks} ranks ({self.device})"

    @property
    def is_charged(self) -> bool:
        """Whether the record's times hold it."""
        return not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFacts:
    """The machine at one moment: `speed_s` seconds for a fixed piece of one thread's work, and the load average."""

    speed_s: float
    load_1min: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The machine before and after a trial and, over the trial, shares of all processor time.

    They are: in use by whomever, stolen by the machine's own host, and used by others (processes that are no part of
    the run; None where that cannot be told). `fastest_s` is the shortest speed probe that the run has seen so far.
    """

    before: ProbeFacts
    after: ProbeFacts
    busy_share: float
    stolen_share: float
    other_share: float | None = None
    fastest_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFacts:
    """One check of a trial's validity: what was found, and the most that was allowed before the trial began."""

    quantity: str
    found: float
    most: float

    @property
    def passes(self) -> bool:
        """Whether it is within its limit."""
        return self.found <= self.most


def real_size(value: float, size_scale: int) -> str:
    """A size that was divided by `size_scale` as what it stands for, to three figures."""
    number = float(f"{value * size_scale:.3g}")
    return f"{number:.10g}" if number < LARGEST_PLAIN else f"{number:.0f}"


def in_real_sizes(plugins: Sequence[PluginFacts], size_scale: int) -> tuple[PluginFacts, ...]:
    """The same with every given size as what it stands for, and without the scale that a plug-in was told."""
    return tuple(
        replace(
            plugin,
            parameters=tuple(
                own if own.given is None else replace(own, given=own.in_real_sizes(size_scale))
                for own in plugin.parameters
                if own.unit is not Unit.SCALE
            ),
        )
        for plugin in plugins
    )


def text_of(plugins: Sequence[PluginFacts]) -> str:
    """The plug-ins that were written down as one text, such as `fixed-buckets(bucket_bytes=26200000)+half`."""
    return "+".join(map(_text, (plugin for plugin in plugins if plugin.written)))


def _text(plugin: PluginFacts) -> str:
    inner = ", ".join(f"{own.name}={own.given}" for own in plugin.given)
    return f"{plugin.name}({inner})" if inner else plugin.name


@dataclass(frozen=True, slots=True)
class PassTime:
    """A pass of a micro-batch on a pipeline rank; times count from the trial's beginning."""

    rank: int
    is_forward: bool
    micro_batch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
    """How a job went through its stages.

    `first_layers` are those of each stage, `num_replicas` of each pipeline rank. `bubble` is the idle share of all
    ranks' time over the measured steps, `bubble_formula` the schedule's for equal stages and free messages (None: no
    formula holds), `bubble_clock` that of the virtual clock with these stages and this link, as `step_clock_s` (None
    where the stages' times are not known).

    By pipeline rank: `peak_stash`, the most micro-batches whose activations it held, and what the schedule's formula
    says; the most `versions` of weights; `staleness`, the most updates between a forward and the application of its
    gradient; `busy_s` and `sent_bytes` per step; and `memory_bytes` of the real network by the schedule: weights,
    gradients and momentum, versions and activations. What another system than ours does not tell is None or empty.
    Jobs that share devices on the virtual clock tell the `passes` of some steps once all run, in order of their starts.
    """

    schedule: str
    first_layers: tuple[str, ...]
    num_micro_batches: int
    num_replicas: tuple[int, ...]
    bubble: float | None
    bubble_formula: float | None
    bubble_clock: float | None
    step_clock_s: float | None
    peak_stash: tuple[int, ...]
    stash_formula: tuple[int, ...]
    versions: tuple[int, ...]
    staleness: tuple[int, ...]
    busy_s: tuple[float, ...]
    sent_bytes: tuple[float, ...]
    memory_bytes: tuple[int, ...]
    passes: tuple[PassTime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFacts:
    """How a job's operators were spread over its ranks.

    `splits` are the layers', such as `sample=4 channel-out=2`. `step_planned_s` is the step that planners count, in
    which nothing overlaps; `step_clock_s` that of the virtual clock, in which sums of gradients hide behind backward if
    `overlap` is set (both None where layers' times are not known). Per step and rank: `compute_s`, `exchange_s`, hidden
    or not, and `sent_bytes`. `memory_bytes` are one device's of the real network. `distance` is that of the trained
    weights from one device's, relative to their norm (None where nothing was trained).
    """

    planner: str
    overlap: bool
    splits: tuple[str, ...]
    step_planned_s: float | None
    step_clock_s: float | None
    compute_s: float
    exchange_s: float
    sent_bytes: float
    memory_bytes: tuple[int, ...]
    distance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRankFacts:
    """One rank's part of `PipelineFacts`, over the measured steps: `window_s` they lasted, `busy_s` it computed.
    `passes` are those of all replicas' place in the pipeline, as the clock saw them."""

    window_s: float
    busy_s: float
    peak_stash: int
    versions: int
    staleness: int
    sent_bytes: float
    passes: tuple[PassTime, ...] = ()
