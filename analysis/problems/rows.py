"""What training on the papers' own problems gave, cell by cell: objectives over rounds, repeat by repeat."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from analysis.stats import Interval, paired_ratio
from results.record import Record, Status

NEAR = 1.01  # of the lower end: who is there has arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRow:
    """One cell: objectives after each round by repeat. Equal repeats drew the same problem."""

    suite: str
    cell: str
    group: str
    label: str
    runs: Mapping[int, tuple[float, ...]]
    ids: tuple[str, ...]

    def final_over(self, other: ProblemRow) -> Interval:
        """The last objective over the other cell's, repeat by repeat; infinite where it diverged."""
        both = self.runs.keys() & other.runs.keys()
        return paired_ratio(
            [self.runs[repeat][-1] for repeat in sorted(both)], [other.runs[repeat][-1] for repeat in sorted(both)]
        )

    def rounds_over(self, other: ProblemRow) -> Interval:
        """Rounds to within 1 % of the lower of both ends over the other cell's. Who never gets there counts with all
        rounds that it was given, so as one that just did."""
        both = sorted(self.runs.keys() & other.runs.keys())
        pairs = [(self.runs[repeat], other.runs[repeat]) for repeat in both]
        own = [float(_rounds(mine, mine, theirs)) for mine, theirs in pairs]
        return paired_ratio(own, [float(_rounds(theirs, mine, theirs)) for mine, theirs in pairs])


def _rounds(run: Sequence[float], first: Sequence[float], second: Sequence[float]) -> int:
    target = NEAR * min(first[-1], second[-1])
    most = max(len(first), len(second))
    return next((number for number, objective in enumerate(run, 1) if objective <= target), most)


def problem_rows(groups: Iterable[Sequence[Record]]) -> tuple[ProblemRow, ...]:
    """A row for each cell of a problem, of the repeats that ended well."""
    return tuple(row for records in groups for row in _row([one for one in records if one.status is Status.OK]))


def _row(records: Sequence[Record]) -> Iterator[ProblemRow]:
    runs = {record.repeat: record.problem.objectives for record in records if record.problem is not None}
    if runs:
        first = records[0]
        yield ProblemRow(
            suite=first.suite,
            cell=first.cell,
            group=first.group,
            label=first.label,
            runs=runs,
            ids=tuple(record.id for record in records),
        )


def has_diverged(run: Sequence[float]) -> bool:
    """Whether a run ended with no number."""
    return math.isinf(run[-1])
