"""What an earlier run left of a trial, for a run that goes on with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from harness.trial import Trial
from results.codec import from_jsonable, to_jsonable
from results.record import Record, RecordError, Status, read_record
from suites.folders import FolderError

MOST_TOLD = 3  # differences; another fabric alone differs in as many


def invalid_id(trial: Trial, attempt: int) -> str:
    """What the record of an invalid attempt is called: the trial's own name is for the one that counts."""
    return f"{trial.id}.invalid{attempt}"


def earlier(trial: Trial, attempt: int, folder: Path) -> Record | None:
    """What an earlier run left of this attempt at exactly this trial: a record that counts, or an invalid one.

    Raises: FolderError as `finished_before`.
    """
    invalid = _record_of(folder, invalid_id(trial, attempt), Status.INVALID)
    return invalid if invalid is not None and _was_asked(invalid) == trial else finished_before(trial, folder)


def finished_before(trial: Trial, folder: Path) -> Record | None:
    """The record of exactly this trial, if an earlier run left a good one.

    Raises: FolderError if the good one is of another trial, which reports would pool with those of this one.
    """
    record = _record_of(folder, trial.id, Status.OK)
    if record is None or (was := _was_asked(record)) == trial:
        return record
    told = ["what was asked then cannot be read by this checkout"] if was is None else _differences(was, trial)
    raise FolderError(
        f"{folder / trial.id}.json is the record of another trial ({'; '.join(islice(told, MOST_TOLD))}); go on with "
        "the options of the run that made it, or name another folder with --out"
    )


def check_finished(trials: Sequence[Trial], folder: Path) -> None:
    """Whether a run of `trials` can go on in `folder`. Raises: FolderError as `finished_before`."""
    for trial in trials:
        finished_before(trial, folder)


def _record_of(folder: Path, name: str, status: Status) -> Record | None:
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    try:
        record = read_record(path)
    except RecordError:
        return None
    return record if record.status is status else None


def _was_asked(record: Record) -> Trial | None:
    """The trial of a record; fields that came later are what they are by default. None where it cannot be read."""
    try:
        return from_jsonable(Trial, record.trial)
    except ValueError:  # a strategy, fabric or field that this checkout does not have
        return None


def _differences(was: Trial, trial: Trial) -> Iterator[str]:
    return _differing("", to_jsonable(was), to_jsonable(trial))


def _differing(name: str, there: Any, here: Any) -> Iterator[str]:
    """`jobs.optimizer is sgd there and adam here`, for every plain value."""
    if isinstance(there, dict) and isinstance(here, dict) and there.keys() == here.keys():
        for key in here:
            yield from _differing(f"{name}.{key}" if name else key, there[key], here[key])
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for one, other in zip(there, here, strict=True):
            yield from _differing(name, one, other)
    elif there != here:
        yield f"{name} is {there!r} there and {here!r} here"
