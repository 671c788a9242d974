"""Workers and servers on a virtual clock: who computes when, on which parameters, and who waits.

A worker computes, pushes its update, and asks for parameters; the servers answer when the policy lets it start. Pushes
and answers each take the servers' link one after the other, in the order in which they were asked for. Everything is
set by the arguments and the seed, so a run repeats exactly.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from math import inf
from typing import Protocol

from torch import Tensor

from baselines.api import Consistency
from harness.asynchrony.cluster import VirtualCluster
from harness.asynchrony.parameters import Parameters
from harness.asynchrony.tally import StalenessTally
from harness.engine.checkpoint import CheckpointError, Saved

ComputesUpdate = Callable[[int, int, Tensor], Tensor]  # worker, clock, parameters [numel] -> update [numel]
Encodes = Callable[[int, int, Tensor], tuple[Tensor, float]]  # worker, clock, update -> as servers have it, bytes


class StaleReadError(AssertionError):
    """A read that lacks an update which the policy promises: a defect."""


class DeadlockError(RuntimeError):
    """All workers wait for each other: a defect of a policy."""


class Happening(Enum):
    """What an entry of the agenda is."""

    READY = "ready"
    COMPUTED = "computed"
    PUSHED = "pushed"


class SharesDevices(Protocol):
    """Devices that the workers of several runs compute on in turns."""

    def ask(self, worker: int, granted: Callable[[float], None]) -> None:
        """Call `granted` with the time at which it is this worker's turn."""

    def release(self, worker: int) -> None:
        """The worker's turn is over."""

    def leave(self, worker: int) -> None:
        """The worker has computed for the last time."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """An update has come. `missed` counts the updates of others that came since its worker had read."""

    time_s: float
    worker: int
    clock: int
    missed: int


@dataclass(slots=True)
class ServersWays:
    """When each way of the servers' link is free again; runs that share the link share this value."""

    inbound_free_s: float = 0.0
    outbound_free_s: float = 0.0


@dataclass(slots=True)
class VirtualRun:
    """`num_clocks` updates of every worker of `cluster`, under `policy`; `num_bytes` travel per push and per answer.

    Iterate over it: each push, in order of time. The parameters at that moment are `parameters.read()`. With `encode` a
    push carries what that makes of an update, and servers add what they can read of it. With `devices` a worker, once
    it has its parameters, waits for its turn to compute (`harness.asynchrony.virtual_turns`). Between two pushes
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
    devices: SharesDevices | None = None
    ways: ServersWays = field(default_factory=ServersWays)
    parameters: Parameters = field(init=False)
    tally: StalenessTally = field(init=False)
    num_pushed_bytes: float = 0.0
    _agenda: list[tuple[float, int, Happening, int]] = field(default_factory=list)
    _num_entries: int = 0
    _waiting: dict[int, float] = field(default_factory=dict)  # worker to when its push came, in that order
    _read: dict[int, tuple[Tensor, int]] = field(default_factory=dict)  # parameters, and the pushes they hold
    _updates: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        num = self.cluster.num_workers
        self.parameters = Parameters(self.start, num, self.policy.share)
        self.tally = StalenessTally.of(num)

    def __iter__(self) -> Iterator[Pushed]:
        """Raises: DeadlockError, StaleReadError for a defect of the policy."""
        self.begin()
        while self._agenda:
            pushed = self.advance()
            if pushed is not None:
                yield pushed  # with nothing half done, so that a checkpoint can be written here
        self.check_done()

    def begin(self) -> None:
        """Let every worker start; does nothing in a run that is under way."""
        if not self._num_entries:
            for worker in range(self.cluster.num_workers):
                self._begin(worker, 0.0)

    @property
    def next_s(self) -> float:
        """When something happens next; infinity if nothing does."""
        return self._agenda[0][0] if self._agenda else inf

    def advance(self) -> Pushed | None:
        """Do what comes next; the push that this was, if it was one."""
        now_s, _, happening, worker = heapq.heappop(self._agenda)
        if happening is Happening.PUSHED:
            pushed = self._take_update(worker, now_s)
            self._waiting[worker] = now_s
            self._answer(now_s)
            return pushed
        if happening is Happening.COMPUTED:
            self._send_update(worker, now_s)
            self._give_back(worker)
        elif self.devices is not None:
            self.devices.ask(worker, partial(self._compute, worker))
        return None

    def check_done(self) -> None:
        """Raises: DeadlockError if nothing happens any more and a worker is not at its end."""
        stuck = [worker for worker, clock in enumerate(self.parameters.clocks) if clock < self.num_clocks]
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
        sent_s = max(now_s + self.cluster.alpha_s, self.ways.inbound_free_s)
        self.ways.inbound_free_s = sent_s + self.cluster.transfer_s(worker, num_bytes)
        self._note(self.ways.inbound_free_s, Happening.PUSHED, worker)

    def _give_back(self, worker: int) -> None:
        """The update is on its way, so another run's worker may compute on this one's device."""
        if self.devices is None:
            return
        self.devices.release(worker)
        if self.parameters.clocks[worker] == self.num_clocks - 1:
            self.devices.leave(worker)

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
                sent_s = max(now_s + self.cluster.alpha_s, self.ways.outbound_free_s)
                self.ways.outbound_free_s = sent_s + self.cluster.transfer_s(worker, self.num_bytes)
                self._begin(worker, self.ways.outbound_free_s)

    def _begin(self, worker: int, now_s: float) -> None:
        """The worker has the parameters of this moment at `now_s`, and computes as soon as it has a device."""
        clock = self.parameters.clocks[worker]
        if not self.parameters.holds_all_up_to(self.policy.must_include(clock)):
            raise StaleReadError(f"worker {worker} reads at clock {clock} while clocks are {self.parameters.clocks}")
        self.tally.ahead[clock - min(self.parameters.clocks)] += 1
        self._read[worker] = self.parameters.read(), self.parameters.num_pushed
        if self.devices is None:
            self._compute(worker, now_s)
        else:
            self._note(now_s, Happening.READY, worker)

    def _compute(self, worker: int, now_s: float) -> None:
        computed_s = self.cluster.computed_at_s(worker, self.parameters.clocks[worker], now_s, self.seed)
        self._note(computed_s, Happening.COMPUTED, worker)

    def _note(self, time_s: float, happening: Happening, worker: int) -> None:
        self._num_entries += 1  # equal times go in the order in which they were noted
        heapq.heappush(self._agenda, (time_s, self._num_entries, happening, worker))

    @property
    def _asked(self) -> str:
        """What sets who computes when."""
        return f"{self.policy} on {self.cluster} with seed {self.seed} and {self.num_bytes:g} bytes"

    def state_dict(self) -> Saved:
        """Where the run is, between two pushes: tensors, numbers and texts, for `torch.save`.

        Raises: CheckpointError for a run in turns, whose devices' tokens are not its own.
        """
        if self.devices is not None:
            raise CheckpointError("a job that computes in turns has no checkpoint on the virtual clock; run it alone")
        return {
            "asked": self._asked,
            "parameters": self.parameters.state_dict(),
            "tally": self.tally.state_dict(),
            "agenda": [(time_s, number, what.value, worker) for time_s, number, what, worker in self._agenda],
            "num_entries": self._num_entries,
            "waiting": list(self._waiting.items()),
            "read": dict(self._read),
            "updates": dict(self._updates),
            "free_s": [self.ways.inbound_free_s, self.ways.outbound_free_s],
            "num_pushed_bytes": self.num_pushed_bytes,
        }

    def load_state_dict(self, saved: Saved) -> None:
        """Go on from what `state_dict` gave, bit for bit; to another `num_clocks` too.

        Raises: CheckpointError if it is of another cluster, policy, seed or model.
        """
        if (kept := saved["asked"]) != self._asked:
            raise CheckpointError(f"the checkpoint is of {kept}; here is {self._asked}")
        self.parameters.load_state_dict(saved["parameters"])
        self.tally.load_state_dict(saved["tally"])
        self._agenda = [(time_s, number, Happening(what), worker) for time_s, number, what, worker in saved["agenda"]]
        self._num_entries, self._waiting = saved["num_entries"], dict(saved["waiting"])
        self._read, self._updates = dict(saved["read"]), dict(saved["updates"])
        self.ways = ServersWays(*saved["free_s"])
        self.num_pushed_bytes = saved["num_pushed_bytes"]
