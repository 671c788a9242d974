"""What is claimed of compression, and what the sceptics say, judged from the records alone.

Papers' numbers are from other networks, machines and links: `met` says that the same is found here, `missed` that it is
not, and neither says more about the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from analysis.claims import Level, Measured, high_end, judge, low_end, not_measured, outcome_of
from analysis.codes.findings import gains_of
from analysis.codes.rows import CompressionStudy, MethodRow, SoonerRow
from analysis.sharing.rows import ClaimRow
from analysis.stats import Interval, bootstrap_interval, exactly
from analysis.study import Evidence, Study
from analysis.targets.rows import ACCURACY, TargetRow, TargetStudy
from analysis.wording import factor, number, percent, plural

NAME = "compression"
DENSE, HALVES = "dense", ("fp16", "bf16")
SPARSE = ("top-k", "random-k", "Aji-Heafield", "DGC", "gTop-k", "SBC")
FEW = 3
HOME_GBIT = 0.2
DATA_CENTRE_GBIT = 10.0
FAST_GBIT = 100.0
MOST_PAYING = 0.1  # of the set-ups; Agarwal et al. found 6 of more than 200
NEARLY_IDEAL = 0.9
POINTS = 0.01  # of accuracy; what a paper calls the same
Select = Callable[[CompressionStudy, Sequence[TargetStudy]], Iterator[Measured]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionClaim(Level):
    """A level with the cells that it is about."""

    select: Select


def claims(evidence: Evidence) -> tuple[ClaimRow, ...]:
    """Every claim, the suite's own first."""
    study, own = evidence.compression, [target for target in evidence.targets if target.suite == NAME]
    papers = tuple(judge(claim, list(claim.select(study, own))) for claim in CLAIMS)
    return (_sooner_at_home(study), _no_longer(study), *papers, _many_bits(study), _few_pay(study))


def _sooner_at_home(study: CompressionStudy) -> ClaimRow:
    """Half precision and at least one sparse method, on one workload at least."""
    claim = "At 200 Mbit/s half precision and at least one sparse method reach the target sooner than tuned float32"
    known = [row for row in study.sooner if row.home is not None and row.home_gbit == HOME_GBIT]
    known = [row for row in known if row.home is not None and row.home.n >= FEW]
    if not any(base(row.name) in HALVES for row in known) or not any(_is_sparse(row) for row in _at_home(study)):
        return not_measured(claim, f"No {FEW} repeats of both a half and a sparse method trained to the target.")
    met = [workload for workload in _workloads(known) if _holds(known, workload)]
    best = [_said(row) for row in sorted(known, key=_home_gain, reverse=True)[:4]]
    sentence = f"On {', '.join(met) or 'no workload'}. Time to the target, float32 over the method: {'; '.join(best)}."
    lost = [f"{row.name} ({row.workload}): {row.num_reached} of {plural(row.num_repeats, 'repeat')} reached it"
            for row in _at_home(study) if row.num_reached < row.num_repeats]  # fmt: skip
    details = (*(_said(row) for row in sorted(known, key=_home_gain)), *lost)
    return ClaimRow(claim=claim, outcome=outcome_of(bool(met)), sentence=sentence, details=details)


def base(name: str) -> str:
    """A method's name without its packing: `dense, one message` is dense."""
    return name.partition(",")[0]


def _is_sparse(row: SoonerRow) -> bool:
    """Whether it sends chosen elements."""
    return row.name.startswith(SPARSE)


def _at_home(study: CompressionStudy) -> list[SoonerRow]:
    return [row for row in study.sooner if row.home_gbit == HOME_GBIT and row.num_repeats >= FEW]


def _workloads(rows: Sequence[SoonerRow]) -> list[str]:
    return list(dict.fromkeys(row.workload for row in rows))


def _holds(rows: Sequence[SoonerRow], workload: str) -> bool:
    sooner = [row for row in rows if row.workload == workload and _is_sooner(row)]
    return any(base(row.name) in HALVES for row in sooner) and any(_is_sparse(row) for row in sooner)


def _is_sooner(row: SoonerRow) -> bool:
    """Its whole interval lies above 1."""
    return row.home is not None and low_end(row.home) > 1


def _home_gain(row: SoonerRow) -> float:
    return row.home.median if row.home is not None else 0.0


def _said(row: SoonerRow) -> str:
    assert row.home is not None
    return f"{row.name} {factor(row.home)} ({row.workload}, n = {row.home.n})"


def _no_longer(study: CompressionStudy) -> ClaimRow:
    """Each half and sparse method that is sooner at home has a rate above which it is not."""
    claim = (
        "There is a rate above which half precision and sparse methods reach the target no sooner than tuned float32"
    )
    asked = [row for row in study.sooner if row.threshold is not None and _is_sooner(row)]
    asked = [row for row in asked if base(row.name) in HALVES or _is_sparse(row)]
    if not asked:
        return not_measured(
            claim, "No half or sparse method that is sooner at 200 Mbit/s was measured at other rates too."
        )
    ends = [(row, row.threshold) for row in asked if row.threshold is not None]
    shown = all(math.isfinite(threshold.gbit.median) or _is_late_unshaped(row) for row, threshold in ends)
    said = [
        f"{row.name}: {threshold.text} Gbit/s, unshaped {factor(row.unshaped)} ({row.workload})"
        for row, threshold in ends
    ]
    return ClaimRow(claim=claim, outcome=outcome_of(shown), sentence=f"Sooner at {'; '.join(said)}.", details=())


def _is_late_unshaped(row: SoonerRow) -> bool:
    """Whether it is sooner on every rate that was asked about, and not on the link without one."""
    return row.unshaped is not None and row.unshaped.median <= 1


def _few_pay(study: CompressionStudy) -> ClaimRow:
    """Agarwal et al.: compression rarely beats a tuned synchronous baseline on data-centre links."""
    claim = (
        f"The sceptics (Agarwal et al., MLSys 2022): from {DATA_CENTRE_GBIT:g} Gbit/s up compression beats the better "
        f"of tuned float32 and half in at most {percent(MOST_PAYING)} of set-ups (6 of over 200 there)"
    )
    found = []
    for row in study.rows:
        if (row.place.gbit or 0.0) >= DATA_CENTRE_GBIT and row.system == "ours" and not row.is_rival:
            gains = list(gains_of(row, study.rows).values())
            if len(gains) >= FEW:
                found.append((row, bootstrap_interval(gains)))
    if not found:
        return not_measured(claim, f"No {FEW} repeats of a compressor on such a link.")
    paying = [(row, gain) for row, gain in found if low_end(gain) > 1]
    sentence = f"{len(paying)} of {plural(len(found), 'set-up')}, compression charged as {_device(found)}."
    details = tuple(f"{row.name} ({row.place.describe()}): {factor(gain)} (n = {gain.n})" for row, gain in found)
    return ClaimRow(
        claim=claim, outcome=outcome_of(len(paying) <= MOST_PAYING * len(found)), sentence=sentence, details=details
    )


def _device(found: Sequence[tuple[MethodRow, Interval]]) -> str:
    devices = {row.charge.device for row, _ in found if row.charge and row.charge.is_charged}
    return f"the time of {', '.join(sorted(devices))}" if devices else "nothing"


def _many_bits(study: CompressionStudy) -> ClaimRow:
    """SBC's headline is with 100 local steps, which are not in this suite."""
    claim = "SBC's paper: 3,531 times fewer bits on ResNet-50, with 100 local steps"
    ratios = [(row, row.ratio) for row in study.rows if row.name.startswith("SBC") and row.step_time_s is not None]
    known = [f"{number(ratio)}× ({row.place.describe()})" for row, ratio in ratios if ratio]
    told = f" Without them, 1 % kept: {'; '.join(dict.fromkeys(known))}." if known else ""
    return not_measured(claim, f"Local steps are not run here.{told}")


# ---- papers


def _ratios(start: str, network: str) -> Select:
    """Float32 over a method's code."""

    def select(study: CompressionStudy, _: Sequence[TargetStudy]) -> Iterator[Measured]:
        for row in study.rows:
            ratio = row.ratio
            if row.name.startswith(start) and row.place.workload.startswith(network) and row.by_repeat and ratio:
                yield f"{row.name} ({row.place.describe()})", exactly(ratio, len(row.by_repeat))

    return select


def _shortfalls(start: str) -> Select:
    """By how much less accurate than the dense run, in its repeats' mean."""

    def select(_: CompressionStudy, targets: Sequence[TargetStudy]) -> Iterator[Measured]:
        for target in targets:
            for row in target.rows:
                if row.name.startswith(start) and target.metric == ACCURACY and row.falls_short is not None:
                    yield f"{row.name} ({target.title})", exactly(row.falls_short, len(row.prices))

    return select


def _sooner(start: str) -> Select:
    """Time to the target where it was measured, float32 over the method; 0 where it was not reached."""

    def select(study: CompressionStudy, _: Sequence[TargetStudy]) -> Iterator[Measured]:
        for row in study.sooner:
            if row.name.startswith(start):
                yield f"{row.name} ({row.workload})", row.home or exactly(0.0, row.num_repeats)

    return select


def _faster(own: str, over: str, accepts: Callable[[MethodRow], bool] = lambda _: True) -> Select:
    """The other's step over this one's in the same place, repeat by repeat."""

    def select(study: CompressionStudy, _: Sequence[TargetStudy]) -> Iterator[Measured]:
        for row in study.rows:
            if not row.name.startswith(own) or not accepts(row):
                continue
            others = [other for other in study.rows if other.place == row.place and other.name.startswith(over)]
            for other in others:
                theirs = dict(other.by_repeat)
                ratios = [theirs[repeat] / step_s for repeat, step_s in row.by_repeat if repeat in theirs]
                if ratios:
                    yield f"{row.name} over {other.name} ({row.place.describe()})", bootstrap_interval(ratios)

    return select


def _volumes(study: CompressionStudy, targets: Sequence[TargetStudy]) -> Iterator[Measured]:
    """Bytes of a whole training, warm-up and all: Adam's over 1-bit Adam's."""
    for target in targets:
        rows: dict[str, TargetRow] = {row.name: row for row in target.rows}
        own, dense = rows.get("1-bit Adam"), rows.get("dense adam") or rows.get(DENSE)
        sent = [_mean_bits(study, row) for row in (own, dense)]
        if own is not None and sent[0] and sent[1]:
            yield f"1-bit Adam ({target.title})", exactly(sent[1] / sent[0], len(own.prices))


def _mean_bits(study: CompressionStudy, row: TargetRow | None) -> float | None:
    """Bits a parameter of a mean step, warm-up included."""
    found = next((own for own in study.rows if row is not None and set(own.ids) & set(row.record_ids)), None)
    return found.mean_bits if found is not None else None


def _wide(row: MethodRow) -> bool:
    return row.place.num_workers >= 8


def _wider(row: MethodRow) -> bool:
    return row.place.num_workers > 8


def _efficiencies(gbit: float, accepts: Callable[[MethodRow], bool]) -> Select:
    """Computation alone over the predicted step: what the link still costs there."""

    def select(study: CompressionStudy, _: Sequence[TargetStudy]) -> Iterator[Measured]:
        for row in study.rows:
            here = [other for other in study.rows if other.place == row.place and other.name == DENSE]
            compute_s = next((other.phases.compute_s for other in here), None)  # its own would hold its codec
            if row.place.gbit == gbit and accepts(row) and compute_s and row.predicted_s and not _wider(row):
                yield f"{row.name} ({row.place.describe()})", exactly(min(1.0, compute_s / row.predicted_s), 1)

    return select


_TIME = "Time to the target, float32 over the method"
CLAIMS: tuple[CompressionClaim, ...] = (
    CompressionClaim(
        claim="DGC's paper: 270 to 600 times fewer bits",
        quantity="Float32 over the code, indices included, without warm-up",
        select=_ratios("DGC", "resnet50"),
        low=270.0,
        fewest=FEW,
        unit="×",
    ),
    CompressionClaim(
        claim="DGC's paper: the accuracy of dense training, here within a point",
        quantity="Accuracy of the dense run at the end, less its own",
        select=_shortfalls("DGC"),
        high=POINTS,
        fewest=FEW,
        scale=100.0,
        unit=" points",
    ),
    CompressionClaim(
        claim="QSGD's paper: full accuracy 1.8 times sooner than float32",
        quantity=_TIME,
        select=_sooner("QSGD 4 bit"),
        low=1.8,
        fewest=FEW,
        unit="×",
    ),
    CompressionClaim(
        claim="Aji and Heafield: 22 % more speed (translation), 49 % (MNIST)",
        quantity="Float32's step over its own at 200 Mbit/s, repeat by repeat",
        select=_faster("Aji-Heafield", DENSE, lambda row: row.place.gbit == HOME_GBIT),
        low=1.22,
        fewest=FEW,
        unit="×",
    ),
    CompressionClaim(
        claim="1-bit Adam's paper: up to 5 times less volume over a training, warm-up included",
        quantity="Bytes that Adam sends over its own",
        select=_volumes,
        low=5.0,
        fewest=FEW,
        unit="×",
    ),
    CompressionClaim(
        claim="gTop-k's paper: 1.1 to 1.7 times faster than top-k (32 workers there, 8 here)",
        quantity="Top-k's step over its own, repeat by repeat",
        select=_faster("gTop-k", "top-k", _wide),
        low=1.1,
        fewest=FEW,
        unit="×",
    ),
    CompressionClaim(
        claim="gTop-k's paper: 2.7 times faster than dense at least (32 workers on 1 Gbit/s there, 8 on 10 here)",
        quantity="Float32's step over its own, repeat by repeat",
        select=_faster("gTop-k", DENSE, _wide),
        low=2.7,
        fewest=FEW,
        unit="×",
    ),
    CompressionClaim(
        claim="The sceptics (Zhang et al., NetAI 2020): at 100 Gbit/s float32 needs no compression",
        quantity="Predicted: computation alone over the step, 8 workers at most",
        select=_efficiencies(FAST_GBIT, lambda row: row.name == DENSE),
        low=NEARLY_IDEAL,
        fewest=1,
        judged=high_end,
    ),
    CompressionClaim(
        claim="The sceptics (Zhang et al., NetAI 2020): at 10 Gbit/s 2 to 5 times fewer bits suffice",
        quantity="Predicted: computation alone over the step of half precision, 8 workers at most",
        select=_efficiencies(DATA_CENTRE_GBIT, lambda row: base(row.name) in HALVES),
        low=NEARLY_IDEAL,
        fewest=1,
        judged=high_end,
    ),
)
STUDY = Study(suite=NAME, curves=True, codes=True, references=("fixed-buckets",), claims=claims)
