"""What the papers on partitioned operators claim, judged from the suite's records of split jobs.

Their own numbers are of their own clusters, so the claims are their directions. In all cells sums of gradients hide
behind backward, which the planners do not count.
"""

from __future__ import annotations

from collections.abc import Iterator

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge
from analysis.pipelines.rows import PipelineRow
from analysis.pipelines.splits import SplitRow
from analysis.stats import exactly, paired_ratio
from analysis.study import Evidence
from suites.parallelism.cells import NAME
from suites.parallelism.split_grid import DATA_PARALLEL, LAYERS_PLACED, MESH

MOST_DISTANCE = 1e-5
Row = PipelineRow | SplitRow
# Of a mesh with four times the rows: samples per second over those of the smaller one.
GROWN, LEAST_GROWN = 4, 3.6


def split_claims(evidence: Evidence) -> Iterator[ClaimRow]:
    """In the order of the systems, then what is claimed of the executor."""
    splits = tuple(row for row in evidence.splits if row.suite == NAME)
    rows: tuple[Row, ...] = (*splits, *(row for row in evidence.pipelines if row.suite == NAME))
    yield judge(
        _over("Tofu (Wang et al., EuroSys 2019) is faster than placing whole layers on devices of their own"),
        list(_throughput(rows, "tofu", LAYERS_PLACED)),
    )
    yield judge(
        _over("HyPar (Song et al., HPCA 2019) is faster than data parallelism on 16 devices"),
        list(_throughput(rows, "hypar", DATA_PARALLEL)),
    )
    yield judge(
        _over("FlexFlow (Jia et al., MLSys 2019) finds plans that are faster than data parallelism's"),
        list(_throughput(rows, "flexflow", DATA_PARALLEL)),
    )
    yield judge(
        Level(
            claim="Mesh-TensorFlow (Shazeer et al., NeurIPS 2018) scales by splitting named dimensions: four times the "
            "rows compute at least 3.6 times the samples per second",
            quantity="Samples/s on four times the devices over those on a quarter",
            low=LEAST_GROWN,
            formula=Formula.THROUGHPUT,
        ),
        list(_grown(splits)),
    )
    yield judge(
        Level(
            claim="Split networks train to the weights of one device within 1e-5",
            quantity="Distance of the weights, relative to their norm",
            high=MOST_DISTANCE,
            formula=Formula.DISTANCE,
        ),
        [
            CellValue(row.cell, exactly(max(row.distances), len(row.distances)), (row.ids,))
            for row in splits
            if row.distances
        ],
    )
    yield judge(
        Level(
            claim="On the paced link a step of split operators takes what the virtual clock says, within 5 %",
            quantity="Measured over predicted step",
            low=0.95,
            high=1.05,
            formula=Formula.STEP_BY_CLOCK,
        ),
        [found for row in splits for found in _by_clock(row)],
    )


def _by_clock(row: SplitRow) -> Iterator[CellValue]:
    if row.is_measured and row.facts.step_clock_s is not None:
        predicted_s = [row.facts.step_clock_s] * len(row.steps_s)
        yield CellValue(row.cell, paired_ratio(list(row.steps_s), predicted_s), (row.ids,))


def _over(claim: str) -> Level:
    return Level(claim=claim, quantity="Its samples/s over the other's", low=1.0, formula=Formula.THROUGHPUT)


def _throughput(rows: tuple[Row, ...], own: str, other: str) -> Iterator[CellValue]:
    rivals = {(row.group, row.workload): row for row in rows if row.label == other and row.group.startswith("splits-")}
    for row in rows:
        rival = rivals.get((row.group, row.workload))
        if row.label == own and rival is not None:
            ratio = exactly(row.samples_per_s / rival.samples_per_s, len(row.steps_s))
            yield CellValue(row.cell, ratio, (row.ids, rival.ids))


def _grown(rows: tuple[SplitRow, ...]) -> Iterator[CellValue]:
    meshes = {(row.workload, row.num_ranks): row for row in rows if row.label == MESH and row.group.startswith("mesh-")}
    for (workload, num_ranks), row in meshes.items():
        smaller = meshes.get((workload, num_ranks // GROWN))
        if smaller is not None:
            ratio = exactly(row.samples_per_s / smaller.samples_per_s, len(row.steps_s))
            yield CellValue(row.cell, ratio, (row.ids, smaller.ids))
