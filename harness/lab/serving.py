"""The life of a rank that only serves: no batches, no forward, no update of its own model.

It takes part in every step's messages with nothing of its own, all of it ready at once; the exchange decides what it
does in them. Its weights stay those of the start, and what it reports is no worker's.
"""

from __future__ import annotations

from time import perf_counter, process_time

from harness.loop import OnStep, Run, Schedule
from harness.systems.api import Session


def serve(session: Session, schedule: Schedule, *, on_step: OnStep) -> Run:
    """Serve `schedule.num_warmup + num_steps` steps; a step ends when its messages are complete."""
    run = Run(start_s=perf_counter())
    for step in range(schedule.num_warmup + schedule.num_steps):
        if step == schedule.num_warmup:
            run.measured_from_s, run.measured_from_cpu_s = perf_counter(), process_time()
        session.exchange_once()
        run.ends_s.append(perf_counter())
        on_step(step)
    run.measured_until_s, run.measured_until_cpu_s = perf_counter(), process_time()
    run.end_s = run.measured_until_s
    return run
