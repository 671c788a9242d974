"""A strategy: one plug-in a slot, written as a text such as `tensor-fusion(cycle_s=0.005)+half`.

Names are joined by `+`; what is not named keeps its default. `topk+error-feedback` wraps, in the
order written. Update points are named likewise: `fixed-buckets+at-pre-hook`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from baselines.api import Compressor, Exchange, How, OptimizerSpec, Ordering, Packing, Scope, Slot, UpdatePoint
from baselines.catalogue import plugin
from baselines.text import TextError, build, read_call, split_parts

DEFAULTS = {
    Slot.PACKING: "unfused",
    Slot.ORDERING: "fifo",
    Slot.COMPRESSION: "uncompressed",
    Slot.EXCHANGE: "all-reduce",
    Slot.OPTIMIZER: "sgd",
}


class StrategyError(TextError):
    """A strategy text that cannot be read, or an illegal pair of plug-ins, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """What each slot holds. `text` is how it was written and is enough to make it again."""

    text: str
    packing: Packing
    ordering: Ordering
    compression: Compressor
    exchange: Exchange
    optimizer: OptimizerSpec
    update_point: UpdatePoint

    @property
    def rank_invariant(self) -> bool:
        """Whether every rank sends the same messages in the same order without talking."""
        return self.packing.rank_invariant and self.ordering.rank_invariant


def parse_strategy(text: str) -> Strategy:
    """Read a strategy text.

    Raises: TextError for a text that cannot be read or a wrong parameter, StrategyError for an
    illegal combination, CatalogueError for an unknown plug-in.
    """
    slots: dict[Slot, Any] = {}
    update_point = UpdatePoint.AFTER_ALL
    for part in split_parts(text):
        name, arguments = read_call(part)
        if name in set(UpdatePoint):
            update_point = UpdatePoint(name)
            continue
        kind = plugin(name)
        slot = kind.card.slot
        if kind.card.wraps:
            inner = slots.get(slot) or plugin(DEFAULTS[slot])()
            slots[slot] = build(kind, {"inner": inner, **arguments})
        elif slot in slots:
            raise StrategyError(f"{text}: {name} and {slots[slot].card.name} both decide {slot}; name one of them")
        else:
            slots[slot] = build(kind, arguments)
    for slot, default in DEFAULTS.items():
        slots.setdefault(slot, plugin(default)())
    by_name = {slot.value: value for slot, value in slots.items()}
    strategy = Strategy(text=text, update_point=update_point, **by_name)
    if reason := why_illegal(strategy):
        raise StrategyError(f"{text}: {reason}")
    return strategy


def why_illegal(strategy: Strategy) -> str | None:
    """The reason why these plug-ins cannot work together, or None."""
    return next((reason for broken, reason in RULES if broken(strategy)), None)


Rule = tuple[Callable[[Strategy], bool], str]
RULES: tuple[Rule, ...] = (
    (
        lambda s: s.packing.slices and s.compression.scope is Scope.TENSOR,
        "the compressor needs whole tensors and the packing cuts them; use a packing that does not slice",
    ),
    (
        lambda s: s.compression.scope is Scope.MODEL and s.packing.card.name != "single-bucket",
        "the compressor looks at the whole model; use it with single-bucket",
    ),
    (
        lambda s: s.exchange.sums_only and s.compression.how is How.CONCAT,
        "the exchange only sums and the compressor's payloads cannot be summed; use all-reduce or all-gather",
    ),
    (
        lambda s: s.update_point is UpdatePoint.AT_PRE_HOOK and not s.optimizer.element_wise,
        "the optimizer needs the whole model at once; update after-all",
    ),
)
