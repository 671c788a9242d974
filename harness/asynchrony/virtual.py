"""Workers and servers on a virtual clock: who computes when, on which parameters, and who waits.

A worker computes, pushes its update, and asks for parameters; the servers answer when the policy lets it start. Pushes
and answers each take the servers' link one after the other, in the order in which they were asked for. Everything is
set by the arguments and the seed, so a run repeats exactly.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from torch import Tensor

from baselines.api import Consistency
from harness.asynchrony.cluster import VirtualCluster
from harness.asynchrony.parameters import Parameters
from harness.engine.checkpoint import CheckpointError, Saved
from results.record import ConsistencyFacts

ComputesUpdate = Callable[[int, int, Tensor], Tensor]  # worker, clock, parameters [numel] -> update [numel]
Encodes = Callable[[int, int, Tensor], tuple[Tensor, float]]  # worker, clock, update -> as servers have it, bytes


class StaleReadError(AssertionError):
    """A read that lacks an update which the policy promises: a defect."""


class DeadlockError(RuntimeError):
    """All workers wait for each other: a defect of a policy."""


class Happening(Enum):
    """What an entry of the agenda is."""

    COMPUTED = "computed"
    PUSHED = "pushed"


@dataclass(frozen=True, slots=True)
class Pushed:
    """An update has come. `missed` counts the updates of others that came since its worker had read."""

    time_s: float
    worker: int
    clock: int
    missed: int


@dataclass(slots=True)
class StalenessTally:
    """What a run adds up.

    `ahead` counts reads by how many clocks the reader is ahead of the slowest worker; `missed_by` [workers] counts
    updates by how many others came between read and push; `waited_s` [workers] is time between a push and leave to
    go on.
    """

    waited_s: list[float]
    missed_by: list[Counter[int]]
    ahead: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, num_workers: int) -> StalenessTally:
        """An empty one."""
        return cls([0.0] * num_workers, [Counter() for _ in range(num_workers)])

    def facts(self, clocks: Sequence[int], lost: Sequence[int] = ()) -> ConsistencyFacts:
        """As a record holds it."""
        total: Counter[int] = sum(self.missed_by, Counter())
        return ConsistencyFacts(
            ahead=_by_text(self.ahead),
            missed=_by_text(total),
            missed_by=tuple(map(_by_text, self.missed_by)),
            waited_s=tuple(self.waited_s),
            clocks=tuple(clocks),
            lost=tuple(lost),
        )

    def state_dict(self) -> Saved:
        """For `torch.save`."""
        missed_by = [dict(own) for own in self.missed_by]
        return {"waited_s": list(self.waited_s), "missed_by": missed_by, "ahead": dict(self.ahead)}

    def load_state_dict(self, saved: Saved) -> None:
        """Go on from what `state_dict` gave."""
        self.waited_s, self.ahead = list(saved["waited_s"]), Counter(saved["ahead"])
        self.missed_by = [Counter(own) for own in saved["missed_by"]]


def _by_text(counts: Counter[int]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(counts.items())}


@dataclass(slots=True)
class VirtualRun:
    """`num_clocks` updates of every worker of `cluster`, under `policy`; `num_bytes` travel per push and per answer.

    Iterate over it: each push, in order of time. The parameters at that moment are `parameters.read()`. With `encode` a
    push carries what that makes of an update, and servers add what they can read of it. Between two pushes
    `state_dict` holds all that is to come but what `compute` and `encode` keep.
    """

    cluster: VirtualCluster
    policy: Consistency
    start: Tensor
    compute: ComputesUpdate
    num_clocks: int
    num_bytes: float = 0.0
    seed: int = 0
    encode: Encodes | None = None
    parameters: Parameters = field(init=False)
    tally: StalenessTally = field(init=False)
    num_pushed_bytes: float = 0.0
    _agenda: list[tuple[float, int, Happening, int]] = field(default_factory=list)
    _num_entries: int = 0
    _waiting: dict[int, float] = field(default_factory=dict)  # worker to when its push came, in that order
    _read: dict[int, tuple[Tensor, int]] = field(default_factory=dict)  # parameters, and the pushes they hold
    _updates: dict[int, Tensor] = field(default_factory=dict)
    _inbound_free_s: float = 0.0
    _outbound_free_s: float = 0.0

    def __post_init__(self) -> None:
        num = self.cluster.num_workers
        self.parameters = Parameters(self.start, num, self.policy.share)
        self.tally = StalenessTally.of(num)

    def __iter__(self) -> Iterator[Pushed]:
        """Raises: DeadlockError, StaleReadError for a defect of the policy."""
        if not self._num_entries:
            for worker in range(self.cluster.num_workers):
                self._begin(worker, 0.0)
        while self._agenda:
            now_s, _, happening, worker = heapq.heappop(self._agenda)
            if happening is Happening.COMPUTED:
                self._send_update(worker, now_s)
            else:
                pushed = self._take_update(worker, now_s)
                self._waiting[worker] = now_s
                self._answer(now_s)
                yield pushed  # with nothing half done, so that a checkpoint can be written here
        stuck = [worker for worker in self._waiting if self.parameters.clocks[worker] < self.num_clocks]
        if stuck:
            raise DeadlockError(f"workers {stuck} wait for ever at clocks {self.parameters.clocks}")

    def _send_update(self, worker: int, now_s: float) -> None:
        """The gradient is computed here, on what the worker had read, and travels."""
        clock, (values, _) = self.parameters.clocks[worker], self._read[worker]
        update, num_bytes = self.compute(worker, clock, values), self.num_bytes
        if self.encode is not None:
            update, num_bytes = self.encode(worker, clock, update)
        self._updates[worker] = update
        self.num_pushed_bytes += num_bytes
        sent_s = max(now_s + self.cluster.alpha_s, self._inbound_free_s)
        self._inbound_free_s = sent_s + self.cluster.transfer_s(worker, num_bytes)
        self._note(self._inbound_free_s, Happening.PUSHED, worker)

    def _take_update(self, worker: int, now_s: float) -> Pushed:
        clock, (_, held) = self.parameters.clocks[worker], self._read[worker]
        missed = self.parameters.num_pushed - held
        self.parameters.push(worker, clock, self._updates.pop(worker))
        self.tally.missed_by[worker][missed] += 1
        return Pushed(now_s, worker, clock, missed)

    def _answer(self, now_s: float) -> None:
        """Let everybody go on who may, in the order in which they came."""
        clocks = self.parameters.clocks
        for worker in list(self._waiting):
            if clocks[worker] < self.num_clocks and self.policy.may_start(clocks, worker):
                self.tally.waited_s[worker] += now_s - self._waiting.pop(worker)
                sent_s = max(now_s + self.cluster.alpha_s, self._outbound_free_s)
                self._outbound_free_s = sent_s + self.cluster.transfer_s(worker, self.num_bytes)
                self._begin(worker, self._outbound_free_s)

    def _begin(self, worker: int, now_s: float) -> None:
        """The worker computes from `now_s` on, with the parameters of this moment."""
        clock = self.parameters.clocks[worker]
        if not self.parameters.holds_all_up_to(self.policy.must_include(clock)):
            raise StaleReadError(f"worker {worker} reads at clock {clock} while clocks are {self.parameters.clocks}")
        self.tally.ahead[clock - min(self.parameters.clocks)] += 1
        self._read[worker] = self.parameters.read(), self.parameters.num_pushed
        computed_s = self.cluster.computed_at_s(worker, clock, now_s, self.seed)
        self._note(computed_s, Happening.COMPUTED, worker)

    def _note(self, time_s: float, happening: Happening, worker: int) -> None:
        self._num_entries += 1  # equal times go in the order in which they were noted
        heapq.heappush(self._agenda, (time_s, self._num_entries, happening, worker))

    def state_dict(self) -> Saved:
        """Where the run is, between two pushes: tensors, numbers and texts, for `torch.save`."""
        return {
            "parameters": self.parameters.state_dict(),
            "tally": self.tally.state_dict(),
            "agenda": [(time_s, number, what.value, worker) for time_s, number, what, worker in self._agenda],
            "num_entries": self._num_entries,
            "waiting": list(self._waiting.items()),
            "read": dict(self._read),
            "updates": dict(self._updates),
            "free_s": [self._inbound_free_s, self._outbound_free_s],
            "num_pushed_bytes": self.num_pushed_bytes,
        }

    def load_state_dict(self, saved: Saved) -> None:
        """Go on from what `state_dict` gave, bit for bit. Raises: CheckpointError if it is of other workers."""
        if (num := len(saved["parameters"]["clocks"])) != self.cluster.num_workers:
            raise CheckpointError(f"the checkpoint is of {num} workers; here are {self.cluster.num_workers}")
        self.parameters.load_state_dict(saved["parameters"])
        self.tally.load_state_dict(saved["tally"])
        self._agenda = [(time_s, number, Happening(what), worker) for time_s, number, what, worker in saved["agenda"]]
        self._num_entries, self._waiting = saved["num_entries"], dict(saved["waiting"])
        self._read, self._updates = dict(saved["read"]), dict(saved["updates"])
        self._inbound_free_s, self._outbound_free_s = saved["free_s"]
        self.num_pushed_bytes = saved["num_pushed_bytes"]
