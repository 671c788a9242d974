"""What a sharing must know of its jobs before they start (turns a cycle, groups, beats, delays), from their costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from crossover import JobCost, Sharing
from harness.trial import Trial, TrialError
from results.record import JobCosts

Rule = Callable[[Trial, Sequence[JobCost]], Mapping[str, Any]]


def with_rules(trial: Trial, costs: Sequence[JobCosts]) -> Trial:
    """The trial with the settings that its sharing takes from the jobs' own costs.

    Raises: TrialError where they are needed and were not measured.
    """
    phased = trial.finds_phases or any(job.start_phase for job in trial.jobs)
    rule = None if trial.sharing is None else RULES.get(trial.sharing)
    if (rule is None and not phased) or trial.shares or trial.groups or trial.beats:
        return trial
    if len(costs) != len(trial.jobs):
        raise TrialError(
            f"{trial.cell}: {trial.sharing} needs each job's costs; run the exclusive trial of the same jobs before it"
        )
    if trial.finds_phases:
        trial = _with_found_phases(trial)
    plain = [JobCost(own.compute_s, own.communication_s, own.solo_s) for own in costs]
    jobs = tuple(
        replace(job, start_delay_s=job.start_phase * own.solo_s) for job, own in zip(trial.jobs, plain, strict=True)
    )
    return replace(trial, jobs=jobs, **(rule(trial, plain) if rule else {}))


def _with_found_phases(trial: Trial) -> Trial:
    # As the planners below, the clock of pipelines is needed by few trials.
    from harness.parallel.phases import found_phases
    from harness.parallel.trial_clock import clocked_job

    jobs = [clocked_job(trial, number) for number in range(len(trial.jobs))]
    phases = found_phases(jobs, trial.machine_of(trial.jobs[0]))
    found = tuple(replace(job, start_phase=phase) for job, phase in zip(trial.jobs, phases, strict=True))
    return replace(trial, jobs=found, finds_phases=False)


def _weighted(trial: Trial, costs: Sequence[JobCost]) -> Mapping[str, Any]:
    # Imported where they are used: planners bring a simulator along, which no other sharing needs.
    from crossover.planning.rates import shares_for

    return {"shares": shares_for(costs)}


def _muri(trial: Trial, costs: Sequence[JobCost]) -> Mapping[str, Any]:
    from crossover.planning.muri import groups_of

    names = [job.name for job in trial.jobs]
    return {"groups": tuple(tuple(names[index] for index in group) for group in groups_of(costs))}


def _cassini(trial: Trial, costs: Sequence[JobCost]) -> Mapping[str, Any]:
    from crossover.planning.cassini import beats_for

    return {"beats": beats_for(costs)}


RULES: Mapping[Sharing, Rule] = {Sharing.WEIGHTED: _weighted, Sharing.MURI: _muri, Sharing.CASSINI: _cassini}
