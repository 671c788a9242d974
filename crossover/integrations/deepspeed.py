"""DeepSpeed, ZeRO stages 0 to 2: a turn for forward and backward, a lease aside for the update.

    engine(batch)          turn → forward
    engine.backward(loss)  gradients → release → the engine reduces them, in the same call
    engine.step()          norm, clipping → lease aside: the optimizer's step → release → all-gather

Every `engine.backward` of an accumulation ends a turn. Nothing is put off: when `engine.step()` returns, the parameters
are new, so `state_dict`, `save_checkpoint` and schedules need no care and `defer` has no meaning here. The update is a
lease aside and not a second turn, since turns go round: behind the other jobs' turns it would put off the all-gather
and with it the job's next forward. With two jobs the all-gather of ZeRO 1 and 2 therefore stays visible; more jobs hide
it. What the engine computes between its messages (scaling, norms, flattening) is done without a lease.

With partitioned gradients (stage 2) the engine also reduces in the middle of backward, whenever `reduce_bucket_size`
elements are ready. Where it waits for that, the turn is interrupted: released before, and gone on with under a lease
aside. Where it does not (`overlap_comm` on a GPU) the turn lasts. Under a sharing that holds its turns (`hold`), the
turn lasts until the gradients are reduced, and `engine.step()` is a turn of its own.

Only attributes of the one engine, its ZeRO optimizer and its basic optimizer are replaced. Read against DeepSpeed
0.19.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from crossover.client import TurnTaking
from crossover.errors import Refused
from crossover.integrations import Bond, Manner, Team
from crossover.integrations.overriding import Overrides
from crossover.integrations.plain import hooked
from crossover.integrations.workers import check_supported, device_of, idling, process_group_team, synchronizing
from crossover.keeper import TurnKeeper
from crossover.policies import Extent

HIGHEST_STAGE = 2
UNSUPPORTED: tuple[tuple[str, Callable[[Any], object]], ...] = (
    ("a pipeline sends activations inside forward and backward", lambda engine: engine.pipeline_parallelism),
    (
        "ZeRO stage 3 gathers parameters inside forward and backward: use stage 0, 1 or 2",
        lambda engine: engine.zero_optimization_stage() > HIGHEST_STAGE,
    ),
    ("experts exchange activations inside forward: use a model without MoE layers", lambda e: e.has_moe_layers),
    ("tensor parallelism sends activations inside forward", lambda engine: engine.autotp_size() > 1),
    ("sequence parallelism sends activations inside forward", lambda engine: engine.sequence_parallel_size > 1),
    ("a model-parallel unit sends activations inside forward", lambda engine: engine.mpu is not None),
    ("ZenFlow updates in a process of its own: leave it out of the config", lambda engine: engine.zenflow),
    ("engine.compile() hides forward from hooks: attach without it", lambda engine: engine.is_compiled),
    ("DeepCompile sends messages from inside the graph: leave it out", lambda engine: engine.is_deepcompile_enabled()),
    ("there is no optimizer: give deepspeed.initialize one", lambda engine: engine.basic_optimizer is None),
)


class EngineKeeper(TurnKeeper):
    """Turns that can be prolonged."""

    def __init__(self, turns: TurnTaking, wait: Callable[[], None], idle: Callable[[], None]) -> None:
        super().__init__(turns, wait, idle)
        self._is_prolonged = False

    def end(self) -> None:
        """Give the turn back, or what is left of it; nothing inside `prolonged`."""
        if not self._is_prolonged:
            super().end()

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Without a lease, for messages that are waited for in the middle of a turn; then it goes on, under a lease
        aside. Outside a turn, and where turns last until the messages are there, nothing."""
        was_in_turn = self.in_turn
        self.interrupt()
        yield
        if was_in_turn:
            self.begin()

    @contextmanager
    def prolonged(self) -> Iterator[None]:
        """The turn lasts to the end of the block, whatever ends it inside."""
        self._is_prolonged = True
        try:
            yield
        finally:
            self._is_prolonged = False
            self.end()


def claims(models: tuple[Any, ...], optimizers: tuple[Any, ...]) -> bool:
    """A DeepSpeed engine, the first thing that `deepspeed.initialize` returns."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    return any(isinstance(model, DeepSpeedEngine) for model in models)


def team(models: tuple[Any, ...], optimizers: tuple[Any, ...]) -> Team:
    """The workers of the engine's data-parallel group."""
    if len(models) > 1:
        raise Refused(f"{len(models)} models with a DeepSpeed engine among them: attach one engine alone")
    (model,) = models
    for optimizer in optimizers:
        if optimizer not in (model.optimizer, model.basic_optimizer):
            raise Refused(f"{type(optimizer).__name__} is not the engine's optimizer: attach the engine alone")
    for reason, is_used in UNSUPPORTED:
        if is_used(model):
            raise Refused(f"this DeepSpeed engine cannot take turns; {reason}")
    check_supported((model.module,), ())
    return process_group_team(device_of(model.module), model.data_parallel_group)


def bind(models: tuple[Any, ...], optimizers: tuple[Any, ...], turns: TurnTaking, manner: Manner) -> Bond:
    """Hooks on the engine's module, and replaced methods of the engine and of its optimizers."""
    (model,) = models
    device = device_of(model.module)
    keeper = EngineKeeper(turns, wait=synchronizing(device), idle=idling(device, manner.release))
    hooks = hooked(keeper, (model.module,), (), replace(manner, defer=False))
    overrides = Overrides()
    overrides.replace(model.basic_optimizer, "step", around(keeper.aside))
    if keeper.extent is Extent.MESSAGES:
        overrides.replace(model, "backward", around(keeper.prolonged))
        overrides.replace(model, "step", around(turn_of(keeper)))
    elif waits_in_backward(model):
        overrides.replace(model.optimizer, "reduce_ipg_grads", around(keeper.interrupted))

    def undo() -> None:
        overrides.undo()
        hooks.undo()

    return Bond(keeper=keeper, undo=undo)


def waits_in_backward(engine: Any) -> bool:
    """Whether the engine's gradient hooks reduce buckets and the computation waits for them."""
    from deepspeed.accelerator import get_accelerator

    reduces = engine.zero_optimization() and (
        engine.zero_optimization_partition_gradients() or engine.zero_overlap_comm()
    )
    return bool(reduces and (get_accelerator().is_synchronized_device() or not engine.zero_overlap_comm()))


def turn_of(keeper: TurnKeeper) -> Callable[[], Any]:
    """A whole turn as a context."""

    @contextmanager
    def turn() -> Iterator[None]:
        keeper.begin()
        try:
            yield
        finally:
            keeper.end()

    return turn


def around(context: Callable[[], Any]) -> Callable[..., Any]:
    """What replaces a method: the method inside a context."""

    def replacement(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with context():
            return inner(*args, **kwargs)

    return replacement
