"""The answer in words: which optimisation pays here, by how much, at what cost. Each claim carries its interval.

Something pays where its whole interval lies above 1 by more than noise, nothing where every interval lies below that;
between them the verdict is open (`analysis.claims.decide`). So a busy machine leaves it open and never turns it round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from analysis.cells import OURS, ComputeKind
from analysis.claims import Outcome, decide, fewest_among, side, surely_above
from analysis.rows import CellRow, PairRow, SettingRow, SharingRow, Tone, VerdictRow
from analysis.sharing.rows import CROSSOVER, NAIVE
from analysis.stats import FEWEST_FOR_LEVEL, NOISE, Interval
from analysis.targets.training import full_size
from analysis.wording import duration, factor, number, percent, plural

NOTHING_TO_COMPARE = "Nothing to compare: one system was measured."
ACCURACY_LOSS = 0.02
BEYOND_BOUND = 1.05


def verdicts(settings: Iterable[SettingRow], pairs: Iterable[PairRow]) -> tuple[VerdictRow, ...]:
    """One verdict a setting and one a set of sharing jobs."""
    return tuple(map(setting_verdict, settings)) + tuple(map(pair_verdict, pairs))


def setting_verdict(setting: SettingRow) -> VerdictRow:
    """Which cell of a setting beats the baseline, by how much, and what it costs.

    A cell that misses the baseline's target loss or reaches it later, or whose held-out loss ends above where training
    began, cannot win, however fast its steps are. To pay it must reach the target surely as soon: a cell that some
    repeats take there and others do not would win in one run and be left out of the next.
    """
    base = next(row for row in setting.cells if row.is_baseline)
    rivals = [row for row in setting.competitors if row.speedup is not None and not _is_base(row, base)]
    learning = _fewest_bytes_first([row for row in rivals if _learns(row)])
    able = [row for row in learning if not _is_later(row, base)]
    # Levels are shared among all that learn: time to target, which excludes some of them, depends on their speed.
    faster = _faster(learning)
    sure = [row for row in faster if _is_surely_as_soon(row)]
    best = max(sure or able, key=_speed, default=None)
    if best is None or best.speedup is None:
        headline = "No other system reached the target as soon." if rivals else NOTHING_TO_COMPARE
        return _verdict(setting, Tone.OPEN, headline, tuple(_left_out(rivals, base, None)))
    claim = f"{best.name}: {factor(best.speedup)} the throughput of {base.name}"
    if best in faster:  # then it is the time to the target that leaves the verdict open
        why = _thin(best.target_speedup)
    else:
        why = _thin(best.speedup) or _shared(best.speedup, [row.speedup for row in learning if row.speedup])
    # One that is faster and trains no sooner neither pays nor lets it be said that nothing does.
    tone = Tone.PAYS if sure else Tone.NOTHING_PAYS if _none_is_faster(learning) else Tone.OPEN
    # Others may be faster per step, and are left out.
    of_able = f"{_others(setting, base)}{'' if len(able) == len(rivals) else ' that trains as soon'}"
    headlines = {
        Tone.PAYS: f"Pays: {claim}{_accuracy_cost(best, base)} ({_basis(best.speedup)}).",
        Tone.NOTHING_PAYS: f"Nothing beats {base.name} beyond the noise. Fastest{of_able}: {claim}.",
        Tone.OPEN: f"Undecided{why}. Fastest{of_able}: {claim}.",
    }
    return _verdict(setting, tone, headlines[tone], tuple(_details(setting, best, base, rivals)))


def pair_verdict(pair: PairRow) -> VerdictRow:
    """What sharing the devices in turns gains over running the jobs one after the other."""
    row = pair.row(CROSSOVER)
    if row is None or row.throughput is None:
        headline = "No gain can be given: crossover or exclusive was not measured."
        return VerdictRow(title=pair.title, evidence=pair.evidence, tone=Tone.OPEN, headline=headline)
    tone = _tone(row.throughput)
    claim = f"{factor(row.throughput)} the aggregate normalised throughput of exclusive"
    headlines = {
        Tone.PAYS: f"Sharing in turns pays: {claim} ({_basis(row.throughput)}).",
        Tone.NOTHING_PAYS: f"Sharing in turns does not pay beyond the noise: {claim}.",
        Tone.OPEN: f"Undecided{_thin(row.throughput)}: {claim}.",
    }
    details = tuple(_pair_details(pair, row))
    return VerdictRow(title=pair.title, evidence=pair.evidence, tone=tone, headline=headlines[tone], details=details)


def _verdict(setting: SettingRow, tone: Tone, headline: str, details: tuple[str, ...]) -> VerdictRow:
    return VerdictRow(title=setting.title, evidence=setting.evidence, tone=tone, headline=headline, details=details)


def _is_base(row: CellRow, base: CellRow) -> bool:
    """Whether the row is the baseline, or another setting of its system, of which it is the best."""
    return row is base or (row.system == base.system != OURS)


def _others(setting: SettingRow, base: CellRow) -> str:
    """What the fastest is the fastest of: other settings of the baseline's system are no rivals, and may be faster."""
    siblings = [row for row in setting.competitors if row is not base and _is_base(row, base)]
    return f" of what is not {base.system}" if siblings else " of the others"


def _learns(row: CellRow) -> bool:
    on_target = row.time_to_target_s is None or math.isfinite(row.time_to_target_s.median)
    return on_target and not _ends_above_start(row)


def _is_later(row: CellRow, base: CellRow) -> bool:
    """Whether it reaches the target after the baseline, in the median; where nothing is learnt there is no target."""
    own, other = row.time_to_target_s, base.time_to_target_s
    return own is not None and other is not None and own.median > other.median


def _is_surely_as_soon(row: CellRow) -> bool:
    """Whether the whole interval says that it reaches the target no later than the baseline."""
    return row.target_speedup is None or side(row.target_speedup, low=1) is Outcome.MET


def _faster(rows: Sequence[CellRow]) -> list[CellRow]:
    """The rows that are surely faster than the baseline, of as many as are compared."""
    measured = [row for row in rows if row.speedup is not None]
    above = surely_above([row.speedup for row in measured if row.speedup is not None], 1 + NOISE)
    return [row for row, faster in zip(measured, above, strict=True) if faster]


def _none_is_faster(rows: Iterable[CellRow]) -> bool:
    """Whether every row is surely not faster by more than noise."""
    return decide([row.speedup for row in rows if row.speedup], low=1 + NOISE, some=True) is Outcome.MISSED


def _fewest_bytes_first(rows: Iterable[CellRow]) -> list[CellRow]:
    """In the order in which verdicts favour cells, which must not depend on the times that they judge. The engine's
    count of bytes does not; an interface's holds what was sent again, so a system known by it alone comes last."""
    return sorted(rows, key=lambda row: (sum(row.wire_bytes.values()) or math.inf, row.name))


def _ends_above_start(row: CellRow) -> bool:
    return row.final_loss is not None and row.training is not None and row.final_loss.median > row.training.loss[0]


def _left_out(rivals: Iterable[CellRow], base: CellRow, best: CellRow | None) -> Iterator[str]:
    """Why a rival cannot win; of those that train no sooner, only what leads winner and baseline in throughput."""
    ahead = max(1.0, _speed(best)) if best else 1.0
    for row in rivals:
        if _ends_above_start(row) and row.final_loss is not None:
            loss = number(row.final_loss.median)
            yield f"Left out: {row.name} ({factor(row.speedup)}); its held-out loss ends at {loss}, above the start."
        elif not _learns(row):
            yield f"Left out: {row.name} ({factor(row.speedup)}); the target loss was not reached."
        elif row.time_to_target_s and base.time_to_target_s and _is_later(row, base) and _speed(row) > ahead:
            own, other = duration(row.time_to_target_s.median), duration(base.time_to_target_s.median)
            late = f"it reaches the target in {own}, {base.name} in {other}"
            yield f"Left out: {row.name} ({factor(row.speedup)}); {late}."
        elif row.target_speedup and not _is_surely_as_soon(row) and _speed(row) > ahead:
            missed = row.target_speedup.sample.count(0.0)
            how = f", {missed} of {plural(row.target_speedup.n, 'repeat')} not at all" if missed else ""
            yield f"Left out: {row.name} ({factor(row.speedup)}); it does not surely reach the target as soon{how}."


def _speed(row: CellRow) -> float:
    return row.speedup.median if row.speedup else 0.0


def _tone(ratio: Interval) -> Tone:
    """Whether the ratio is above 1 by more than noise."""
    tones = {Outcome.MET: Tone.PAYS, Outcome.MISSED: Tone.NOTHING_PAYS}
    return tones.get(side(ratio, low=1 + NOISE), Tone.OPEN)


def _basis(ratio: Interval) -> str:
    return "a virtual clock" if ratio.exact else plural(ratio.n, "repeat")


def _thin(ratio: Interval | None) -> str:
    if ratio is None or not ratio.is_range:
        return ""
    return f", {plural(ratio.n, 'repeat')} of at least {FEWEST_FOR_LEVEL}: a range decides nothing"


def _shared(ratio: Interval, ratios: Sequence[Interval]) -> str:
    """Why one of `ratios` that is above 1 by itself decides nothing: of many, one is soon above 1 by luck."""
    needed = fewest_among(ratios)
    if ratio.exact or ratio.n >= needed or side(ratio, low=1 + NOISE) is not Outcome.MET:
        return ""
    return f": {plural(ratio.n, 'repeat')} cannot tell one of {plural(len(ratios), 'rival')} from luck, {needed} can"


def _accuracy_cost(best: CellRow, base: CellRow) -> str:
    if best.final_accuracy is None or base.final_accuracy is None:
        return ""
    own, other = best.final_accuracy.median, base.final_accuracy.median
    return f", at a held-out accuracy of {percent(own)} against {percent(other)}" if own < other - ACCURACY_LOSS else ""


def _details(setting: SettingRow, best: CellRow, base: CellRow, rivals: Sequence[CellRow]) -> Iterator[str]:
    tied = [
        row.name
        for row in rivals
        if row is not best and _learns(row) and not _is_later(row, base) and _overlap(row.speedup, best.speedup)
    ]
    if tied:
        yield f"Within its interval: {', '.join(tied)}."
    if base.sent_bytes and best.sent_bytes:
        yield f"It puts {percent(best.sent_bytes / base.sent_bytes)} of {base.name}'s bytes on the wire."
    whole = max((row for row in full_size(rivals) if row is not best), key=_speed, default=None)
    if whole is not None and best not in full_size(rivals):
        yield f"Fastest without compression: {whole.name}, {factor(whole.speedup)}."
        if setting.key.group is ComputeKind.REPLAY:
            yield "Replay shows speed alone; what compression does to training is not seen here."
    yield from _quality(best, base, setting.target_loss)
    yield from _left_out(rivals, base, best)
    ideal = setting.ideal
    if ideal is not None:
        yield _reach(best.samples_per_s.median / ideal.samples_per_s.median)


def _reach(share: float) -> str:
    if share > BEYOND_BOUND:
        return "It is faster than the line without communication: other work slowed the machine; repeat on an idle one."
    return f"It reaches {percent(share)} of the throughput without communication."


def _overlap(a: Interval | None, b: Interval | None) -> bool:
    return a is not None and b is not None and a.has_bounds and b.has_bounds and a.high >= b.low and b.high >= a.low


def _quality(best: CellRow, base: CellRow, target: float | None) -> Iterator[str]:
    if best.time_to_target_s is not None and base.time_to_target_s is not None and target is not None:
        own, other = duration(best.time_to_target_s.median), duration(base.time_to_target_s.median)
        yield f"Time to training loss {number(target)}: {own}, against {other} for {base.name}."
    if best.final_loss is not None and base.final_loss is not None:
        own, other = number(best.final_loss.median), number(base.final_loss.median)
        yield f"Held-out loss at the end: {own}, against {other}{_accuracies(best, base)}."


def _accuracies(best: CellRow, base: CellRow) -> str:
    if best.final_accuracy is None or base.final_accuracy is None:
        return ""
    own, other = percent(best.final_accuracy.median, 3), percent(base.final_accuracy.median, 3)
    return f"; accuracy {own}, against {other}"


def _pair_details(pair: PairRow, row: SharingRow) -> Iterator[str]:
    if row.bound is not None and row.bound_share is not None:
        share, bound = percent(row.bound_share.median), number(row.bound.median)
        yield f"That is {share} of what T* predicts for a link in order, {bound}×."
    if row.limit is not None and row.limit_share is not None:
        share, limit = percent(row.limit_share.median), number(row.limit.median)
        yield f"It uses {share} of the hard limit, which no turns can pass and which allows {limit}×."
    if row.makespan_ratio is not None:
        yield f"Makespan of exclusive over makespan here, start and tail included: {factor(row.makespan_ratio)}."
    naive = pair.row(NAIVE)
    if naive is not None:
        yield f"Naive co-location, without turns: {factor(naive.throughput)}."
    if pair.phases is not None:
        yield (
            f"Naive co-location over {plural(pair.phases.num_phases, 'start offset')}: median "
            f"{factor(pair.phases.median)}, from {number(pair.phases.lowest)}× to {number(pair.phases.highest)}×."
        )
    if pair.rival is not None:
        yield f"One job alone with all batches ({pair.rival.batch_size}): {factor(pair.rival.throughput)}."
    slowdowns = [f"{job.name} {number(job.slowdown.median)}×" for job in row.jobs if job.slowdown]
    if slowdowns:
        yield f"Step time over that of the job alone: {', '.join(slowdowns)}."
