"""A trial without jobs: flows through a simulated network, as packets or as fluids, and the record of what they did.

facts = run_traffic(trial)  # the same for the same trial, to the last digit
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fabric.network import NetworkSpec, Paths
from fabric.simulated.drawn_flows import (
    DrawnFlow,
    Traffic,
    drawn_flows,
    group_names,
    host_bps,
    last_link,
    network_of,
)
from fabric.simulated.flow_traffic import FluidTraffic, PacketTraffic
from fabric.simulated.graph import Floats, Ints, NetworkGraph
from fabric.simulated.optical import run_hybrid
from fabric.simulated.packet import BITS, PacketFlow, PacketRun
from fabric.simulated.placed import chosen_paths
from fabric.simulated.routing import route
from fabric.simulated.scheduling import (
    ScheduledFlow,
    parse_scheduler,
    schedule_flows,
)
from harness.outcome import bare_record
from harness.trial import Trial
from results.record import Environment, FabricFacts, Record, Status
from results.traffic import GroupFacts, TrafficFacts

DIGITS = 10  # of times: picoseconds in a tenth of a second


def run_traffic(trial: Trial) -> TrafficFacts:
    """Run the flows to their end, or as long as is asked for. Raises: NetworkError."""
    traffic, network = _asked(trial)
    graph = network_of(network)
    flows = drawn_flows(traffic, graph, trial.seed)
    if isinstance(traffic, FluidTraffic):
        return _run_fluids(traffic, graph, flows, network.paths)
    return _run_packets(traffic, graph, flows, network.transport, trial.seed)


def traffic_record(trial: Trial, environment: Environment) -> Record:
    """The record of a trial of flows; nothing about it depends on this machine."""
    traffic, network = _asked(trial)
    graph = network_of(network)
    fabric = FabricFacts(
        kind=trial.fabric.kind.value,
        label=trial.fabric.kind.value,
        num_hosts=graph.num_hosts,
        rate_bps=host_bps(graph, traffic.watched if isinstance(traffic, PacketTraffic) else 0),
        network=network.network_text,
        transport=network.transport,
    )
    return replace(bare_record(trial, Status.OK, fabric, environment), traffic=run_traffic(trial))


def _run_packets(
    traffic: PacketTraffic, graph: NetworkGraph, drawn: Sequence[DrawnFlow], transport: str, seed: int
) -> TrafficFacts:
    """Every packet; the watched queue is looked at meanwhile."""
    flows = [PacketFlow(one.source, one.destination, one.num_bytes, transport, one.start_s) for one in drawn]
    run = PacketRun(graph, flows, replace(traffic.switches, seed=seed))
    link = last_link(graph, traffic.watched)
    if traffic.from_s:
        run.advance(traffic.from_s)
    before, queued = run.delivered_bytes(), run.byte_seconds(link)
    samples = list(_sampled(run, traffic, link))
    run.advance(traffic.until_s)
    # a run ends with its last flow, and then nothing has happened since
    spent_s = max(run.now_s - traffic.from_s, 1e-12)
    result, marking = run.result(), run.settings.marking
    columns = (result.end_s, run.alone_s(), before, result.delivered_bytes, result.mean_rtt_s)
    return TrafficFacts(
        groups=tuple(_groups(traffic, drawn, *columns)),
        from_s=traffic.from_s,
        now_s=run.now_s,
        num_events=result.num_events,
        num_resent=int(result.num_resent.sum()),
        num_timeouts=int(result.num_timeouts.sum()),
        num_drops=int(result.num_drops.sum()),
        num_marks=int(result.num_marks.sum()),
        num_paused=int(result.num_pauses.sum()),
        mean_queue_bytes=(run.byte_seconds(link) - queued) / spent_s,
        mark_bytes=None if marking is None else marking.mark_from,
        least_round_trip_s=run.least_round_trip_s,
        times_s=tuple(at for at, _, _ in samples),
        queue_bytes=tuple(size for _, size, _ in samples),
        num_pauses=tuple(count for _, _, count in samples),
        circle=tuple(run.deadlock()),
    )


def _run_fluids(traffic: FluidTraffic, graph: NetworkGraph, drawn: Sequence[DrawnFlow], paths: Paths) -> TrafficFacts:
    """All of a link to whom the scheduler serves, or circuits to whom they join."""
    sources: Ints = np.array([flow.source for flow in drawn])
    destinations: Ints = np.array([flow.destination for flow in drawn])
    sizes: Floats = np.array([flow.num_bytes for flow in drawn])
    choices, circuit_bytes = chosen_paths(graph, paths, sources, destinations), None
    if traffic.circuits is not None:
        pairs = list(zip(sources.tolist(), destinations.tolist(), strict=True))
        result = run_hybrid(graph, traffic.circuits, pairs, sizes)
        ends, circuit_bytes = result.end_s, result.circuit_bytes
    else:
        # flows of a mixed load have nothing to do with each other
        flows = [
            ScheduledFlow(
                flow.source, flow.destination, flow.num_bytes, flow.start_s,
                coflow=place if traffic.mixed else flow.group, priority=flow.group,
            )
            for place, flow in enumerate(drawn)
        ]  # fmt: skip
        ends = schedule_flows(graph, flows, parse_scheduler(traffic.scheduler), choices=choices)
    routes = route(graph, sources, destinations, choices)
    alone_s = sizes * BITS / np.minimum.reduceat(graph.link_rate_bps[routes.links], routes.offsets[:-1])
    unknown = np.full(len(drawn), np.nan)  # a fluid has no round trip
    draws = traffic.mixed is not None or any(group.jitter_s for group in traffic.groups)
    return TrafficFacts(
        groups=tuple(_groups(traffic, drawn, ends, alone_s, np.zeros(len(drawn)), sizes, unknown)),
        from_s=0.0,
        now_s=round(float(ends.max()), DIGITS),
        is_drawn=draws,
        circuit_bytes=circuit_bytes,
    )


def _sampled(run: PacketRun, traffic: PacketTraffic, link: int) -> Iterator[tuple[float, int, int]]:
    """Time, queue and pauses so far."""
    for time_s in np.linspace(traffic.from_s, traffic.until_s, traffic.num_samples + 1)[1:].tolist():
        run.advance(time_s)
        yield round(time_s, DIGITS), run.queue_bytes(link), int(run.result().num_pauses.sum())


def _groups(
    traffic: Traffic,
    drawn: Sequence[DrawnFlow],
    end_s: Floats,
    alone_s: Floats,
    before: Floats,
    delivered: Floats,
    round_trip_s: Floats,
) -> Iterator[GroupFacts]:
    """What flows did, group by group; flows are in order of their groups."""
    for place, name in enumerate(group_names(traffic)):
        own = [number for number, flow in enumerate(drawn) if flow.group == place]
        yield GroupFacts(
            name=name,
            num_bytes=tuple(drawn[number].num_bytes for number in own),
            start_s=tuple(round(drawn[number].start_s, DIGITS) for number in own),
            end_s=tuple(_known(end_s[own])),
            alone_s=tuple(round(float(each), DIGITS) for each in alone_s[own]),
            before_bytes=tuple(float(each) for each in before[own]),
            delivered_bytes=tuple(delivered[own].tolist()),
            round_trip_s=tuple(_known(round_trip_s[own])),
            use_s=traffic.groups[place].use_s if traffic.groups else 0.0,
        )


def _known(values: Floats) -> Iterator[float | None]:
    """Rounded, None for what is not known."""
    return (round(float(each), DIGITS) if np.isfinite(each) else None for each in values)


def _asked(trial: Trial) -> tuple[Traffic, NetworkSpec]:
    assert trial.traffic is not None, "a trial of jobs has no flows of its own"
    assert trial.fabric.network is not None, "a simulated fabric without a network is refused before"
    return trial.traffic, trial.fabric.network
