"""`crossover-bench run`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fabric.api import FabricError, FabricKind, parse_rate
from harness.memory import trial_bytes
from harness.trial import Trial, TrialError
from suites.api import Options
from suites.catalogue import suite_of
from suites.commands.report import publish
from suites.runner import check_all, expected_s, prepare_folder, run_trials, select


def run_suite(arguments: argparse.Namespace, runs: Path) -> int:
    """Check, run, report. Returns 0, 1 if a trial failed, 130 if interrupted."""
    console = Console(stderr=True)
    suite = suite_of(arguments.suite)
    trials = select(suite.grid(options_from(arguments)), arguments.only)
    if arguments.dry_run:
        check_all(trials)
        _show_grid(trials, as_json=arguments.json)
        return 0
    folder = _folder(arguments, runs / suite.name)
    prepare_folder(folder)
    need = check_all(trials)
    console.print(f"[bold]{suite.name}[/]: {suite.question}")
    console.print(
        f"{len(trials)} trials, up to {need / 1e9:.1f} GB, about {_minutes(trials)}; records in {folder}", highlight=False
    )
    outcome = run_trials(trials, folder, console, resume=arguments.resume)
    if outcome.records:
        publish(outcome.records, folder, console, as_json=arguments.json)
    if outcome.interrupted:
        command = f"crossover-bench run {suite.name} --resume --out {folder}"
        console.print(f"interrupted after {len(outcome.records)} of {outcome.num_asked} trials; go on with: {command}")
        return 130
    return 1 if outcome.num_failed else 0


def options_from(arguments: argparse.Namespace) -> Options:
    """Options of the command line, checked. Raises: ValueError with value and remedy."""
    try:
        kind = FabricKind(arguments.fabric)
    except ValueError:
        known = ", ".join(kind.value for kind in FabricKind)
        raise FabricError(f"unknown fabric {arguments.fabric!r}; use one of: {known}") from None
    for name in ("repeats", "steps"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise TrialError(f"--{name} is {value}; it must be at least 1")
    return Options(
        fabric=kind,
        num_hosts=arguments.hosts,
        rate_bps=parse_rate(arguments.rate) if arguments.rate is not None else None,
        rate_given=arguments.rate is not None,
        repeats=arguments.repeats,
        num_steps=arguments.steps,
        strategies=tuple(arguments.strategy),
        data_path=arguments.data,
        smoke=arguments.smoke,
        trace=arguments.trace,
        seed=arguments.seed,
    )


def _folder(arguments: argparse.Namespace, runs: Path) -> Path:
    """Where records go: what was named, the last run to resume, or a new folder with `latest` set to it."""
    latest = runs / "latest"
    if arguments.out is not None:
        return Path(arguments.out)
    if arguments.resume:
        if not latest.exists():
            raise TrialError(f"--resume: there is no earlier run in {runs}; leave --resume out, or name it with --out")
        return latest.resolve()
    folder = runs / datetime.now().strftime("%Y%m%d-%H%M%S")
    prepare_folder(folder)
    link = runs / ".latest.part"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(latest)
    return folder


def _minutes(trials: Sequence[Trial]) -> str:
    seconds = sum(map(expected_s, trials))
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _show_grid(trials: Sequence[Trial], *, as_json: bool) -> None:
    cells = {trial.cell: trial for trial in trials}
    rows = [
        {
            "cell": cell,
            "hosts": trial.world,
            "fabric": trial.fabric.kind.value,
            "steps": trial.num_steps,
            "repeats": sum(other.cell == cell for other in trials),
            "memory_gb": round(trial_bytes(trial) / 1e9, 2),
            "expected_s": round(expected_s(trial), 1),
        }
        for cell, trial in cells.items()
    ]
    if as_json:
        json.dump(rows, sys.stdout, indent=1)
        print()
        return
    table = Table(title=f"{len(rows)} cells, {len(trials)} trials, about {_minutes(trials)}")
    for name in rows[0] if rows else ():
        table.add_column(name, justify="left" if name in ("cell", "fabric") else "right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
