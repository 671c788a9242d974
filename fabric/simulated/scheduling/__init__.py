"""Flow schedulers: which flow goes first (`schedule_flows` with a policy), and over which path (Hedera).

parse_scheduler("pias(thresholds=(1e4, 1e6))")
"""

from typing import Any

from fabric.simulated.named import parse_named
from fabric.simulated.scheduling.fair import FairSharing
from fabric.simulated.scheduling.fifo import FirstInFirstOut
from fabric.simulated.scheduling.fluid import (
    FlowPolicy,
    ScheduledFlow,
    allocate,
    max_min_rates,
    schedule_flows,
)
from fabric.simulated.scheduling.hedera import estimate_demands, global_first_fit, least_loaded
from fabric.simulated.scheduling.pfabric import PFabric
from fabric.simulated.scheduling.pias import Pias
from fabric.simulated.scheduling.training import TrainingPriorities
from fabric.simulated.scheduling.varys import Varys

__all__ = [
    "SCHEDULERS",
    "FairSharing",
    "FirstInFirstOut",
    "FlowPolicy",
    "PFabric",
    "Pias",
    "ScheduledFlow",
    "TrainingPriorities",
    "Varys",
    "allocate",
    "estimate_demands",
    "global_first_fit",
    "least_loaded",
    "max_min_rates",
    "parse_scheduler",
    "schedule_flows",
]

SCHEDULERS: dict[str, type[Any]] = {
    kind.name: kind for kind in (FairSharing, FirstInFirstOut, PFabric, Pias, TrainingPriorities, Varys)
}


def parse_scheduler(text: str) -> FlowPolicy:
    """Read `name` or `name(parameter=value, …)`. Raises: NetworkError, which names what there is."""
    policy: FlowPolicy = parse_named(text, SCHEDULERS, "scheduler")
    return policy
