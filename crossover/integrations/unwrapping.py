"""The torch optimizer inside accelerate's or Lightning's.

Their wrappers decide when a step counts (`sync_gradients`, gradient accumulation) and then call the step of what they
wrap. That call is the update, so the inner optimizer is the one that takes turns.
"""

from __future__ import annotations

from typing import Any

WRAPPERS = ("AcceleratedOptimizer", "LightningOptimizer")


def unwrapped(optimizer: Any) -> Any:
    """The innermost optimizer; one that nothing wraps is returned as it is."""
    while _is_wrapper(optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def show_new_step(optimizer: Any) -> None:
    """Let wrappers that captured the inner `step` when they were made, as accelerate does for its gradient scaler,
    capture it again now that it has been replaced."""
    while _is_wrapper(optimizer):
        if hasattr(optimizer, "_optimizer_patched_step_method"):
            from accelerate.optimizer import patch_optimizer_step

            optimizer._optimizer_original_step_method = optimizer.optimizer.step
            optimizer._optimizer_patched_step_method = patch_optimizer_step(optimizer, optimizer.optimizer.step)
        optimizer = optimizer.optimizer


def _is_wrapper(optimizer: Any) -> bool:
    return any(kind.__name__ in WRAPPERS for kind in type(optimizer).__mro__)
