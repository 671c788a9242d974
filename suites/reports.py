"""Records to summaries, with what every suite asks of its own."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.rows import Summary
from analysis.summary import summarise
from analysis.targets.training import Baseline
from results.record import Record
from suites.catalogue import all_studies

BASELINE = Baseline(system="torch-ddp")  # what everybody has


def summary_of(records: Iterable[Record], *, baseline: Baseline = BASELINE) -> Summary:
    """Everything the records say. Raises: NoRecordsError if there are none."""
    return summarise(records, studies=all_studies(), baseline=baseline)
