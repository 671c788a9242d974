"""The step time of a strategy, without a step being run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baselines.strategy import Strategy
from crossover.simulator.fluid import Agenda
from harness.engine.dispatch import PlanError
from harness.predict.costs import LinkCosts, PredictError
from harness.predict.demand import check_world
from harness.predict.layers import Layers
from harness.predict.worker import Medium, Worker, bound, run_workers

NUM_STEPS = 4  # from the second on a step repeats; a negotiation's clock takes one more


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One step in steady state, from update to update.

    `compute_s` forward, backward and update; `communication_s` while at least one message was under way; `exposed_s`
    while the loop waited for messages; `wire_bytes` sent by a rank, by tag.
    """

    step_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    num_messages: int
    wire_bytes: Mapping[str, float]


def predict_step(
    layers: Layers, strategy: Strategy, costs: LinkCosts, *, slowdown: float = 0.0, num_micro_batches: int = 1
) -> Predicted:
    """A step of `strategy` on `costs.world` equal workers; pure, nothing is computed or sent.

    `slowdown` is by how much computation takes longer while messages are in flight (0 in replay); `layers` are those of
    one of the step's `num_micro_batches`.
    Raises: PredictError if the strategy cannot be predicted or never sends something.
    """
    return predict_workers([layers], strategy, costs, slowdown=slowdown, num_micro_batches=num_micro_batches)[0]


def predict_workers(
    layers: Sequence[Layers],
    strategy: Strategy,
    costs: LinkCosts,
    *,
    slowdown: float = 0.0,
    num_micro_batches: int = 1,
) -> tuple[Predicted, ...]:
    """A step of each of some workers that compute different `layers` (a straggler), in order of rank.

    They have the same parameters and meet at every message; one alone stands for all `costs.world` of them. Rank 0's
    times are those that a planning policy is bound to, as in the engine.
    Raises: PredictError as `predict_step`.
    """
    if slowdown < 0:
        raise PredictError(f"slowdown is {slowdown}; computation beside messages takes 1 + slowdown times as long")
    if not layers[0].segments:
        raise PredictError("the layers have no parameters, so there is nothing to send")
    check_world(strategy, costs.world)
    try:
        planned, medium = bound(strategy, layers[0], costs), Medium(Agenda(), costs, len(layers))
        workers = [
            Worker(medium, own, planned, rank=rank, slowdown=slowdown, num_micro_batches=num_micro_batches)
            for rank, own in enumerate(layers)
        ]
        for worker in workers:
            worker.train(NUM_STEPS)
        run_workers(workers, NUM_STEPS + 1)
    except PlanError as error:
        raise PredictError(str(error)) from error
    return tuple(last_period(worker) for worker in workers)


def predict_exchange_s(layers: Layers, strategy: Strategy, costs: LinkCosts) -> float:
    """Seconds of `Engine.exchange_once`: every gradient ready at once, nothing computed."""
    check_world(strategy, costs.world)
    worker = Worker(Medium(Agenda(), costs), layers, bound(strategy, layers, costs))
    worker.exchange(2)
    run_workers([worker], 3)
    return last_period(worker).step_s


def last_period(worker: Worker) -> Predicted:
    """What lies between the last two marks."""
    before, after = worker.marks[-2:]
    return Predicted(
        step_s=after.at_s - before.at_s,
        compute_s=after.compute_s - before.compute_s,
        communication_s=after.communication_s - before.communication_s,
        exposed_s=after.exposed_s - before.exposed_s,
        num_messages=after.num_messages - before.num_messages,
        wire_bytes={
            tag: total - before.wire_bytes.get(tag, 0.0)
            for tag, total in after.wire_bytes.items()
            if total > before.wire_bytes.get(tag, 0.0)
        },
    )
