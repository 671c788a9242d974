"""Runs trials one after the other: labs, calibration, records. What the suites call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import torch

from fabric.api import FabricError, FabricKind, FabricSpec
from harness.asynchrony.foretold import virtual_prediction
from harness.calibrate import CALIBRATION_BYTES, LinkModel, fit_link, paced_link_model, slowest_median_s
from harness.collectives.trial import time_collective
from harness.environment import describe_environment
from harness.lab.labs import Labs, OnEvent, TaskRunner
from harness.lab.launch import LabLost
from harness.lab.messages import Answer, Ending, LinkQuestion, LinkTimes, Task, failed
from harness.machine import MachineWatch
from harness.memory import check_memory
from harness.outcome import Background, costs_of, record_of, skipped
from harness.predict.calibration import Calibrated, Calibration, measure_one
from harness.predict.costs import PredictError
from harness.predict.layers import Layers, layers_of, layers_of_workload
from harness.predict.lockstep import predicted_step
from harness.predict.paced import CHAIN, measure_paced
from harness.predict.trial import predict_trial, why_unpredictable
from harness.problems.solving import problem_record
from harness.sharing_settings import with_rules
from harness.systems import system_of
from harness.trace import Process, write_trace
from harness.trial import Trial, TrialError
from harness.validity import EvidenceKind, Limits, judged
from models.profile import record_profile
from models.workload import Device, WorkloadSpec
from results.record import JobCosts, Prediction, Record

RECORDED_STEPS = 10  # of a workload that is trained in lockstep


class Bench:
    """A context manager; leaving it ends what its runner holds (labs on this machine, or launched ranks).

    `num_local` is how many ranks are on this machine (default: all). Traces of trials that ask for
    one go to `traces`. Costs of jobs measured in an exclusive trial, at the last attempt, valid or not, set what other
    sharings with the same jobs and repeat must know and serve as the prediction beside them; analysis takes T* from the
    attempt that counts. With `foresees`, what messages cost is measured on every fabric before its first trial, on the
    paced one anew for each repeat, and the step time of each trial of one job predicted from that. With `limits`,
    trials beyond them are invalid.
    """

    def __init__(
        self,
        runner: TaskRunner | None = None,
        *,
        num_local: int | None = None,
        traces: Path | None = None,
        foresees: bool = False,
        limits: Mapping[EvidenceKind, Limits] | None = None,
    ) -> None:
        self._runner: TaskRunner = runner or Labs()
        self._num_local, self._traces, self._foresees = num_local, traces, foresees
        self._limits = limits
        # Ranks of a launcher are its children as we are, and so the run's own.
        self._machine = MachineWatch(None if num_local is None else os.getppid())
        self._calibrated: dict[tuple[FabricSpec, int], Calibrated] = {}  # by fabric and repeat
        self._links: dict[FabricSpec, LinkModel | None] = {}
        self._costs: dict[tuple[str, FabricSpec, int], tuple[JobCosts, ...]] = {}
        self._layers: dict[WorkloadSpec, tuple[Layers, str]] = {}
        self._recording = Lock()
        self._environment = describe_environment()

    def run(self, trial: Trial, on_event: OnEvent = lambda event: None) -> Record:
        """Run one trial; whatever happens to it is in the record. Raises: TrialError for memory."""
        began = self._machine.start()
        record = self._run(trial, on_event)
        ended_at, machine = began.stop()
        record = replace(record, started_at=began.started_at, ended_at=ended_at, machine=machine)
        return record if self._limits is None else judged(record, self._limits)

    def _run(self, trial: Trial, on_event: OnEvent) -> Record:
        background = Background(self._environment)
        if trial.traffic is not None:
            from harness.simulated.flows import traffic_record  # numba comes with it

            return traffic_record(trial, self._environment)
        if trial.problem is not None:
            return problem_record(trial, self._environment)
        # A missing library skips the trial before anything is measured for it.
        reasons = [system_of(job.system).why_unavailable() for job in trial.jobs]
        if reason := next(filter(None, reasons), None):
            return skipped(trial, reason, background)
        check_memory(trial, self._num_local)
        if trial.collective is not None:
            return time_collective(trial, background)
        if trial.fabric.kind is FabricKind.SIMULATED:
            return self._simulated(trial)
        try:
            costs, prediction = self._costs.get(_pair(trial), ()), self._foretold(trial)
            background = Background(self._environment, self.link(trial.fabric), costs, prediction)
            asked = with_rules(trial, background.costs)
            answer = self._runner.ask(Task(trial=asked), on_event)
        except (LabLost, FabricError, TrialError) as error:
            return record_of(trial, failed(str(error)), background)
        if costs := costs_of(answer.ranks):
            self._costs[_pair(trial)] = costs
        if trial.trace and answer.ranks and self._traces is not None:
            write_trace(self._traces / f"{trial.id}.json", _processes(trial, answer))
        return record_of(trial, answer, background)

    def _simulated(self, trial: Trial) -> Record:
        from harness.simulated.trial import simulate  # numba comes with it

        try:
            answer, costs = simulate(trial, self._layers_of)
        except TrialError as error:
            return record_of(trial, Answer(ending=Ending.FAILED, reason=str(error)), Background(self._environment))
        return record_of(trial, answer, Background(self._environment, costs=costs))

    def _layers_of(self, workload: WorkloadSpec) -> Layers:
        """What a replayed workload's profile says, or what is recorded of a real one here and now."""
        return layers_of_workload(workload) if workload.device is Device.REPLAY else self._recorded(workload)[0]

    def remember(self, trial: Trial, record: Record) -> None:
        """Take the jobs' own costs from a record of an earlier run of this trial."""
        if costs := tuple(job.costs for job in record.jobs if job.costs is not None):
            self._costs[_pair(trial)] = costs

    @property
    def calibration(self) -> Calibration:
        """What was measured of messages so far, the last of each fabric."""
        latest = {fabric: entry for (fabric, _), entry in self._calibrated.items()}
        return Calibration(entries=tuple(latest.values()), environment=self._environment)

    def _foretold(self, trial: Trial) -> Prediction | None:
        """The step time before the trial is run, where it can be known. Raises: LabLost, FabricError."""
        if trial.is_partitioned:
            return None  # its own clock predicts it, and the prediction stands in its record
        if trial.cluster is not None:  # the virtual clock is the prediction
            return virtual_prediction(trial) if trial.fabric.kind.has_processes else None
        if not trial.fabric.kind.has_processes:
            return predicted_step(trial, *self._recorded(trial.jobs[0].workload))
        if not self._foresees or why_unpredictable(trial):
            return None
        entry = self._calibrated_for(trial)
        foretold = predict_trial(trial, Calibration(entries=(entry,), environment=self._environment))
        return None if isinstance(foretold, str) else foretold

    def _calibrated_for(self, trial: Trial) -> Calibrated:
        """What messages cost on the trial's fabric. A paced link's costs are given and this machine's measured, whose
        speed changes within minutes: beside each repeat."""
        is_paced = trial.fabric.kind is FabricKind.PACED
        key = (CHAIN.link, trial.repeat) if is_paced else (trial.fabric, 0)
        if key not in self._calibrated:
            try:
                measured = measure_paced(self._runner) if is_paced else measure_one(trial.fabric, self._runner)
            except PredictError as error:
                raise LabLost(str(error)) from error
            self._calibrated[key] = measured
        return self._calibrated[key]

    def _recorded(self, workload: WorkloadSpec) -> tuple[Layers, str]:
        """The layer times of a workload on its device, recorded once on one thread, and where they are from."""
        # One thread at a time: two profiles recorded side by side would both be too slow.
        with self._recording:
            if workload not in self._layers:
                num_threads = torch.get_num_threads()
                torch.set_num_threads(1)
                profile = record_profile(workload, num_steps=RECORDED_STEPS, num_warmup=2)
                torch.set_num_threads(num_threads)
                self._layers[workload] = layers_of(profile), f"{profile.device}, {profile.source}"
            return self._layers[workload]

    def link(self, fabric: FabricSpec) -> LinkModel | None:
        """α and β of this fabric: measured once, or as the paced fabric was asked for; None in lockstep."""
        if not fabric.kind.has_processes:
            return None
        if fabric.kind is FabricKind.PACED:
            return paced_link_model(fabric)
        if fabric not in self._links:
            answer = self._ask(LinkQuestion(fabric=fabric, num_bytes=CALIBRATION_BYTES))
            if answer.ending is not Ending.DONE:
                raise LabLost(f"calibration of the {fabric.kind} fabric failed: {answer.reason}")
            self._links[fabric] = fit_link(all_reduce_times_s(answer.links)) if fabric.num_hosts > 1 else None
        return self._links[fabric]

    def time_links(self, question: LinkQuestion) -> Mapping[int, float]:
        """Median all-reduce time of the slowest rank, in seconds by bytes. Raises: LabLost."""
        answer = self._ask(question)
        if answer.ending is not Ending.DONE:
            raise LabLost(answer.reason)
        return all_reduce_times_s(answer.links)

    def _ask(self, question: LinkQuestion) -> Answer:
        if question.fabric.kind is FabricKind.PACED:
            raise FabricError(
                "a paced link has the α and β that it is asked for; measure the emulated or native fabric"
            )
        return self._runner.ask(Task(links=question), lambda event: None)

    def close(self) -> None:
        """End everything that its runner holds."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _processes(trial: Trial, answer: Answer) -> list[Process]:
    return [Process(trial.jobs[rank.job].name, rank.rank, rank.spans) for rank in answer.ranks]


def _pair(trial: Trial) -> tuple[str, FabricSpec, int]:
    """Trials with equal pairs have the same jobs under the same conditions, however they share."""
    # Costs are of a job's single step, so how many of them it takes or when it starts makes no difference.
    alike = [replace(job, num_steps=None, start_phase=0.0) for job in trial.jobs]
    return repr(alike), trial.fabric, trial.repeat


def all_reduce_times_s(links: tuple[LinkTimes, ...]) -> dict[int, float]:
    """Median time of the slowest rank by bytes."""
    sizes = links[0].num_bytes
    return {size: slowest_median_s([link.times_s[i] for link in links]) for i, size in enumerate(sizes)}
