"""`crossover-bench collectives`: a first look at what the suite `collectives` measures, once and as a table."""

from __future__ import annotations

import argparse

from suites.folders import named_path


def add_collectives(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's options."""
    text = (
        "Time all-reduce, all-gather, broadcast, all-to-all and point-to-point from 4 B to 256 MB on emulated hosts, "
        "as nccl-tests and the OSU benchmarks do: gloo, MPI and Horovod, once. `run collectives` repeats it."
    )
    parser = commands.add_parser("collectives", help="latency and bandwidth of each library", description=text)
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="number of hosts (default 2)")
    parser.add_argument("--rate", default="200mbit", metavar="RATE", help="of every host's link (default 200mbit)")
    parser.add_argument("--library", action="append", metavar="NAME", help="gloo, mpi, horovod (default: all)")
    parser.add_argument("--seconds", type=float, default=15.0, metavar="S", help="leave out sizes that take longer")
    parser.add_argument("--out", type=named_path, metavar="DIR", help="also write a record of each to this folder")
    parser.set_defaults(command=measure_collectives)


def measure_collectives(arguments: argparse.Namespace) -> int:
    """Measure and print; exit code 0, or 1 if no library could be measured. Raises: FabricError, TrialError."""
    from rich.console import Console

    from analysis.cells import cells as by_cell
    from analysis.collectives.rows import collective_rows
    from analysis.collectives.tables import collective_tables
    from analysis.terminal import output_console
    from fabric.api import parse_rate
    from harness.bench import Bench
    from harness.checks.trial import check
    from results.record import Status, write_record
    from suites.api import Options
    from suites.collectives.grid import cells
    from suites.folders import prepare_folder
    from suites.progress import RunProgress, shown_on

    options = Options(num_hosts=arguments.hosts, rate_bps=parse_rate(arguments.rate), rate_given=True)
    trials = list(cells(options, arguments.seconds, tuple(arguments.library or ())))
    for trial in trials:
        check(trial)
    if arguments.out:
        prepare_folder(arguments.out)
    console = output_console()
    records = []
    with Bench() as bench, shown_on(Console(stderr=True), RunProgress(trials, foresees=False)) as bar:
        for trial in trials:
            records.append(bench.run(trial, bar.on_event(trial)))
            bar.done(trial)
    for record in (own for own in records if own.status is not Status.OK):
        console.print(f"{record.cell}: {record.status}: {record.reason}", markup=False, soft_wrap=True)
    for listing in collective_tables(collective_rows(by_cell(records))):
        console.print(listing.shown(console.width))
    if arguments.out:
        for record in records:
            write_record(record, arguments.out)
    return 0 if any(record.status is Status.OK for record in records) else 1
