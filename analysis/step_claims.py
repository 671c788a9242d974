"""What papers claim of fusion and ordering, and what is claimed of the predictor, judged from the records alone.

Papers' numbers were taken on other networks, machines and links; `met` says that the same ratio is reached here and
`missed` that it is not, and neither says more about the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from analysis import naming
from analysis.cells import OURS, SIMULATED
from analysis.claims import Level, Measured, high_end, judge, low_end
from analysis.shared_rows import ClaimRow, Outcome
from analysis.stats import Interval, bootstrap_interval, exactly
from analysis.step_rows import ErrorRow, Place, StepRow
from analysis.steps import NOISE
from analysis.wording import factor, number, percent, plural

FEW = 3
PREDICTED_MEDIAN, PREDICTED_P95, PREDICTED_TAU = 0.03, 0.08, 0.9
SLOWER = 0.03
FAST_GBIT = 100.0  # of the suite's links the one on which no order can help
FEW_GBIT = 10.0  # "few Gbit/s" of the P3 paper
OF_BOUND = 0.90
VISIBLE = 0.05  # of a step; where less can be gained, no share of it is given
ORDERINGS = ("p3", "tictac", "bytescheduler")
SERVERS = "parameter-server"
OVERLAP = "at-pre-hook"
HEADLINE = ("resnet50-replay", 8, 10.0)
Select = Callable[[Sequence[StepRow], np.random.Generator], Iterator[Measured]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClaim(Level):
    """A level that step times have to reach. `up_to`: it is enough that one cell does."""

    suite: str
    select: Select
    up_to: bool = False
    fewest: int = FEW


def step_claims(
    rows: Sequence[StepRow], errors: Sequence[ErrorRow], suites: Iterable[str], rng: np.random.Generator
) -> tuple[ClaimRow, ...]:
    """Every claim about the suites of the records, the predictor's first."""
    asked = tuple(claim for claim in CLAIMS if claim.suite in set(suites))
    if not asked:
        return ()
    judged = (_judged(claim, list(claim.select(rows, rng))) for claim in asked)
    return (_prediction_errors(errors), _prediction_order(errors), *judged)


def _judged(claim: StepClaim, measured: Sequence[Measured]) -> ClaimRow:
    """As any claim; one with `up_to` by its best cell."""
    counted = [one for one in measured if one[1].n >= claim.fewest]
    if not claim.up_to or not counted:
        return judge(claim, measured)
    best = max(counted, key=lambda one: one[1].median)
    row = judge(claim, [best])
    others = tuple(f"{cell}: {factor(value)} (n = {value.n})" for cell, value in counted)
    return ClaimRow(claim=row.claim, outcome=row.outcome, sentence=f"Best cell. {row.sentence}", details=others)


def _prediction_errors(errors: Sequence[ErrorRow]) -> ClaimRow:
    claim = (
        f"Predicted step times: median error at most {percent(PREDICTED_MEDIAN)}, "
        f"95th percentile at most {percent(PREDICTED_P95)}"
    )
    if not errors or errors[0].fewest_repeats < FEW:
        return _not_measured(claim, "a prediction", errors)
    every = errors[0]
    met = every.median <= PREDICTED_MEDIAN and every.p95 <= PREDICTED_P95
    sentence = (
        f"Over {plural(every.num_cells, 'measured cell')}: median {percent(every.median)}, 95th percentile "
        f"{percent(every.p95)}, worst {percent(every.worst)}, with its sign in the median {percent(every.bias)}."
    )
    details = tuple(
        f"{row.of}: median {percent(row.median)}, 95th percentile {percent(row.p95)}, {plural(row.num_cells, 'cell')}"
        for row in errors[1:]
    )
    return ClaimRow(claim=claim, outcome=_met(met), sentence=sentence, details=details)


def _prediction_order(errors: Sequence[ErrorRow]) -> ClaimRow:
    claim = f"Predicted order of methods: Kendall's τ at least {PREDICTED_TAU:g} over pairs with disjoint intervals"
    if not errors or errors[0].tau is None or errors[0].fewest_repeats < FEW:
        return _not_measured(claim, "a pair of methods with disjoint intervals and predictions", errors)
    every = errors[0]
    assert every.tau is not None
    sentence = f"τ = {number(every.tau)} over {plural(every.num_pairs, 'pair')}."
    details = tuple(
        f"{row.of}: τ = {number(row.tau)} over {plural(row.num_pairs, 'pair')}"
        for row in errors[1:]
        if row.tau is not None
    )
    return ClaimRow(claim=claim, outcome=_met(every.tau >= PREDICTED_TAU), sentence=sentence, details=details)


def _not_measured(claim: str, what: str, errors: Sequence[ErrorRow]) -> ClaimRow:
    thin = f" Some cells have fewer than {FEW} repeats." if errors and errors[0].fewest_repeats < FEW else ""
    sentence = f"No {FEW} repeats of measured cells with {what}.{thin}"
    return ClaimRow(claim=claim, outcome=Outcome.NOT_MEASURED, sentence=sentence)


def _met(holds: bool) -> Outcome:
    return Outcome.MET if holds else Outcome.MISSED


Accepts = Callable[[StepRow], bool]


def parts(row: StepRow) -> frozenset[str]:
    """Names of the plug-ins that its method names."""
    return frozenset(part.name for part in naming.parse(row.method))


def is_fifo(row: StepRow) -> bool:
    """Whether it is ours, with nothing reordered and nothing compressed."""
    return row.system == OURS and not parts(row) & {*ORDERINGS, "half", "topk", "bayesian"}


def _on_servers(row: StepRow) -> bool:
    return SERVERS in parts(row)


def _same_packing(a: StepRow, b: StepRow) -> bool:
    return naming.parse(a.method)[0] == naming.parse(b.method)[0]


def by_place(rows: Iterable[StepRow]) -> dict[Place, list[StepRow]]:
    """Measured rows by place."""
    found: dict[Place, list[StepRow]] = {}
    for row in rows:
        if row.step_time_s is not None:
            found.setdefault(row.place, []).append(row)
    return found


def speedup(own: StepRow, other: StepRow, rng: np.random.Generator) -> Interval | None:
    """The other's step over this one, repeat by repeat; None where no repeat is shared."""
    theirs = dict(other.by_repeat)
    ratios = [theirs[repeat] / step_s for repeat, step_s in own.by_repeat if repeat in theirs]
    return bootstrap_interval(ratios, rng) if ratios else None


def fastest(rows: Iterable[StepRow]) -> StepRow | None:
    """The row with the shortest median step."""
    return min(rows, key=lambda row: row.step_time_s.median if row.step_time_s else float("inf"), default=None)


def _over(own: Accepts, other: Callable[[StepRow, StepRow], bool], where: Callable[[Place], bool]) -> Select:
    """Speed-up of each row that `own` accepts over the fastest that `other` accepts beside it in its place."""

    def select(rows: Sequence[StepRow], rng: np.random.Generator) -> Iterator[Measured]:
        for place, here in by_place(rows).items():
            for row in (row for row in here if where(place) and own(row)):
                rival = fastest(one for one in here if one is not row and other(row, one))
                ratio = speedup(row, rival, rng) if rival is not None else None
                if rival is not None and ratio is not None:
                    yield f"{row.name} over {rival.name} ({place.describe()})", ratio

    return select


def _starting(*starts: str) -> Accepts:
    return lambda row: row.system == OURS and row.method.startswith(starts)


def _alone(name: str) -> Accepts:
    """Exactly this plug-in and nothing else."""
    return lambda row: row.system == OURS and row.method == name


def _best_against(system: str) -> Select:
    """The fastest of ours over the fastest of a system's settings, at the headline cell."""

    def select(rows: Sequence[StepRow], rng: np.random.Generator) -> Iterator[Measured]:
        for place, here in by_place(rows).items():
            if (place.workload, place.num_workers, place.gbit) == HEADLINE:
                own = fastest(row for row in here if row.system == OURS and is_fifo(row))
                rival = fastest(row for row in here if row.system.partition("(")[0] == system)
                ratio = speedup(own, rival, rng) if own is not None and rival is not None else None
                if own is not None and rival is not None and ratio is not None:
                    yield f"{own.name} over {rival.name} ({place.describe()})", ratio

    return select


def _predicted_efficiency(workload: str, num_workers: int, gbit: float) -> Select:
    """Scaling efficiency of Horovod's rule on a virtual clock: no machine here has so many workers."""

    def select(rows: Sequence[StepRow], _: np.random.Generator) -> Iterator[Measured]:
        for row in rows:
            place = row.place
            if (place.workload, place.num_workers, place.gbit) == (workload, num_workers, gbit):
                efficiency = row.predicted_efficiency
                if row.method.startswith("tensor-fusion") and efficiency is not None and row.evidence == SIMULATED:
                    yield f"{row.name} ({place.describe()})", exactly(efficiency, 1)

    return select


def _on_fast_link(rows: Sequence[StepRow], rng: np.random.Generator) -> Iterator[Measured]:
    """Each ordering over FIFO with the same packing, exchange and update, where no order can help."""

    def reference(row: StepRow, other: StepRow) -> bool:
        return is_fifo(other) and _same_packing(row, other) and parts(other) == parts(row) - set(ORDERINGS)

    yield from _over(
        lambda row: bool(parts(row) & set(ORDERINGS)) and not parts(row) & {"half", "bayesian"},
        reference,
        lambda place: place.gbit is not None and place.gbit >= FAST_GBIT,
    )(rows, rng)


def _of_bound(rows: Sequence[StepRow], rng: np.random.Generator) -> Iterator[Measured]:
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
            yield f"{best.name} ({place.describe()})", bootstrap_interval(shares, rng)


def _papers(ordering: str, network: str = "", highest_gbit: float | None = None, servers: bool = True) -> Select:
    """An ordering over the fastest FIFO with the same exchange, whatever that one packs and when it updates."""
    return _over(
        lambda row: ordering in parts(row) and "half" not in parts(row) and (not servers or _on_servers(row)),
        lambda row, other: is_fifo(other) and _on_servers(row) == _on_servers(other),
        lambda place: (
            place.workload.startswith(network)
            and (not highest_gbit or (place.gbit or highest_gbit + 1) <= highest_gbit)
        ),
    )


def _anywhere(_: Place) -> bool:
    return True


_SPEED = "Speed-up, repeat by repeat"
CLAIMS: tuple[StepClaim, ...] = (
    StepClaim(
        suite="fusion",
        claim="MG-WFBP beats WFBP, which sends each tensor alone",
        quantity=f"{_SPEED}, whose interval must lie above 1",
        select=_over(_alone("mg-wfbp"), lambda _, other: other.method == "unfused", _anywhere),
        low=1.0,
        judged=low_end,
    ),
    StepClaim(
        suite="fusion",
        claim="MG-WFBP at least ties fixed buckets",
        quantity=f"{_SPEED}, over the fastest bucket size (behind: the whole interval below {1 - NOISE:g})",
        select=_over(_alone("mg-wfbp"), lambda _, other: _starting("fixed-buckets")(other), _anywhere),
        low=1.0 - NOISE,
        judged=high_end,
    ),
    StepClaim(
        suite="fusion",
        claim="MG-WFBP takes at most 5 % longer than the exact merge",
        quantity=_SPEED,
        select=_over(_alone("mg-wfbp"), lambda _, other: other.method == "optimal-merge", _anywhere),
        low=0.95,
    ),
    *(
        StepClaim(
            suite="fusion",
            claim=f"ResNet-50 at 10 Gbit/s on 8 hosts: the best of ours beats {name} at its best setting",
            quantity=f"{_SPEED}, whose interval must lie above 1",
            select=_best_against(system),
            low=1.0,
            judged=low_end,
            fewest=5,
        )
        for system, name in (("horovod", "Horovod, autotuned or not,"), ("torch-ddp", "torch DDP"))
    ),
    *(
        StepClaim(
            suite="fusion",
            claim=f"Horovod's paper: {percent(level)} scaling efficiency of {name} on 512 workers at 25 Gbit/s",
            quantity="Predicted efficiency of tensor fusion; not measured, no such cluster is here",
            select=_predicted_efficiency(f"{network}-replay", 512, 25.0),
            low=level,
            fewest=1,
        )
        for network, name, level in (("resnet101", "ResNet-101", 0.90), ("vgg16", "VGG-16", 0.68))
    ),
    *(
        StepClaim(
            suite="ordering",
            claim=f"P3's paper: {percent(gain)} faster on {name} with parameter servers and a few Gbit/s",
            quantity=f"{_SPEED}, over the fastest FIFO on parameter servers",
            select=_papers("p3", network, FEW_GBIT),
            low=1.0 + gain,
        )
        for network, name, gain in (("resnet50", "ResNet-50", 0.25), ("vgg16", "VGG (19 there, 16 here)", 0.66))
    ),
    StepClaim(
        suite="ordering",
        claim="TicTac's paper: training up to 19.2 % faster with parameter servers",
        quantity=f"{_SPEED}, over the fastest FIFO on parameter servers",
        select=_papers("tictac"),
        low=1.192,
        up_to=True,
    ),
    StepClaim(
        suite="ordering",
        claim="ByteScheduler's paper: up to 196 % faster",
        quantity=f"{_SPEED}, over the fastest FIFO with the same exchange",
        select=_papers("bytescheduler", servers=False),
        low=2.96,
        up_to=True,
    ),
    StepClaim(
        suite="ordering",
        claim="Where no order can help, none is slower than FIFO by more than 3 %",
        quantity="Speed-up over FIFO with the same packing, exchange and update",
        select=_on_fast_link,
        low=1.0 - SLOWER,
        fewest=5,
    ),
    StepClaim(
        suite="ordering",
        claim="Where order can help (VGG-16, all-reduce), the best one takes 90 % of what the bound leaves to gain",
        quantity="Share of the way from the plain step to the bound",
        select=_of_bound,
        low=OF_BOUND,
    ),
)
