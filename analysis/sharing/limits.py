"""What sharing cannot pass, from the costs of the same repeat: how busy the tightest resource is.

While job i makes a step in Tᵢ seconds, the device works Σ cᵢ/Tᵢ of the time and the link needs at least Σ wᵢ/Tᵢ of it,
where wᵢ is what its bytes take at the rate of the line. The model of a paced link carries payload alone and is held for
a start-up time in every round, whoever else has bytes to send, so that there wᵢ holds these starts and no framing. No
step ends before its longest chain does: the computation and then, where one message holds everything, that message.
None of these can pass 1 where jobs compute in turns. With equal steps T the largest of them is max(Σc, Σw, longest
chain)/T, the hard limit over the period.

c is all that a turn takes, and part of that is the host's: hooks, the update's Python, the start of messages. Jobs
that compute at once (`AT_ONCE`) overlap one's host with the other's device: link and chains bind them, Σc does not.

T* = max(Σc, Σm, max t) differs: m, one job's messages measured alone, holds start-up waits that two jobs overlap. It is
a prediction for a link that serves messages in order, and a link in other hands has passed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from analysis.cells import FabricKey, Work, fabric_key, is_measured, is_shared, work_of
from analysis.sharing.rows import AT_ONCE, EXCLUSIVE, PHASE
from analysis.sharing.steady import time_here_s
from analysis.stats import NOISE
from analysis.steps.wire_bytes import CONTROL, FRAMING, counted_a_step
from analysis.wording import percent
from results.record import FabricFacts, JobCosts, JobResult, Record, Status

PACED = "paced"
OWN_HOSTS = "own hosts"  # how a record's placement ends where jobs share links alone
Pair = tuple[FabricKey, str, Work, str, float | None]


class FifoBound(NamedTuple):
    """T*, and the gain Σt/T* that it allows."""

    period_s: float
    gain: float


def pair_key(record: Record) -> Pair:
    """What must be equal for policies to stand beside each other; start offsets are a way to run naively."""
    axis, at = ("", None) if record.axis == PHASE else (record.axis, record.at)
    return fabric_key(record.fabric), record.group, work_of(record), axis, at


def limit_share(solo: Record, here: Record) -> float | None:
    """How busy the tightest resource is in `here`, from the costs measured in `solo`: above 1 is impossible."""
    costs = _costs(solo)
    # jobs on hosts of their own have a device each, and there is no one line
    if here.fabric.placement.endswith(OWN_HOSTS):
        return None
    if costs is None or len(costs) != len(here.jobs):
        return None
    times_s = [time_here_s(here, job) for job in here.jobs]
    wire_s = [link_s(here, job) for job in here.jobs]
    chains = [c.compute_s + w * (job.num_messages == 1) for c, w, job in zip(costs, wire_s, here.jobs, strict=True)]
    in_turns = here.sharing not in AT_ONCE
    device = sum(own.compute_s / time_s for own, time_s in zip(costs, times_s, strict=True)) if in_turns else 0.0
    link = sum(own_s / time_s for own_s, time_s in zip(wire_s, times_s, strict=True))
    return max(device, link, *(chain_s / time_s for chain_s, time_s in zip(chains, times_s, strict=True)))


def fifo_share(solo: Record, here: Record) -> float | None:
    """T* over the period, likewise."""
    costs = _costs(solo)
    # jobs on hosts of their own have a device each, and there is no one line
    if here.fabric.placement.endswith(OWN_HOSTS):
        return None
    if costs is None or len(costs) != len(here.jobs):
        return None
    pairs = [(own, time_here_s(here, job)) for own, job in zip(costs, here.jobs, strict=True)]
    device = sum(own.compute_s / time_s for own, time_s in pairs)
    link = sum(own.communication_s / time_s for own, time_s in pairs)
    return max(device, link, *(own.solo_s / time_s for own, time_s in pairs))


def fifo_bound(solo: Record, here: Record) -> FifoBound | None:
    """T* and its gain from the costs measured in `solo`, which counts: what stands in the record of a sharing may be
    from an attempt at the exclusive trial that was invalid."""
    costs = _costs(solo)
    if costs is None or here.fabric.placement.endswith(OWN_HOSTS):
        return None
    alone_s = [own.solo_s for own in costs]
    device_s, link_s = sum(own.compute_s for own in costs), sum(own.communication_s for own in costs)
    period_s = max(device_s, link_s, *alone_s)
    return FifoBound(period_s, sum(alone_s) / period_s)


def _costs(solo: Record) -> Sequence[JobCosts] | None:
    known = [job.costs for job in solo.jobs if job.costs is not None]
    return known if len(known) == len(solo.jobs) else None


def link_s(record: Record, job: JobResult) -> float:
    """Seconds for which a step of `job` has its host's link, at the least."""
    fabric, num_bytes = record.fabric, counted_a_step(job) or 0.0
    starts_s = 0.0
    if fabric.kind == PACED:
        num_bytes -= job.wire_bytes.get(FRAMING, 0.0)
        # not scaled as tensors are; older records had the link for all of it
        num_bytes -= job.wire_bytes.get(CONTROL, 0.0) * (1 - 1 / fabric.size_scale)
        starts_s = start_s(fabric) * (job.num_rounds or 0.0)
    return starts_s + (8 * num_bytes / fabric.rate_bps if fabric.rate_bps else 0.0)


def start_s(fabric: FabricFacts) -> float:
    """Of one round on a paced link, whose record tells that of an all-reduce, 2(P − 1) rounds among P ranks."""
    num_ranks = fabric.num_hosts * fabric.ranks_per_host + fabric.num_virtual
    return (fabric.alpha_s or 0.0) / (2 * (num_ranks - 1)) if num_ranks > 1 else 0.0


def without_impossible(records: Iterable[Record]) -> list[Record]:
    """The records, those invalid whose gain lies above the hard limit by more than the noise of its costs."""
    known = list(records)
    alone: Mapping[tuple[str, Pair, int], Record] = {
        (record.suite, pair_key(record), record.repeat): record
        for record in known
        if is_measured(record) and record.sharing == EXCLUSIVE
    }
    return [_checked(record, alone.get((record.suite, pair_key(record), record.repeat))) for record in known]


def _checked(record: Record, solo: Record | None) -> Record:
    if solo is None or record.sharing == EXCLUSIVE or not is_shared(record) or not is_measured(record):
        return record
    share = limit_share(solo, record)
    if share is None or share <= 1 + NOISE:
        return record
    reason = f"its gain lies above the hard limit, by more than {percent(NOISE)}"
    return replace(record, status=Status.INVALID, reason=reason)
