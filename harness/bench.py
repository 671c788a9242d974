"""Runs trials one after the other: labs, calibration, records. What the suites call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from crossover import JobCost
from fabric.api import FabricError, FabricKind, FabricSpec
from harness.calibrate import CALIBRATION_BYTES, LinkModel, fit_link, slowest_median_s
from harness.environment import describe_environment
from harness.launch import LabHandle, LabLost
from harness.memory import check_memory
from harness.messages import Answer, Ending, Event, LinkQuestion, LinkTimes, Task
from harness.outcome import Background, costs_of, record_of, skipped
from harness.systems import system_of
from harness.trial import Trial
from results.record import Record

OnEvent = Callable[[Event], None]


class Bench:
    """A context manager that owns the labs (one a kind of fabric) and ends them.

    Costs of jobs measured in an exclusive trial serve as the prediction beside the trials of
    other sharings with the same jobs and repeat.
    """

    def __init__(self) -> None:
        self._labs: dict[FabricKind, LabHandle] = {}
        self._links: dict[FabricSpec, LinkModel | None] = {}
        self._costs: dict[tuple[str, int], tuple[JobCost, ...]] = {}
        self._environment = describe_environment()

    def run(self, trial: Trial, on_event: OnEvent = lambda event: None) -> Record:
        """Run one trial; whatever happens to it is in the record. Raises: TrialError for memory."""
        background = Background(self._environment)
        reasons = [system_of(job.system).why_unavailable() for job in trial.jobs]
        if reason := next(filter(None, reasons), None):
            return skipped(trial, reason, background)
        check_memory(trial)
        try:
            background = Background(self._environment, self.link(trial.fabric), self._costs.get(_pair(trial), ()))
            answer = self._ask(Task(trial=trial), on_event)
        except (LabLost, FabricError) as error:
            return record_of(trial, Answer(ending=Ending.FAILED, reason=str(error)), background)
        if costs := costs_of(answer.ranks):
            self._costs[_pair(trial)] = costs
        return record_of(trial, answer, background)

    def link(self, fabric: FabricSpec) -> LinkModel | None:
        """α and β of this fabric, measured once."""
        if fabric not in self._links:
            answer = self._ask(Task(links=LinkQuestion(fabric=fabric, num_bytes=CALIBRATION_BYTES)), lambda event: None)
            if answer.ending is not Ending.DONE:
                raise LabLost(f"calibration of the {fabric.kind} fabric failed: {answer.reason}")
            self._links[fabric] = fit_link(all_reduce_times_s(answer.links)) if fabric.num_hosts > 1 else None
        return self._links[fabric]

    def time_links(self, question: LinkQuestion) -> Mapping[int, float]:
        """Median all-reduce time of the slowest rank, in seconds by bytes. Raises: LabLost."""
        answer = self._ask(Task(links=question), lambda event: None)
        if answer.ending is not Ending.DONE:
            raise LabLost(answer.reason)
        return all_reduce_times_s(answer.links)

    def _ask(self, task: Task, on_event: OnEvent) -> Answer:
        kind = task.fabric.kind
        if kind not in self._labs or not self._labs[kind].is_running:
            self._labs[kind] = LabHandle(task.fabric)
        return self._labs[kind].ask(task, on_event)

    def close(self) -> None:
        """End every lab."""
        with ExitStack() as stack:
            for lab in self._labs.values():
                stack.callback(lab.close)
        self._labs = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _pair(trial: Trial) -> tuple[str, int]:
    return repr(trial.jobs), trial.repeat


def all_reduce_times_s(links: tuple[LinkTimes, ...]) -> dict[int, float]:
    """Median time of the slowest rank by bytes."""
    sizes = links[0].num_bytes
    return {size: slowest_median_s([link.times_s[i] for link in links]) for i, size in enumerate(sizes)}
