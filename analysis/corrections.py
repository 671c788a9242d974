"""What records cannot be taken at their word for, with the reason. Files are never edited: corrections live here.

A trial whose gain lies above the hard limit is invalid. So are the times of replayed jobs that ran by themselves, one
of whose codecs took longer than it is charged: its steps hold this machine's processor and not the device's. What they
sent is exact all the same.
Where an executor of pipelines does not say what it computes and sends, older records hold zeros for it: unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from analysis.cells import OURS, is_measured
from analysis.sharing.limits import without_impossible
from analysis.wording import percent
from results.charges import codec_overrun
from results.record import JobResult, Record, Status

OVERRUN = 0.03  # of a step, by which the engine's thread may exceed a codec's charge


def corrected(records: Iterable[Record]) -> list[Record]:
    """The records, those invalid that cannot be right or whose times are of something else."""
    return without_impossible(_without_overrun(_without_untold(record)) for record in records)


def overrun(record: Record) -> str:
    """Why the times of a replayed record are not those of its charged codec; empty where they are."""
    if not is_measured(record) or codec_overrun(record) <= OVERRUN:
        return ""
    return f"its codec took longer than it is charged, by more than {percent(OVERRUN)} of a step"


def _without_overrun(record: Record) -> Record:
    reason = overrun(record)
    return replace(record, status=Status.INVALID, reason=reason) if reason else record


def _without_untold(record: Record) -> Record:
    if not any(map(_is_untold, record.jobs)):
        return record
    return replace(record, jobs=tuple(_as_unknown(job) if _is_untold(job) else job for job in record.jobs))


def _is_untold(job: JobResult) -> bool:
    return job.system != OURS and job.pipeline is not None and not job.pipeline.busy_s


def _as_unknown(job: JobResult) -> JobResult:
    phases = replace(job.phases, compute_s=None, exposed_s=None)
    return replace(job, phases=phases, num_messages=None, wire_bytes={})
