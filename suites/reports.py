"""Records to summaries, with what every suite asks of its own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from analysis.rows import Summary
from analysis.sheet import sheet
from analysis.summary import every_claim, summarise
from analysis.targets.training import Baseline
from harness.garbage import lasting
from results.record import Record, read_records
from suites.catalogue import all_studies

BASELINE = Baseline(system="torch-ddp")  # what everybody has


def records_of(folders: Iterable[Path], *, of_several_runs: bool = False) -> list[Record]:
    """As `read_records`; no collection looks through the records on the way."""
    with lasting():
        return list(read_records(folders, of_several_runs=of_several_runs))


def sheet_of(records: Iterable[Record]) -> str:
    """The page of every claim of every suite. Raises: NoRecordsError if there are none."""
    given = list(records)
    return sheet(every_claim(given, all_studies()), len(given))


def summary_of(records: Iterable[Record], *, baseline: Baseline = BASELINE) -> Summary:
    """Everything the records say. Raises: NoRecordsError if there are none."""
    return summarise(records, studies=all_studies(), baseline=baseline)
