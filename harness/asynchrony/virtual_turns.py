"""Jobs on one virtual cluster that compute in turns, by the scheduler's own tokens: worker n of each shares a device.

A worker asks for its device when it has its parameters and gives it back when its update is on its way, so no device
is held while anybody waits for another worker. The servers' link carries what was asked for first.

    for job, pushed in in_turns({"a": run_a, "b": run_b}, policy_of(Sharing.CROSSOVER)):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from crossover.policies import policy_of
from crossover.simulator.fluid import Agenda
from crossover.tokens import Policy
from harness.asynchrony.virtual import Pushed, ServersWays, VirtualRun
from harness.simulated.hosts import VirtualToken, virtual_token
from harness.trial import Trial
from harness.turns import Turn


@dataclass(slots=True)
class DeviceSeats:
    """One job's seats at the tokens of all devices; `turns` [workers] is the log."""

    job: str
    clock: Agenda
    tokens: list[VirtualToken]
    turns: list[list[Turn]] = field(init=False)
    _asked_s: dict[int, float] = field(default_factory=dict)
    _granted_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.turns = [[] for _ in self.tokens]

    def ask(self, worker: int, granted: Callable[[float], None]) -> None:
        """Call `granted` with the time at which the device is this job's."""
        self._asked_s[worker] = self.clock.now_s

        def begin() -> None:
            self._granted_s[worker] = self.clock.now_s
            granted(self.clock.now_s)

        self.tokens[worker].ask(self.job, begin)

    def release(self, worker: int) -> None:
        """Log the turn, and let the next job have the device."""
        self.turns[worker].append(Turn(self._asked_s[worker], self._granted_s[worker], self.clock.now_s))
        self.tokens[worker].release(self.job)

    def leave(self, worker: int) -> None:
        """Nobody waits for this job's worker any more."""
        self.tokens[worker].leave(self.job)


def pushes_of(trial: Trial, runs: Mapping[str, VirtualRun]) -> Iterator[tuple[str, Pushed]]:
    """Run the trial's jobs, one alone or several in turns by the trial's sharing; `runs` are by the job's name."""
    if trial.sharing is None:
        ((name, run),) = runs.items()
        return ((name, push) for push in run)
    return in_turns(runs, policy_of(trial.sharing))


def in_turns(runs: Mapping[str, VirtualRun], policy: Policy) -> Iterator[tuple[str, Pushed]]:
    """Every push of every job, in order of time; afterwards `runs[job].devices` holds the job's log.

    Raises: DeadlockError, StaleReadError; ValueError for jobs of unequal numbers of workers.
    """
    numbers = {job: run.cluster.num_workers for job, run in runs.items()}
    if len(set(numbers.values())) != 1:
        raise ValueError(f"jobs have {numbers} workers; worker n of each shares a device, so give all as many")
    clock, ways = Agenda(), ServersWays()
    devices = [virtual_token(clock, policy, list(runs), {}) for _ in range(next(iter(numbers.values())))]
    for job, run in runs.items():
        run.devices, run.ways = DeviceSeats(job, clock, devices), ways
        run.begin()
    while (now_s := min(run.next_s for run in runs.values())) < inf:
        clock.now_s = now_s
        job = next(name for name, run in runs.items() if run.next_s == now_s)
        if (pushed := runs[job].advance()) is not None:
            yield job, pushed
    for run in runs.values():
        run.check_done()
