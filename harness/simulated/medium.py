"""What carries the messages of one job: the links of the network, which it shares with the other jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from baselines.api import Primitive
from baselines.strategy import Strategy
from crossover.simulator.fluid import Agenda
from fabric.collectives import Collective
from fabric.simulated.bundles import fair_paces
from fabric.simulated.placed import PlacedJob, PlacedNetwork, RoundLoad
from fabric.simulated.traffic import FlowRound, collective_rounds
from harness.engine.negotiate import ControlPrimitive
from harness.engine.traffic import Planned, tensor_bytes
from harness.engine.transport import Done
from harness.predict.costs import Cost, LinkCosts
from harness.predict.worker import tell
from harness.simulated.links import NetworkLinks
from harness.simulated.rounds import RoutedDemand, RoutedDemands

PRICED = frozenset(own.value for own in Collective if own is not Collective.BARRIER)
PROBE_BYTES = 1e6


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
        assert isinstance(primitive, ControlPrimitive), f"{primitive} is no control primitive"
        kind = Collective(type(primitive).__name__)
        return collective_rounds(kind, self.costs.world, tensor_bytes(primitive))

    def _go_on(self, loads: Iterator[RoundLoad], start_s: float, done: partial[None]) -> None:
        # Each round waits for the one before, as ranks in an exchange do.
        load = next(loads, None)
        if load is None:
            self.spans_s.append((start_s, self.clock.now_s))
            done()
        else:
            self.links.send(load, partial(self._go_on, loads, start_s, done))


def alone_s(
    network: PlacedNetwork, job: int, collective: Collective, num_bytes: float, alpha_s: float = 0.0
) -> tuple[float, float]:
    """Seconds that a collective of one job waits, and then sends, with the network to itself."""
    placed, capacity_bps = network.jobs[job], network.graph.link_rate_bps
    waiting_s = sending_s = 0.0
    for own in collective_rounds(collective, len(placed.hosts), num_bytes):
        load = placed.load(own, alpha_s)
        # Alone on the network, a round is as fast as its own most loaded link lets it be.
        (pace_bps,) = fair_paces(load.weights[None, :], capacity_bps, network.law)
        waiting_s += load.wait_s
        sending_s += load.largest_bits * load.repeats / float(pace_bps)
    return waiting_s, sending_s


@dataclass(frozen=True, slots=True, eq=False)
class PricedPrimitives(Mapping[str, Cost]):
    """The cost of each primitive of a job that has the network to itself: α + β · n, exactly so on fluid links.

    Each is priced when it is first asked for, since an all-to-all among a thousand hosts takes a million routes; those
    that were are what the mapping iterates over. Bytes are those of tensors `size_scale` times smaller than what
    travels.
    """

    network: PlacedNetwork
    job: int
    alpha_s: float = 0.0
    size_scale: float = 1.0
    _priced: dict[str, Cost] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Cost:
        if name not in PRICED:
            raise KeyError(name)
        if name not in self._priced:
            wait_s, send_s = alone_s(self.network, self.job, Collective(name), PROBE_BYTES, self.alpha_s)
            self._priced[name] = Cost(wait_s, send_s / PROBE_BYTES * self.size_scale)
        return self._priced[name]

    def __contains__(self, name: object) -> bool:
        return name in PRICED

    def __iter__(self) -> Iterator[str]:
        return iter(self._priced)

    def __len__(self) -> int:
        return len(self._priced)


def network_costs(
    network: PlacedNetwork, job: int, *, alpha_s: float = 0.0, size_scale: float = 1.0, source: str = ""
) -> LinkCosts:
    """What each primitive costs a job that has the network to itself."""
    world = len(network.jobs[job].hosts)
    # Nothing travels, but a strategy that plans still asks what an all-reduce costs.
    if world == 1:
        return LinkCosts(world=1, primitives={Collective.ALL_REDUCE.value: Cost(0.0, 0.0)}, source=source)
    primitives = PricedPrimitives(network, job, alpha_s, size_scale)
    return LinkCosts(world=world, primitives=primitives, overlap=0.0, source=source)
