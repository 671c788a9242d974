"""From a schedule to what each rank executes: passes with the messages that they need, checked without running.

A pass's output is sent right behind it, and sending never waits; an input is received right before the pass that wants
it. Messages carry their name, so they may arrive in any order. A program is therefore free of deadlock for every delay
of every message exactly if it runs to its end once: what a rank waits for depends on the order of actions alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from baselines.parallelism.api import (
    Action,
    Actions,
    Backward,
    Forward,
    ParallelismError,
    PipelineSchedule,
    Recompute,
    Update,
)


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor between stage `boundary` and the next one: a micro-batch's activations, or their gradient."""

    boundary: int
    micro_batch: int
    is_gradient: bool


@dataclass(frozen=True, slots=True)
class Send:
    """Hand a tensor to the stage on the other side of the boundary."""

    crossing: Crossing


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for a tensor from the stage on the other side of the boundary."""

    crossing: Crossing


Instruction = Action | Send | Receive


@dataclass(frozen=True, slots=True)
class PipelineProgram:
    """What each rank does. Stage s lives on rank s mod `num_ranks`."""

    num_ranks: int
    num_stages: int
    num_micro_batches: int
    ranks: tuple[tuple[Instruction, ...], ...]

    def rank_of(self, stage: int) -> int:
        """The pipeline rank that holds `stage`."""
        return stage % self.num_ranks


def program_of(schedule: PipelineSchedule, num_ranks: int, num_micro_batches: int) -> PipelineProgram:
    """Compile and check. Raises: ParallelismError for numbers that the schedule refuses, or a wrong schedule."""
    actions = tuple(schedule.actions(rank, num_ranks, num_micro_batches) for rank in range(num_ranks))
    program = assemble(actions, num_ranks * schedule.stages_per_rank, num_micro_batches)
    check(program)
    return program


def assemble(actions: tuple[Actions, ...], num_stages: int, num_micro_batches: int) -> PipelineProgram:
    """Each rank's actions with the messages that they need."""
    num_ranks = len(actions)
    ranks = tuple(
        tuple(step for action in own for step in _with_messages(action, num_ranks, num_stages)) for own in actions
    )
    return PipelineProgram(num_ranks, num_stages, num_micro_batches, ranks)


def wants(action: Action, num_stages: int) -> Crossing | None:
    """The tensor that a pass starts from; None at the ends of the pipeline, and for updates and recomputing."""
    if isinstance(action, Forward) and action.stage > 0:
        return Crossing(action.stage - 1, action.micro_batch, is_gradient=False)
    if isinstance(action, Backward) and action.stage < num_stages - 1:
        return Crossing(action.stage, action.micro_batch, is_gradient=True)
    return None


def gives(action: Action, num_stages: int) -> Crossing | None:
    """The tensor that a pass makes for another stage."""
    if isinstance(action, Forward) and action.stage < num_stages - 1:
        return Crossing(action.stage, action.micro_batch, is_gradient=False)
    if isinstance(action, Backward) and action.stage > 0:
        return Crossing(action.stage - 1, action.micro_batch, is_gradient=True)
    return None


def _with_messages(action: Action, num_ranks: int, num_stages: int) -> Iterator[Instruction]:
    apart = num_ranks > 1  # else every stage lives on the one rank
    before, behind = wants(action, num_stages), gives(action, num_stages)
    if before and apart:
        yield Receive(before)
    yield action
    if behind and apart:
        yield Send(behind)


def check(program: PipelineProgram) -> None:
    """Every micro-batch goes once each way through every stage, with weights that exist, and no rank waits for ever.

    Raises: ParallelismError saying what is wrong.
    """
    for rank, instructions in enumerate(program.ranks):
        for stage in range(rank, program.num_stages, program.num_ranks):
            own = [entry for entry in instructions if not isinstance(entry, Send | Receive) and entry.stage == stage]
            _check_stage(own, stage, program.num_micro_batches)
    _check_waits(program)


def _check_stage(actions: list[Action], stage: int, num_micro_batches: int) -> None:
    everything = set(range(num_micro_batches))
    for kind in (Forward, Backward):
        done = [action.micro_batch for action in actions if isinstance(action, kind)]
        if len(done) != len(set(done)) or set(done) != everything:
            raise ParallelismError(
                f"stage {stage} runs {kind.__name__} of micro-batches {done}; each of 0 … {num_micro_batches - 1} once"
            )
    num_updates, since = 0, 0
    held: set[int] = set()
    for action in actions:
        if isinstance(action, Update):
            num_updates, since = _updated(action, num_updates, since), 0
            continue
        if action.version > num_updates:
            raise ParallelismError(f"stage {stage}: {action} uses weights to come; {num_updates} updates are done")
        if isinstance(action, Backward):
            if action.micro_batch not in held:
                raise ParallelismError(f"stage {stage}: {action} without the activations of its forward")
            held.remove(action.micro_batch)
            since += 1
        elif isinstance(action, Recompute) or action.keep:
            held.add(action.micro_batch)
    if since:
        raise ParallelismError(f"stage {stage}: {since} gradients are never applied; end with an update")


def _updated(action: Update, num_updates: int, since: int) -> int:
    if action.version != num_updates + 1 or action.num_micro_batches != since:
        raise ParallelismError(f"{action} follows {num_updates} updates and {since} backwards; count them in it")
    return action.version


def _check_waits(program: PipelineProgram) -> None:
    """Run without time: whoever can go on, goes on."""
    arrived: set[Crossing] = set()
    places = [0] * program.num_ranks
    moved = True
    while moved:
        moved = False
        for rank, instructions in enumerate(program.ranks):
            while places[rank] < len(instructions):
                step = instructions[places[rank]]
                if isinstance(step, Receive) and step.crossing not in arrived:
                    break
                if isinstance(step, Send):
                    arrived.add(step.crossing)
                places[rank] += 1
                moved = True
    stuck = [
        f"rank {rank} waits for {own[place]}"
        for rank, (own, place) in enumerate(zip(program.ranks, places, strict=True))
        if place < len(own)
    ]
    if stuck:
        raise ParallelismError(f"the schedule never ends: {'; '.join(stuck)}; reorder its passes")


def peak_stash(program: PipelineProgram, rank: int) -> int:
    """Most micro-batches whose activations `rank` holds at once, over all its stages, counted from its actions."""
    held, peak = 0, 0
    for step in program.ranks[rank]:
        if isinstance(step, Recompute) or (isinstance(step, Forward) and step.keep):
            held += 1
        elif isinstance(step, Backward):
            held -= 1
        peak = max(peak, held)
    return peak


def peak_versions(program: PipelineProgram, stage: int) -> int:
    """Most versions of a stage's weights that must exist at once: the newest one and those that a pass still wants."""
    own = [step for step in program.ranks[program.rank_of(stage)] if not isinstance(step, Send | Receive)]
    own = [action for action in own if action.stage == stage]
    last = {action.version: place for place, action in enumerate(own) if not isinstance(action, Update)}
    peak = 1
    for place, action in enumerate(own):
        if isinstance(action, Update):  # nothing else makes a version an older one
            peak = max(peak, sum(end > place for version, end in last.items() if version < action.version) + 1)
    return peak
