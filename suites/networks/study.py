"""What papers claim of networks for training traffic, judged from the records of simulated steps.

Every number is exact: the virtual clock repeats to the last digit, so one record per cell is enough. `missed` says that
the claim's order or ratio does not show for ring all-reduce steps here; it says nothing more of the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from analysis.cells import SIMULATED
from analysis.claims import CellValue, ClaimRow, Formula, Level, judge
from analysis.sharing.rows import PairRow
from analysis.stats import exactly
from analysis.steps.rows import StepRow
from analysis.study import Evidence, Study
from fabric.api import HostChoice, NetworkSpec, Paths
from suites.networks.packet_claims import packet_claims
from suites.networks.packets import NAME
from suites.networks.places import DRAWS, FAMILIES, MIDDLE, SIZES, random_fat_tree
from suites.networks.schedule_claims import schedule_claims

Steps = dict[tuple[str, int, str], StepRow]  # by workload, ranks, and network with transport and placement
ONCE = 1  # the virtual clock repeats exactly
PACKED, BESIDE = "Step over that of the packed placement", "Step over that on the fat-tree"
COMPUTING = "Computation over step"


def steps_of(rows: Sequence[StepRow]) -> Steps:
    """The suite's one-job steps with the default exchange."""
    found: Steps = {}
    for row in rows:
        place = row.place
        plain = row.evidence == SIMULATED and "+" not in row.method
        if place.suite == NAME and plain and row.predicted_s is not None:
            found.setdefault((place.workload, place.num_workers, place.network), row)
    return found


def _where(
    family: str,
    size: int,
    *,
    transport: str = "fluid",
    placement: HostChoice = HostChoice.PACKED,
    failed: int = 0,
    paths: Paths = Paths.ECMP,
) -> str:
    network = NetworkSpec(topology=FAMILIES[family][size], num_failed=failed, paths=paths)
    return f"{network.network_text}, {transport}, {placement}"


def _over(steps: Steps, workload: str, ranks: int, other: str, reference: str, name: str) -> Iterator[CellValue]:
    """The step there over the step on the reference."""
    own, base = steps.get((workload, ranks, other)), steps.get((workload, ranks, reference))
    if own is not None and base is not None and own.predicted_s and base.predicted_s:
        yield CellValue(name, exactly(own.predicted_s / base.predicted_s, ONCE), (own.ids, base.ids))


def _placed(
    steps: Steps, family: str, placements: Sequence[HostChoice] = (HostChoice.SPREAD, HostChoice.RANDOM)
) -> Iterator[CellValue]:
    """Other placements over the packed one."""
    packed = _where(family, MIDDLE)
    for placement in placements:
        other = _where(family, MIDDLE, placement=placement)
        yield from _over(steps, "vgg16-replay", 32, other, packed, f"{family}, {placement}")


def _drawn(steps: Steps, num_ranks: int, paths: Paths) -> Iterator[CellValue]:
    """Random placements on the fat-tree with such paths, draw by draw, over the packed one."""
    for draw in DRAWS:
        own = random_fat_tree(paths, draw)
        other = f"{own.network_text}, {own.transport}, {own.placement_text}"
        name = f"{num_ranks} of 128 hosts, {paths}, draw {draw}"
        yield from _over(steps, "vgg16-replay", num_ranks, other, _where("fat-tree", MIDDLE), name)


def _of_families(steps: Steps, families: Sequence[str]) -> Iterator[CellValue]:
    """Steps on these networks over those on the fat-tree, all workloads and sizes."""
    workloads = sorted({workload for workload, *_ in steps})
    for size, ranks in enumerate(SIZES):
        for family in families:
            for workload in workloads:
                name = f"{family}, {workload}, {ranks} ranks"
                yield from _over(steps, workload, ranks, _where(family, size), _where("fat-tree", size), name)


def _failed(steps: Steps, family: str, num_failed: int) -> Iterator[CellValue]:
    """The step with failed cables over the step with none."""
    other = _where(family, MIDDLE, failed=num_failed)
    name = f"{family}, {num_failed} cables"
    yield from _over(steps, "vgg16-replay", 128, other, _where(family, MIDDLE), name)


def _transported(steps: Steps, transport: str) -> Iterator[CellValue]:
    other = _where("fat-tree", MIDDLE, transport=transport)
    yield from _over(steps, "vgg16-replay", 128, other, _where("fat-tree", MIDDLE), transport)


def _scaling_factor(rows: Sequence[StepRow], gbit: int) -> Iterator[CellValue]:
    """Computation over step, of eight servers behind one switch."""
    for row in rows:
        place, compute_s = row.place, row.phases.compute_s
        behind_one = f"hosts_per_leaf=8, gbit={gbit})" in place.network
        if place.suite == NAME and behind_one and "+" not in row.method and row.predicted_s and compute_s:
            factor = exactly(compute_s / row.predicted_s, ONCE)
            yield CellValue(f"{place.workload}, {gbit} Gbit/s", factor, (row.ids, row.ids))


def _gain_over(pairs: Sequence[PairRow], group: str, way: str, other: str) -> Iterator[CellValue]:
    """Throughput of one sharing over another's, jobs of one group."""
    for pair in pairs:
        own, base = pair.row(way), pair.row(other)
        if pair.group == group and own is not None and base is not None and own.throughput and base.throughput:
            ids = pair.alone_ids, own.record_ids, base.record_ids
            yield CellValue(f"{group}, {way}", exactly(own.throughput.median / base.throughput.median, ONCE), ids)


class Question(NamedTuple):
    """A claim, what is measured, the bounds of it, the cells, and the formula of their figures."""

    claim: str
    quantity: str
    low: float | None
    high: float | None
    measured: Iterable[CellValue]
    formula: Formula = Formula.PREDICTED_STEP


def claims(evidence: Evidence) -> Iterable[ClaimRow]:
    """Every claim with its verdict; none where the suite was not run."""
    if NAME not in evidence.suites:
        return
    steps = steps_of(evidence.steps)
    for own in (*_of_places(steps), *_of_traffic(steps), *_published(evidence), *_of_sharing(evidence.pairs)):
        level = Level(claim=own.claim, quantity=own.quantity, low=own.low, high=own.high, formula=own.formula, unit="×")
        yield judge(level, list(own.measured))
    flows = {(row.group, row.label): row for row in evidence.flows if row.suite == NAME}
    yield from packet_claims(flows)
    yield from schedule_claims(flows)


def _of_places(steps: Steps) -> Iterator[Question]:
    """Topologies and placements."""
    uniform = "Fat-Tree (SIGCOMM 2008): with full bisection placement costs at most 5 %"
    anywhere = [*_placed(steps, "fat-tree", (HostChoice.SPREAD,)), *_drawn(steps, 32, Paths.ECMP)]
    yield Question(uniform, PACKED, None, 1.05, anywhere)
    fits = "Hedera (NSDI 2010): with its paths ranks anywhere on a quarter of a fat-tree lose at most 5 %"
    yield Question(fits, PACKED, None, 1.05, _drawn(steps, 32, Paths.FIRST_FIT))
    full = "Where all hosts send, paths chosen one by one still collide: ranks in any order lose 50 % or more"
    everywhere = [*_drawn(steps, 128, Paths.FIRST_FIT), *_drawn(steps, 128, Paths.LEAST_LOADED)]
    yield Question(full, PACKED, 1.5, None, everywhere)
    yield Question("VL2 (SIGCOMM 2009): placement costs at most 5 %", PACKED, None, 1.05, _placed(steps, "vl2"))
    thin = "A 4:1 oversubscribed leaf-spine: a random placement costs 20 % or more"
    yield Question(thin, PACKED, 1.2, None, _placed(steps, "leaf-spine-4to1", (HostChoice.RANDOM,)))
    equal = "A ring needs no bisection: packed, these are within 2 % of a fat-tree"
    yield Question(equal, BESIDE, None, 1.02, _of_families(steps, ("leaf-spine", "vl2", "bcube", "torus")))
    relayed = "Where servers relay on the ports that the ring uses, steps are longer"
    yield Question(relayed, BESIDE, 1.001, None, _of_families(steps, ("dcell", "ficonn", "mdcube")))


def _of_traffic(steps: Steps) -> Iterator[Question]:
    """Failures and transports."""
    for family, paper in (("bcube", "BCube (SIGCOMM 2009)"), ("dcell", "DCell (SIGCOMM 2008)")):
        graceful = f"{paper}: degrades gracefully, 16 failed cables cost no more than half a step"
        yield Question(graceful, "Step over that without failures", None, 1.5, _failed(steps, family, 16))
    fluid = "Step over that of fluids"
    yield Question("DCQCN (SIGCOMM 2015) costs a ring at most 10 %", fluid, None, 1.1, _transported(steps, "dcqcn"))
    target = "HPCC (SIGCOMM 2019): its target below the full rate costs long flows 10 % or more"
    yield Question(target, fluid, 1.1, None, _transported(steps, "hpcc"))


def _published(evidence: Evidence) -> Iterator[Question]:
    """Zhang et al., Is Network the Bottleneck of Distributed Training?, arXiv 2006.10103."""
    factor = Formula.PREDICTED_EFFICIENCY
    full = "Zhang et al. (arXiv 2006.10103): a 100 Gbit/s network used in full scales to 0.99"
    yield Question(full, COMPUTING, 0.97, None, _scaling_factor(evidence.steps, 100), factor)
    slow = "Zhang et al. (arXiv 2006.10103): at 10 Gbit/s bytes have to shrink"
    yield Question(slow, COMPUTING, None, 0.9, _scaling_factor(evidence.steps, 10), factor)


def _of_sharing(pairs: Sequence[PairRow]) -> Iterator[Question]:
    """Jobs that share links alone."""
    naive, over = "Throughput over naive sharing", Formula.GAIN_RATIO
    shifts = "CASSINI (NSDI 2024): time shifts part jobs on shared links"
    yield Question(shifts, naive, 1.0, None, _gain_over(pairs, "own-hosts", "cassini", "naive"), over)
    turns = "Link turns part jobs on shared links"
    yield Question(turns, naive, 1.0, None, _gain_over(pairs, "own-hosts", "crossover", "naive"), over)


STUDY = Study(suite=NAME, curves=True, claims=claims)
