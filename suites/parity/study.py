"""What is claimed of the engine beside the systems whose rules it follows, judged from the records alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge
from analysis.steps.claims import by_place, speedup
from analysis.steps.rows import StepRow
from analysis.study import Evidence, Study
from suites.step_rows import parts, same_size

NAME = "parity"
QUANTITY = "Our step over the system's, repeat by repeat"


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
        for own in (row for row in here if own_name in parts(row)):
            for rival in (row for row in here if system in parts(row) and same_size(own, row)):
                if (ratio := speedup(rival, own)) is not None:
                    yield CellValue(f"{own.name} over {rival.name} ({place.describe()})", ratio, (own.ids, rival.ids))


STUDY = Study(suite=NAME, curves=True, claims=claims)
