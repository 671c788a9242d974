"""The options of `crossover-bench paper`, without what it imports."""

from __future__ import annotations

import argparse

from suites.folders import named_path


def add_paper_options(paper: argparse.ArgumentParser) -> None:
    """`paper [--only SUITE …] [--out DIR] [--budget TIME] [--dry-run] [--archive]`."""
    paper.add_argument("--only", action="append", default=[], metavar="SUITE", help="this suite; repeat for several")
    paper.add_argument(
        "--out", type=named_path, metavar="DIR", help="a folder per suite goes here (default runs/paper)"
    )
    paper.add_argument("--budget", metavar="TIME", help="of each suite, e.g. 30m (default: the suite's own)")
    paper.add_argument("--dry-run", action="store_true", help="print the plan; run nothing")
    paper.add_argument(
        "--archive",
        action="store_true",
        help="run nothing: move results/reference to results/archive/DAY and copy the new records there",
    )
