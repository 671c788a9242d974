"""A model checker for the scheduler's rules: jobs and hosts as state machines around the arbiter's own tokens.

`python -m checking --schedules 100000 --seed 1` plays schedules; `exhaust` tries all of a small scenario.
It shows that rules and protocol keep their promises under any order of events, deaths, late jobs and replaced arbiters
included; it says nothing of sockets, for which the tests start real processes.
"""

from checking.model import Model
from checking.promises import Violation
from checking.scenario import Scenario, drawn
from checking.search import STRATEGIES, Coverage, Finding, exhaust, play, shortened
from checking.world import Event, Kind, Stage, Worker, World

__all__ = [
    "STRATEGIES",
    "Coverage",
    "Event",
    "Finding",
    "Kind",
    "Model",
    "Scenario",
    "Stage",
    "Violation",
    "Worker",
    "World",
    "drawn",
    "exhaust",
    "play",
    "shortened",
]
