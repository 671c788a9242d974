"""Runs a suite: checks everything first, shows progress, writes a record a trial, survives Ctrl-C."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fabric.api import FabricKind
from harness.bench import Bench
from harness.checks.trial import check
from harness.memory import check_memory
from harness.trial import Trial, TrialError
from harness.validity import is_worth_again
from models.workload import Device, WorkloadSpec, open_workload
from results.facts import CheckFacts
from results.record import Record, Status, write_record
from suites.api import FEWEST
from suites.at_once import num_at_once, run_each
from suites.earlier import earlier, invalid_id
from suites.folders import FolderError
from suites.order import in_random_order
from suites.progress import ProgressBar, ProgressLines, RunProgress, shown_on
from suites.repeats import affordable, lasted_s, next_repeat, place_of, timed_cells, took_s


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run left: its records, invalid attempts too, and how many trials were wanted."""

    records: tuple[Record, ...]
    num_asked: int
    interrupted: bool = False
    num_left: int = 0  # for which the budget did not suffice

    @property
    def is_disturbed(self) -> bool:
        """Whether the machine disturbed timed trials and none of them counts."""
        timed = [record for record in self.records if FabricKind(record.fabric.kind).has_processes]
        invalid = any(record.status is Status.INVALID and is_worth_again(record) for record in timed)
        return invalid and all(record.status is not Status.OK for record in timed)

    def disturbances(self) -> Iterator[str]:
        """`processor time of other processes: 48% in the median, at most 5% allowed`, the most frequent first."""
        failed: dict[str, list[CheckFacts]] = {}
        for record in self.records:
            for one in record.checks if record.status is Status.INVALID else ():
                if not one.passes:
                    failed.setdefault(one.quantity, []).append(one)
        for quantity, checks in sorted(failed.items(), key=lambda item: -len(item[1])):
            found = statistics.median(one.found for one in checks)
            yield f"{quantity}: {found:.0%} in the median, at most {checks[0].most:.0%} allowed"

    @property
    def num_failed(self) -> int:
        """Trials that did not end well; an invalid one did, on a machine that was busy."""
        return sum(record.status not in (Status.OK, Status.SKIPPED, Status.INVALID) for record in self.records)

    @property
    def num_invalid(self) -> int:
        """Attempts that do not count."""
        return sum(record.status is Status.INVALID for record in self.records)


def select(trials: Sequence[Trial], only: Sequence[str]) -> list[Trial]:
    """The trials whose cell contains one of `only` (all without any).

    Raises: TrialError if a name matches nothing, with the labels there are.
    """
    for name in only:
        if not name:
            raise TrialError("--only '' names no cell; give a part of a cell's name, or leave it out for all")
        if not any(name in trial.cell for trial in trials):
            labels = sorted({part for trial in trials for part in trial.cell.split("/")})
            raise TrialError(f"--only {name!r} matches no cell; parts of cell names here: {', '.join(labels)}")
    return [trial for trial in trials if not only or any(name in trial.cell for name in only)]


def check_all(trials: Sequence[Trial], num_local: int | None = None) -> int:
    """The largest memory need in bytes, of `num_local` ranks (default: all) of each job.

    Raises: ValueError for the first trial that cannot run.
    """
    cells = {replace(trial, repeat=0): None for trial in trials}
    for trial in cells:
        check(trial)
    need = max((check_memory(trial, num_local) for trial in cells), default=0)
    for workload, world, seed in {
        (job.workload, trial.world, trial.seed): None for trial in cells for job in trial.jobs
    }:
        check_data(workload, world, seed)
    return need


def check_data(spec: WorkloadSpec, world: int, seed: int) -> None:
    """Whether there are samples for all ranks; of the user's own data also read what the first step reads.

    Raises: WorkloadError naming the value or the file at fault.
    """
    if spec.device is Device.REPLAY:
        return
    workload = open_workload(replace(spec, device=Device.CPU, num_workers=0))
    for rank in range(world):
        batches = workload.batches(rank, world, seed)
        if spec.data_path:
            next(batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long a run tries: so many attempts at each trial, until it is valid; with `more`, repeats beyond those asked
    for until every cell is known (`suites.repeats`), in an order that `seed` decides; and no timed trial is begun when
    timed trials have taken `budget_s`. With `limits_exact`, trials without a clock count too, and none begins then."""

    budget_s: float = math.inf
    limits_exact: bool = False
    num_attempts: int = 1
    more: bool = False
    seed: int = 1


AS_ASKED = Effort()


def run_trials(
    trials: Sequence[Trial],
    bench: Bench,
    folder: Path,
    console: Console,
    *,
    resume: bool,
    foresees: bool = False,
    effort: Effort = AS_ASKED,
) -> RunResult:
    """Run `trials` in order, those in lockstep side by side, and write their records to `folder`. Ctrl-C ends what is
    under way, keeps what is done and returns; nothing half-written is left. Ends `bench`; `foresees`: whether that one
    predicts.

    Raises: RanksLost if ranks that a launcher started are gone; FolderError if a record cannot be written, or with
    `resume` a good one is of another trial.
    """
    progress = RunProgress(trials, foresees=foresees, budget_s=effort.budget_s)
    run = _SuiteRun(trials, bench, folder, console, resume=resume, effort=effort, progress=progress)
    try:
        with bench, shown_on(console, progress) as bar:
            run.everything(bar)
    except KeyboardInterrupt:
        return run.result(interrupted=True)
    return run.result()


class _SuiteRun:
    """A run under way: what it has recorded, and what it has spent."""

    def __init__(
        self,
        trials: Sequence[Trial],
        bench: Bench,
        folder: Path,
        console: Console,
        *,
        resume: bool,
        effort: Effort,
        progress: RunProgress,
    ) -> None:
        self._trials, self._bench, self._folder, self._console = trials, bench, folder, console
        self._resume, self._effort, self._progress = resume, effort, progress
        self._records: list[Record] = []
        self._spent_s, self._num_ran, self._num_beside = 0.0, 0, 1
        self._num_asked, self._num_left = len(trials), 0
        self._left: set[str] = set()  # places for which the budget did not suffice

    def everything(self, bar: ProgressBar | ProgressLines) -> None:
        """What was asked for, then further repeats of what is not known yet."""
        self._bar = bar
        by_repeat = itertools.groupby(self._trials, key=lambda t: t.repeat if t.fabric.kind.has_processes else None)
        for _, alike in by_repeat:
            if not self._valid(self._affordable(list(alike))):
                return
        cells = timed_cells(self._trials) if self._effort.more else []
        for repeat in itertools.count(1 + max((cell.repeat for cell in self._trials), default=0)):
            further = next_repeat(cells, self._records, repeat)
            if not further or self._is_spent():
                return
            further = affordable(further, self._records, self._effort.budget_s - self._spent_s)
            if not further:
                return
            self._num_asked += len(further)
            self._progress.added(further)
            self._valid(in_random_order(further, self._effort.seed))

    def result(self, *, interrupted: bool = False) -> RunResult:
        """What the run left."""
        return RunResult(tuple(self._records), self._num_asked, interrupted=interrupted, num_left=self._num_left)

    def _affordable(self, trials: list[Trial]) -> list[Trial]:
        """Those of a repeat for whose places the budget suffices, or all if for none; says which it leaves."""
        left_s = self._effort.budget_s - self._spent_s if self._effort.more else math.inf
        chosen = affordable(trials, self._records, left_s)
        chosen = chosen or [trial for trial in trials if place_of(trial) not in self._left]
        self._num_left += len(trials) - len(chosen)
        self._progress.left_out([trial for trial in trials if trial not in chosen])
        left = {place_of(trial) for trial in trials} - {place_of(trial) for trial in chosen}
        for place in sorted(left - self._left):
            told = f"leaving {place} for now: no budget to take it to {FEWEST} repeats or beyond"
            self._console.print(told, soft_wrap=True)
        self._left |= left
        return chosen

    def _is_spent(self) -> bool:
        return self._spent_s >= self._effort.budget_s

    def _valid(self, trials: Sequence[Trial]) -> bool:
        """Each once; then those that were invalid again, as often as is tried. False once a round of trials (a small
        one with all its attempts) has left nothing valid in the whole run: the machine is too busy.

        Where an earlier run stopped for that, its attempts are not counted here.
        """
        left, last = trials, self._effort.num_attempts
        for attempt in itertools.count(1):
            if attempt > 1:
                self._progress.added(left)
            num_ran = self._num_ran
            tried = list(self._attempt(left, attempt))
            left = [one for one, record in tried if record.status is Status.INVALID and is_worth_again(record)]
            if not left:
                return True
            if self.result().is_disturbed:
                if self._num_ran == num_ran:
                    last = attempt + self._effort.num_attempts
                elif len(left) >= FEWEST or attempt == last:
                    return False
            if attempt == last:
                return True
        return True

    def _attempt(self, trials: Sequence[Trial], attempt: int) -> Iterator[tuple[Trial, Record]]:
        """Every trial with its record, of this run or of an earlier one."""
        left = []
        for trial in trials:
            record = earlier(trial, attempt, self._folder) if self._resume else None
            if record is None:
                left.append(trial)
            else:
                self._bench.remember(trial, record)
                self._bar.kept(trial)
                self._took(record)
                yield trial, record
        timed = bool(left) and left[0].fabric.kind.has_processes
        # Those side by side begin together where the budget may end between them.
        size = 1 if timed else num_at_once(left) if self._effort.limits_exact else max(1, len(left))
        self._num_beside = 1 if timed else size
        for alike in [left[place : place + size] for place in range(0, len(left), size)]:
            if (timed or self._effort.limits_exact) and self._is_spent():
                self._num_left += len(alike)
                continue
            ended = run_each(alike, lambda trial: self._bench.run(trial, self._bar.on_event(trial)), self._bench.close)
            with closing(ended):
                for trial, record in ended:
                    yield trial, self._recorded(trial, replace(record, attempt=attempt))

    def _recorded(self, trial: Trial, record: Record) -> Record:
        """Write the record, and say so where the trial did not end well."""
        if record.status is Status.INVALID:
            record = replace(record, id=invalid_id(trial, record.attempt))
        _write(record, self._folder)
        self._num_ran += 1
        if record.status not in (Status.OK, Status.SKIPPED):
            told = Text.assemble((record.status, "yellow"), f" {trial.cell}: {record.reason}")
            self._console.print(told, soft_wrap=True)
        self._took(record)
        self._bar.done(trial)
        return record

    def _took(self, record: Record) -> None:
        self._records.append(record)
        seconds = took_s(record)
        if not seconds and self._effort.limits_exact:
            seconds = lasted_s(record) / self._num_beside
        self._spent_s += seconds
        self._progress.spend(seconds)


def _write(record: Record, folder: Path) -> None:
    """Raises: FolderError where there is no room; the records that are there are whole."""
    try:
        write_record(record, folder)
    except OSError as error:
        raise FolderError(
            f"no record of {record.cell} can be written to {folder} ({error.strerror}); make room, then go on with the "
            f"same command and --resume --out {folder}"
        ) from error
