"""What a message does on one rank: gradients flattened, compressed, exchanged, and their mean written back.

No I/O: `GradientRun.advance` yields the primitives that the exchange asks for, and whoever drives it answers them. The
engine and lockstep run the same objects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor, nn

from baselines.api import AllReduce, Context, Message, Payload, Reduced, Segment, Serve, State
from baselines.strategy import Strategy
from harness.engine.buffers import BufferPool, Buffers, StandingBuffers, flatten_gradients, scatter_gradients
from harness.engine.reduction import MessageRun, Reduces, Tagged, reduce_message
from harness.engine.shards import Shards
from harness.engine.streams import InOrder, Streams
from harness.precision import Guard
from harness.trace import Recorder


@dataclass(slots=True, kw_only=True)
class RankMessages:
    """The gradients and compressor states of one rank, and what is needed to reduce them.

    `compressor` is the strategy's, or one that does the same and is charged for it. `guard` watches scaled gradients.
    `recorder` notes the time of compression.
    """

    strategy: Strategy
    parameters: Mapping[str, nn.Parameter]
    states: Mapping[str, State]
    rank: int
    world: int
    generator: torch.Generator
    compressor: Reduces
    guard: Guard | None = None
    streams: Streams = field(default_factory=InOrder)
    recorder: Recorder | None = None
    step: int = 0
    scale: float = 1.0
    shards: Shards = field(init=False)  # empty where no server steps
    num_workers: int = field(init=False)
    sends_plain_sums: bool = field(init=False)
    _pools: defaultdict[int, BufferPool] = field(default_factory=lambda: defaultdict(BufferPool))
    _standing: StandingBuffers | None = None
    _layout: Sequence[Segment] = ()

    def __post_init__(self) -> None:
        self.shards = Shards(self.parameters, self.strategy.optimizer)
        self.num_workers = self.strategy.num_workers(self.world)
        self.sends_plain_sums = self.strategy.sends_plain_sums

    def begin(self, step: int, layout: Sequence[Segment], loss_scale: float = 1.0) -> None:
        """The messages to come are of `step`, of gradients in the order of `layout`, and its loss was multiplied by
        `loss_scale`."""
        self.step, self.scale = step, 1.0 / self.num_workers / loss_scale
        # On a GPU a buffer belongs to its lane's stream, which does not know until when gradients are read.
        if layout is not self._layout and all(p.device.type == "cpu" for p in self.parameters.values()):
            self._layout, self._standing = layout, StandingBuffers(layout, self.parameters)
        if self.guard is not None:
            self.guard.begin()

    def buffers(self, lane: int) -> Buffers:
        """The memory for messages on `lane`."""
        # A pool per lane: a buffer may still be in use on its lane's stream when another lane wants one.
        return self._pools[lane] if self._standing is None else self._standing

    def open(self, message: Message, lane: int) -> PlainSum | GradientRun:
        """The run of `message` on `lane`; nothing is done yet."""
        return (PlainSum if self.sends_plain_sums else GradientRun)(self, message, lane)

    def gather(self, message: Message, lane: int) -> Tensor:
        """Inside `lane`: the message's gradients as they are to be sent, a flat tensor [numel]."""
        self.streams.wait_ready(segment.name for segment in message.segments)
        flat = flatten_gradients(message, self.parameters, self.buffers(lane), scale=self.scale)
        if self.guard is not None:
            self.guard.outgoing(flat)
        return flat

    def hand_back(self, message: Message, lane: int, flat: Tensor, mean: Tensor) -> None:
        """Inside `lane`: make `mean` [numel] the gradients; `flat` is what `gather` gave."""
        if self.guard is not None:
            self.guard.incoming(mean)
        scatter_gradients(message, flat, mean, self.parameters, self.buffers(lane))
        self.streams.mark_landed(segment.name for segment in message.segments)


class PlainSum:
    """A message of plain sums: the one primitive that the nulls of compression and exchange come to, without asking
    them. Between layers, whose data drive Python's out of the caches, asking took as long as sending."""

    __slots__ = ("_flat", "_lane", "_message", "_own")

    def __init__(self, own: RankMessages, message: Message, lane: int) -> None:
        self._own, self._message, self._lane = own, message, lane
        self._flat: Tensor

    def advance(self, answer: Payload | None) -> Tagged | None:
        """The sum, or None when the mean is back in the gradients."""
        own = self._own
        with own.streams.lane(self._lane):
            if answer is None:
                self._flat = own.gather(self._message, self._lane)
                return Tagged(AllReduce(self._flat), "gradient")
            own.hand_back(self._message, self._lane, self._flat, answer[0])
            return None


class GradientRun:
    """One message's run through compressor and exchange; its buffer stays on its lane's stream."""

    __slots__ = ("_flat", "_lane", "_message", "_own", "_run")

    def __init__(self, own: RankMessages, message: Message, lane: int) -> None:
        self._own, self._message, self._lane = own, message, lane
        self._flat: Tensor
        self._run: MessageRun

    def advance(self, answer: Payload | None) -> Tagged | None:
        """The next primitive that travels, or None when the mean is back in the gradients."""
        with self._own.streams.lane(self._lane):
            if answer is None:
                self._begin()
            if self._own.recorder is None:
                tagged, reduced = self._go_on(answer)
            else:
                start_s = perf_counter()
                tagged, reduced = self._go_on(answer)
                # Until here: gathering and scattering gradients is no codec's work.
                self._own.recorder.add("codec", "encode" if answer is None else "decode", start_s, perf_counter())
            if reduced is not None:
                self._own.hand_back(self._message, self._lane, self._flat, reduced.value)
            return tagged

    def _go_on(self, answer: Payload | None) -> tuple[Tagged | None, Reduced | None]:
        """The next primitive that travels, or what the message came to."""
        try:
            tagged = next(self._run) if answer is None else self._run.send(answer)
            # Nothing of it travels, so no driver sees it: bytes and rounds are those of push and pull alone.
            while isinstance(tagged.primitive, Serve):
                tagged = self._run.send((self._own.shards.step(self._message, tagged.primitive, self._own.step),))
        except StopIteration as end:
            return None, end.value
        return tagged, None

    def _begin(self) -> None:
        own, message = self._own, self._message
        self._flat = own.gather(message, self._lane)
        ctx = Context(own.rank, own.world, own.step, message, own.generator, num_workers=own.num_workers)
        self._run = reduce_message(own.compressor, own.strategy.exchange, self._flat, own.states, ctx)
