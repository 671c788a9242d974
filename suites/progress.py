"""How far a run is: a bar on a terminal; elsewhere a line per finished cell and one every 20 s, with what is left."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from harness.lab.messages import Event
from harness.trial import Trial
from suites.expected import expected_each_s, expected_s

LINE_EVERY_S = 20.0  # often enough to see that it lives, seldom enough for the log of a long run
FULL_PACE = 0.1  # the share of the work from which on the time left is that of the pace so far


class RunProgress:
    """Counts finished trials in expected seconds; the time left is scaled from how long they took over them.

    `budget_s` is what all timed trials may take (∞: as long as they need), of which `spend` takes away.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        *,
        foresees: bool,
        budget_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected_s: dict[str, float] = {}
        self._left_of_cell = Counter[str]()
        self._num_trials, self._num_done = 0, 0
        self._total_s, self._done_s = 0.0, 0.0
        self._under_way_s: dict[str, float] = {}  # of trials that run side by side
        self._clock, self._begin_s = clock, clock()
        self._budget_s = budget_s
        self._add(trials, expected_each_s(trials, foresees=foresees))

    def added(self, trials: Sequence[Trial]) -> None:
        """These are run too, on fabrics that are up: more repeats, or once more what was invalid."""
        self._add(trials, [expected_s(trial) for trial in trials])

    def _add(self, trials: Sequence[Trial], expected: Sequence[float]) -> None:
        self._expected_s |= {trial.id: each_s for trial, each_s in zip(trials, expected, strict=True)}
        self._left_of_cell.update(trial.cell for trial in trials)
        self._num_trials += len(trials)
        self._total_s += sum(expected)

    def spend(self, seconds: float) -> None:
        """So much of the budget is gone."""
        self._budget_s -= seconds

    def moved(self, trial: Trial, num_steps: int) -> None:
        """So many of its steps are over, warm-up included."""
        share = num_steps / (trial.num_steps + trial.num_warmup)
        self._under_way_s[trial.id] = share * self._expected_s[trial.id]

    def done(self, trial: Trial) -> bool:
        """It was run. Returns whether its cell is finished."""
        self._done_s += self._expected_s[trial.id]
        return self._over(trial)

    def kept(self, trial: Trial) -> None:
        """It needs not be run: an earlier run's record stands. What that took says nothing about the time left."""
        self._total_s -= self._expected_s[trial.id]
        self._over(trial)

    def left_out(self, trials: Sequence[Trial]) -> None:
        """These are not run: the budget does not suffice for them."""
        self._num_trials -= len(trials)
        self._total_s -= sum(self._expected_s[trial.id] for trial in trials)
        self._left_of_cell.subtract(trial.cell for trial in trials)

    def _over(self, trial: Trial) -> bool:
        self._num_done += 1
        self._under_way_s.pop(trial.id, None)
        self._left_of_cell[trial.cell] -= 1
        return not self._left_of_cell[trial.cell]

    @property
    def completed_s(self) -> float:
        """Expected seconds of what is over."""
        return self._done_s + sum(list(self._under_way_s.values()))

    @property
    def total_s(self) -> float:
        """Expected seconds of everything that has to be run."""
        return self._total_s

    @property
    def count(self) -> str:
        """`12/57`."""
        return f"{self._num_done}/{self._num_trials}"

    @property
    def left(self) -> str:
        """`3:10 left`, or `3:10 left, budget 7:30`."""
        share = self.completed_s / self._total_s if self._total_s else 1.0
        left = time_left(share, self._clock() - self._begin_s, self._total_s)
        return left if math.isinf(self._budget_s) else f"{left}, budget {_minutes(self._budget_s)}"


class ProgressBar:
    """A bar, the trial under way and the time left, on one line of a terminal."""

    def __init__(self, progress: Progress, run: RunProgress) -> None:
        self._progress, self._run = progress, run
        self._task = progress.add_task("", total=run.total_s, left="", trials=run.count)

    def on_event(self, trial: Trial) -> Callable[[Event], None]:
        """Show this trial as the present one; the result moves the bar with its steps."""
        self._progress.update(self._task, description=title_of(trial))

        def moved(event: Event) -> None:
            if event.kind == "step":
                self._run.moved(trial, event.step + 1)
                self._show()

        return moved

    def done(self, trial: Trial) -> None:
        """It was run."""
        self._run.done(trial)
        self._show()

    def kept(self, trial: Trial) -> None:
        """An earlier run's record stands."""
        self._run.kept(trial)
        self._show()

    def _show(self) -> None:
        run = self._run
        self._progress.update(self._task, completed=run.completed_s, total=run.total_s, left=run.left, trials=run.count)


class ProgressLines:
    """The same where no terminal is: whole lines, for a pipe or the log of a CI job."""

    def __init__(
        self, say: Callable[[str], None], run: RunProgress, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._run, self._clock = say, run, clock
        self._said_s = clock()

    def on_event(self, trial: Trial) -> Callable[[Event], None]:
        """A line where the last one is long ago, with the trial's step."""

        def moved(event: Event) -> None:
            if event.kind == "step":
                self._run.moved(trial, event.step + 1)
                if self._clock() - self._said_s >= LINE_EVERY_S:
                    self._line(f"{title_of(trial)}, step {event.step + 1}")

        return moved

    def done(self, trial: Trial) -> None:
        """It was run: a line if that finishes its cell, or the last line is long ago."""
        finished = self._run.done(trial)
        if finished or self._clock() - self._said_s >= LINE_EVERY_S:
            self._line(f"{title_of(trial)} done")

    def kept(self, trial: Trial) -> None:
        """An earlier run's record stands, which needs no line."""
        self._run.kept(trial)

    def _line(self, what: str) -> None:
        self._said_s = self._clock()
        self._say(f"{self._run.count} trials, {self._run.left}: {what}")


@contextmanager
def shown_on(console: Console, run: RunProgress) -> Iterator[ProgressBar | ProgressLines]:
    """Progress as this console can show it."""
    if not console.is_terminal:
        yield ProgressLines(lambda text: console.print(text, soft_wrap=True, highlight=False, markup=False), run)
        return
    with _bar(console) as progress:
        yield ProgressBar(progress, run)


def time_left(share: float, elapsed_s: float, expected_s: float) -> str:
    """What is left when this share of the work took so long: as expected at first, as it goes from a tenth on."""
    pace = min(1.0, share / FULL_PACE)
    whole_s = pace * (elapsed_s / share if share else 0.0) + (1 - pace) * expected_s
    return f"{_minutes(whole_s - elapsed_s)} left"


def _minutes(seconds: float) -> str:
    whole = int(max(0.0, seconds))
    return f"{whole // 60}:{whole % 60:02d}"


def title_of(trial: Trial) -> str:
    """The cell and which repeat of it."""
    return f"{trial.cell} #{trial.repeat + 1}"


def _bar(console: Console) -> Progress:
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
