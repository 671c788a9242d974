"""`crossover-bench run`."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.terminal import Column, output_console, table
from fabric.api import FabricError, FabricKind, format_rate, parse_rate
from harness.asynchrony.cluster import OnLoss
from harness.bench import Bench
from harness.lab.launched import LaunchedRanks, RanksLost
from harness.lab.spmd import LaunchError, Placement, own_placement
from harness.memory import trial_bytes
from harness.predict.calibration import write_calibration
from harness.trial import Trial, TrialError
from harness.validity import LIMITS
from models.workload import Device
from results.record import CALIBRATION, TRACES
from suites.api import Options, Suite
from suites.catalogue import suite_of
from suites.commands.network_options import network_from
from suites.commands.report import publish
from suites.earlier import check_finished
from suites.expected import expected_run_s, expected_s
from suites.folders import FolderError, held, new_folder, prepare_folder, set_latest
from suites.order import in_random_order
from suites.repeats import parse_budget
from suites.runner import Effort, RunResult, check_all, run_trials, select

MOST_REPEATS, MOST_STEPS = 1_000, 1_000_000
MOST_SEED = 2**31 - 1  # with repeats counted on it still fits every generator
TOO_BUSY = 75  # the exit code that sysexits.h has for "try again later"
NUM_ATTEMPTS = 3  # at a trial in each repeat: load that lasts longer is better waited for


def run_suite(arguments: argparse.Namespace, runs: Path, *, reports: bool = True) -> int:
    """Check, run, report unless the caller `reports`. Returns 0, 1 if a trial failed, 75 if the machine was too busy
    for any to count, 130 if interrupted.

    Of ranks that a launcher started, rank 0 does this and the others follow it.
    """
    placed = own_placement()
    suite = suite_of(arguments.suite)
    options = options_from(arguments, placed, suite.fabric)
    trials = in_random_order(select(suite.grid(options), arguments.only), options.seed)
    check_used(options, trials, placed.num_local if placed else None)
    if placed is not None and placed.rank > 0:
        return 0 if arguments.dry_run else _follow(placed)
    need = check_all(trials, placed.num_local if placed else None)
    effort, foresees = effort_from(arguments, suite), suite.predicted is not None
    if arguments.dry_run:
        _show_grid(trials, foresees=foresees, as_json=arguments.json)
        return 0
    folder = _folder(arguments, runs / suite.name)
    console = Console(stderr=True)
    with held(folder):
        if arguments.resume:
            check_finished(trials, folder)
        else:
            _check_without_records(folder)
        console.print(Text.assemble((suite.name, "bold"), f": {suite.question}"))
        console.print(
            f"{len(trials)} trials, up to {need / 1e9:.1f} GB, about {_minutes(trials, foresees)}; records in {folder}",
            highlight=False,
            markup=False,
        )
        bench = _bench(placed, folder, foresees=foresees, judges=effort.num_attempts > 1)
        try:
            outcome = run_trials(
                trials, bench, folder, console, resume=arguments.resume, foresees=foresees, effort=effort
            )
        except RanksLost as error:
            console.print(f"{error}\n{_how_to_go_on(folder)}", soft_wrap=True, highlight=False, markup=False)
            return 1
        if bench.calibration.entries:
            write_calibration(bench.calibration, folder / CALIBRATION / "measured.json")
        return conclude(outcome, folder, console, as_json=arguments.json, reports=reports)


def _follow(placed: Placement) -> int:
    try:
        LaunchedRanks(placed).follow()
    except RanksLost:
        return 1
    return 0


def effort_from(arguments: argparse.Namespace, suite: Suite) -> Effort:
    """Repeats until cells are known, within the suite's budget; as many as are asked for, with --repeats; a run that
    only shows that it runs takes any machine as it is. Raises: TrialError for a bad budget."""
    given_s = parse_budget(arguments.budget) if arguments.budget is not None else None
    is_open = arguments.smoke or arguments.any_machine or arguments.repeats is not None
    return Effort(
        budget_s=given_s or (math.inf if is_open else suite.budget_s),
        limits_exact=given_s is not None,
        num_attempts=1 if arguments.smoke or arguments.any_machine else NUM_ATTEMPTS,
        more=not is_open,
        seed=arguments.seed,
    )


def _bench(placed: Placement | None, folder: Path, *, foresees: bool, judges: bool) -> Bench:
    """The bench on this machine, or on the ranks that a launcher started."""
    return Bench(
        LaunchedRanks(placed) if placed is not None else None,
        num_local=placed.num_local if placed else None,
        traces=folder / TRACES,
        foresees=foresees,
        limits=LIMITS if judges else None,
    )


def _how_to_go_on(folder: Path) -> str:
    return (
        f"go on with:     the same command and --resume --out {folder}\nreport on them: crossover-bench report {folder}"
    )


def conclude(outcome: RunResult, folder: Path, console: Console, *, as_json: bool, reports: bool) -> int:
    """Report, or say how to go on; returns the exit code."""
    if outcome.interrupted:
        counts = f"interrupted after {len(outcome.records)} of {outcome.num_asked} trials"
        # who runs several suites says himself how to go on with them
        hint = f"\n{_how_to_go_on(folder)}" if reports else ""
        console.print(f"{counts}{hint}", soft_wrap=True, highlight=False, markup=False)
        return 130
    for line in _what_does_not_count(outcome, folder):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if reports:
        publish(outcome.records, folder, console, as_json=as_json)
    if outcome.num_failed:
        return 1
    return TOO_BUSY if outcome.is_disturbed else 0


def _what_does_not_count(outcome: RunResult, folder: Path) -> Iterator[str]:
    if outcome.is_disturbed:
        yield f"this machine is too busy to measure on: all {outcome.num_invalid} attempts were invalid"
        yield from (f"  {line}" for line in outcome.disturbances())
        yield "end what else runs here (`top` names it), then"
        yield _how_to_go_on(folder)
        yield "or, to see that it runs, add --any-machine: every trial counts, and no time can be trusted"
    elif outcome.num_invalid:
        yield (
            f"{outcome.num_invalid} of {len(outcome.records)} attempts were invalid and do not count: the machine was "
            "busy or not the same, or another user disturbed them; the records say how, docs/guide/measuring.md with "
            "which limits"
        )
    if outcome.num_left:
        yield f"the budget did not suffice for {outcome.num_left} trials; give more with --budget and --resume"


def options_from(
    arguments: argparse.Namespace, placed: Placement | None = None, only_fabric: FabricKind | None = None
) -> Options:
    """Options of the command line, checked; `only_fabric` is a suite's own.

    Raises: ValueError with value and remedy.
    """
    for name, most in (("hosts", math.inf), ("repeats", MOST_REPEATS), ("steps", MOST_STEPS)):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise TrialError(f"--{name} is {value}; it must be at least 1")
        if value is not None and value > most:
            raise TrialError(f"--{name} is {value:,}; at most {most:,} are run, which takes days already")
    if arguments.data == "":
        raise TrialError("--data '' names nothing; give an ImageNet folder, a text file or folder, or leave it out")
    if arguments.loaders is not None and not arguments.data:
        raise TrialError(f"--loaders {arguments.loaders} is for your own images; give --data as well, or leave it out")
    if not 0 <= arguments.seed <= MOST_SEED:
        raise TrialError(f"--seed is {arguments.seed}; choose one from 0 to {MOST_SEED:,}")
    given = _fabric_kind(arguments.fabric) if arguments.fabric is not None else None
    if only_fabric is not None and given not in (None, only_fabric):
        raise FabricError(f"--fabric {given}: this suite is for the {only_fabric} fabric alone; leave it out")
    fabric = only_fabric or given
    if placed is not None:
        _check_placement(placed, fabric, arguments.hosts)
    return Options(
        fabric=fabric,
        num_hosts=placed.world if placed is not None else arguments.hosts,
        rate_bps=parse_rate(arguments.rate) if arguments.rate is not None else None,
        rate_given=arguments.rate is not None,
        repeats=arguments.repeats,
        num_steps=arguments.steps,
        strategies=tuple(arguments.strategy),
        data_path=arguments.data or "",
        batch_size=arguments.batch_size,
        num_loaders=arguments.loaders,
        device=_device(arguments.device),
        smoke=arguments.smoke,
        trace=arguments.trace,
        seed=arguments.seed,
        network=network_from(arguments),
        on_loss=None if arguments.on_loss is None else OnLoss(arguments.on_loss),
    )


def _fabric_kind(text: str) -> FabricKind:
    try:
        return FabricKind(text)
    except ValueError:
        known = ", ".join(kind.value for kind in FabricKind)
        raise FabricError(f"unknown fabric {text!r}; use one of: {known}") from None


def _check_placement(placed: Placement, fabric: FabricKind | None, num_hosts: int | None) -> None:
    """Raises: LaunchError if the request does not fit the ranks that were started."""
    if fabric is not FabricKind.NATIVE:
        raise LaunchError(
            f"--fabric {fabric or FabricKind.EMULATED} under {placed.launcher}: its ranks talk over the machines' own "
            f"network; add --fabric native, or run without {placed.launcher}"
        )
    if num_hosts not in (None, placed.world):
        raise LaunchError(
            f"--hosts {num_hosts}, but {placed.launcher} started {placed.world} ranks; leave --hosts out or start "
            f"{num_hosts} ranks"
        )


def _device(text: str) -> Device:
    if text not in (Device.CPU, Device.CUDA):
        raise TrialError(f"unknown device {text!r}; use cpu or cuda")
    if text == Device.CUDA and not torch.cuda.is_available():
        raise TrialError("--device cuda, but torch sees no GPU; use --device cpu, or set up with TORCH=system")
    return Device(text)


def check_used(options: Options, trials: Sequence[Trial], num_local: int | None = None) -> None:
    """Whether some trial does what was asked. Raises: TrialError naming the option that none takes up."""
    workloads = {job.workload for trial in trials for job in trial.jobs}
    if options.data_path and not any(workload.data_path for workload in workloads):
        trained = ", ".join(sorted(workload.label for workload in workloads))
        raise TrialError(f"--data {options.data_path!r} fits none of {trained}; choose other cells, or leave it out")
    if options.batch_size and all(workload.batch_size != options.batch_size for workload in workloads):
        raise TrialError(
            f"--batch-size {options.batch_size} changes none of these cells; choose others, or leave it out"
        )
    taken = {job.strategy for trial in trials for job in trial.jobs}
    if left_out := [text for text in options.strategies if text not in taken]:
        raise TrialError(f"--strategy {left_out[0]!r} is in none of these cells; choose other cells, or leave it out")
    _check_sizes_used(options, trials)
    on_gpu = [trial for trial in trials if any(job.workload.device is Device.CUDA for job in trial.jobs)]
    if options.device is Device.CUDA and not on_gpu:
        raise TrialError(
            "--device cuda, but none of these cells computes on a GPU; choose other cells, or leave it out"
        )
    if any(trial.fabric.kind is FabricKind.EMULATED for trial in on_gpu):
        raise TrialError(
            "--device cuda on the emulated fabric: NCCL goes around the emulated links, through the machine's memory; "
            "add --fabric native, or use --device cpu"
        )
    on_hosts = any(trial.cluster is not None and trial.fabric.kind.has_processes for trial in trials)
    if options.on_loss is not None and not on_hosts:
        raise TrialError(
            f"--on-loss {options.on_loss}, but none of these cells has asynchronous workers on hosts; run "
            "consistency-hosts, or leave it out"
        )
    num_ranks = max((num_local or trial.num_processes for trial in on_gpu), default=0)
    if 0 < (num_gpus := torch.cuda.device_count()) < num_ranks:  # without any, each trial says so
        raise TrialError(f"{num_ranks} ranks here want a GPU each and there are {num_gpus}; use fewer hosts")


def _check_sizes_used(options: Options, trials: Sequence[Trial]) -> None:
    """As `check_used`, for what is given as a number."""
    hosts = {number for trial in trials for number in (trial.num_ranks, trial.fabric.num_hosts)}
    # of some suites all steps are asked for, of others those that are measured
    steps = {number for trial in trials for number in (trial.num_steps, trial.num_warmup + trial.num_steps)}
    rate_bps, num_hosts, num_steps = options.rate_bps, options.num_hosts, options.num_steps
    left_out = (
        ("--rate", format_rate(rate_bps), options.rate_given and rate_bps not in {t.fabric.rate_bps for t in trials}),
        ("--hosts", num_hosts, num_hosts is not None and num_hosts not in hosts),
        ("--steps", num_steps, num_steps is not None and num_steps not in steps),
    )
    for name, value, is_left_out in left_out:
        if is_left_out:
            raise TrialError(f"{name} {value} is taken up by none of these cells; choose other cells, or leave it out")


def _folder(arguments: argparse.Namespace, runs: Path) -> Path:
    """Where records go: what was named, the last run to resume, or a new folder with `latest` set to it."""
    if arguments.out is not None:
        return prepare_folder(Path(arguments.out))
    if arguments.resume:
        latest = runs / "latest"
        if not latest.exists():
            raise TrialError(f"--resume: there is no earlier run in {runs}; leave --resume out, or name it with --out")
        return prepare_folder(latest.resolve())
    folder = new_folder(runs)
    set_latest(folder)
    return folder


def _check_without_records(folder: Path) -> None:
    """Raises: FolderError, since records of two runs would be one in every report."""
    if any(folder.glob("*.json")):
        raise FolderError(
            f"{folder} holds records already; go on with them with --resume, or name another folder with --out"
        )


def _minutes(trials: Sequence[Trial], foresees: bool) -> str:
    seconds = expected_run_s(trials, foresees=foresees)
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _show_grid(trials: Sequence[Trial], *, foresees: bool, as_json: bool) -> None:
    cells = {trial.cell: trial for trial in trials}
    rows = [
        {
            "cell": cell,
            "hosts": trial.num_ranks,
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
    console = output_console()
    console.print(f"{len(rows)} cells, {len(trials)} trials, about {_minutes(trials, foresees)}")
    rows.sort(key=lambda row: str(row["cell"]))  # they run in random order
    for group, of_group in itertools.groupby(rows, key=lambda row: str(row["cell"]).rsplit("/", 1)[0]):
        console.print(_grid_table(group, list(of_group), console.width), "")


def _grid_table(group: str, rows: Sequence[Mapping[str, object]], width: int) -> Table:
    headings = ("repeats", "expected_s", "steps", "hosts", "memory_gb", "fabric")  # dropped from the end if narrow
    columns = [
        Column(heading.replace("_", "\n"), tuple(str(row[heading]) for row in rows), rank)
        for rank, heading in enumerate(headings)
    ]
    labels = [str(row["cell"]).rsplit("/", 1)[-1] for row in rows]
    return table(group, labels, columns, width)
