"""Random layouts of parameters, and ranks driven together, for the laws of plug-ins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from baselines.api import Compressor, Context, Exchange, Message, Reduced, Segment, State
from baselines.exchange.all_reduce import RingAllReduce
from harness.engine.reduction import reduce_message
from harness.lockstep.collectives import perform

FORMATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def segments_of(sizes: Sequence[int], formats: Sequence[torch.dtype] = ()) -> tuple[Segment, ...]:
    """Whole parameters of these numbers of elements, in ready order."""
    kinds = formats or [torch.float32] * len(sizes)
    return tuple(
        Segment(f"p{index}", (size,), 0, size, index, kind)
        for index, (size, kind) in enumerate(zip(sizes, kinds, strict=True))
    )


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Segment, ...]:
    sizes = draw(st.lists(st.integers(1, 2_000_000), max_size=30))
    formats = draw(st.lists(st.sampled_from(FORMATS), min_size=len(sizes), max_size=len(sizes)))
    return segments_of(sizes, formats)


def reduce_together(
    compressor: Compressor,
    grads: Sequence[Tensor],
    states: Sequence[Mapping[str, State]],
    segments: Sequence[Segment],
    *,
    exchange: Exchange | None = None,
    step: int = 0,
    num_workers: int = 0,
) -> list[Reduced]:
    """One message with `grads`, one a rank, carried through on all ranks."""
    world, message = len(grads), Message(0, tuple(segments))
    runs = [
        reduce_message(
            compressor,
            exchange or RingAllReduce(),
            grad,
            states[rank],
            Context(rank, world, step, message, torch.Generator().manual_seed(rank), True, num_workers),
        )
        for rank, grad in enumerate(grads)
    ]
    results: list[Reduced] = []
    answers = [None] * world
    while not results:
        asked = []
        for run, answer in zip(runs, answers, strict=True):
            try:
                asked.append(run.send(answer).primitive)  # type: ignore[arg-type]
            except StopIteration as end:
                results.append(end.value)
        answers = perform(asked) if asked else answers  # type: ignore[assignment]
    return results
