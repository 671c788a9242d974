"""The answer in words: which optimisation pays here, by how much, at what cost. Each claim carries its interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from analysis.rows import CellRow, PairRow, SettingRow, SharingRow, Tone, VerdictRow
from analysis.sharing import CROSSOVER
from analysis.stats import Interval
from analysis.training import full_size
from analysis.wording import duration, factor, number, percent, plural


def verdicts(settings: Iterable[SettingRow], pairs: Iterable[PairRow]) -> tuple[VerdictRow, ...]:
    """One verdict a setting and one a set of sharing jobs."""
    return tuple(map(setting_verdict, settings)) + tuple(map(pair_verdict, pairs))


def setting_verdict(setting: SettingRow) -> VerdictRow:
    """Which cell of a setting beats the baseline, by how much, and what it costs.

    A cell that does not reach the baseline's target loss cannot win, however fast its steps are.
    """
    rivals = [row for row in setting.competitors if row.label != setting.baseline and row.speedup is not None]
    best = max(filter(_converges, rivals), key=_speed, default=None)
    if best is None or best.speedup is None:
        headline = "No other system reached the target." if rivals else "Nothing to compare: one system was measured."
        return _verdict(setting, Tone.OPEN, headline, tuple(_unconverged(rivals)))
    claim = f"{best.label}: {factor(best.speedup)} the throughput of {setting.baseline}"
    tone = _tone(best.speedup)
    headlines = {
        Tone.PAYS: f"Pays: {claim} ({plural(best.speedup.n, 'repeat')}).",
        Tone.NOTHING_PAYS: f"Nothing beats {setting.baseline} beyond the noise. Fastest of the others: {claim}.",
        Tone.OPEN: f"One repeat, so no interval and no verdict. Fastest: {claim}.",
    }
    return _verdict(setting, tone, headlines[tone], tuple(_details(setting, best, rivals)))


def _converges(row: CellRow) -> bool:
    return row.time_to_target_s is None or math.isfinite(row.time_to_target_s.median)


def _unconverged(rivals: Iterable[CellRow]) -> Iterator[str]:
    names = [f"{row.label} ({factor(row.speedup)})" for row in rivals if not _converges(row)]
    if names:
        yield f"Left out, since the target loss was not reached: {', '.join(names)}."


def pair_verdict(pair: PairRow) -> VerdictRow:
    """What sharing the devices in turns gains over running the jobs one after the other."""
    row = next((row for row in pair.rows if row.policy == CROSSOVER and row.throughput), None)
    if row is None or row.throughput is None:
        headline = "No gain can be given: crossover or exclusive was not measured."
        return VerdictRow(title=pair.title, evidence=pair.evidence, tone=Tone.OPEN, headline=headline)
    tone = _tone(row.throughput)
    claim = f"{factor(row.throughput)} the aggregate normalised throughput of exclusive"
    headlines = {
        Tone.PAYS: f"Sharing in turns pays: {claim} ({plural(row.throughput.n, 'repeat')}).",
        Tone.NOTHING_PAYS: f"Sharing in turns does not pay beyond the noise: {claim}.",
        Tone.OPEN: f"One repeat, so no interval and no verdict: {claim}.",
    }
    return VerdictRow(
        title=pair.title,
        evidence=pair.evidence,
        tone=tone,
        headline=headlines[tone],
        details=tuple(_pair_details(pair, row)),
    )


def _verdict(setting: SettingRow, tone: Tone, headline: str, details: tuple[str, ...]) -> VerdictRow:
    return VerdictRow(title=setting.title, evidence=setting.evidence, tone=tone, headline=headline, details=details)


def _speed(row: CellRow) -> float:
    return row.speedup.median if row.speedup else 0.0


def _tone(ratio: Interval) -> Tone:
    if not ratio.has_bounds:
        return Tone.OPEN
    return Tone.PAYS if ratio.low > 1.0 else Tone.NOTHING_PAYS


def _details(setting: SettingRow, best: CellRow, rivals: Sequence[CellRow]) -> Iterator[str]:
    tied = [row.label for row in rivals if row is not best and _overlap(row.speedup, best.speedup)]
    if tied:
        yield f"Within its interval: {', '.join(tied)}."
    base = next((row for row in setting.competitors if row.label == setting.baseline), None)
    if base is not None and base.sent_bytes and best.sent_bytes:
        yield f"It puts {percent(best.sent_bytes / base.sent_bytes)} of {base.label}'s bytes on the wire."
    whole = max((row for row in full_size(rivals) if row is not best), key=_speed, default=None)
    if whole is not None and best not in full_size(rivals):
        yield f"Fastest without compression: {whole.label}, {factor(whole.speedup)}."
    if base is not None:
        yield from _quality(best, base, setting.target_loss)
    yield from _unconverged(rivals)
    ideal = setting.ideal
    if ideal is not None:
        share = best.samples_per_s.median / ideal.samples_per_s.median
        yield f"It reaches {percent(share)} of the throughput without communication."


def _overlap(a: Interval | None, b: Interval | None) -> bool:
    return a is not None and b is not None and a.has_bounds and b.has_bounds and a.high >= b.low


def _quality(best: CellRow, base: CellRow, target: float | None) -> Iterator[str]:
    if best.time_to_target_s is not None and base.time_to_target_s is not None and target is not None:
        own, other = duration(best.time_to_target_s.median), duration(base.time_to_target_s.median)
        yield f"Time to loss {number(target)}: {own}, against {other} for {base.label}."
    if best.final_accuracy is not None and base.final_accuracy is not None:
        own, other = percent(best.final_accuracy.median, 3), percent(base.final_accuracy.median, 3)
        yield f"Accuracy at the end: {own}, against {other}."
    elif best.final_loss is not None and base.final_loss is not None:
        yield f"Loss at the end: {number(best.final_loss.median)}, against {number(base.final_loss.median)}."


def _pair_details(pair: PairRow, row: SharingRow) -> Iterator[str]:
    if row.bound is not None and row.bound_share is not None:
        yield f"That is {percent(row.bound_share.median)} of the predicted bound {number(row.bound.median)}×."
    if row.makespan_ratio is not None:
        yield f"Makespan of exclusive over makespan here, start and tail included: {factor(row.makespan_ratio)}."
    naive = next((other for other in pair.rows if other.policy == "naive" and other.throughput), None)
    if naive is not None:
        yield f"Naive co-location, without turns: {factor(naive.throughput)}."
    slowdowns = [f"{job.name} {number(job.slowdown.median)}×" for job in row.jobs if job.slowdown]
    if slowdowns:
        yield f"One job's own step takes longer than alone: {', '.join(slowdowns)}."
