"""What a suite asks of its records, in terms of values that hold for any suite: a `Study`, declared beside its grid.

`analysis` knows no suite and no plug-in. A study names its own, and says which general evidence it wants (steps over
links, codes), what it claims, and which paper's level a sweep is drawn against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from analysis.claims import ClaimRow
from analysis.codes.rows import CompressionStudy
from analysis.collectives.rows import CollectiveRow
from analysis.flows.rows import FlowRow
from analysis.pipelines.rows import PipelineRow
from analysis.pipelines.splits import SplitRow
from analysis.problems.rows import ProblemRow
from analysis.sharing.rows import OptimiserRow, PairRow, SweepRow
from analysis.steps.rows import ErrorRow, StepRow
from analysis.targets.rows import TargetStudy


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the records of all suites say, by kind; a study's claims pick their own from it.

    `pairs` are jobs that share devices, those on sweeps too; `sweeps` their curves; `optimised` the same jobs under
    several strategies; `steps` methods by place with their predictions' `errors`; `targets` times to a target;
    `compression` bits, and the links on which codes pay; `pipelines` jobs in stages; `splits` jobs in parts of
    operators; `flows` experiments without jobs; `problems` the papers' own; `collectives` libraries by operation.
    """

    suites: frozenset[str]
    pairs: tuple[PairRow, ...] = ()
    sweeps: tuple[SweepRow, ...] = ()
    optimised: tuple[OptimiserRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    errors: tuple[ErrorRow, ...] = ()
    targets: tuple[TargetStudy, ...] = ()
    compression: CompressionStudy = field(default_factory=CompressionStudy)
    pipelines: tuple[PipelineRow, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()
    flows: tuple[FlowRow, ...] = ()
    problems: tuple[ProblemRow, ...] = ()
    splits: tuple[SplitRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFigure:
    """A figure of the sweeps that `accepts` takes, beside the speed-up that a paper reports."""

    name: str
    caption: str
    level: float
    accepts: Callable[[SweepRow], bool]


def no_claims(_: Evidence) -> Iterable[ClaimRow]:
    """A suite that claims nothing."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A suite's questions to its records.

    `question` is the suite's own, and heads its report. With `timed` the steps of its one-job cells are held beside
    predictions; with `curves` they are drawn over rates and numbers of workers too, and count among the errors of
    predicted collectives; `references` begin the labels of what the rates at which a method pays are taken against, the
    first that some method begins with. With `codes` bits, codecs' time and the links on which a code pays are worked
    out, against cells of the roles dense and rival. `claims` judges its hypotheses.
    """

    suite: str
    question: str = ""
    timed: bool = False
    curves: bool = False
    codes: bool = False
    references: tuple[str, ...] = ()
    claims: Callable[[Evidence], Iterable[ClaimRow]] = no_claims
    figures: tuple[PaperFigure, ...] = ()


def suites_with(studies: Sequence[Study], wish: Callable[[Study], bool]) -> frozenset[str]:
    """Names of the suites whose study wishes for something."""
    return frozenset(study.suite for study in studies if wish(study))
