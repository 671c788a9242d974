"""A trial that times a collective: a record of it like of any other trial, without jobs."""

from __future__ import annotations

from dataclasses import replace

from fabric.api import FabricError
from harness.collectives.launch import run_collective, why_not_here
from harness.lab.messages import Answer, Ending
from harness.outcome import Background, record_of, skipped
from harness.trial import Trial
from results.record import Record


def time_collective(trial: Trial, background: Background) -> Record:
    """Run the library's ranks and record their times; whatever happens is in the record."""
    asked = trial.collective
    assert asked is not None
    if reason := why_not_here(asked.library, trial.fabric.num_hosts):
        return skipped(trial, reason, background)
    try:
        facts = run_collective(asked, trial.fabric, trial.timeout_s)
    except FabricError as error:
        return record_of(trial, Answer(ending=Ending.FAILED, reason=str(error)), background)
    return replace(record_of(trial, Answer(ending=Ending.DONE), background), collective=facts)
