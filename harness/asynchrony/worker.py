"""What a worker's process does: it pulls, computes in its turn, and pushes, until its last clock."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep

from baselines.api import Consistency
from crossover import TurnTaking
from harness.asynchrony.client import ServersLink
from harness.asynchrony.recovery import WorkerStates
from harness.asynchrony.training import Training
from harness.engine.checkpoint import CheckpointError


def train_on_servers(
    worker: int,
    training: Training,
    link: ServersLink,
    policy: Consistency,
    num_clocks: int,
    *,
    turns: TurnTaking,
    lasts_until_s: Callable[[int, float], float],
    on_push: Callable[[int], None],
    states: WorkerStates | None = None,
) -> list[float]:
    """Train from the clock at which the servers go on, and end with every worker's updates.

    A step of `clock` that begins `since_s` after the beginning lasts until `lasts_until_s(clock, since_s)`, or as long
    as it really takes. Answers with the moments of the beginning and of every push, of the monotonic clock.

    Raises: ServerLostError, StaleReadError; CheckpointError where servers go on and the worker has not its own states.
    """
    first = link.first_clock
    if states is not None:
        states.load(first, training, was_lost=link.was_lost)
    elif first:
        raise CheckpointError(f"servers go on at clock {first} of worker {worker}; give it the states that it wrote")
    begun_s, values = monotonic(), training.values
    ends_s = [begun_s]
    for clock in range(first, num_clocks):
        if clock:
            values = link.pull(policy.must_include(clock))
        # Neither a pull nor a push is waited for in here, so jobs cannot wait for each other in a circle.
        with turns.turn():
            since_s = monotonic() - begun_s
            update = training.update(worker, clock, values)
            # Real computing is a part of the time that the cluster gives the step; only what is missing is slept.
            sleep(max(0.0, begun_s + lasts_until_s(clock, since_s) - monotonic()))
        # Before the push: a server that has it may be the one that goes on.
        if states is not None:
            states.save(clock + 1, training)
        link.push(clock, update)
        ends_s.append(monotonic())
        on_push(clock)
    # The last pull waits for the other workers, whose turns must not wait for this one.
    turns.leave()
    # Everybody ends with all workers' updates, so that digests of weights can be compared.
    training.load(link.pull(num_clocks - 1, is_last=True), worker)
    return ends_s
