"""Runs trials side by side where that changes nothing: in lockstep no time is measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import psutil

from harness.memory import HEADROOM, trial_bytes
from harness.trial import Trial
from models.workload import Device
from results.record import Record

Run = Callable[[Trial], Record]


def num_at_once(trials: Sequence[Trial]) -> int:
    """How many of `trials` may run at the same time: one where any measures time, shares or is on a GPU, else as many
    as there are cores, and as fit into memory."""
    # Jobs that share take their costs from the exclusive trial before them, so that one must have ended.
    if any(trial.fabric.kind.has_processes or trial.sharing is not None or _on_gpu(trial) for trial in trials):
        return 1
    largest = max(map(trial_bytes, trials), default=1)
    fitting = int(HEADROOM * psutil.virtual_memory().available // largest)
    return max(1, min(os.cpu_count() or 1, fitting, len(trials)))


def _on_gpu(trial: Trial) -> bool:
    return any(job.workload.device is Device.CUDA for job in trial.jobs)


def run_each(
    trials: Sequence[Trial], run: Run, stop: Callable[[], None]
) -> Generator[tuple[Trial, Record], None, None]:
    """Every trial with its record, as they end; `stop` ends what is under way if there is no waiting for it any more.

    Raises: KeyboardInterrupt, after what was complete by then; whatever `run` raises.
    """
    num_threads = num_at_once(trials)
    if num_threads == 1:  # in this thread: labs end with the thread that started them
        yield from ((trial, run(trial)) for trial in trials)
        return
    executor = ThreadPoolExecutor(num_threads, thread_name_prefix="trial")
    running = {executor.submit(run, trial): trial for trial in trials}
    try:
        while running:
            try:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
            except KeyboardInterrupt:
                yield from _complete(running)
                raise
            yield from ((running.pop(future), future.result()) for future in done)
        stop()  # labs first: they live in the executor's threads
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        if running:
            stop()
        executor.shutdown(wait=True)


def _complete(running: dict[Future[Record], Trial]) -> Iterator[tuple[Trial, Record]]:
    done = [future for future in running if future.done() and not future.cancelled() and future.exception() is None]
    return ((running.pop(future), future.result()) for future in done)
