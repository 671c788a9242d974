"""Runs a suite: checks everything first, shows progress, writes a record a trial, survives Ctrl-C."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from harness.bench import Bench
from harness.lab.messages import Event
from harness.memory import check_memory
from harness.trial import Trial, TrialError, check
from models.workload import Device, WorkloadSpec, open_workload
from results.codec import to_jsonable
from results.record import Record, RecordError, Status, read_record, write_record
from suites.at_once import run_each
from suites.expected import expected_each_s
from suites.folders import FolderError


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run left: its records, and how many trials were asked for."""

    records: tuple[Record, ...]
    num_asked: int
    interrupted: bool = False

    @property
    def num_failed(self) -> int:
        return sum(record.status not in (Status.OK, Status.SKIPPED) for record in self.records)


def select(trials: Sequence[Trial], only: Sequence[str]) -> list[Trial]:
    """The trials whose cell contains one of `only` (all without any).

    Raises: TrialError if a name matches nothing, with the labels there are.
    """
    for name in only:
        if not any(name in trial.cell for trial in trials):
            labels = sorted({part for trial in trials for part in trial.cell.split("/")})
            raise TrialError(f"--only {name!r} matches no cell; parts of cell names here: {', '.join(labels)}")
    return [trial for trial in trials if not only or any(name in trial.cell for name in only)]


def check_all(trials: Sequence[Trial], num_local: int | None = None) -> int:
    """The largest memory need in bytes, of `num_local` ranks (default: all) of each job.

    Raises: ValueError for the first trial that cannot run.
    """
    cells = {dataclasses.replace(trial, repeat=0): None for trial in trials}
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
    workload = open_workload(dataclasses.replace(spec, device=Device.CPU))
    for rank in range(world):
        batches = workload.batches(rank, world, seed)
        if spec.data_path:
            next(batches)


def run_trials(
    trials: Sequence[Trial], bench: Bench, folder: Path, console: Console, *, resume: bool, foresees: bool = False
) -> Outcome:
    """Run `trials` in order, those in lockstep side by side, and write their records to `folder`. Ctrl-C ends what is
    under way, keeps what is done and returns; nothing half-written is left. Ends `bench`; `foresees`: whether that one
    predicts.

    Raises: CrewLost if ranks that a launcher started are gone.
    """
    records: list[Record] = []
    try:
        with bench, _progress(console) as progress:
            bar = Bar(progress, trials, foresees=foresees)
            left = []
            for trial in trials:
                record = finished_before(trial, folder) if resume else None
                if record is None:
                    left.append(trial)
                else:
                    bench.remember(trial, record)
                    bar.kept(trial)
                    records.append(record)
            for _, alike in itertools.groupby(left, key=lambda trial: trial.fabric.kind.has_processes):
                with closing(run_each(list(alike), lambda t: bench.run(t, bar.on_event(t)), bench.close)) as ended:
                    for trial, record in ended:
                        _write(record, folder)
                        if record.status not in (Status.OK, Status.SKIPPED):
                            told = Text.assemble((record.status, "yellow"), f" {trial.cell}: {record.reason}")
                            progress.console.print(told, soft_wrap=True)
                        bar.done(trial)
                        records.append(record)
    except KeyboardInterrupt:
        return Outcome(tuple(records), len(trials), interrupted=True)
    return Outcome(tuple(records), len(trials))


def _write(record: Record, folder: Path) -> None:
    """Raises: FolderError where there is no room; the records that are there are whole."""
    try:
        write_record(record, folder)
    except OSError as error:
        raise FolderError(
            f"no record of {record.cell} can be written to {folder} ({error.strerror}); make room, then go on with the "
            f"same command and --resume --out {folder}"
        ) from error


def finished_before(trial: Trial, folder: Path) -> Record | None:
    """The record of exactly this trial, if an earlier run left a good one."""
    path = folder / f"{trial.id}.json"
    if not path.exists():
        return None
    try:
        record = read_record(path)
    except RecordError:
        return None
    return record if record.status is Status.OK and record.trial == to_jsonable(trial) else None


class Bar:
    """The progress bar, in expected seconds. Its time left is scaled from how long the trials so far took over them."""

    def __init__(self, progress: Progress, trials: Sequence[Trial], *, foresees: bool = False) -> None:
        self._progress = progress
        expected = expected_each_s(trials, foresees=foresees)
        self._expected_s = {trial.id: each_s for trial, each_s in zip(trials, expected, strict=True)}
        self._num_trials, self._num_done = len(trials), 0
        self._total_s, self._done_s = sum(expected), 0.0
        self._under_way_s: dict[str, float] = {}  # of trials that run side by side
        self._task = progress.add_task("", total=self._total_s, left="", trials=f"0/{len(trials)}")

    def on_event(self, trial: Trial) -> Callable[[Event], None]:
        """Show this trial as the present one; the result moves the bar with its steps."""
        self._progress.update(self._task, description=_title(trial))

        def moved(event: Event) -> None:
            if event.kind == "step":
                share = (event.step + 1) / (trial.num_steps + trial.num_warmup)
                self._under_way_s[trial.id] = share * self._expected_s[trial.id]
                self._move()

        return moved

    def done(self, trial: Trial) -> None:
        """It was run."""
        self._num_done += 1
        self._done_s += self._expected_s[trial.id]
        self._under_way_s.pop(trial.id, None)
        self._move()

    def kept(self, trial: Trial) -> None:
        """It needs not be run: an earlier run's record stands. What that took says nothing about the time left."""
        self._num_done += 1
        self._total_s -= self._expected_s[trial.id]
        self._move()

    def _move(self) -> None:
        completed_s = self._done_s + sum(list(self._under_way_s.values()))
        elapsed_s = self._progress.tasks[self._task].elapsed or 0.0
        share = completed_s / self._total_s if self._total_s else 1.0
        self._progress.update(
            self._task,
            completed=completed_s,
            total=self._total_s,
            left=time_left(share, elapsed_s, self._total_s),
            trials=f"{self._num_done}/{self._num_trials}",
        )


def time_left(share: float, elapsed_s: float, expected_s: float) -> str:
    """What is left when this share of the work took so long: as expected at first, as it goes from a tenth on."""
    pace = min(1.0, share / 0.1)
    whole_s = pace * (elapsed_s / share if share else 0.0) + (1 - pace) * expected_s
    return _clock(max(0.0, whole_s - elapsed_s))


def _title(trial: Trial) -> str:
    return f"{trial.cell} #{trial.repeat + 1}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} left"


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[trials]}"),
        TimeElapsedColumn(),
        TextColumn("[cyan]{task.fields[left]}"),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
    )
