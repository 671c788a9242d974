"""What is claimed of the engine beside the systems whose rules it follows, judged from the records alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge
from analysis.stats import bootstrap_interval
from analysis.steps.claims import by_place
from analysis.steps.rows import StepRow
from analysis.study import Evidence, Study

NAME = "parity"
QUANTITY = "Our step over the system's, repeat by repeat"
# Parameters that say how large a message may be, and their unit in bytes. torch's MB are MiB.
SIZES = {"bucket_bytes": 1, "bucket_mb": 2**20, "threshold_bytes": 1, "fusion_threshold_bytes": 1}
ROUNDING = 0.02  # of sizes in labels


def claims(evidence: Evidence) -> Iterator[ClaimRow]:
    """Buckets beside DDP, then fusion beside Horovod."""
    rows = [row for row in evidence.steps if row.place.suite == NAME]
    for text, most, own, system in (
        (
            "Fixed buckets take at most 1.03 times the step of torch DDP with the same buckets",
            1.03,
            "fixed-buckets",
            "torch-ddp",
        ),
        (
            "Tensor fusion takes no longer than Horovod with the same threshold and cycle",
            1.0,
            "tensor-fusion",
            "horovod",
        ),
    ):
        level = Level(claim=text, quantity=QUANTITY, high=most, formula=Formula.SPEED_UP)
        yield judge(level, list(_ratios(rows, own, system)))


def _ratios(rows: Sequence[StepRow], own_name: str, system: str) -> Iterator[CellValue]:
    """A cell per place and size in which both were measured."""
    for place, here in by_place(rows).items():
        for own in (row for row in here if own_name in row.strategy.names):
            for rival in (row for row in here if system in row.strategy.names):
                theirs = dict(rival.by_repeat)
                ratios = [step_s / theirs[repeat] for repeat, step_s in own.by_repeat if repeat in theirs]
                if ratios and math.isclose(_num_bytes(own), _num_bytes(rival), rel_tol=ROUNDING):
                    name = f"{own.name} over {rival.name} ({place.describe()})"
                    yield CellValue(name, bootstrap_interval(ratios), (own.ids, rival.ids))


def _num_bytes(row: StepRow) -> float:
    given = [(own.name, float(own.given or 0)) for plugin in row.strategy.plugins for own in plugin.given]
    return next((value * SIZES[name] for name, value in given if name in SIZES), 0.0)


STUDY = Study(suite=NAME, curves=True, claims=claims)
