"""Whether a trial counts: limits that are set before anything runs, and what a record holds against them.

A trial beyond a limit is not a slow trial but one of another machine. It is kept as `invalid` with its reason, and run
again (`suites.runner`). What is exact, in lockstep and on the virtual clock, has no limits: nothing disturbs it.

Differs by evidence, since what can disturb a trial differs (decision 40): real computation needs its core; replayed
computation on real sockets needs idle processors to wake up on; on the paced fabric waits are slept and the link keeps
its own time, so only long work on the same core can delay it. Several real ranks there wait for each other's processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from fabric.api import FabricKind
from models.workload import Device
from results.charges import codec_overrun
from results.facts import CheckFacts, MachineFacts
from results.record import Record, Status

SLOWER = "slower processor"
STOLEN = "time stolen by the machine's host"
OTHERS = "processor time of other processes"
BUSY = "processors in use"
CODEC = "codec's real work beyond its charge"


class EvidenceKind(StrEnum):
    """What a timed trial computes and sends over, as far as it decides what can disturb it."""

    REAL = "real computation"
    REPLAYED = "replayed computation on sockets"
    PACED = "replayed computation on the paced fabric"
    PACED_RANKS = "replayed computation of several ranks on the paced fabric"


@dataclass(frozen=True, slots=True)
class Limits:
    """The most of each: how much slower than the run's fastest the probe before or after may be; shares of all
    processor time; and what codecs may compute beyond their charge, as a share of a step. ∞: no limit."""

    stolen: float
    others: float
    slower: float = math.inf
    busy: float = math.inf
    codec: float = math.inf


# Decided beforehand, with the reasons in docs/decisions/0040-validity.md.
LIMITS: Mapping[EvidenceKind, Limits] = MappingProxyType(
    {
        EvidenceKind.REAL: Limits(slower=0.15, stolen=0.02, others=0.05),
        EvidenceKind.REPLAYED: Limits(slower=0.15, stolen=0.02, others=0.10, busy=0.5, codec=0.03),
        EvidenceKind.PACED: Limits(stolen=0.10, others=0.6, codec=0.01),
        EvidenceKind.PACED_RANKS: Limits(stolen=0.05, others=0.10, busy=0.5, codec=0.01),
    }
)


def judged(record: Record, limits: Mapping[EvidenceKind, Limits] = LIMITS) -> Record:
    """The record with its checks; one that ended well, and fails one of them, is invalid with the reason."""
    checks = tuple(checks_of(record, limits))
    # A trial that failed stays a failure: a busy machine is no excuse that could be checked.
    failed = [check for check in checks if not check.passes]
    if record.status is not Status.OK or not failed:
        return replace(record, checks=checks)
    reason = "; ".join(f"{one.quantity}: {one.found:.1%}, at most {one.most:.0%} allowed" for one in failed)
    return replace(record, checks=checks, status=Status.INVALID, reason=reason)


def is_worth_again(record: Record) -> bool:
    """Whether an invalid trial may be valid the next time: its codec's own work would be too long again."""
    return all(check.passes for check in record.checks if check.quantity == CODEC)


def checks_of(record: Record, limits: Mapping[EvidenceKind, Limits] = LIMITS) -> Iterator[CheckFacts]:
    """What was found against each limit of this record's kind of evidence; nothing where time is exact."""
    evidence = evidence_of(record)
    # Records of older versions do not say what the machine did, and are not judged by what they lack.
    if evidence is None or record.machine is None:
        return
    yield from _checks({**_disturbances(record.machine), CODEC: codec_overrun(record)}, limits[evidence])


def disturbances_beyond(machine: MachineFacts, most: Limits) -> Iterator[CheckFacts]:
    """What disturbed something that is timed without a record, beyond its limits."""
    return (check for check in _checks(_disturbances(machine), most) if not check.passes)


def _checks(found: Mapping[str, float], most: Limits) -> Iterator[CheckFacts]:
    allowed = {SLOWER: most.slower, STOLEN: most.stolen, OTHERS: most.others, BUSY: most.busy, CODEC: most.codec}
    for quantity, limit in allowed.items():
        if math.isfinite(limit) and quantity in found:
            yield CheckFacts(quantity=quantity, found=found[quantity], most=limit)


def evidence_of(record: Record) -> EvidenceKind | None:
    """What can disturb this trial; None where its time is exact, or not asked for."""
    if not FabricKind(record.fabric.kind).has_processes or any(job.clock != "measured" for job in record.jobs):
        return None
    if record.problem is not None:
        return None  # nobody asks for its seconds
    # A library's ranks wait in a loop, and need their cores as real computation does.
    if record.collective is not None:
        return EvidenceKind.REAL
    # One job that computes is enough: its ranks need their cores, whatever the others wait for.
    if any(job.device != Device.REPLAY.value for job in record.jobs):
        return EvidenceKind.REAL
    if record.fabric.kind != FabricKind.PACED.value:
        return EvidenceKind.REPLAYED
    return EvidenceKind.PACED if record.fabric.num_hosts == 1 else EvidenceKind.PACED_RANKS


def _disturbances(machine: MachineFacts) -> dict[str, float]:
    # The load average stays out: it is a mean over a minute, and counts the run itself.
    found = {STOLEN: machine.stolen_share, BUSY: machine.busy_share}
    if machine.other_share is not None:
        found[OTHERS] = machine.other_share
    if machine.fastest_s:
        found[SLOWER] = max(machine.before.speed_s, machine.after.speed_s) / machine.fastest_s - 1.0
    return found
