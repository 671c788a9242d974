"""Runs a suite: checks everything first, shows progress, writes a record a trial, survives Ctrl-C."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.bench import Bench
from harness.memory import check_memory
from harness.trial import Trial, TrialError, check
from models.workload import Device, WorkloadSpec, open_workload
from results.codec import to_jsonable
from results.record import Record, RecordError, Status, read_record, write_record
from suites.at_once import run_each
from suites.folders import FolderError
from suites.progress import shown_on


@dataclass(frozen=True, slots=True)
class RunResult:
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
) -> RunResult:
    """Run `trials` in order, those in lockstep side by side, and write their records to `folder`. Ctrl-C ends what is
    under way, keeps what is done and returns; nothing half-written is left. Ends `bench`; `foresees`: whether that one
    predicts.

    Raises: RanksLost if ranks that a launcher started are gone.
    """
    records: list[Record] = []
    try:
        with bench, shown_on(console, trials, foresees=foresees) as bar:
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
                            console.print(told, soft_wrap=True)
                        bar.done(trial)
                        records.append(record)
    except KeyboardInterrupt:
        return RunResult(tuple(records), len(trials), interrupted=True)
    return RunResult(tuple(records), len(trials))


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
