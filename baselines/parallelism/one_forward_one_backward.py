"""The order that 1F1B schedules share: some forwards to fill the pipeline, then a backward after each forward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassOf1F1B:
    """One pass of the order: the forward or the backward of a micro-batch."""

    micro_batch: int
    is_backward: bool


def order(num_warmup: int, num_micro_batches: int) -> Iterator[PassOf1F1B]:
    """`num_warmup` ≥ 1 forwards, then backward and forward in turn, then the backwards that are left."""
    ahead = min(num_warmup, num_micro_batches)
    for micro_batch in range(ahead):
        yield PassOf1F1B(micro_batch, is_backward=False)
    for micro_batch in range(num_micro_batches):
        yield PassOf1F1B(micro_batch, is_backward=True)
        if ahead + micro_batch < num_micro_batches:
            yield PassOf1F1B(ahead + micro_batch, is_backward=False)


def fill_and_drain_bubble(num_ranks: int, num_units: int) -> float:
    """(K−1)/(units+K−1): a pipeline of K ranks fills and drains once around `num_units` units of work."""
    return (num_ranks - 1) / (num_units + num_ranks - 1)
