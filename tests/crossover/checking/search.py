"""Schedules of a model: at random, by adversaries, and all of them."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from checking.model import Model
from checking.promises import Violation
from checking.scenario import Scenario
from checking.world import Event, Kind, World
from crossover.errors import CrossoverError, Refused

Preference = Callable[[Event, World, int], float]
"""How little an adversary likes an event, given the world and since when the event has been possible."""

_TROUBLE = (Kind.DIE, Kind.RESTART, Kind.SKIP, Kind.EVALUATE, Kind.PASS)
_CAPRICE = 0.1  # how often an adversary does anything at all instead


@dataclass(frozen=True, slots=True)
class Finding:
    """What went wrong in a scenario, after which events."""

    scenario: Scenario
    reason: str
    trace: tuple[Event, ...]

    def __str__(self) -> str:
        events = "\n".join(f"  {number:3} {event}" for number, event in enumerate(self.trace, 1))
        return f"{self.reason}\nin {self.scenario}\nafter {len(self.trace)} events:\n{events}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """What an exhaustive search has seen."""

    num_states: int
    num_events: int
    finding: Finding | None


def play(scenario: Scenario, random: Random, strategy: str = "random") -> tuple[int, Finding | None]:
    """One schedule to its end: how many events it had, and what went wrong."""
    model = Model(scenario)
    prefers = STRATEGIES[strategy](scenario, random)
    world, trace, since = model.start(), list[Event](), dict[Event, int]()
    try:
        while events := _possible(model, world):
            since = {event: since.get(event, len(trace)) for event in events}
            if random.random() >= _CAPRICE:
                events = _preferred(events, {event: prefers(event, world, since[event]) for event in events})
            trace.append(random.choice(events))
            world = model.after(world, trace[-1])
            since.pop(trace[-1])
    except CrossoverError as error:
        return len(trace), Finding(scenario, str(error), tuple(trace))
    return len(trace), None


def exhaust(scenario: Scenario, max_states: int = 1_000_000) -> Coverage:
    """Every schedule, breadth first: a finding's trace is as short as any. Raises `Refused` beyond `max_states`."""
    model = Model(scenario)
    start = model.start()
    came_from: dict[World, tuple[World, Event] | None] = {start: None}
    queue, num_events = deque([start]), 0
    while queue:
        world = queue.popleft()
        event = None
        try:
            for event in _possible(model, world):
                num_events += 1
                reached = model.after(world, event)
                if reached not in came_from:
                    came_from[reached] = (world, event)
                    queue.append(reached)
        except CrossoverError as error:
            trace = (*_path(came_from, world), *([event] if event is not None else []))
            return Coverage(len(came_from), num_events, Finding(scenario, str(error), trace))
        if len(came_from) > max_states:
            raise Refused(f"more than {max_states} states: make the scenario smaller, or play schedules at random")
    return Coverage(len(came_from), num_events, None)


def shortened(finding: Finding, max_states: int = 50_000) -> Finding:
    """The same scenario's shortest way to go wrong, if it is found within `max_states`; else the finding."""
    try:
        return exhaust(finding.scenario, max_states).finding or finding
    except Refused:
        return finding


def _possible(model: Model, world: World) -> list[Event]:
    """What may happen next, or nothing at the end. Raises `Violation` in a deadlock."""
    events = model.enabled(world)
    if not events and not world.is_over:
        raise Violation(f"deadlock: {'; '.join(model.waits(world))}")
    return events


def _path(came_from: Mapping[World, tuple[World, Event] | None], world: World) -> list[Event]:
    path: list[Event] = []
    while (step := came_from[world]) is not None:
        world, event = step
        path.append(event)
    return path[::-1]


def _preferred(events: list[Event], dislikes: Mapping[Event, float]) -> list[Event]:
    least = min(dislikes.values())
    return [event for event in events if dislikes[event] == least]


def _random(scenario: Scenario, random: Random) -> Preference:
    return lambda event, world, since: 0


def _starve_a_worker(scenario: Scenario, random: Random) -> Preference:
    """One worker moves only when nothing else can."""
    victim = (random.randrange(scenario.num_hosts), random.randrange(len(scenario.num_steps)))
    return lambda event, world, since: (event.host, event.job) == victim


def _starve_a_job(scenario: Scenario, random: Random) -> Preference:
    victim = random.randrange(len(scenario.num_steps))
    return lambda event, world, since: event.job == victim


def _hosts_apart(scenario: Scenario, random: Random) -> Preference:
    """One host runs as far as it can before another one moves."""
    first = random.randrange(scenario.num_hosts)
    return lambda event, world, since: (
        (event.host - first) % scenario.num_hosts if event.host >= 0 else scenario.num_hosts
    )


def _inverted_arrivals(scenario: Scenario, random: Random) -> Preference:
    """Jobs come in one order on even hosts and in the opposite one on odd hosts."""
    return lambda event, world, since: event.job * (-1 if event.host % 2 else 1)


def _slowest_last(scenario: Scenario, random: Random) -> Preference:
    """Who is furthest goes on."""
    return lambda event, world, since: (
        -world.workers[event.host][event.job].step if min(event.host, event.job) >= 0 else 0
    )


def _newest_first(scenario: Scenario, random: Random) -> Preference:
    return lambda event, world, since: -since


def _trouble_first(scenario: Scenario, random: Random) -> Preference:
    return lambda event, world, since: event.kind not in _TROUBLE


def _trouble_last(scenario: Scenario, random: Random) -> Preference:
    return lambda event, world, since: (
        event.kind in _TROUBLE or (event.kind is Kind.JOIN and event.job in scenario.late)
    )


def _messages_last(scenario: Scenario, random: Random) -> Preference:
    return lambda event, world, since: event.kind is Kind.COMPLETE


STRATEGIES: Mapping[str, Callable[[Scenario, Random], Preference]] = {
    "random": _random,
    "starve a worker": _starve_a_worker,
    "starve a job": _starve_a_job,
    "hosts apart": _hosts_apart,
    "inverted arrivals": _inverted_arrivals,
    "slowest last": _slowest_last,
    "newest first": _newest_first,
    "trouble first": _trouble_first,
    "trouble last": _trouble_last,
    "messages last": _messages_last,
}
