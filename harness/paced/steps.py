"""What a paced script's steps took, and how much of it its messages cost.

A step ends where an optimizer has stepped. A *round* ends with a step that sends messages: with DDP every step is one,
with local SGD every H steps are. Rounds of one *kind* have as many steps and messages, and as many bytes within a
factor of two. Some rounds are *free*: their messages take no link time. Exposed time is the median time of the other
rounds minus that of the free ones of the same kind, step by step. It is measured and needs no look inside the script:
what computation hides is not in it, whatever hides it. Means take each kind as often as it occurs in whole periods.

Free rounds come in pairs. A round is compared only where the one before it was of its sort, since a script may wait for
messages one round after it has sent them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, quantiles

from fabric.cluster import FabricSpec
from fabric.rates import format_rate
from harness.paced.link_client import Carrier, Paid
from harness.paced.pacing import PacedTraffic
from results.files import write_json

NUM_WARMUP = 3  # DDP makes new buckets after its first step
NUM_ENOUGH = NUM_WARMUP + 4  # the first free round that counts is the fourth
FREE_SHARE = 0.4
_GOLDEN = 0.618034
MOST_KINDS_TOLD = 4


def is_free_round(number: int) -> bool:
    """Whether the messages of a round take no link time. The golden ratio spreads free pairs evenly over the rounds and
    over every nth round, so neither a slow machine's drift nor a period of the script's coincides with them."""
    return (0.5 + number // 2 * _GOLDEN) % 1 < FREE_SHARE


@dataclass(frozen=True, slots=True)
class PacedStep:
    """One step: its time, and what it sent (payload bytes, the mean over ranks) and asked the link for."""

    time_s: float
    num_bytes: float
    num_messages: int
    link_s: float
    is_free: bool
    is_warmup: bool = False


class StepMeter:
    """Told of every optimizer step by `ended`; the first optimizer that steps sets the beat."""

    def __init__(self, traffic: PacedTraffic, clock: Callable[[], float]) -> None:
        self.steps: list[PacedStep] = []
        self.is_free = False
        self._traffic, self._clock = traffic, clock
        self._optimizer: object | None = None
        self._started: tuple[float, float, int, float] | None = None
        self._num_ended = self._num_rounds = 0

    def ended(self, optimizer: object) -> None:
        """`optimizer` has stepped."""
        if self._optimizer is None:
            self._optimizer = optimizer
        # Scripts with several optimizers (GANs) step each of them in one iteration.
        if optimizer is not self._optimizer:
            return
        traffic = self._traffic
        now = (self._clock(), traffic.num_bytes, traffic.num_messages, traffic.link_s)
        self._num_ended += 1
        is_warmup = self._num_ended <= NUM_WARMUP
        if self._started is not None:
            time_s, num_bytes, num_messages, link_s = (new - old for new, old in zip(now, self._started, strict=True))
            self.steps.append(PacedStep(time_s, num_bytes, int(num_messages), link_s, self.is_free, is_warmup))
            if num_messages and not is_warmup:  # a round is free or not as a whole
                self._num_rounds += 1
                self.is_free = is_free_round(self._num_rounds)
        self._started = now


@dataclass(frozen=True, slots=True)
class SometimesFree:
    """A carrier that takes no time in free steps."""

    carrier: Carrier
    meter: StepMeter

    def carry(self, flow: Hashable, work_s: float, paid: Paid) -> None:
        """As the inner carrier, with no link time in a free step."""
        self.carrier.carry(flow, 0.0 if self.meter.is_free else work_s, paid)

    def close(self) -> None:
        """Close the inner carrier."""
        self.carrier.close()


@dataclass(frozen=True, slots=True)
class RoundKind:
    """How many rounds there were of how many steps each, and what one of them sent on average."""

    num_rounds: int
    num_steps: int
    num_messages: int
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Means over whole periods, and `median_step_s`; None without enough steps. `num_steps` and `num_free_steps` are
    those whose times count. `num_uncompared` are steps whose kind of round was never both free and not, so
    `exposed_s` leaves them out; `num_left_out` are steps of a round that began in the warm-up or did not end."""

    num_ranks: int
    rate_bps: float | None
    alpha_s: float
    num_steps: int
    num_free_steps: int
    num_uncompared: int
    num_left_out: int
    mean_step_s: float | None
    median_step_s: float | None
    step_5th_s: float | None
    step_95th_s: float | None
    exposed_s: float | None
    link_s: float | None
    bytes_per_step: float | None
    messages_per_step: float | None
    kinds: tuple[RoundKind, ...]

    def text(self) -> str:
        """For a terminal."""
        head = f"crossover-bench pace: rank 0 of {self.num_ranks}, {format_rate(self.rate_bps)}, α {_ms(self.alpha_s)}"
        if self.link_s is None or self.bytes_per_step is None:
            return f"{head}\n  {self.num_steps} steps measured; there must be {NUM_ENOUGH} optimizer steps"
        free = f"against {self.num_free_steps} steps without link time"
        lines = [
            f"step time     {_ms(self.mean_step_s)}, mean of {self.num_steps}; median {_ms(self.median_step_s)}"
            + (f" (5 % to 95 %: {_ms(self.step_5th_s)} to {_ms(self.step_95th_s)})" if self.step_5th_s else ""),
            f"exposed time  {'not known' if self.exposed_s is None else _ms(self.exposed_s)}, {free}",
            f"link time     {_ms(self.link_s)} per step",
            f"bytes         {self.bytes_per_step / 1e6:.3f} MB sent per step",
            f"messages      {self.messages_per_step:g} per step",
        ]
        return "\n  ".join([head, *lines, *self._notes()])

    def _notes(self) -> list[str]:
        """What a reader of the means must know."""
        notes = []
        if len(self.kinds) > 1 or any(kind.num_steps > 1 for kind in self.kinds):
            told = [
                f"{kind.num_bytes / 1e6:.3f} MB in {_counted(kind.num_messages, 'message')} every "
                f"{_counted(kind.num_steps, 'step')} ({_counted(kind.num_rounds, 'time')})"
                for kind in self.kinds[:MOST_KINDS_TOLD]
            ]
            more = [f"{len(self.kinds) - len(told)} other kinds"] if len(self.kinds) > len(told) else []
            notes.append(f"The steps are not alike: {'; '.join(told + more)}.")
        if self.num_uncompared:
            notes.append(
                f"Exposed time leaves out {_counted(self.num_uncompared, 'step')}, whose messages were never, or "
                "always, without link time; a longer run compares them too."
            )
        if self.num_left_out:
            notes.append(f"Left out, since in no whole period: {_counted(self.num_left_out, 'step')}.")
        return notes

    def write(self, path: Path) -> None:
        """As JSON, whole or not at all. Raises: OSError where it cannot be written."""
        write_json(path, asdict(self))


_Kind = tuple[int, int, int]  # steps, messages, bits of the number of bytes


@dataclass(frozen=True, slots=True)
class _Round:
    steps: tuple[PacedStep, ...]
    counts: bool  # the one before it was as free as it is

    @property
    def kind(self) -> _Kind:
        return len(self.steps), sum(step.num_messages for step in self.steps), int(self.num_bytes).bit_length()

    @property
    def num_bytes(self) -> float:
        return sum(step.num_bytes for step in self.steps)

    @property
    def is_free(self) -> bool:
        return self.steps[-1].is_free


def report_of(spec: FabricSpec, steps: Sequence[PacedStep]) -> StepReport:
    """What the steps of a script on `spec` come to."""
    rounds = _rounds(steps)
    period = _period([each.kind for each in rounds])
    whole = rounds[: len(rounds) // period * period]
    paced, free = ([each for each in rounds if each.counts and each.is_free is is_free] for is_free in (False, True))
    times_s = [step.time_s for each in paced for step in each.steps]
    spread = quantiles(times_s, n=20) if len(times_s) > 1 else [None] * 19
    used = [step for each in whole for step in each.steps]
    often = Counter(each.kind for each in whole)
    means_s = {kind: fmean(map(sum, times)) for kind in often if (times := _times_s(paced, kind))}
    exposed_s = {kind: 0.0 for kind in often if not kind[1]}
    for kind in often:
        if kind[1] and all(found := [_times_s(some, kind) for some in (paced, free)]):
            # By place in the round: the median of sums would not take out the times when the machine was away.
            with_s, without_s = (sum(map(median, zip(*times, strict=True))) for times in found)
            exposed_s[kind] = with_s - without_s
    return StepReport(
        num_ranks=spec.num_ranks,
        rate_bps=spec.rate_bps,
        alpha_s=spec.alpha_s,
        num_steps=len(times_s),
        num_free_steps=sum(len(each.steps) for each in free),
        num_uncompared=sum(len(each.steps) for each in whole if each.kind not in exposed_s),
        num_left_out=sum(not step.is_warmup for step in steps) - sum(len(each.steps) for each in rounds),
        mean_step_s=_per_step(means_s, often),
        median_step_s=median(times_s) if times_s else None,
        step_5th_s=spread[0],
        step_95th_s=spread[-1],
        exposed_s=_per_step(exposed_s, often),
        link_s=_mean(step.link_s for step in used),
        bytes_per_step=_mean(step.num_bytes for step in used),
        messages_per_step=_mean(step.num_messages for step in used),
        kinds=tuple(
            RoundKind(num_rounds, kind[0], kind[1], fmean(each.num_bytes for each in whole if each.kind == kind))
            for kind, num_rounds in often.most_common()
        ),
    )


def _rounds(steps: Sequence[PacedStep]) -> list[_Round]:
    """The whole rounds after the warm-up; where no step sends anything, each step is one."""
    sends_nothing = not any(step.num_messages for step in steps if not step.is_warmup)
    rounds: list[_Round] = []
    present: list[PacedStep] = []
    was_free = False
    for step in steps:
        present.append(step)
        if step.num_messages or sends_nothing:
            if not present[0].is_warmup:
                rounds.append(_Round(tuple(present), counts=step.is_free is was_free))
            was_free, present = step.is_free, []
    # Fewer steps than the longest round has are the beginning of one. More are a part that sends nothing.
    if rounds and len(present) > max(len(each.steps) for each in rounds):
        rounds.append(_Round(tuple(present), counts=present[-1].is_free is was_free))
    return rounds


def _times_s(rounds: Sequence[_Round], kind: _Kind) -> list[list[float]]:
    """Of the rounds of a kind, [rounds][steps]."""
    return [[step.time_s for step in each.steps] for each in rounds if each.kind == kind]


def _period(kinds: Sequence[Hashable]) -> int:
    """After how many rounds their kinds repeat; 1 where they do not repeat twice, so that all of them are used."""
    # The prefix function of Knuth, Morris and Pratt: the longest border of the sequence leaves its shortest period.
    borders = [0] * len(kinds)
    border = 0
    for index in range(1, len(kinds)):
        while border and kinds[index] != kinds[border]:
            border = borders[border - 1]
        border += kinds[index] == kinds[border]
        borders[index] = border
    period = len(kinds) - border
    return period if 0 < period <= len(kinds) / 2 else 1


def _per_step(of_round: dict[_Kind, float], often: Counter[_Kind]) -> float | None:
    """The mean per step over kinds of rounds, each as often as it occurs."""
    num_steps = sum(often[kind] * kind[0] for kind in of_round)
    return sum(often[kind] * value for kind, value in of_round.items()) / num_steps if num_steps else None


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


def _ms(seconds: float | None) -> str:
    return "not known" if seconds is None else f"{seconds * 1e3:.3f} ms" if seconds else "0"
