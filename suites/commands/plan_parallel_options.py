"""The options of `crossover-bench plan-parallel`, apart from the command so that `--help` does not wait for torch."""

from __future__ import annotations

import argparse

from suites.commands.predict_defaults import ALPHA, BATCH_SIZE


def add_plan_parallel(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's options."""
    text = (
        "What each planner of parallelism would do with a workload: stages, replicas and splits, the predicted step "
        "and the memory per device. Prints the fastest plan that fits."
    )
    plan = commands.add_parser("plan-parallel", help="pipelines, replicas and splits for a workload", description=text)
    plan.add_argument("--workload", required=True, metavar="NAME", help="a network, such as bert_base")
    plan.add_argument("--hosts", type=int, default=8, metavar="N", help="hosts, one device each (default 8)")
    plan.add_argument("--rate", default="10gbit", metavar="RATE", help="line rate of a host (default 10gbit)")
    plan.add_argument(
        "--memory", metavar="SIZE", help="of a device, such as 16GB; none for no limit (default: the profile's device)"
    )
    plan.add_argument(
        "--batch-size",
        type=int,
        default=BATCH_SIZE,
        metavar="N",
        help=f"samples per host and step (default {BATCH_SIZE})",
    )
    plan.add_argument("--micro-batches", type=int, default=8, metavar="M", help="of a step (default 8)")
    plan.add_argument("--alpha", default=ALPHA, metavar="TIME", help=f"of a message or ring step (default {ALPHA})")
    plan.add_argument(
        "--planner",
        action="append",
        default=[],
        metavar="TEXT",
        help="this one, e.g. 'pipedream-planner(server_devices=4, server_speed=10)'; may be repeated (default: all)",
    )
    plan.add_argument("--flops", type=float, metavar="F", help="times from FLOPs at F per second, not the profile")
    plan.add_argument("--json", action="store_true", help="as JSON")
    plan.set_defaults(command=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    from suites.commands.plan_parallel import plan_parallel_command

    return plan_parallel_command(arguments)
