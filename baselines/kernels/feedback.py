"""One pass over a gradient and the states that error feedback keeps of it: what torch does in several reads.

A state that is not finite (one infinite gradient is enough) would stay so for ever, since NaN plus anything is NaN. So
what is not finite in a *state* counts as 0 from the next step on, and is counted. What is not finite in a gradient goes
its way: the damage of that step shows.

On the CPU contiguous float32 is compiled for one thread, other types and devices take torch's operations: on a GPU all
states of a message together, since a launch per state, and a wait for what it counted, cost more than the arithmetic.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baselines.compiling import compiled

Floats = NDArray[np.float32]
Tensors = list[Tensor]


def absorb(grads: Tensors, residuals: Tensors) -> int:
    """a = grad + residual [n] of each pair, in the place of both. Returns how many elements of the residuals were not
    finite."""
    pairs = list(zip(grads, residuals, strict=True))
    if all(_compiles(*pair) for pair in pairs):
        return sum(int(_absorb(grad.detach().numpy(), residual.detach().numpy())) for grad, residual in pairs)
    num_lost = 0 if _all_finite(residuals) else sum(map(_clean, residuals))
    torch._foreach_add_(grads, residuals)
    torch._foreach_copy_(residuals, grads)
    return num_lost


def accumulate(grad: Tensor, velocity: Tensor, residual: Tensor, momentum: float, *, nesterov: bool) -> int:
    """u ← m·u + g, v ← v + u (Nesterov: u ← m·(u + g), v ← v + u + g), and v in the place of `grad`; all [n].

    Returns how many elements of u and v were not finite.
    """
    if _compiles(grad, velocity, residual):
        first, second, third = (tensor.detach().numpy() for tensor in (grad, velocity, residual))
        return int(_accumulate(first, second, third, np.float32(momentum), nesterov))
    num_lost = _clean(velocity) + _clean(residual)
    if nesterov:
        velocity.add_(grad).mul_(momentum)
        residual.add_(grad)
    else:
        velocity.mul_(momentum).add_(grad)
    grad.copy_(residual.add_(velocity))
    return num_lost


def warm_up() -> None:
    """Compile each kernel, or load it from the cache."""
    first, second, third = torch.zeros(3, 4)
    absorb([first], [second])
    accumulate(first, second, third, 0.9, nesterov=False)


def _compiles(*tensors: Tensor) -> bool:
    return all(t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)


def _all_finite(states: Tensors) -> bool:
    """One answer for all, which the host waits for once; false too where their magnitudes add up to infinity."""
    return bool(torch.stack(torch._foreach_norm(states, 1)).isfinite().all()) if states else True


def _clean(state: Tensor) -> int:
    wrong = ~state.isfinite()
    state.masked_fill_(wrong, 0.0)
    return int(wrong.sum())


@compiled()
def _absorb(grad: Floats, residual: Floats) -> int:
    num_lost = 0
    for i in range(grad.size):
        kept = residual[i]
        sound = kept - kept == np.float32(0.0)  # false for NaN and infinities
        num_lost += not sound
        total = grad[i] + (kept if sound else np.float32(0.0))
        grad[i] = total
        residual[i] = total
    return num_lost


@compiled()
def _accumulate(grad: Floats, velocity: Floats, residual: Floats, momentum: np.float32, nesterov: bool) -> int:
    num_lost = 0
    ahead = np.float32(1.0) if nesterov else np.float32(0.0)
    for i in range(grad.size):
        speed, kept = velocity[i], residual[i]
        sound = speed - speed == np.float32(0.0)
        num_lost += not sound
        speed = speed if sound else np.float32(0.0)
        sound = kept - kept == np.float32(0.0)
        num_lost += not sound
        kept = kept if sound else np.float32(0.0)
        fresh = grad[i]
        speed = momentum * (speed + ahead * fresh) + (np.float32(1.0) - ahead) * fresh
        kept = kept + speed + ahead * fresh
        velocity[i] = speed
        residual[i] = kept
        grad[i] = kept
    return num_lost
