"""`crossover-bench collectives`: latency and bandwidth of collectives, library by library."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path


def add_collectives(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's options."""
    text = (
        "Time all-reduce, all-gather, broadcast, all-to-all and point-to-point from 4 B to 256 MB on emulated hosts, "
        "as nccl-tests and the OSU benchmarks do: gloo, MPI, Horovod, and NCCL where there is a GPU per rank."
    )
    parser = commands.add_parser("collectives", help="latency and bandwidth of each library", description=text)
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="number of hosts (default 2)")
    parser.add_argument("--rate", default="200mbit", metavar="RATE", help="of every host's link (default 200mbit)")
    parser.add_argument("--library", action="append", metavar="NAME", help="gloo, mpi, horovod, nccl (default: all)")
    parser.add_argument("--seconds", type=float, default=15.0, metavar="S", help="leave out sizes that take longer")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write all times as JSON")
    parser.set_defaults(command=measure_collectives)


def measure_collectives(arguments: argparse.Namespace) -> int:
    """Measure and print; exit code 0, or 1 if no library could be measured. Raises: FabricError."""
    from analysis.terminal import output_console
    from fabric.api import FabricError, FabricKind, FabricSpec, format_rate, parse_rate
    from suites.collectives import measure
    from suites.collectives.table import large_table, small_table

    libraries = arguments.library or measure.LIBRARIES
    if unknown := [name for name in libraries if name not in measure.LIBRARIES]:
        raise FabricError(f"unknown library {unknown[0]!r}; use {', '.join(measure.LIBRARIES)}")
    rate_bps = parse_rate(arguments.rate)
    spec = FabricSpec(kind=FabricKind.EMULATED, num_hosts=arguments.hosts, rate_bps=rate_bps)
    console, raw = output_console(), []
    for library in libraries:
        if (reason := measure.why_not(library, arguments.hosts)) is not None:
            console.print(f"{library}: skipped: {reason}", markup=False, soft_wrap=True)
            continue
        raw.append(measure.run_library(library, spec, arguments.seconds))
    measured = [own for told in raw for own in measure.measured_of(told)]
    if not measured:
        return 1
    where = f"{arguments.hosts} emulated hosts, {format_rate(rate_bps)}"
    console.print(large_table(measure.fits_of(measured, rate_bps), where), small_table(measured, where))
    if arguments.out:
        told = {
            "hosts": arguments.hosts,
            "rate_bps": rate_bps,
            "raw": raw,
            "measured": [asdict(own) for own in measured],
        }
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")
    return 0
