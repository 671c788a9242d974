"""`crossover-bench report` and `compare`: from records to tables, figures and the page."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from analysis.cells import is_measured, is_shared
from analysis.compare import Change, CompareError, check_one_machine, compare, compare_hot_paths
from analysis.summary import NoRecordsError
from analysis.tables import comparison_table, comparisons_as_json, render, rows_as_json, write_csv
from analysis.targets.training import Baseline
from analysis.terminal import output_console
from analysis.wording import plural
from results.record import Record, RecordError
from suites.folders import prepare_folder
from suites.reports import BASELINE, records_of, summary_of


def publish(
    records: Sequence[Record],
    folder: Path,
    console: Console,
    *,
    as_json: bool,
    as_csv: bool = False,
    pdf: bool = False,
    baseline: Baseline = BASELINE,
) -> None:
    """Print the tables (or JSON on stdout) and write figures, report.html and, if asked, CSV tables and figures as PDF
    to `folder`."""
    from analysis.report import write_all

    prepare_folder(folder)
    summary = summary_of(records, baseline=baseline)
    if as_csv:
        write_csv(summary, folder / "tables")
    if as_json:
        json.dump(rows_as_json(summary), sys.stdout, indent=1)
        print()
    else:
        render(summary, output_console())
    with console.status("drawing figures and report"):
        figures, page = write_all(summary, folder, pdf=pdf)
    console.print(
        f"{plural(len(figures), 'figure file')} in {folder / 'figures'}; report: {page}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def report_on(arguments: argparse.Namespace, runs: Path) -> int:
    """Report on the records of the folders named, or of the last run of every suite.

    Raises: RecordError; CompareError if a cell's records are of different machines, unless that is allowed.
    """
    folders = list(arguments.folders) or sorted(runs.glob("*/latest"))
    if not folders:
        raise RecordError(f"no records in {runs}; run a suite first, e.g. make bench-quick, or name a folder")
    records = records_of(folders, of_several_runs=arguments.allow_different)
    if not arguments.allow_different:
        check_one_machine(records)
    baseline = BASELINE if arguments.baseline is None else _named(arguments.baseline, records)
    out = arguments.out or (folders[0] if len(folders) == 1 else runs)
    if arguments.figures:
        from analysis.figures import draw_all

        prepare_folder(out)
        for path in draw_all(summary_of(records, baseline=baseline), out / "figures"):
            print(path)
        return 0
    publish(records, out, Console(stderr=True), as_json=arguments.json, as_csv=arguments.csv, baseline=baseline)
    return 0


def _named(system: str, records: Sequence[Record]) -> Baseline:
    """The baseline that was asked for. Raises: RecordError if nothing that was measured is of that system."""
    systems = {record.jobs[0].system for record in records if is_measured(record) and not is_shared(record)}
    if system not in systems:
        known = ", ".join(sorted(systems)) or "none"
        raise RecordError(f"--baseline {system!r} is no system of these records; there are: {known}; or leave it out")
    return Baseline(system=system)


def compare_folders(arguments: argparse.Namespace) -> int:
    """0 if nothing got slower beyond noise, else 1. Raises: CompareError if no cell can be compared."""
    folders = (arguments.before, arguments.after)
    comparisons = compare_hot_paths(*folders, allow_different=arguments.allow_different)
    if not comparisons:
        before, after = (records_of([folder], of_several_runs=arguments.allow_different) for folder in folders)
        for folder, records in zip(folders, (before, after), strict=True):
            if not records:
                raise NoRecordsError(f"no records in {folder}; name a folder of `crossover-bench run`")
        comparisons = compare(before, after, allow_different=arguments.allow_different)
    if arguments.json:
        json.dump(comparisons_as_json(comparisons), sys.stdout, indent=1)
        print()
    elif comparisons:
        output = output_console()
        output.print(comparison_table(comparisons, output.width))
    if all(comparison.time_ratio is None for comparison in comparisons):
        raise CompareError(
            f"nothing in {arguments.before} and {arguments.after} can be compared: no cell has trials with step times "
            "that ended well in both; name two runs of one suite that times steps"
        )
    return 1 if any(comparison.change is Change.SLOWER for comparison in comparisons) else 0
