"""Made-up records say what they ran as texts; here the plug-ins, roles and codes are filled in as for old records."""

from __future__ import annotations

from results.codec import from_jsonable, to_jsonable
from results.record import Record
from results.schema1 import upgraded


def described(record: Record) -> Record:
    return from_jsonable(Record, upgraded(to_jsonable(record)))
