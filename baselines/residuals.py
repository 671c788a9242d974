"""What was lost in one step and waits for the next: adding it, and saying so where it had to be given up."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torch import Tensor

from baselines.api import Message, State
from baselines.kernels import feedback

log = logging.getLogger(__name__)


def parts_of(
    states: Mapping[str, State], key: str, flat: Tensor, message: Message
) -> tuple[list[Tensor], list[Tensor]]:
    """Each segment's state `key` [numel of the segment], and in the same order its part of the flat message [numel]."""
    kept = [states[segment.name][key][segment.start : segment.stop] for segment in message.segments]
    return kept, list(flat.split([segment.numel for segment in message.segments]))


def absorb(states: Mapping[str, State], flat: Tensor, message: Message, key: str = "residual") -> None:
    """Add the residuals to the message [numel], in place; the sum stands in the residuals too.

    A residual that is not finite is taken for 0, which is logged: without that one infinity would never end.
    """
    residuals, parts = parts_of(states, key, flat, message)
    report(feedback.absorb(parts, residuals), message)


def report(num_lost: int, message: Message) -> None:
    """Log how many elements of the states of `message` were not finite and were given up, if any."""
    if num_lost:
        first = message.segments[0].name
        log.warning("%d elements kept of %s and what travels with it are not finite: begun anew", num_lost, first)
