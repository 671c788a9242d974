"""What of a model is reduced, in which order it becomes ready, and each rank's random numbers.

Shared by the engine and lockstep, so that both send the same messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from baselines.api import Segment


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by name, a shared one once, last registered first: backward's order at a guess."""
    # `named_parameters` leaves a tied parameter's second name out, so it is sent once.
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return dict(reversed(named))


def lay_out(parameters: Mapping[str, nn.Parameter], order: Sequence[str]) -> tuple[Segment, ...]:
    """Whole parameters as segments, `index` counting them in the ready order of names `order`."""
    return tuple(
        Segment(name, tuple(p.shape), 0, p.numel(), index, p.dtype)
        for index, (name, p) in enumerate((name, parameters[name]) for name in order)
    )


def rank_generator(seed: int, rank: int) -> torch.Generator:
    """A rank's own generator for compressors that draw."""
    # A prime factor keeps rank r of one seed apart from rank 0 of a seed nearby.
    return torch.Generator().manual_seed(seed * 10_007 + rank)
