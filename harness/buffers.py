"""Flat buffers between gradients and messages."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from baselines.api import Message


class BufferPool:
    """Flat buffers that are used again: fresh megabytes cost page faults every step."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, numel: int, like: Tensor) -> Tensor:
        """A buffer [numel] of the type and device of `like`, contents arbitrary."""
        for position, buffer in enumerate(self._free):
            if buffer.numel() >= numel and buffer.dtype == like.dtype and buffer.device == like.device:
                return self._free.pop(position)[:numel]
        return torch.empty(numel, dtype=like.dtype, device=like.device)

    def give_back(self, buffer: Tensor) -> None:
        """Return a buffer from `take`; others (a gradient's own memory) are left alone."""
        base = buffer._base if buffer._base is not None else buffer
        if base.dim() == 1 and not base.requires_grad:
            self._free.append(base)
            self._free.sort(key=torch.Tensor.numel)


def flatten_gradients(
    message: Message, parameters: Mapping[str, nn.Parameter], pool: BufferPool, *, scale: float
) -> Tensor:
    """The message's gradients times `scale`, as one flat tensor [numel] of the pool."""
    grads = [_gradient(parameters[s.name]).reshape(-1)[s.start : s.stop] for s in message.segments]
    flat = pool.take(message.numel, grads[0])
    if len(grads) == 1:
        return torch.mul(grads[0], scale, out=flat)
    return torch.cat(grads, out=flat).mul_(scale)


def scatter_gradients(message: Message, flat: Tensor, parameters: Mapping[str, nn.Parameter]) -> None:
    """Write a flat tensor [numel of the message] back into the parameters' gradients."""
    parts = flat.split([segment.numel for segment in message.segments])
    targets, sources = [], []
    for segment, part in zip(message.segments, parts, strict=True):
        grad = _gradient(parameters[segment.name])
        if grad.is_contiguous():
            targets.append(grad.view(-1)[segment.start : segment.stop])
            sources.append(part)
        else:
            whole = grad.reshape(-1)
            whole[segment.start : segment.stop] = part
            grad.copy_(whole.view(grad.shape))
    if targets:
        torch._foreach_copy_(targets, sources)


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "a message was sent before its gradient was there"
    return parameter.grad
