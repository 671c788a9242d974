"""Flow schedulers: which flow goes first (`schedule_flows` with a policy), and over which path (Hedera)."""

from fabric.simulated.scheduling.fair import FairSharing
from fabric.simulated.scheduling.fluid import (
    FlowPolicy,
    ScheduledFlow,
    ScheduleResult,
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
    "FairSharing",
    "FlowPolicy",
    "PFabric",
    "Pias",
    "ScheduleResult",
    "ScheduledFlow",
    "TrainingPriorities",
    "Varys",
    "allocate",
    "estimate_demands",
    "global_first_fit",
    "least_loaded",
    "max_min_rates",
    "schedule_flows",
]
