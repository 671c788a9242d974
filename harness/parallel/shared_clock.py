"""Several pipelined jobs on the same devices, on a virtual clock: one job's passes in another one's bubbles.

Job j's rank r runs on device r. A device runs one pass at a time and is not taken away from it; every message of a
device leaves in order over its one link, whoever sends it. A job repeats its program, one step after the other.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count

from baselines.parallelism.api import Backward, ParallelismError, Update
from baselines.parallelism.plans import Machine
from baselines.parallelism.programs import Crossing, Instruction, PipelineProgram, Receive, Send
from harness.parallel.clock import StageCosts, TimedInstruction


class DeviceOrder(StrEnum):
    """Who of those that wait gets a device next.

    ROUND_ROBIN: jobs in turn, and a job that does not wait is waited for. FIRST_COME: who has waited longest. RANKED:
    the first job whenever it waits, the others in what it leaves.
    """

    ROUND_ROBIN = "round-robin"
    FIRST_COME = "first-come"
    RANKED = "ranked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockedJob:
    """A job on the clock: what its ranks do in a step, what that costs, how many steps there are, when it begins."""

    program: PipelineProgram
    stages: tuple[StageCosts, ...]
    num_steps: int
    start_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTimeline:
    """What came of it. By job: the `spans` of all ranks, and when each of its steps had ended on all ranks."""

    spans: tuple[tuple[TimedInstruction, ...], ...]
    step_ends_s: tuple[tuple[float, ...], ...]

    @property
    def makespan_s(self) -> float:
        """Until the last job's last step."""
        return max(ends[-1] for ends in self.step_ends_s)

    def busy_share(self, num_devices: int) -> float:
        """The part of all devices' time up to the first job's end in which they compute."""
        # Afterwards a job is alone, and its bubbles are nobody's fault.
        until_s = min(ends[-1] for ends in self.step_ends_s)
        busy_s = sum(
            min(span.end_s, until_s) - span.start_s
            for spans in self.spans
            for span in spans
            if span.start_s < until_s and not isinstance(span.instruction, Send | Receive | Update)
        )
        return busy_s / (until_s * num_devices)


def run_jobs_on_clock(jobs: Sequence[ClockedJob], machine: Machine, order: DeviceOrder) -> SharedTimeline:
    """Run all steps of all jobs. Raises: ParallelismError if jobs differ in ranks, or wait for ever."""
    widths = {job.program.num_ranks for job in jobs}
    if len(widths) != 1:
        raise ParallelismError(f"jobs of {sorted(widths)} ranks share devices; give all of them as many")
    clock = _SharedClock(jobs, machine, order)
    clock.run()
    return clock.finished()


@dataclass(slots=True)
class _JobRank:
    """One job's rank: where it is in its instructions, and what it waits for."""

    job: int
    rank: int
    instructions: tuple[Instruction, ...]
    place: int = 0
    step: int = 0
    missing: Crossing | None = None
    arrived: dict[tuple[int, Crossing], float] = field(default_factory=dict)
    received_from_s: float = 0.0


@dataclass(slots=True)
class _Device:
    """A device: who waits for it in order of asking, and whose turn is next where turns go round."""

    waiting: deque[_JobRank] = field(default_factory=deque)
    is_busy: bool = False
    turn: int = 0
    link_free_s: float = 0.0


class _SharedClock:
    def __init__(self, jobs: Sequence[ClockedJob], machine: Machine, order: DeviceOrder) -> None:
        self._jobs, self._machine, self._order = jobs, machine, order
        self._seats = [
            [_JobRank(number, rank, own) for rank, own in enumerate(job.program.ranks)]
            for number, job in enumerate(jobs)
        ]
        self._devices = [_Device() for _ in jobs[0].program.ranks]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        # Equal times go in the order in which they were noted, so that a run repeats exactly.
        self._numbers = count()
        self._spans: list[list[TimedInstruction]] = [[] for _ in jobs]
        self._ends_s = [[0.0] * job.num_steps for job in jobs]

    def run(self) -> None:
        """Work off all events in the order of their times."""
        for job, seats in zip(self._jobs, self._seats, strict=True):
            for seat in seats:
                self._begin(seat, job.start_s)
        while self._events:
            now_s, _, happen = heapq.heappop(self._events)
            happen(now_s)

    def _begin(self, seat: _JobRank, start_s: float) -> None:
        self._at(start_s, lambda now_s: self._go_on(seat, now_s))

    def finished(self) -> SharedTimeline:
        """What it came to. Raises: ParallelismError if a rank has steps left."""
        left = [seat for seats in self._seats for seat in seats if seat.step < self._jobs[seat.job].num_steps]
        if left:
            raise ParallelismError(f"{len(left)} ranks wait for ever; use another order of the devices")
        return SharedTimeline(spans=tuple(map(tuple, self._spans)), step_ends_s=tuple(map(tuple, self._ends_s)))

    def _at(self, time_s: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), happen))

    def _go_on(self, seat: _JobRank, now_s: float) -> None:
        """Run what takes no device, up to the next pass, a missing message or the end."""
        while seat.step < self._jobs[seat.job].num_steps:
            instruction = seat.instructions[seat.place]
            if isinstance(instruction, Receive):
                if not self._receive(seat, instruction, now_s):
                    return
            elif isinstance(instruction, Send):
                self._send(seat, instruction.crossing, now_s)
            elif isinstance(instruction, Update):
                self._update(seat, instruction, now_s)
                return
            else:
                self._ask(seat, now_s)
                return
            self._advance(seat, now_s)

    def _advance(self, seat: _JobRank, now_s: float) -> None:
        seat.place += 1
        if seat.place == len(seat.instructions):
            ends_s = self._ends_s[seat.job]
            ends_s[seat.step] = max(ends_s[seat.step], now_s)
            seat.place, seat.step = 0, seat.step + 1

    def _receive(self, seat: _JobRank, instruction: Receive, now_s: float) -> bool:
        # Crossings are named within a step, and a neighbour may be a step ahead.
        key = seat.step, instruction.crossing
        if key not in seat.arrived:
            seat.missing, seat.received_from_s = instruction.crossing, now_s
            return False
        since_s = seat.received_from_s if seat.missing else now_s
        seat.missing = None
        del seat.arrived[key]
        self._spans[seat.job].append(TimedInstruction(seat.rank, instruction, since_s, now_s))
        return True

    def _send(self, seat: _JobRank, crossing: Crossing, now_s: float) -> None:
        job, device = self._jobs[seat.job], self._devices[seat.rank]
        num_bytes = job.stages[crossing.boundary].output_bytes
        left_s = max(now_s, device.link_free_s) + self._machine.beta_s_per_byte * num_bytes
        device.link_free_s = left_s
        # A link is full-duplex and its far end never busy: only what the sender has queued delays a message.
        to = self._seats[seat.job][job.program.rank_of(crossing.boundary + (not crossing.is_gradient))]
        step = seat.step

        def arrive(then_s: float) -> None:
            to.arrived[step, crossing] = then_s
            # Else it is early, and waits until its rank comes to the receive.
            if to.missing == crossing and to.step == step:
                self._go_on(to, then_s)

        self._at(left_s + self._machine.alpha_s, arrive)

    def _update(self, seat: _JobRank, instruction: Update, now_s: float) -> None:
        """Sums of gradients are messages: they hold up the job, and the device is free meanwhile."""
        end_s = now_s + self._jobs[seat.job].stages[instruction.stage].update_s
        self._spans[seat.job].append(TimedInstruction(seat.rank, instruction, now_s, end_s))

        def done(then_s: float) -> None:
            self._advance(seat, then_s)
            self._go_on(seat, then_s)

        self._at(end_s, done)

    def _ask(self, seat: _JobRank, now_s: float) -> None:
        self._devices[seat.rank].waiting.append(seat)
        # at the same moment others may ask too: who gets it is decided when all of them have
        self._at(now_s, lambda then_s: self._lend(seat.rank, then_s))

    def _lend(self, rank: int, now_s: float) -> None:
        device = self._devices[rank]
        seat = None if device.is_busy else self._next(device)
        if seat is None:
            return
        device.waiting.remove(seat)
        # Where turns go round, the next one is due whoever asks first.
        device.is_busy, device.turn = True, (seat.job + 1) % len(self._jobs)
        instruction = seat.instructions[seat.place]
        assert not isinstance(instruction, Send | Receive | Update)
        stage = self._jobs[seat.job].stages[instruction.stage]
        end_s = now_s + (stage.backward_s if isinstance(instruction, Backward) else stage.forward_s)
        self._spans[seat.job].append(TimedInstruction(rank, instruction, now_s, end_s))

        def done(then_s: float) -> None:
            device.is_busy = False
            # The job's own next question comes before the device is lent again, or it would never have it twice.
            self._advance(seat, then_s)
            self._go_on(seat, then_s)
            self._at(then_s, lambda later_s: self._lend(rank, later_s))

        self._at(end_s, done)

    def _next(self, device: _Device) -> _JobRank | None:
        if not device.waiting:
            return None
        if self._order is DeviceOrder.FIRST_COME:
            return device.waiting[0]
        if self._order is DeviceOrder.RANKED:
            return min(device.waiting, key=lambda seat: seat.job)
        here = {seat.job: seat for seat in device.waiting}
        turn = device.turn
        while turn not in here:  # a job that has ended is not waited for
            staying = any(seat.step < self._jobs[turn].num_steps for seat in self._seats[turn])
            if staying:
                return None
            turn = (turn + 1) % len(self._jobs)
        return here[turn]
