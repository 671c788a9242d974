"""What carries the messages of one job: the links of the network, which it shares with the other jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from baselines.api import Broadcast, Gather, Primitive
from baselines.strategy import Strategy
from crossover.simulator.fluid import Agenda
from fabric.collectives import Collective
from fabric.simulated.placed import PlacedJob, PlacedNetwork, RoundLoad
from fabric.simulated.traffic import FlowRound
from harness.engine.traffic import Planned, tensor_bytes
from harness.engine.transport import Done
from harness.predict.costs import Cost, LinkCosts
from harness.predict.worker import tell
from harness.simulated.links import NetworkLinks
from harness.simulated.rounds import RoutedDemand, RoutedDemands, collective_rounds

PRICED = tuple(own for own in Collective if own is not Collective.BARRIER)


@dataclass(slots=True, eq=False)
class NetworkMedium:
    """One job's way to the network; a collapsed worker stands for all its ranks. `spans_s` are the times from the start
    of each of its primitives to its end."""

    clock: Agenda
    links: NetworkLinks
    placed: PlacedJob
    costs: LinkCosts
    alpha_s: float = 0.0
    size_scale: float = 1.0
    spans_s: list[tuple[float, float]] = field(default_factory=list)

    def demands(self, strategy: Strategy) -> RoutedDemands:
        """The demands of a strategy's messages, with their flows."""
        return RoutedDemands(strategy, self.costs, size_scale=self.size_scale)

    def start(self, rank: int, lane: int, primitive: Primitive | Planned, done: Done) -> None:
        """Send the rounds of `primitive` one after the other, then answer."""
        loads = iter([self.placed.load(own, self.alpha_s) for own in self._rounds(primitive)])
        self._go_on(loads, self.clock.now_s, partial(tell, {rank: (primitive, done)}))

    def _rounds(self, primitive: Primitive | Planned) -> Sequence[FlowRound]:
        if isinstance(primitive, RoutedDemand):
            return primitive.rounds
        assert isinstance(primitive, Gather | Broadcast), f"{primitive} is no control primitive"
        kind = Collective(type(primitive).__name__)
        return tuple(collective_rounds(kind, self.costs.world, tensor_bytes(primitive)))

    def _go_on(self, loads: Iterator[RoundLoad], start_s: float, done: partial[None]) -> None:
        load = next(loads, None)
        if load is None:
            self.spans_s.append((start_s, self.clock.now_s))
            done()
        else:
            self.links.send(load, partial(self._go_on, loads, start_s, done))


def alone_s(network: PlacedNetwork, job: int, collective: Collective, num_bytes: float, alpha_s: float = 0.0) -> float:
    """Seconds that a collective of one job takes with the network to itself."""
    clock, placed = Agenda(), network.jobs[job]
    links = NetworkLinks(clock, network.graph.link_rate_bps, network.law)
    for own in collective_rounds(collective, len(placed.hosts), num_bytes):
        links.send(placed.load(own, alpha_s), lambda: None)
        while clock.advance():
            pass
    return clock.now_s


def network_costs(
    network: PlacedNetwork, job: int, *, alpha_s: float = 0.0, size_scale: float = 1.0, source: str = ""
) -> LinkCosts:
    """What each primitive costs a job that has the network to itself: α + β · n, exactly so on fluid links.

    Bytes are those of tensors `size_scale` times smaller than what travels.
    """
    world = len(network.jobs[job].hosts)
    if world == 1:
        return LinkCosts(world=1, primitives={Collective.ALL_REDUCE.value: Cost(0.0, 0.0)}, source=source)
    primitives = {}
    for collective in PRICED:
        small, large = (alone_s(network, job, collective, num_bytes, alpha_s) for num_bytes in (1e6, 2e6))
        beta = (large - small) / 1e6
        primitives[collective.value] = Cost(max(0.0, small - 1e6 * beta), beta * size_scale)
    return LinkCosts(world=world, primitives=primitives, overlap=0.0, source=source)
