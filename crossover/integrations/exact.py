"""The update begins the turn that the next forward and backward go on with.

    optimizer.step()     begin() → the update → rest()
    model(batch)         the same turn → forward
    loss.backward()      gradients → end()

When `step()` returns, the weights are new, as they are without turns. So nothing that reads or changes parameters,
gradients or the optimizer's state has to be watched.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from crossover.integrations.computing import Computing
from crossover.integrations.overriding import Overrides
from crossover.keeper import TurnKeeper

Context = Callable[[], AbstractContextManager[None]]


class ExactUpdates:
    """What is replaced on the optimizers.

    `context` is called at each `step()` and gives what the update has to run under; where there is one, the step waits
    for messages, and `TurnKeeper`'s `wait` waits for them.
    """

    def __init__(
        self,
        keeper: TurnKeeper,
        computing: Computing,
        optimizers: tuple[Any, ...],
        *,
        context: Context | None = None,
    ) -> None:
        self._keeper, self._computing, self._context = keeper, computing, context
        self._overrides = Overrides()
        for optimizer in optimizers:
            self._overrides.replace(optimizer, "step", partial(self._step, optimizer))

    def undo(self) -> None:
        """Put everything back."""
        self._overrides.undo()

    def _step(
        self,
        optimizer: Any,
        inner: Callable[..., Any],
        closure: Callable[[], Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if closure is not None:
            inner = partial(inner, self._evaluating(optimizer, closure))
        else:
            self._computing.check_seen(optimizer)
        if self._context is not None:
            self._keeper.interrupt()  # of another optimizer's turn: no messages are waited for inside a turn
        context = nullcontext() if self._context is None else self._context()
        try:
            if closure is None:
                self._keeper.begin()
            with context:
                result = inner(*args, **kwargs)
        except BaseException:
            self._keeper.end()
            raise
        if not self._computing.is_in_backward:  # else gradients are still computed: the step is called by their hooks
            self._keeper.rest()
        return result

    def _evaluating(self, optimizer: Any, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure's own forward and backward are a turn; what the optimizer computes behind it begins the next."""

        def evaluate() -> Any:
            loss = closure()
            self._computing.check_seen(optimizer)
            self._keeper.begin()
            return loss

        return evaluate
