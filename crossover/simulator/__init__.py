"""Shared steps on a virtual clock: the scheduler's own policies, one device a host, one link.

A job's turn computes for `compute_s`, during which its buckets become ready one after the other. A bucket can travel
when it is ready on every host (a collective). A job asks for its next turn when its own messages have arrived. Jobs
that compute at the same time share the device evenly, as do messages that travel at the same time, and every arrival
and departure is exact. Nothing here measures: `simulate` shows what the rules give when their assumptions hold, and
`forecast` says what that means for a job in the long run.
"""

from crossover.policies import link_policy
from crossover.simulator.conditions import Arrival, Disturbance, LinkSharing, Rules
from crossover.simulator.forecasting import Forecast, forecast, simulate
from crossover.simulator.outcome import Deadlock, SimulatedMessage, SimulatedTurn, SimulationResult
from crossover.simulator.steps import Bucket, StepShape

__all__ = [
    "Arrival",
    "Bucket",
    "Deadlock",
    "Disturbance",
    "Forecast",
    "LinkSharing",
    "Rules",
    "SimulatedMessage",
    "SimulatedTurn",
    "SimulationResult",
    "StepShape",
    "forecast",
    "link_policy",
    "simulate",
]
