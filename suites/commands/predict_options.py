"""The options of `crossover-bench predict`, apart from the command so that `--help` does not wait for torch."""

from __future__ import annotations

import argparse

from suites.commands.network_options import add_network_options
from suites.commands.predict_defaults import ALPHA, BATCH_SIZE, CALIBRATION, HOSTS, RATES, STRATEGIES
from suites.folders import named_path


def add_predict(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's options."""
    text = (
        "Step times and scaling efficiency on a virtual clock, from layer profiles and measured or given costs of a "
        "message; of a suite's cells, or of a workload on any number of hosts."
    )
    predict = commands.add_parser("predict", help="step times without running a step", description=text)
    predict.add_argument("suite", nargs="?", metavar="SUITE", help="predict its cells that replay a profile")
    predict.add_argument(
        "--workload", metavar="NAME", help="a network with a profile, such as resnet50, or your own as FILE.py:NAME"
    )
    predict.add_argument(
        "--profile",
        default="",
        metavar="FILE",
        help="its layer times (default: those shipped with it); without --workload what `crossover run --profile DIR` "
        "wrote of your own script to DIR/layers",
    )
    predict.add_argument("--strategies", nargs="+", metavar="TEXT", help=f"default: {' '.join(STRATEGIES)}")
    predict.add_argument("--hosts", metavar="N,…", help=f"numbers of workers (default {HOSTS})")
    predict.add_argument("--rates", metavar="RATE,…", help=f"line rates (default {RATES})")
    predict.add_argument("--size-scale", type=int, default=1, metavar="S", help="tensors S times smaller")
    predict.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help=f"samples per worker and step (default {BATCH_SIZE}; of --profile alone: as recorded)",
    )
    predict.add_argument("--only", action="append", default=[], metavar="NAME", help="cells whose name contains NAME")
    predict.add_argument(
        "--fabric",
        metavar="F",
        help="whose measured costs: emulated, native, or for a SUITE paced (default: of each cell's own)",
    )
    predict.add_argument(
        "--calibration",
        type=named_path,
        metavar="FILE",
        help=f"measured costs, for a workload instead of the default cluster's (of a SUITE: default {CALIBRATION})",
    )
    predict.add_argument("--calibrate", action="store_true", help="measure --hosts at --rates and write --calibration")
    predict.add_argument("--refit", action="store_true", help="fit the costs of --calibration again from its own rows")
    predict.add_argument("--alpha", metavar="TIME", help=f"start-up of a ring step (default {ALPHA})")
    predict.add_argument("--beta", metavar="TIME", help="of a byte, such as 0.8ns, instead of --rates")
    predict.add_argument("--slowdown", type=float, default=0.0, metavar="X", help="of computation beside messages")
    predict.add_argument("--out", type=named_path, metavar="DIR", help="also write records, labelled simulated")
    predict.add_argument("--json", action="store_true", help="as JSON")
    add_network_options(predict)
    predict.set_defaults(command=_predict)


def _predict(arguments: argparse.Namespace) -> int:
    from suites.commands.predict import predict_command

    return predict_command(arguments)
