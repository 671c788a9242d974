"""A trial without jobs: flows of one transport through the packet engine, and the record of what they did.

facts = run_traffic(trial)  # the same for the same trial, to the last digit
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fabric.network import NetworkSpec
from fabric.simulated.graph import Floats
from fabric.simulated.packet import PacketRun
from fabric.simulated.packet_flows import flows_of, host_bps, last_link, network_of
from fabric.simulated.packet_traffic import PacketTraffic
from harness.outcome import bare_record
from harness.trial import Trial
from results.record import Environment, FabricFacts, Record, Status
from results.traffic import GroupFacts, TrafficFacts

MIXED = "mixed"
DIGITS = 10  # of times: picoseconds in a tenth of a second


def run_traffic(trial: Trial) -> TrafficFacts:
    """Run the flows, and look at the watched queue meanwhile. Raises: NetworkError."""
    traffic, network = _asked(trial)
    graph = network_of(network)
    flows = flows_of(traffic, network.transport, graph, trial.seed)
    run = PacketRun(graph, flows, replace(traffic.switches, seed=trial.seed))
    link = last_link(graph, traffic.watched)
    if traffic.from_s:
        run.advance(traffic.from_s)
    before, queued = run.delivered_bytes(), run.byte_seconds(link)
    samples = list(_sampled(run, traffic, link))
    run.advance(traffic.until_s)
    # a run ends with its last flow, and then nothing has happened since
    spent_s = max(run.now_s - traffic.from_s, 1e-12)
    result, marking = run.result(), run.settings.marking
    return TrafficFacts(
        groups=tuple(_groups(traffic, run, before)),
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


def traffic_record(trial: Trial, environment: Environment) -> Record:
    """The record of a trial of flows; nothing about it depends on this machine."""
    traffic, network = _asked(trial)
    graph = network_of(network)
    fabric = FabricFacts(
        kind=trial.fabric.kind.value,
        label=trial.fabric.kind.value,
        num_hosts=graph.num_hosts,
        rate_bps=host_bps(graph, traffic.watched),
        network=network.network_text,
        transport=network.transport,
    )
    return replace(bare_record(trial, Status.OK, fabric, environment), traffic=run_traffic(trial))


def _sampled(run: PacketRun, traffic: PacketTraffic, link: int) -> Iterator[tuple[float, int, int]]:
    """Time, queue and pauses so far."""
    for time_s in np.linspace(traffic.from_s, traffic.until_s, traffic.num_samples + 1)[1:].tolist():
        run.advance(time_s)
        yield round(time_s, DIGITS), run.queue_bytes(link), int(run.result().num_pauses.sum())


def _groups(traffic: PacketTraffic, run: PacketRun, before: Floats) -> Iterator[GroupFacts]:
    result, first = run.result(), 0
    alone_s = run.alone_s()
    counts = [(group.name, len(group.sources) * group.num_times) for group in traffic.groups]
    for name, count in counts or [(MIXED, len(run.flows))]:
        own = slice(first, first + count)
        flows = run.flows[own]
        yield GroupFacts(
            name=name,
            num_bytes=tuple(flow.num_bytes for flow in flows),
            start_s=tuple(round(flow.start_s, DIGITS) for flow in flows),
            end_s=tuple(_known(result.end_s[own])),
            alone_s=tuple(round(float(each), DIGITS) for each in alone_s[own]),
            before_bytes=tuple(float(each) for each in before[own]),
            delivered_bytes=tuple(result.delivered_bytes[own].tolist()),
            round_trip_s=tuple(_known(result.mean_rtt_s[own])),
        )
        first += count


def _known(values: Floats) -> Iterator[float | None]:
    """Rounded, None for what is not known."""
    return (round(float(each), DIGITS) if np.isfinite(each) else None for each in values)


def _asked(trial: Trial) -> tuple[PacketTraffic, NetworkSpec]:
    assert trial.traffic is not None, "a trial of jobs has no flows of its own"
    assert trial.fabric.network is not None, "a simulated fabric without a network is refused before"
    return trial.traffic, trial.fabric.network
