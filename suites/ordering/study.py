"""What ordering brings here, judged from the records alone. What papers claim of it is in the suite headlines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.cells import OURS
from analysis.claims import CellValue, ClaimRow, Formula
from analysis.stats import median_interval
from analysis.steps.claims import StepClaim, by_place, fastest, over, speedup, step_claims
from analysis.steps.rows import StepRow
from analysis.study import Evidence, Study
from suites.step_rows import DDP, ORDERINGS, SPEED, anywhere, is_fifo, parts, same_size

NAME = "ordering"
SLOWER = 0.03
FAST_GBIT = 100.0  # of the suite's links the one on which no order can help
OF_BOUND = 0.90
VISIBLE = 0.05  # of a step; where less can be gained, no share of it is given
SERVERS = "parameter-server"
PACED = "paced"


def claims(evidence: Evidence) -> tuple[ClaimRow, ...]:
    """Every claim of the suite with its outcome, the predictor's first."""
    return step_claims(CLAIMS, evidence.steps, evidence.errors)


def _same_packing(a: StepRow, b: StepRow) -> bool:
    return a.strategy.plugins[0] == b.strategy.plugins[0]


def _on_fast_link(rows: Sequence[StepRow]) -> Iterator[CellValue]:
    """Each ordering over FIFO with the same packing, exchange and update, where no order can help."""

    def reference(row: StepRow, other: StepRow) -> bool:
        return is_fifo(other) and _same_packing(row, other) and parts(other) == parts(row) - set(ORDERINGS)

    yield from over(
        lambda row: bool(parts(row) & set(ORDERINGS)) and not parts(row) & {"half", "bayesian"},
        reference,
        lambda place: place.gbit is not None and place.gbit >= FAST_GBIT,
    )(rows)


def _of_bound(rows: Sequence[StepRow]) -> Iterator[CellValue]:
    """What the best ordering takes off the plain step, over what the bound would take off it, on VGG-16."""
    for place, here in by_place(rows).items():
        plain = next((row for row in here if row.method == "unfused"), None)
        best = fastest(row for row in here if parts(row) & set(ORDERINGS) and not parts(row) & {"half", SERVERS})
        if plain is None or best is None or best.bound_s is None or not place.workload.startswith("vgg16"):
            continue
        own, bound_s = dict(best.by_repeat), best.bound_s
        both = [(step_s, own[repeat]) for repeat, step_s in plain.by_repeat if repeat in own]
        shares = [(a - b) / (a - bound_s) for a, b in both if a - bound_s > VISIBLE * a]
        if shares:
            yield CellValue(
                f"{best.name} ({place.describe()})", median_interval(shares), (plain.ids, best.ids, best.single_ids)
            )


def _best_against_ddp(rows: Sequence[StepRow]) -> Iterator[CellValue]:
    """The surest of ours with full gradients over DDP's fastest setting, where DDP was given several.

    The surest is the one whose interval begins highest. A plan of two states may have the better median and the wider
    interval; who takes one method takes the one that can be relied on.
    """
    for place, here in by_place(rows).items():
        theirs = [row for row in here if row.method.startswith(DDP) and place.suite == NAME]
        rival = fastest(theirs)
        if rival is None or len(theirs) < 2:
            continue
        ours = (row for row in here if row.system == OURS and not parts(row) & {"half", SERVERS})
        compared = [(ratio, row) for row in ours if (ratio := speedup(row, rival)) is not None]
        if compared:
            ratio, best = max(compared, key=lambda pair: pair[0].low)
            yield CellValue(f"{best.name} over {rival.name} ({place.describe()})", ratio, (rival.ids, best.ids))


def _alike(row: StepRow, other: StepRow) -> bool:
    """Whether both have nothing but buckets of the same sizes."""
    return parts(row) == {"fixed-buckets"} and other.method.startswith(DDP) and same_size(row, other)


CLAIMS: tuple[StepClaim, ...] = (
    StepClaim(
        claim="The best of ours beats torch DDP at its best of three bucket sizes",
        quantity=SPEED,
        select=_best_against_ddp,
        low=1.0,
    ),
    StepClaim(
        claim="On the paced link our fixed buckets take as long as torch DDP's of the same size: within 1 %",
        quantity=SPEED,
        select=over(lambda row: row.system == OURS and row.place.fabric == PACED, _alike, anywhere),
        low=0.99,
        high=1.01,
    ),
    StepClaim(
        claim="Where no order can help, none is slower than FIFO by more than 3 %",
        quantity="Speed-up over FIFO with the same packing, exchange and update",
        select=_on_fast_link,
        low=1.0 - SLOWER,
    ),
    StepClaim(
        claim="Where order can help (VGG-16, all-reduce), the best one takes 90 % of what the bound leaves to gain",
        quantity="Share of the way from the plain step to the bound",
        select=_of_bound,
        formula=Formula.OF_BOUND,
        low=OF_BOUND,
    ),
)
STUDY = Study(suite=NAME, curves=True, references=("unfused",), claims=claims)
