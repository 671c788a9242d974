"""Made-up records say what they ran as texts; here the plug-ins, roles and codes are filled in as for old records."""

from __future__ import annotations

from dataclasses import replace

from results.codec import from_jsonable, to_jsonable
from results.record import Record
from results.schema1 import upgraded


def described(record: Record) -> Record:
    # Without what is long and says nothing of that: there are thousands of records.
    bare = replace(record, jobs=tuple(replace(job, ranks=(), curve=()) for job in record.jobs))
    made = from_jsonable(Record, upgraded(to_jsonable(bare)))
    both = zip(made.jobs, record.jobs, strict=True)
    return replace(made, jobs=tuple(replace(job, ranks=was.ranks, curve=was.curve) for job, was in both))
