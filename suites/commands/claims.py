"""`crossover-bench claims`: every hypothesis of every suite with its verdict, as one page."""

from __future__ import annotations

import argparse
from pathlib import Path

from suites.folders import FolderError, named_path, prepare_file, write_page

RECORDS, PAGE = Path("results", "reference"), Path("docs", "claims.md")


def add_claims(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`claims [DIR …] [--out FILE] [--allow-different]`."""
    text = "Every hypothesis of every suite: met, missed, undecided, out of reach or not measured, with its records."
    claims = commands.add_parser("claims", help="the sheet of all claims", description=text)
    claims.add_argument("folders", nargs="*", type=named_path, metavar="DIR", help=f"records (default: {RECORDS})")
    claims.add_argument(
        "--out", type=named_path, metavar="FILE", help=f"write the page there ({PAGE}) and do not print it"
    )
    claims.add_argument("--allow-different", action="store_true", help="although a cell has several machines or runs")
    claims.set_defaults(command=write_sheet)


def write_sheet(arguments: argparse.Namespace) -> int:
    """Print the page, or write it to the file that was named; returns the exit code.

    Raises: FolderError, RecordError, CompareError.
    """
    from analysis.compare import check_one_machine
    from suites.reports import records_of, sheet_of

    if arguments.out and not arguments.out.parent.is_dir():
        raise FolderError(f"--out {arguments.out}: there is no folder {arguments.out.parent}; make it, or name another")
    page = prepare_file(arguments.out) if arguments.out else None
    records = records_of(list(arguments.folders) or [RECORDS], of_several_runs=arguments.allow_different)
    if not arguments.allow_different:
        check_one_machine(records)
    if page is None:
        print(sheet_of(records))
        return 0
    write_page(page, sheet_of(records))
    print(arguments.out)
    return 0
