"""What a simulated run tells: its turns, its messages, and how it ended."""

from dataclasses import dataclass

from crossover.errors import CrossoverError


class Deadlock(CrossoverError):
    """Jobs wait for each other in a circle: nothing can happen any more."""


@dataclass(frozen=True, slots=True)
class SimulatedTurn:
    """The computation of one turn: times on the virtual clock."""

    host: int
    job: int
    round: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class SimulatedMessage:
    """One bucket's travel. `round` counts the job's steps from 0."""

    job: int
    round: int
    bucket: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What happened: turns and messages in the order of their start, when the last job was finished, and for how long
    the first host's device and the link were busy."""

    turns: tuple[SimulatedTurn, ...]
    messages: tuple[SimulatedMessage, ...]
    makespan_s: float
    device_busy_s: float
    link_busy_s: float
