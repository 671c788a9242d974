"""What is claimed of compression, and what the sceptics say, judged from the records alone.

Papers' numbers are from other networks, machines and links: `met` says that the same is found here, `missed` that it is
not, and neither says more about the paper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from analysis.claims import (
    CellValue,
    ClaimRow,
    Formula,
    JudgedCell,
    Level,
    Outcome,
    joint_level,
    judge,
    not_measured,
    side,
    text_of,
)
from analysis.codes.findings import rivals_of
from analysis.codes.rows import CompressionStudy, MethodRow, SoonerRow, Threshold
from analysis.stats import exactly, foretold, gap_by_repeat, median_interval
from analysis.study import Evidence, Study
from analysis.targets.rows import ACCURACY, TargetRow, TargetStudy
from analysis.wording import factor, percent, plural

NAME = "compression"
DENSE, HALVES = "dense", ("fp16", "bf16")
SPARSE = ("top-k", "random-k", "Aji-Heafield", "DGC", "gTop-k", "SBC")
HOME_GBIT = 0.2
DATA_CENTRE_GBIT = 10.0
FAST_GBIT = 100.0
MOST_PAYING = 0.1  # of the set-ups; Agarwal et al. found 6 of more than 200
WORKERS = (8, 64)  # from, to; they had up to 96
NEARLY_IDEAL = 0.9
POINTS = 0.01  # of accuracy; what a paper calls the same
Select = Callable[[CompressionStudy, Sequence[TargetStudy]], Iterator[CellValue]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionClaim(Level):
    """A level with the cells that it is about."""

    select: Select


def claims(evidence: Evidence) -> tuple[ClaimRow, ...]:
    """Every claim, the suite's own first."""
    study, own = evidence.compression, [target for target in evidence.targets if target.suite == NAME]
    papers = tuple(judge(claim, list(claim.select(study, own))) for claim in CLAIMS)
    return (_sooner_at_home(study), _no_longer(study), *papers, _few_pay(study))


def base(name: str) -> str:
    """A method's name without its packing: `dense, one message` is dense."""
    return name.partition(",")[0]


def _is_sparse(row: SoonerRow) -> bool:
    """Whether it sends chosen elements."""
    return row.name.startswith(SPARSE)


def _is_half(row: SoonerRow) -> bool:
    return base(row.name) in HALVES


def _sooner_at_home(study: CompressionStudy) -> ClaimRow:
    """Half precision and at least one sparse method, on one workload at least."""
    claim = "At 200 Mbit/s half precision and at least one sparse method reach the target sooner than float32"
    rule = "on some workload a half and a sparse method above 1"
    known = [(row, row.lost_too) for row in study.sooner if row.home_gbit == HOME_GBIT]
    rows = {row: gain for row, gain in known if gain is not None and (_is_half(row) or _is_sparse(row))}
    if not any(map(_is_half, rows)) or not any(map(_is_sparse, rows)):
        return not_measured(claim, "No half and sparse method trained to the target.", rule=rule)
    level = joint_level(list(rows.values()))
    sooner = {row for row, gain in rows.items() if side(gain, low=1, level=level) is Outcome.MET}
    later = {row for row, gain in rows.items() if side(gain, low=1) is Outcome.MISSED}
    workloads = dict.fromkeys(row.workload for row in rows)
    kinds = [
        [{r for r in rows if r.workload == one and kind(r)} for kind in (_is_half, _is_sparse)] for one in workloads
    ]
    met = any(all(kind & sooner for kind in workload) for workload in kinds)
    missed = all(any(kind <= later for kind in workload) for workload in kinds)
    cells = tuple(
        JudgedCell(cell=f"{row.name} ({row.workload})", value=gain, outcome=side(gain, low=1), of=row.of)
        for row, gain in sorted(rows.items(), key=lambda one: one[1].median)
    )
    best = [f"{cell.cell} {text_of(cell.value, '×')}" for cell in cells[:-5:-1]]
    return ClaimRow(
        claim=claim,
        outcome=Outcome.MET if met else Outcome.MISSED if missed else Outcome.UNDECIDED,
        sentence=f"Time to the target, float32 over the method: {'; '.join(best)}.",
        rule=rule,
        formula=Formula.SOONER,
        unit="×",
        cells=cells,
    )


def _no_longer(study: CompressionStudy) -> ClaimRow:
    """Each half and sparse method that is sooner at home has a rate above which it is not."""
    claim = "There is a rate above which half precision and sparse methods reach the target no sooner than float32"
    rule = "for every method that is sooner at 200 Mbit/s the rate has an end, or it is later without one"
    asked = [(row, row.threshold) for row in study.sooner if _is_half(row) or _is_sparse(row)]
    ends = [(row, end) for row, end in asked if end and row.home and side(row.home, low=1) is Outcome.MET]
    if not ends:
        sentence = "No half or sparse method that is sooner at 200 Mbit/s was measured at other rates too."
        return not_measured(claim, sentence, rule=rule)
    outcomes = [_ends(row, end) for row, end in ends]
    said = [
        f"{row.name}: {end.text} Gbit/s, unshaped {factor(row.unshaped)} ({row.workload}, {one.value})"
        for (row, end), one in zip(ends, outcomes, strict=True)
    ]
    outcome = next((one for one in (Outcome.MISSED, Outcome.UNDECIDED) if one in outcomes), Outcome.MET)
    return ClaimRow(claim=claim, outcome=outcome, sentence=f"Sooner at {'; '.join(said)}.", rule=rule)


def _ends(row: SoonerRow, threshold: Threshold) -> Outcome:
    """Whether it stops being sooner at some rate, or is no sooner on the link without one."""
    unshaped = Outcome.UNDECIDED if row.unshaped is None else side(row.unshaped, high=1)
    if side(threshold.gbit, high=threshold.highest) is Outcome.MET or unshaped is Outcome.MET:
        return Outcome.MET
    return unshaped if side(threshold.gbit, high=threshold.highest) is Outcome.MISSED else Outcome.UNDECIDED


def _few_pay(study: CompressionStudy) -> ClaimRow:
    """Agarwal et al.: compression rarely beats a tuned synchronous baseline on data-centre links.

    Told by the virtual clock alone: on tensors that are S times smaller a code's own work is this machine's.
    """
    claim = (
        f"The sceptics (Agarwal et al., MLSys 2022): from {DATA_CENTRE_GBIT:g} Gbit/s up compression beats the better "
        f"of tuned float32 and half in at most {percent(MOST_PAYING)} of set-ups (6 of over 200 there)"
    )
    rule = f"at most {percent(MOST_PAYING)} of set-ups above 1"
    found = []
    for row in study.rows:
        is_data_centre = (
            WORKERS[0] <= row.place.num_workers <= WORKERS[1] and (row.place.gbit or 0.0) >= DATA_CENTRE_GBIT
        )
        if row.is_rival or not is_data_centre:
            continue
        rivals = {rival.ids: rival.predicted_s for rival in rivals_of(row, study.rows) if rival.predicted_s}
        if row.predicted_s and rivals and row.charge is not None and row.charge.is_charged:
            gain = foretold(min(rivals.values()) / row.predicted_s)
            cell = f"{row.name} ({row.place.describe()})"
            found.append((row, JudgedCell(cell=cell, value=gain, outcome=side(gain, low=1), of=(*rivals, row.ids))))
    if not found:
        return not_measured(claim, "No charged compressor was predicted on such a link.", rule=rule)
    paying = [row for row, cell in found if cell.outcome is Outcome.MET]
    perhaps = [row for row, cell in found if cell.outcome is not Outcome.MISSED]
    few = MOST_PAYING * len(found)
    outcome = Outcome.MISSED if len(paying) > few else Outcome.MET if len(perhaps) <= few else Outcome.UNDECIDED
    pays, all_of = (Counter(row.place.gbit or 0.0 for row in rows) for rows in (paying, [row for row, _ in found]))
    at = ", ".join(f"{pays[gbit]} of {all_of[gbit]} at {gbit:g} Gbit/s" for gbit in sorted(all_of))
    devices = sorted({row.charge.device for row, _ in found if row.charge is not None})
    return ClaimRow(
        claim=claim,
        outcome=outcome,
        sentence=f"{len(paying)} of {plural(len(found), 'set-up')} surely and up to {len(perhaps)} within the "
        f"predictor's error, {WORKERS[0]} to {WORKERS[1]} workers, compression charged as the time of "
        f"{', '.join(devices)}. Surely: {at}.",
        rule=rule,
        formula=Formula.PREDICTED_GAIN,
        unit="×",
        cells=tuple(cell for _, cell in found),
    )


# ---- papers


def _ratios(start: str, network: str) -> Select:
    """Float32 over a method's code."""

    def select(study: CompressionStudy, _: Sequence[TargetStudy]) -> Iterator[CellValue]:
        for row in study.rows:
            ratio = row.ratio
            if row.name.startswith(start) and row.place.workload.startswith(network) and row.was_run and ratio:
                yield CellValue(f"{row.name} ({row.place.describe()})", exactly(ratio, len(row.ids)), (row.ids,))

    return select


def _shortfalls(start: str) -> Select:
    """By how much less accurate than the dense run, seed by seed."""

    def select(_: CompressionStudy, targets: Sequence[TargetStudy]) -> Iterator[CellValue]:
        for target in targets:
            for row in target.rows:
                gap = gap_by_repeat(target.dense.accuracies_by_repeat, row.accuracies_by_repeat)
                if row.name.startswith(start) and target.metric == ACCURACY and gap is not None:
                    yield CellValue(f"{row.name} ({target.title})", gap, (target.dense.record_ids, row.record_ids))

    return select


def _sooner(start: str) -> Select:
    """Time to the target where it was measured, float32 over the method; 0 for repeats that did not reach it."""

    def select(study: CompressionStudy, _: Sequence[TargetStudy]) -> Iterator[CellValue]:
        for row in study.sooner:
            if row.name.startswith(start) and row.lost_too is not None:
                yield CellValue(f"{row.name} ({row.workload})", row.lost_too, row.of)

    return select


def _faster(own: str, over: str, accepts: Callable[[MethodRow], bool] = lambda _: True) -> Select:
    """The other's step over this one's in the same place, repeat by repeat."""

    def select(study: CompressionStudy, _: Sequence[TargetStudy]) -> Iterator[CellValue]:
        for row in study.rows:
            if not row.name.startswith(own) or not accepts(row):
                continue
            others = [other for other in study.rows if other.place == row.place and other.name.startswith(over)]
            for other in others:
                theirs = dict(other.by_repeat)
                ratios = [theirs[repeat] / step_s for repeat, step_s in row.by_repeat if repeat in theirs]
                if ratios:
                    name = f"{row.name} over {other.name} ({row.place.describe()})"
                    yield CellValue(name, median_interval(ratios), (other.ids, row.ids))

    return select


def _volumes(study: CompressionStudy, targets: Sequence[TargetStudy]) -> Iterator[CellValue]:
    """Bytes of a whole training, warm-up and all: Adam's over 1-bit Adam's."""
    for target in targets:
        rows: dict[str, TargetRow] = {row.name: row for row in target.rows}
        own, dense = rows.get("1-bit Adam"), rows.get("dense adam") or rows.get(DENSE)
        sent = [_mean_bits(study, row) for row in (own, dense)]
        if own is not None and dense is not None and sent[0] and sent[1]:
            ids = dense.record_ids, own.record_ids
            yield CellValue(f"1-bit Adam ({target.title})", exactly(sent[1] / sent[0], len(own.prices)), ids)


def _mean_bits(study: CompressionStudy, row: TargetRow | None) -> float | None:
    """Bits a parameter of a mean step, warm-up included."""
    found = next((own for own in study.rows if row is not None and set(own.ids) & set(row.record_ids)), None)
    return found.mean_bits if found is not None else None


def _wider(row: MethodRow) -> bool:
    return row.place.num_workers > 8


def _efficiencies(gbit: float, accepts: Callable[[MethodRow], bool]) -> Select:
    """Computation alone over the predicted step: what the link still costs there."""

    def select(study: CompressionStudy, _: Sequence[TargetStudy]) -> Iterator[CellValue]:
        for row in study.rows:
            # Computation is the dense run's, since a coded one's would hold its codec.
            dense = next((one for one in study.rows if one.place == row.place and one.name == DENSE), None)
            compute_s = dense.phases.compute_s if dense is not None else None
            if row.place.gbit == gbit and accepts(row) and dense and compute_s and row.predicted_s and not _wider(row):
                share = min(1.0, compute_s / row.predicted_s)
                yield CellValue(f"{row.name} ({row.place.describe()})", foretold(share), (dense.ids, row.ids))

    return select


_TIME = "Time to the target, float32 over the method"
CLAIMS: tuple[CompressionClaim, ...] = (
    CompressionClaim(
        claim="DGC's paper: 270 to 600 times fewer bits, here with every tensor sparse",
        quantity="Float32 over the code, indices included, without warm-up, every tensor sparse; the authors' code "
        "sends vectors dense, which makes 244 on ResNet-50 (not built)",
        select=_ratios("DGC", "resnet50"),
        formula=Formula.BITS,
        low=270.0,
        unit="×",
    ),
    CompressionClaim(
        claim="SBC's paper: 3,531 times fewer bits on ResNet-50, with 1 % kept and an exchange in 10 local steps",
        quantity="Float32 over the code of an exchange, 353.1 times; local steps divide it by 10 (not verified against "
        "the paper's text)",
        select=_ratios("SBC 1 %", "resnet50"),
        formula=Formula.BITS,
        low=353.1,
        unit="×",
    ),
    CompressionClaim(
        claim="DGC's paper: the accuracy of dense training, here within a point",
        quantity="Accuracy of the dense run at the end, less its own",
        select=_shortfalls("DGC"),
        formula=Formula.SHORTFALL,
        high=POINTS,
        scale=100.0,
        unit=" points",
    ),
    CompressionClaim(
        claim="QSGD's paper: full accuracy 1.8 times sooner than float32",
        quantity=_TIME,
        select=_sooner("QSGD 4 bit"),
        formula=Formula.SOONER,
        low=1.8,
        unit="×",
    ),
    CompressionClaim(
        claim="Aji and Heafield: 22 % more speed (translation), 49 % (MNIST)",
        quantity="Float32's step over its own at 200 Mbit/s, repeat by repeat",
        select=_faster("Aji-Heafield", DENSE, lambda row: row.place.gbit == HOME_GBIT),
        formula=Formula.SPEED_UP,
        low=1.22,
        unit="×",
    ),
    CompressionClaim(
        claim="1-bit Adam's paper: up to 5 times less volume over a training, warm-up included",
        quantity="Bytes that Adam sends over its own",
        select=_volumes,
        formula=Formula.VOLUME,
        low=5.0,
        unit="×",
    ),
    CompressionClaim(
        claim="The sceptics (Zhang et al., NetAI 2020): at 100 Gbit/s float32 needs no compression",
        quantity="Predicted: computation alone over the step, 8 workers at most",
        select=_efficiencies(FAST_GBIT, lambda row: row.name == DENSE),
        formula=Formula.PREDICTED_EFFICIENCY,
        low=NEARLY_IDEAL,
    ),
    CompressionClaim(
        claim="The sceptics (Zhang et al., NetAI 2020): at 10 Gbit/s 2 to 5 times fewer bits suffice",
        quantity="Predicted: computation alone over the step of half precision, 8 workers at most",
        select=_efficiencies(DATA_CENTRE_GBIT, lambda row: base(row.name) in HALVES),
        formula=Formula.PREDICTED_EFFICIENCY,
        low=NEARLY_IDEAL,
    ),
)
STUDY = Study(suite=NAME, curves=True, codes=True, references=("fixed-buckets",), claims=claims)
