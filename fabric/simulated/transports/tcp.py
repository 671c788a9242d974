"""TCP Reno with NewReno's recovery: what RFC 5681, 6582 and 6298 ask of a sender.

Window in packets: +1 per acknowledged packet below the threshold, +1/W above; none while W is more than twice what is
in flight, since nothing has shown that the path carries more (RFC 7661). Three duplicates: threshold = half of what is
in flight (at most W/2), resend, W = threshold + 3, one more per duplicate; a partial acknowledgement resends the next
hole. A timeout (smoothed RTT + 4 deviations, at least `timeout_min_s` of the settings, doubled each time) starts again
from one packet. The initial window is 10 packets (RFC 6928).

Differs from the RFCs: no SACK, no delayed acknowledgements, no limited transmit. Connections are warm: the first
timeout is three round trips without queues (at least the minimum) and not a second.
"""

from __future__ import annotations

from fabric.simulated.compiled import inlined
from fabric.simulated.engine.state import ENDLESS, NOBODY, PS_PER_S, RENO, Simulated
from fabric.simulated.switches import FlowControl
from fabric.simulated.transports.spec import Reliability, TransportSpec

INITIAL_WINDOW = 10.0
DUPLICATES = 3
LONGEST_TIMEOUT_PS = 60 * PS_PER_S
WARM_RTTS = 3
FIRST_TIMEOUT_S = 1.0

SPEC = TransportSpec(
    "reno", RENO, "RFC 5681, RFC 6582, RFC 6298", Reliability.NEW_RENO, FlowControl.LOSSY, 1460, 78,
    timeout_s=FIRST_TIMEOUT_S,
)  # fmt: skip


@inlined
def on_start(sim: Simulated, number: int) -> None:
    flow = sim.flows[number]
    flow.window, flow.threshold = INITIAL_WINDOW, ENDLESS
    flow.timeout_ps = max(WARM_RTTS * flow.base_rtt_ps, sim.setting[0].timeout_min_ps)


@inlined
def recover(sim: Simulated, number: int, newly: int, now: int) -> None:
    """Duplicates, recovery and partial acknowledgements (RFC 6582); growth is the transport's `on_ack`."""
    flow = sim.flows[number]
    if newly > 0:
        flow.dupacks = 0
        if flow.recovering == 1 and flow.una > flow.recover:
            flow.recovering, flow.window = 0, flow.threshold
        elif flow.recovering == 1:
            flow.resend = flow.una
            flow.window = max(flow.window - newly + 1.0, 1.0)
        return
    if flow.next_seq == flow.una:
        return
    flow.dupacks += 1
    if flow.recovering == 1:
        flow.window += 1.0
    elif flow.dupacks == DUPLICATES and flow.una > flow.recover:
        flow.recovering, flow.recover = 1, flow.next_seq - 1
        flow.peak, flow.epoch_ps = min(flow.window, float(flow.next_seq - flow.una)), NOBODY
        flow.threshold = max(flow.peak * flow.reference, 2.0)
        flow.window = flow.threshold + DUPLICATES
        flow.resend = flow.una


@inlined
def may_grow(sim: Simulated, number: int, newly: int) -> bool:
    """Whether an acknowledgement widens the window: not in recovery, nor where something else limits the flow."""
    flow = sim.flows[number]
    in_flight = flow.next_seq - flow.una + newly  # before it came
    return bool(newly > 0 and flow.recovering == 0 and flow.window <= 2 * in_flight)


@inlined
def slow_start(sim: Simulated, number: int, newly: int) -> bool:
    """Grow by what was acknowledged below the threshold; False above it."""
    flow = sim.flows[number]
    if flow.window >= flow.threshold:
        return False
    flow.window += newly
    return True


@inlined
def on_ack(sim: Simulated, number: int, newly: int) -> None:
    flow = sim.flows[number]
    if may_grow(sim, number, newly) and not slow_start(sim, number, newly):
        flow.window += newly / flow.window


@inlined
def measure(sim: Simulated, number: int, rtt_ps: int) -> None:
    """The timeout from smoothed RTTs (RFC 6298, section 2)."""
    flow = sim.flows[number]
    if flow.srtt_ps == 0.0:
        flow.srtt_ps, flow.rttvar_ps = float(rtt_ps), rtt_ps / 2
    else:
        flow.rttvar_ps += (abs(flow.srtt_ps - rtt_ps) - flow.rttvar_ps) / 4
        flow.srtt_ps += (rtt_ps - flow.srtt_ps) / 8
    timeout = max(flow.srtt_ps + 4 * flow.rttvar_ps, float(sim.setting[0].timeout_min_ps))
    flow.timeout_ps = int(min(timeout, float(LONGEST_TIMEOUT_PS)))


@inlined
def on_timeout(sim: Simulated, number: int) -> None:
    flow = sim.flows[number]
    flow.threshold = max((flow.next_seq - flow.una) * flow.reference, 2.0)
    flow.peak, flow.epoch_ps = 0.0, NOBODY
    flow.window, flow.dupacks, flow.recovering = 1.0, 0, 0
    flow.recover = flow.next_seq - 1  # duplicates of what was sent before the timeout start no recovery
    flow.resent += flow.next_seq - flow.una
    flow.next_seq, flow.resend = flow.una, NOBODY
    flow.timeout_ps = min(2 * flow.timeout_ps, LONGEST_TIMEOUT_PS)
