"""Flat buffers between gradients and messages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from baselines.api import Message, Segment

Parameters = Mapping[str, nn.Parameter]


class Buffers(Protocol):
    """Memory for messages of several segments."""

    def gather(self, message: Message, parameters: Parameters) -> Tensor:
        """The message's gradients one after the other, as a flat tensor [numel of the message]."""

    def hand_back(self, message: Message, flat: Tensor, mean: Tensor, parameters: Parameters) -> None:
        """Make `mean` [numel of the message] the gradients; `flat` is what `gather` gave, and may be `mean`."""


class BufferPool:
    """Flat buffers that any message may use: fresh megabytes cost page faults every step. Gradients keep their own
    memory, into which means are copied back."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        self._lent: dict[int, Tensor] = {}  # by address

    def gather(self, message: Message, parameters: Parameters) -> Tensor:
        """See `Buffers`."""
        grads = [_flat_part(_gradient(parameters[segment.name]), segment) for segment in message.segments]
        return torch.cat(grads, out=self._take(message.numel, grads[0]))

    def hand_back(self, message: Message, flat: Tensor, mean: Tensor, parameters: Parameters) -> None:
        """See `Buffers`."""
        _copy_back(zip(message.segments, _parts(message.segments, mean), strict=True), parameters)
        self._free.append(self._lent.pop(flat.data_ptr()))
        self._free.sort(key=torch.Tensor.numel)

    def _take(self, numel: int, like: Tensor) -> Tensor:
        # Free buffers are sorted by size, so the first that fits is the tightest.
        for position, buffer in enumerate(self._free):
            if buffer.numel() >= numel and buffer.dtype == like.dtype and buffer.device == like.device:
                whole = self._free.pop(position)
                break
        else:
            whole = torch.empty(numel, dtype=like.dtype, device=like.device)
        self._lent[whole.data_ptr()] = whole
        return whole[:numel]


@dataclass(frozen=True, slots=True)
class _Slice:
    """One message's part of the standing memory. Of its `parts`, one per segment, some become their parameters'
    gradients; the others are pieces of a parameter, or their parameter has another memory format."""

    segments: Sequence[Segment]
    flat: Tensor
    parts: list[Tensor]
    sources: Sequence[tuple[nn.Parameter, Segment | None]]  # of each part; with the segment where that is a piece
    becoming: Sequence[tuple[nn.Parameter, Tensor]]
    others: Sequence[tuple[Segment, Tensor]]


class StandingBuffers:
    """One memory for all gradients on the CPU, in the order of their layout. A message of neighbours is a slice of it,
    and any other one a buffer of a pool.

    A mean stays where it is, and the parameters' gradients are views of it until the next step, so nothing is copied
    back. Each parameter has its own place, so no message of a step writes over another one's mean, however messages are
    cut. Who keeps a gradient for longer keeps a copy, as with DDP's `gradient_as_bucket_view`.
    """

    def __init__(self, layout: Sequence[Segment], parameters: Parameters) -> None:
        of_format: dict[torch.dtype, list[Segment]] = {}
        for segment in layout:
            of_format.setdefault(parameters[segment.name].dtype, []).append(segment)
        # By the segment's index: the memory it lies in, where it begins there, and its part of it.
        self._places: dict[int, tuple[Tensor, int, Tensor]] = {}
        for dtype, segments in of_format.items():
            flat = torch.empty(sum(segment.numel for segment in segments), dtype=dtype)
            start = 0
            for segment, part in zip(segments, _parts(segments, flat), strict=True):
                self._places[segment.index] = (flat, start, part)
                start += segment.numel
        self._slices: dict[int, _Slice | None] = {}  # by the message's index
        self._pool = BufferPool()

    def gather(self, message: Message, parameters: Parameters) -> Tensor:
        """See `Buffers`."""
        own = self._slice_of(message, parameters)
        if own is None:
            return self._pool.gather(message, parameters)
        pieces = [
            _gradient(parameter) if piece is None else _flat_part(_gradient(parameter), piece)
            for parameter, piece in own.sources
        ]
        # One call for all parameters: a copy per parameter costs more in Python than in memory traffic.
        torch._foreach_copy_(own.parts, pieces)
        return own.flat

    def hand_back(self, message: Message, flat: Tensor, mean: Tensor, parameters: Parameters) -> None:
        """See `Buffers`."""
        own = self._slices[message.index]
        if own is None:
            self._pool.hand_back(message, flat, mean, parameters)
            return
        if mean.data_ptr() != flat.data_ptr():
            flat.copy_(mean)
        for parameter, part in own.becoming:
            parameter.grad = part
        _copy_back(own.others, parameters)

    def _slice_of(self, message: Message, parameters: Parameters) -> _Slice | None:
        known = self._slices.get(message.index)
        # A plan's segments are the same in every step, and those of most negotiated messages too.
        if known is None or known.segments != message.segments:
            known = self._slices[message.index] = self._cut(message, parameters)
        return known

    def _cut(self, message: Message, parameters: Parameters) -> _Slice | None:
        """The message's part of the memory; None if its segments are not neighbours there."""
        memory, start, _ = self._places[message.segments[0].index]
        begin = end = start + message.segments[0].start
        parts, becoming, others = list[Tensor](), list[tuple[nn.Parameter, Tensor]](), list[tuple[Segment, Tensor]]()
        sources = list[tuple[nn.Parameter, Segment | None]]()
        for segment in message.segments:
            flat, start, part = self._places[segment.index]
            if flat is not memory or start + segment.start != end:
                return None
            end += segment.numel
            parameter, is_piece = parameters[segment.name], segment.numel != part.numel()
            sources.append((parameter, segment if is_piece else None))
            if is_piece:
                part = flat[end - segment.numel : end]
                others.append((segment, part))
            elif parameter.is_contiguous():
                becoming.append((parameter, part))
            else:
                others.append((segment, part))
            parts.append(part)
        return _Slice(message.segments, memory[begin:end], parts, sources, becoming, others)


def flatten_gradients(message: Message, parameters: Parameters, buffers: Buffers, *, scale: float) -> Tensor:
    """The message's gradients times `scale`, as one flat tensor [numel]: in `buffers`, or for a single segment the
    gradient's own memory, which is overwritten."""
    if len(message.segments) == 1:
        (segment,) = message.segments
        flat = _flat_part(_gradient(parameters[segment.name]), segment)
    else:
        flat = buffers.gather(message, parameters)
    # The division happens here, on memory that is in the cache anyway, and before compression: a residual must see the
    # same unit in every step.
    return flat.mul_(scale)


def scatter_gradients(message: Message, flat: Tensor, mean: Tensor, parameters: Parameters, buffers: Buffers) -> None:
    """Make `mean` [numel of the message] the parameters' gradients; `flat` is what `flatten_gradients` gave."""
    if len(message.segments) == 1:
        _copy_back(((message.segments[0], mean),), parameters)
    else:
        buffers.hand_back(message, flat, mean, parameters)


def _copy_back(parts: Iterable[tuple[Segment, Tensor]], parameters: Parameters) -> None:
    """Write segments into the memory of their gradients."""
    targets, sources = [], []
    for segment, part in parts:
        grad = _gradient(parameters[segment.name])
        # A gradient in another memory format (channels last) has no flat view that could be written to.
        if grad.is_contiguous():
            # Reduced in place: source and target are the same memory, and nothing is to be copied.
            if grad.data_ptr() + segment.start * grad.element_size() != part.data_ptr():
                targets.append(grad.view(-1)[segment.start : segment.stop])
                sources.append(part.view(-1))
        else:
            whole = grad.reshape(-1)
            whole[segment.start : segment.stop] = part.view(-1)
            grad.copy_(whole.view(grad.shape))
    if targets:
        # One call for all parameters: a copy per parameter costs more in Python than in memory traffic.
        torch._foreach_copy_(targets, sources)


def _parts(segments: Sequence[Segment], flat: Tensor) -> list[Tensor]:
    """The segments of `flat`, in the gradient's shape where a segment is all of it."""
    return [
        part.view(segment.shape) if segment.numel == math.prod(segment.shape) else part
        for segment, part in zip(segments, flat.split([each.numel for each in segments]), strict=True)
    ]


def _flat_part(grad: Tensor, segment: Segment) -> Tensor:
    """The segment's elements; where it is the whole gradient, that saves a view."""
    flat = grad if grad.dim() == 1 else grad.reshape(-1)
    return flat if segment.numel == flat.numel() else flat[segment.start : segment.stop]


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "a message was sent before its gradient was there"
    return parameter.grad
