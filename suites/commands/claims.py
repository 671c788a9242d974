"""`crossover-bench claims`: every hypothesis of every suite with its verdict, as one page."""

from __future__ import annotations

import argparse
from pathlib import Path

from results.record import read_records
from suites.folders import prepare_folder

RECORDS, PAGE = Path("results", "reference"), Path("docs", "claims.md")


def add_claims(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`claims [DIR …] [--out FILE]`."""
    text = "Every hypothesis of every suite: met, missed, undecided, out of reach or not measured, with its records."
    claims = commands.add_parser("claims", help="the sheet of all claims", description=text)
    claims.add_argument("folders", nargs="*", type=Path, metavar="DIR", help=f"records (default: {RECORDS})")
    claims.add_argument("--out", type=Path, default=PAGE, metavar="FILE", help=f"the page (default: {PAGE})")
    claims.set_defaults(command=write_sheet)


def write_sheet(arguments: argparse.Namespace) -> int:
    """Write the page and print where it is; answer: exit status."""
    from suites.reports import sheet_of

    page = sheet_of(read_records(list(arguments.folders) or [RECORDS]))
    prepare_folder(arguments.out.parent)
    arguments.out.write_text(page, encoding="utf-8")
    print(arguments.out)
    return 0
