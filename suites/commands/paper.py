"""`crossover-bench paper`: all suites at reference size into one folder, then figures, report and the sheet of claims.

It can be killed at any time and goes on where it was with the same command: each suite's run is resumed, and what is
recorded is not run again. All records are of one commit. `--archive`, a step of its own once the run is over, keeps the
old reference records beside those of other days and puts the new ones in their place.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console

from analysis.terminal import Column, output_console, table
from harness.environment import describe_environment
from harness.trial import TrialError
from results.codec import CodecError
from results.files import read_json, write_json
from results.record import CALIBRATION, STARTED, read_records
from suites.api import Options, Suite
from suites.catalogue import all_suites
from suites.commands.claims import PAGE
from suites.commands.report import publish
from suites.commands.run import TOO_BUSY, run_suite
from suites.expected import expected_run_s
from suites.folders import FolderError, held, prepare_folder, write_page
from suites.repeats import parse_budget
from suites.reports import records_of, sheet_of

REFERENCE, ARCHIVE = Path("results", "reference"), Path("results", "archive")
INTERRUPTED = 130

Parse = Callable[[Sequence[str]], argparse.Namespace]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSuite:
    """A suite of the run: how many trials its first repeats have, how long they take, and what it may take in all."""

    suite: Suite
    num_trials: int
    expected_s: float
    budget_s: float
    num_recorded: int


def make_paper(arguments: argparse.Namespace, runs: Path, parse: Parse) -> int:
    """Print the plan and carry it out. Returns 0, 1 if a trial failed, 75 if the machine was too busy, 130 if
    interrupted.

    Raises: TrialError, FolderError for a wrong request.
    """
    folder = arguments.out or runs / "paper"
    if arguments.archive:
        if arguments.only:
            raise FolderError("--archive replaces the records of all suites; leave out --only")
        return _archive(folder, is_dry=arguments.dry_run)
    planned = [_planned(suite, folder, arguments.budget) for suite in chosen(arguments.only)]
    _show(planned)
    if left := [name for name in all_suites() if name not in {own.suite.name for own in planned}]:
        why = "not named with --only" if arguments.only else "torch sees no GPU"
        print(f"left out ({why}): {', '.join(left)}", file=sys.stderr)
    if arguments.dry_run:
        return 0
    prepare_folder(folder)
    with held(folder):
        _begin(folder)
        failed = False
        for own in planned:
            words = ["run", own.suite.name, "--resume", "--out", str(folder / own.suite.name)]
            words += ["--budget", arguments.budget] if arguments.budget is not None else []
            code = run_suite(parse(words), runs, reports=False)
            if code in (INTERRUPTED, TOO_BUSY):
                console = Console(stderr=True)
                console.print(_how_to_go_on(arguments, folder), soft_wrap=True, highlight=False, markup=False)
                return code
            failed = failed or code != 0
        _conclude(folder)
    return 1 if failed else 0


def _how_to_go_on(arguments: argparse.Namespace, folder: Path) -> str:
    words = ["crossover-bench", "paper", *(word for name in arguments.only for word in ("--only", name))]
    words += ["--out", str(folder), *(["--budget", arguments.budget] if arguments.budget else [])]
    return f"go on with:     {shlex.join(words)}"


def chosen(only: Sequence[str]) -> list[Suite]:
    """The suites of the run: those named, else all that this machine can run. Raises: TrialError for an unknown one."""
    known = all_suites()
    for name in only:
        if name not in known:
            raise TrialError(f"--only {name!r} is no suite; there are: {', '.join(known)}")
    return [suite for name, suite in known.items() if (name in only if only else _can_run(suite))]


def _can_run(suite: Suite) -> bool:
    return suite.name != "gpu" or torch.cuda.is_available()


def _planned(suite: Suite, folder: Path, budget: str | None) -> PlannedSuite:
    trials = suite.grid(Options() if suite.fabric is None else Options(fabric=suite.fabric))
    return PlannedSuite(
        suite=suite,
        num_trials=len(trials),
        expected_s=expected_run_s(trials, foresees=suite.predicted is not None),
        budget_s=parse_budget(budget) if budget is not None else suite.budget_s,
        num_recorded=len(list((folder / suite.name).glob("*.json"))),
    )


def _show(planned: Sequence[PlannedSuite]) -> None:
    columns: Mapping[str, Callable[[PlannedSuite], str]] = {
        "trials": lambda own: str(own.num_trials),
        "expected\nmin": lambda own: f"{own.expected_s / 60:.1f}",
        "budget\nmin": lambda own: f"{own.budget_s / 60:.0f}",
        "records": lambda own: str(own.num_recorded),
    }
    minutes = sum(own.expected_s for own in planned) / 60
    title = (
        f"{len(planned)} suites, {minutes:.0f} min for the first repeats; more until ratios are known or budgets spent"
    )
    console = output_console()
    console.print(
        table(
            title,
            [own.suite.name for own in planned],
            [Column(name, tuple(map(text, planned)), rank) for rank, (name, text) in enumerate(columns.items())],
            console.width,
        )
    )


def _begin(folder: Path) -> None:
    """Note the commit, or compare it with that of the records that are there. Raises: FolderError."""
    note, now = folder / STARTED, describe_environment()
    if not note.exists():
        write_json(note, {"commit": now.commit, "dirty": now.dirty, "started_at": now.started_at})
        return
    commit = _commit_in(note)
    if commit != now.commit:
        raise FolderError(
            f"the records in {folder} are of commit {commit[:10]}, and this is {now.commit[:10]}; check that one out "
            "to go on, or begin anew in another folder with --out"
        )


def _commit_in(note: Path) -> str:
    """Raises: FolderError for a note that is damaged."""
    try:
        found = read_json(note)
        if not isinstance(found, dict) or not isinstance(found.get("commit"), str):
            raise CodecError("no commit")
    except CodecError as error:
        raise FolderError(
            f"{note} does not say of which commit the records beside it are ({error}); delete it if they are of this "
            "one, or begin anew in another folder with --out"
        ) from error
    return str(found["commit"])


def _conclude(folder: Path) -> None:
    """Report, figures and the sheet of claims, beside the records."""
    records = records_of(_record_folders(folder))
    publish(records, folder, Console(stderr=True), as_json=False, pdf=True)
    page = folder / PAGE.name
    write_page(page, sheet_of(records))
    Console(stderr=True).print(f"claims: {page}", highlight=False, markup=False)


def _record_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and any(path.glob("*.json")))


def _archive(folder: Path, *, is_dry: bool) -> int:
    """Old reference records into the archive, under the day on which the first of them was begun; new ones in.

    Nothing is moved before the new ones stand complete beside the old.
    Raises: FolderError where there are no new ones, a suite would be without any, or the archive has that day already.
    """
    new = _record_folders(folder) if folder.is_dir() else []
    if not new:
        raise FolderError(f"no records in {folder}; run `crossover-bench paper` first, or name its folder with --out")
    target = None
    if REFERENCE.is_dir():
        lost = {path.name for path in _record_folders(REFERENCE)} - {path.name for path in new}
        if lost:
            missing = ", ".join(sorted(lost))
            raise FolderError(f"{folder} has no records of {missing}; run `crossover-bench paper` to its end")
        target = ARCHIVE / _first_day(REFERENCE)
        if target.exists():
            raise FolderError(f"{target} is there already; move it to another name first")
    num_new = sum(1 for _ in read_records(new))
    if is_dry:
        print(f"would move {REFERENCE} to {target}" if target else f"there is no {REFERENCE}")
        print(f"would copy {num_new} records of {', '.join(path.name for path in new)}")
        return 0
    REFERENCE.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=REFERENCE.parent, prefix=".reference-") as whole:
        for own in new:
            for path in (*own.glob("*.json"), *(own / CALIBRATION).glob("*.json")):
                kept = Path(whole, REFERENCE.name, path.relative_to(folder))
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, kept)
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            REFERENCE.rename(target)
            print(target)
        Path(whole, REFERENCE.name).rename(REFERENCE)
    print(REFERENCE)
    return 0


def _first_day(folder: Path) -> str:
    """`2026-11-21`."""
    days = (datetime.fromisoformat(started).date().isoformat() for started in _starts(folder))
    return min(days, default="undated")


def _starts(folder: Path) -> Iterator[str]:
    for record in read_records([folder]):
        if started := record.started_at or record.environment.started_at:
            yield started
