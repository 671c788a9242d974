"""When pipelined jobs on the same devices should begin their steps, found on the virtual clock.

Two pipelines that begin together have their bubbles together. CASSINI (Rajasekaran et al., NSDI 2024) turns jobs'
traffic against each other; here the steps themselves are shifted, so that one job's passes meet another one's bubbles.
Jobs are placed one after the other, each at the phase at which all placed so far take least per step.
Differs from the paper: the judge is a run of the pipelines' programs and not a score of demands on a circle, and the
shift is given once, at the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from baselines.parallelism.plans import Machine
from harness.parallel.clock import run_on_clock
from harness.parallel.shared_clock import ClockedJob, DeviceOrder, run_jobs_on_clock

NUM_PHASES = 16  # that are tried, of a job's own step
_NUM_STEPS, _NUM_SETTLING = 10, 3
# Phases whose periods differ by less are alike, and the earlier one is kept.
_ALIKE = 1e-6


def found_phases(jobs: Sequence[ClockedJob], machine: Machine) -> tuple[float, ...]:
    """Of each job, the part of its step alone by which it begins later; the first one's is 0.

    Raises: ParallelismError if jobs differ in ranks, or wait for ever.
    """
    placed: list[ClockedJob] = []
    phases: list[float] = []
    for job in jobs:
        solo_s = run_on_clock(job.program, job.stages, machine).step_s
        options = [place / NUM_PHASES for place in range(NUM_PHASES)] if placed else [0.0]
        best_s, best = period_s([*placed, replace(job, start_s=0.0)], machine), 0.0
        for phase in options[1:]:
            found_s = period_s([*placed, replace(job, start_s=phase * solo_s)], machine)
            if found_s < best_s * (1 - _ALIKE):
                best_s, best = found_s, phase
        placed.append(replace(job, start_s=best * solo_s))
        phases.append(best)
    return tuple(phases)


def period_s(jobs: Sequence[ClockedJob], machine: Machine) -> float:
    """The slowest job's seconds per step once all run."""
    short = [replace(job, num_steps=_NUM_STEPS) for job in jobs]
    timeline = run_jobs_on_clock(short, machine, DeviceOrder.FIRST_COME)
    return max((ends[-1] - ends[_NUM_SETTLING - 1]) / (_NUM_STEPS - _NUM_SETTLING) for ends in timeline.step_ends_s)
