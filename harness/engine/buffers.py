"""Flat buffers between gradients and messages."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from baselines.api import Message, Segment


class BufferPool:
    """Flat buffers that are used again: fresh megabytes cost page faults every step."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        self._lent: dict[int, Tensor] = {}  # by address

    def take(self, numel: int, like: Tensor) -> Tensor:
        """A buffer [numel] of the type and device of `like`, contents arbitrary."""
        # Free buffers are sorted by size, so the first that fits is the tightest.
        for position, buffer in enumerate(self._free):
            if buffer.numel() >= numel and buffer.dtype == like.dtype and buffer.device == like.device:
                whole = self._free.pop(position)
                break
        else:
            whole = torch.empty(numel, dtype=like.dtype, device=like.device)
        self._lent[whole.data_ptr()] = whole
        return whole[:numel]

    def give_back(self, buffer: Tensor) -> None:
        """Return a buffer from `take`; others (a gradient's own memory) are left alone."""
        # A message of one segment was flattened in place and took nothing from the pool.
        whole = self._lent.pop(buffer.data_ptr(), None)
        if whole is not None:
            self._free.append(whole)
            self._free.sort(key=torch.Tensor.numel)


def flatten_gradients(
    message: Message, parameters: Mapping[str, nn.Parameter], pool: BufferPool, *, scale: float
) -> Tensor:
    """The message's gradients times `scale`, as one flat tensor [numel]: of the pool, or for a single segment the
    gradient's own memory, which is overwritten."""
    grads = [_flat_part(_gradient(parameters[s.name]), s) for s in message.segments]
    # The division happens here, on memory that is in the cache anyway, and before compression: a residual must see the
    # same unit in every step.
    if len(grads) == 1:
        return grads[0].mul_(scale)
    return torch.cat(grads, out=pool.take(message.numel, grads[0])).mul_(scale)


def _flat_part(grad: Tensor, segment: Segment) -> Tensor:
    """The segment's elements; where it is the whole gradient, that saves a view."""
    flat = grad if grad.dim() == 1 else grad.reshape(-1)
    return flat if segment.numel == flat.numel() else flat[segment.start : segment.stop]


def scatter_gradients(message: Message, flat: Tensor, parameters: Mapping[str, nn.Parameter]) -> None:
    """Write a flat tensor [numel of the message] back into the parameters' gradients."""
    sizes = [segment.numel for segment in message.segments]
    parts = flat.split(sizes) if len(sizes) > 1 else (flat,)
    targets, sources = [], []
    for segment, part in zip(message.segments, parts, strict=True):
        grad = _gradient(parameters[segment.name])
        # A gradient in another memory format (channels last) has no flat view that could be written to.
        if grad.is_contiguous():
            # Reduced in place: source and target are the same memory, and nothing is to be copied.
            if grad.data_ptr() + segment.start * grad.element_size() != part.data_ptr():
                targets.append(grad.view(-1)[segment.start : segment.stop])
                sources.append(part)
        else:
            whole = grad.reshape(-1)
            whole[segment.start : segment.stop] = part
            grad.copy_(whole.view(grad.shape))
    if targets:
        # One call for all parameters: a copy per parameter costs more in Python than in memory traffic.
        torch._foreach_copy_(targets, sources)


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "a message was sent before its gradient was there"
    return parameter.grad
