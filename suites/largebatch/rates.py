"""The rates that the search has chosen, in rates.json: written by `suites.largebatch_search.choose`, never by hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from results.codec import from_jsonable
from results.files import read_json
from suites.catalogue import SuiteError
from suites.largebatch.cells import BASE_BATCH, BatchRule, LargeBatchTask

FILE = Path(__file__).with_name("rates.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRate:
    """The best of a search: its held-out end, and every rate that was tried with its own (None: it diverged)."""

    workload: str
    batch: int
    rule: str
    rate: float
    accuracy: float
    loss: float
    tried: dict[str, float | None]
    commits: tuple[str, ...]


@cache
def chosen_rates() -> tuple[ChosenRate, ...]:
    """Every choice on file."""
    return tuple(from_jsonable(ChosenRate, entry) for entry in read_json(FILE))


def rate_of(task: LargeBatchTask, rule: BatchRule, batch: int = BASE_BATCH) -> float:
    """Raises: SuiteError where none was chosen."""
    asked = (task.workload.label, batch, rule.name)
    for own in chosen_rates():
        if (own.workload, own.batch, own.rule) == asked:
            return own.rate
    raise SuiteError(
        f"no rate of {rule.name} on {task.workload.label} at batch {batch}; run the suite largebatch-search, then "
        "python -m suites.largebatch_search.choose FOLDER"
    )
