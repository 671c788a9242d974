"""The command line: crossover-bench and one of the commands below.

Exit codes: 0 done; 1 a trial failed or something regressed; 2 the request was wrong, with the
value and the remedy in the message; 75 the machine was too busy for any trial to count; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from rich.console import Console
from rich.text import Text

from baselines import outside
from crossover.commands.screen import open_standard_streams
from harness.asynchrony.cluster import OnLoss
from harness.lab.spmd import is_spoken_for, rank_said
from results.files import plain
from suites.commands.claims import add_claims
from suites.commands.collectives import add_collectives
from suites.commands.emulate import add_emulate
from suites.commands.network_options import add_network_options
from suites.commands.pace import add_pace
from suites.commands.paper_options import add_paper_options
from suites.commands.plan_parallel_options import add_plan_parallel
from suites.commands.predict_options import add_predict
from suites.errors import is_about_the_request, remedy_for
from suites.folders import named_path

RUNS = Path("runs")
EPILOG = """\
examples:
  crossover-bench run quick                      the first comparison, about five minutes
  crossover-bench run quick --smoke              the same path in under a minute
  crossover-bench run quick --only real/resnet20 some cells of it
  crossover-bench run quick --strategy tensor-fusion+half --only real --rate 1gbit
  crossover-bench run quick --dry-run            what would run, memory and time
  crossover-bench report                         tables and report.html of the last run
  torchrun --nproc-per-node 2 -m suites run quick --fabric native --only real
                                                 on ranks that torchrun, mpirun or srun has started
  crossover-bench doctor --fabric emulated       what this machine can do, with line rates
  crossover-bench pace --hosts 8 --rate 10gbit --alpha 20us -- python train.py
                                                 your script as rank 0 of 8, the others virtual
  crossover-bench emulate --hosts 2 --rate 200mbit -- python train.py
                                                 your script on each of two emulated hosts
"""


def main(argv: Sequence[str] | None = None, *, parser: argparse.ArgumentParser | None = None) -> int:
    """Parse and run one command; returns the exit code. Who runs many keeps one `parser` for all."""
    open_standard_streams()
    parser = parser or command_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        outside.use(tuple(arguments.plugins))
        with _interrupted_once():
            return int(arguments.command(arguments))
    except ValueError as error:
        if not is_about_the_request(error):
            raise
        if not is_spoken_for():
            _say(str(error))
        return 2
    except BrokenPipeError:
        if _is_read(sys.stdout):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if (remedy := remedy_for(error)) is None:
            raise
        where = "" if error.filename is None else f"{error.filename!s:.200}: "
        _say(f"{where}{error.strerror}; {remedy}")  # of every rank: this may be its own alone
        return 2
    except KeyboardInterrupt:
        if not is_spoken_for():
            print("interrupted", file=sys.stderr)
        return 130


def _say(error: str) -> None:
    """What went wrong, on the standard error; of a launcher's ranks after the first, with the rank."""
    text = Text.assemble(("crossover-bench:", "red"), f" {rank_said()}{plain(error)}")
    Console(stderr=True).print(text, soft_wrap=True, highlight=False)


def _is_read(stream: TextIO) -> bool:
    """Whether anybody holds the other end; `head` has had enough after some lines."""
    poll = select.poll()
    poll.register(stream, 0)  # an end that is gone is told unasked
    return not poll.poll(0)


@contextmanager
def _interrupted_once() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, once: what is under way then ends in order."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for name in signals:
            signal.signal(name, signal.SIG_IGN)
        raise KeyboardInterrupt

    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signals.append(signal.SIGHUP)
    before = {name: signal.signal(name, interrupt) for name in signals}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def command_parser() -> argparse.ArgumentParser:
    """What reads a command line; every command's function stands in `command`."""
    parser = argparse.ArgumentParser(
        prog="crossover-bench",
        description="Which communication optimisation pays on this cluster, and what sharing it in turns adds.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=None)
    parser.add_argument(
        "--plugins",
        action="append",
        default=[],
        type=named_path,
        metavar="DIR",
        help="a folder with plug-ins (*.py) and suites (*/grid.py) of your own; also CROSSOVER_BENCH_PLUGINS",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_run(commands)
    _add_list(commands)
    _add_paper(commands)
    _add_report(commands)
    _add_compare(commands)
    add_claims(commands)
    _add_doctor(commands)
    add_predict(commands)
    add_pace(commands)
    add_emulate(commands)
    add_collectives(commands)
    add_plan_parallel(commands)
    return parser


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="run a suite", description="Run a suite and report on it.")
    run.add_argument("suite", metavar="SUITE", help="its name; `crossover-bench list` shows them")
    run.add_argument("--only", action="append", default=[], metavar="NAME", help="cells whose name contains NAME")
    run.add_argument("--strategy", action="append", default=[], metavar="TEXT", help="these instead of the suite's own")
    run.add_argument(
        "--fabric",
        metavar="F",
        help="of every cell: emulated, paced (one machine, no privileges), native (as it is), or simulated with "
        "--network (default: each cell's own)",
    )
    run.add_argument("--hosts", type=int, metavar="N", help="hosts, a rank of each job on each")
    run.add_argument("--rate", metavar="RATE", help="line rate such as 200mbit or 1gbit; none: unshaped")
    run.add_argument("--repeats", type=int, metavar="N", help="so many repeats of each cell, and no more")
    run.add_argument("--budget", metavar="TIME", help="stop when trials have taken so long, e.g. 90s, 10m or 2h")
    run.add_argument(
        "--any-machine", action="store_true", help="count trials however busy the machine is, and add no repeats"
    )
    run.add_argument("--steps", type=int, metavar="N", help="measured steps per trial")
    run.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the first repeat, others count on")
    run.add_argument("--data", metavar="PATH", help="an ImageNet folder, or a text file or folder")
    run.add_argument("--batch-size", type=int, metavar="N", help="samples per rank and step of real training")
    run.add_argument(
        "--loaders", type=int, metavar="N", help="with --data: processes per rank that decode images ahead (default 2)"
    )
    run.add_argument("--device", default="cpu", metavar="D", help="of real training: cpu (default) or cuda")
    run.add_argument(
        "--on-loss",
        choices=[own.value for own in OnLoss],
        help="of asynchronous workers on hosts: whether the others go on when one is lost (default stop)",
    )
    run.add_argument("--smoke", action="store_true", help="a few short cells, under a minute unless --steps says more")
    run.add_argument("--dry-run", action="store_true", help="print the grid, memory and time; run nothing")
    run.add_argument("--trace", action="store_true", help="also write a Perfetto trace of every trial")
    run.add_argument(
        "--resume", action="store_true", help="keep what the last run of the suite finished, with the same options"
    )
    run.add_argument("--out", type=named_path, metavar="DIR", help="folder of records (default runs/SUITE/TIME)")
    run.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_network_options(run)
    run.set_defaults(command=_run)


def _add_paper(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "All suites at reference size into one folder, then figures, report and claims. Killed, it goes on."
    paper = commands.add_parser("paper", help="all suites, for the records of a paper", description=text)
    add_paper_options(paper)
    paper.set_defaults(command=_paper)


def _add_list(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Every suite, baseline, system, workload, sharing policy and fabric."
    listing = commands.add_parser("list", help="what there is", description=text)
    listing.add_argument("--json", action="store_true", help="as JSON")
    listing.set_defaults(command=_list)


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Tables, figures and report.html from records alone."
    report = commands.add_parser("report", help="report on records", description=text)
    report.add_argument("folders", nargs="*", type=named_path, metavar="DIR", help="records (default: the last runs)")
    report.add_argument("--figures", action="store_true", help="the figures alone, as PNG and PDF")
    report.add_argument(
        "--baseline",
        metavar="SYSTEM",
        help="what ratios are taken against (default torch-ddp, else the cell that the suite calls dense, else the "
        "fastest that sends all bytes)",
    )
    report.add_argument("--out", type=named_path, metavar="DIR", help="where to write (default: beside the records)")
    report.add_argument("--allow-different", action="store_true", help="although a cell has several machines or runs")
    report.add_argument("--json", action="store_true", help="print the summary as JSON")
    report.add_argument("--csv", action="store_true", help="also every table as OUT/tables/*.csv")
    report.set_defaults(command=_report)


def _add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Step-time ratios of two sets of records, cell by cell, with intervals. Exit code 1 if something got slower."
    compare = commands.add_parser("compare", help="compare two sets of records", description=text)
    compare.add_argument("before", type=named_path, metavar="BEFORE", help="folder of records")
    compare.add_argument("after", type=named_path, metavar="AFTER", help="folder of records")
    compare.add_argument(
        "--allow-different",
        action="store_true",
        help="although machines, fabrics or work differ, or a side has several runs",
    )
    compare.add_argument("--json", action="store_true", help="as JSON")
    compare.set_defaults(command=_compare)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "What this machine can do, and what to do about what it cannot."
    doctor = commands.add_parser("doctor", help="examine this machine", description=text)
    doctor.add_argument("--fabric", metavar="F", help="also measure all-reduce on this fabric: emulated or native")
    doctor.add_argument("--hosts", type=int, action="append", metavar="N", help="with --fabric: 2, 4 and 8")
    doctor.add_argument("--rate", action="append", metavar="RATE", help="with --fabric: 200mbit and 1gbit")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.set_defaults(command=_doctor)


def _run(arguments: argparse.Namespace) -> int:
    from suites.commands.run import run_suite

    return run_suite(arguments, RUNS)


def _paper(arguments: argparse.Namespace) -> int:
    from suites.commands.paper import make_paper

    return make_paper(arguments, RUNS, command_parser().parse_args)


def _list(arguments: argparse.Namespace) -> int:
    from suites.commands.listing import show

    return show(as_json=arguments.json)


def _report(arguments: argparse.Namespace) -> int:
    from suites.commands.report import report_on

    return report_on(arguments, RUNS)


def _compare(arguments: argparse.Namespace) -> int:
    from suites.commands.report import compare_folders

    return compare_folders(arguments)


def _doctor(arguments: argparse.Namespace) -> int:
    from suites.commands.doctor import examine

    return examine(arguments)


if __name__ == "__main__":
    sys.exit(main())
