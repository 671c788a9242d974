"""What papers claim of fusion, and what is claimed of the predictor, judged from the records alone.

Papers' numbers were taken on other networks, machines and links; `met` says that the same ratio is reached here and
`missed` that it is not, and neither says more about the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.cells import OURS, SIMULATED
from analysis.claims import CellValue, ClaimRow, Formula
from analysis.stats import NOISE, foretold
from analysis.steps.claims import Accepts, Select, StepClaim, by_place, fastest, over, speedup, step_claims
from analysis.steps.rows import StepRow
from analysis.study import Evidence, Study
from analysis.wording import percent
from suites.step_rows import SPEED, anywhere, is_fifo, parts

NAME = "fusion"
MODELLED = ("resnet50-replay", 8, 10.0)  # the headline
ON_SOCKETS = ("resnet50-replay", 4, 10.0)  # the same where Horovod can run


def claims(evidence: Evidence) -> tuple[ClaimRow, ...]:
    """Every claim of the suite with its outcome, the predictor's first."""
    return step_claims(CLAIMS, evidence.steps, evidence.errors)


def _alone(name: str) -> Accepts:
    """Exactly this plug-in and nothing else."""
    return lambda row: row.system == OURS and row.method == name


def _best_against(system: str, where: tuple[str, int, float]) -> Select:
    """The fastest of ours over the fastest of a system's settings, in one place of this suite: others run the same
    workloads there with few of its methods."""

    def select(rows: Sequence[StepRow]) -> Iterator[CellValue]:
        for place, here in by_place(rows).items():
            if (place.suite, place.workload, place.num_workers, place.gbit) == (NAME, *where):
                own = fastest(row for row in here if row.system == OURS and is_fifo(row))
                rival = fastest(row for row in here if row.system.partition("(")[0] == system)
                ratio = speedup(own, rival) if own is not None and rival is not None else None
                if own is not None and rival is not None and ratio is not None:
                    yield CellValue(f"{own.name} over {rival.name} ({place.describe()})", ratio, (rival.ids, own.ids))

    return select


def _predicted_efficiency(workload: str, num_workers: int, gbit: float) -> Select:
    """Scaling efficiency of Horovod's rule on a virtual clock: no machine here has so many workers."""

    def select(rows: Sequence[StepRow]) -> Iterator[CellValue]:
        for row in rows:
            place = row.place
            if (place.workload, place.num_workers, place.gbit) == (workload, num_workers, gbit):
                compute_s = row.phases.compute_s
                if (
                    row.method.startswith("tensor-fusion")
                    and compute_s
                    and row.predicted_s
                    and row.evidence == SIMULATED
                ):
                    name, efficiency = f"{row.name} ({place.describe()})", foretold(compute_s / row.predicted_s)
                    yield CellValue(name, efficiency, (row.ids, row.ids))

    return select


CLAIMS: tuple[StepClaim, ...] = (
    StepClaim(
        claim="MG-WFBP beats WFBP, which sends each tensor alone",
        quantity=SPEED,
        select=over(_alone("mg-wfbp"), lambda _, other: other.method == "unfused", anywhere),
        low=1.0,
    ),
    StepClaim(
        claim="MG-WFBP at least ties fixed buckets",
        quantity=f"{SPEED}, over the fastest bucket size",
        select=over(_alone("mg-wfbp"), lambda _, other: parts(other) == {"fixed-buckets"}, anywhere),
        low=1.0 - NOISE,
    ),
    StepClaim(
        claim="MG-WFBP takes at most 5 % longer than the exact merge",
        quantity=SPEED,
        select=over(_alone("mg-wfbp"), lambda _, other: other.method == "optimal-merge", anywhere),
        low=0.95,
    ),
    *(
        StepClaim(
            claim=f"ResNet-50 at 10 Gbit/s among {where[1]} workers: the best of ours beats {name} at its best setting",
            quantity=SPEED,
            select=_best_against(system, where),
            low=1.0,
        )
        for system, name, where in (
            ("horovod", "Horovod, autotuned or not,", ON_SOCKETS),
            ("torch-ddp", "torch DDP", MODELLED),
        )
    ),
    *(
        StepClaim(
            claim=f"Horovod's paper: {percent(level)} scaling efficiency of {name} on 512 workers at 25 Gbit/s",
            quantity="Predicted efficiency of tensor fusion; not measured, no such cluster is here",
            select=_predicted_efficiency(f"{network}-replay", 512, 25.0),
            low=level,
            formula=Formula.PREDICTED_EFFICIENCY,
        )
        for network, name, level in (("resnet101", "ResNet-101", 0.90), ("vgg16", "VGG-16", 0.68))
    ),
)
STUDY = Study(
    suite=NAME,
    curves=True,
    references=("fixed-buckets(bucket_bytes=26200000", "fixed-buckets"),  # torch DDP's size before any other
    claims=claims,
)
