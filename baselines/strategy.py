"""A strategy: one plug-in a slot, written as a text such as `tensor-fusion(cycle_s=0.005)+half`.

Names are joined by `+`; what is not named keeps its default. `topk+error-feedback` wraps, in the
order written. Update points are named likewise: `fixed-buckets+at-pre-hook`; and how many steps ranks take
alone between two exchanges: `sbc(density=0.01)+error-feedback+local-steps(n=10)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import torch

from baselines.api import (
    Compressor,
    Consistency,
    Costs,
    Exchange,
    HasKnobs,
    HasServers,
    How,
    KeepsResidual,
    Knob,
    NeedsCosts,
    NeedsOptimizer,
    OneByOne,
    OptimizerSpec,
    Ordering,
    Packing,
    Scope,
    Slot,
    StartsDense,
    Tuner,
    UpdatePoint,
    Votes,
    layers_of,
)
from baselines.catalogue import plugin, plugins
from baselines.text import TextError, build, read_call, split_parts

P = TypeVar("P")

DEFAULTS = {
    Slot.PACKING: "unfused",
    Slot.ORDERING: "fifo",
    Slot.COMPRESSION: "uncompressed",
    Slot.EXCHANGE: "all-reduce",
    Slot.OPTIMIZER: "sgd",
    Slot.TUNING: "untuned",
    Slot.CONSISTENCY: "bsp",
}


LOCAL_STEPS, MAX_LOCAL_STEPS = "local-steps", 1_000_000


class StrategyError(TextError):
    """A strategy text that cannot be read, or an illegal pair of plug-ins, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """What each slot holds. `text` is how it was written and is enough to make it again. Ranks take `local_steps` steps
    of their own between two exchanges, in which differences of weights then travel."""

    text: str
    packing: Packing
    ordering: Ordering
    compression: Compressor
    exchange: Exchange
    optimizer: OptimizerSpec
    tuning: Tuner
    consistency: Consistency
    update_point: UpdatePoint = UpdatePoint.AFTER_ALL
    local_steps: int = 1

    @property
    def takes(self) -> dict[str, frozenset[torch.dtype]]:
        """The element types of gradients that each plug-in takes, by its name."""
        return taken_by(getattr(self, slot.value) for slot in Slot)

    @property
    def rank_invariant(self) -> bool:
        """Whether every rank sends the same messages in the same order without talking."""
        return self.packing.rank_invariant and self.ordering.rank_invariant

    @property
    def sends_plain_sums(self) -> bool:
        """Whether each message is one sum of float32 numbers as they are, by the library's all-reduce."""
        names = (self.compression.card.name, self.exchange.card.name)
        return names == (DEFAULTS[Slot.COMPRESSION], DEFAULTS[Slot.EXCHANGE])

    @property
    def sums_in_known_order(self) -> bool:
        """Whether messages are plain sums in an order that all ranks know beforehand, as torch DDP's are."""
        return self.rank_invariant and self.sends_plain_sums

    @property
    def sums_one_by_one(self) -> bool:
        """Whether messages are plain sums that travel one behind the other."""
        return self.sends_plain_sums and isinstance(self.ordering, OneByOne) and self.ordering.one_by_one

    @property
    def updates_on_servers(self) -> bool:
        """Whether what a message brings back are new parameters, not gradients."""
        # This and the rules are asked of many combinations; the isinstance of a Protocol would take most of the time.
        return bool(getattr(self.exchange, "updates_on_servers", False))

    def num_workers(self, world: int) -> int:
        """How many of `world` ranks train, the first ones; the others only serve."""
        return self.exchange.num_workers(world) if isinstance(self.exchange, HasServers) else world

    @property
    def needs_costs(self) -> bool:
        """Whether its packing or ordering plans with measured costs."""
        return isinstance(self.packing, NeedsCosts) or isinstance(self.ordering, NeedsCosts)

    def bound(self, costs: Costs) -> Strategy:
        """The same strategy, planning with `costs`: of one of many messages, `depth` of them in flight."""
        plugins = self._adaptive()
        bound: dict[str, Any] = {n: own.bind(costs) for n, own in plugins.items() if isinstance(own, NeedsCosts)}
        return dataclasses.replace(self, **bound)

    @property
    def knobs(self) -> dict[str, Knob]:
        """What a tuner may search, as `slot.field`."""
        owners = {slot: own for slot, own in self._adaptive().items() if isinstance(own, HasKnobs)}
        return {f"{slot}.{name}": knob for slot, own in owners.items() for name, knob in own.knobs.items()}

    @property
    def settings(self) -> dict[str, float]:
        """The present values of the knobs."""
        return {knob: float(attrgetter(knob)(self)) for knob in self.knobs}

    def tuned(self, settings: Mapping[str, float]) -> Strategy:
        """The same strategy with these values of knobs; rounded where the field is a whole number."""
        plugins = self._adaptive()
        for knob, value in settings.items():
            slot, _, name = knob.partition(".")
            whole = isinstance(getattr(plugins[slot], name), int)
            plugins[slot] = dataclasses.replace(plugins[slot], **{name: round(value) if whole else value})
        return dataclasses.replace(self, **plugins)

    def _adaptive(self) -> dict[str, Any]:
        """The plug-ins that may have knobs or need costs, by slot."""
        return {"packing": self.packing, "ordering": self.ordering}


def taken_by(plugins: Iterable[Any]) -> dict[str, frozenset[torch.dtype]]:
    """The element types of gradients that each of `plugins` takes, and before it those inside it, by name."""
    return {layer.card.name: layer.card.dtypes for plugin in plugins for layer in reversed(layers_of(plugin))}


def parse_strategy(text: str) -> Strategy:
    """Read a strategy text.

    Raises: TextError for a text that cannot be read or a wrong parameter, StrategyError for an
    illegal combination, CatalogueError for an unknown plug-in.
    """
    slots: dict[Slot, Any] = {}
    steps: dict[str, Any] = {}
    for part in split_parts(text):
        name, arguments = read_call(part)
        if name == LOCAL_STEPS or name in set(UpdatePoint):
            key, value = _of_steps(part, name, arguments)
            if key in steps:
                raise StrategyError(f"{text}: {part} is the second to decide {key}; name one")
            steps[key] = value
            continue
        kind = plugin(name)
        if "inner" in arguments:
            raise TextError(f"{name} has no parameter 'inner'; write what it wraps before it, e.g. topk+{name}")
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
    strategy = Strategy(text=text, **steps, **by_name)
    if reason := why_illegal(strategy):
        raise StrategyError(f"{text}: {reason}")
    return strategy


def optimizer_of(text: str, otherwise: str) -> str:
    """The optimizer that a strategy text names, or else `otherwise`, inside the wrappers that the text names alone."""
    own = [part for part in split_parts(text) if _is_optimizer(part)]
    if own and all(plugin(read_call(part)[0]).card.wraps for part in own):
        own.insert(0, otherwise.removesuffix("".join(f"+{part}" for part in own)))
    return "+".join(own) or otherwise


def with_optimizer(text: str, optimizer: str) -> str:
    """A strategy text with `optimizer` in place of what it names. Raises: TextError."""
    parts = split_parts(text)
    others = [part for part in parts if not _is_optimizer(part)]
    return f"{text if others == parts else '+'.join(others)}+{optimizer}".removeprefix("+")


def _is_optimizer(part: str) -> bool:
    kind = plugins().get(part.partition("(")[0])
    return kind is not None and kind.card.slot is Slot.OPTIMIZER


def _of_steps(part: str, name: str, arguments: Mapping[str, Any]) -> tuple[str, UpdatePoint | int]:
    """Which field of a strategy a part that is no plug-in decides, and its value. Raises: TextError, StrategyError."""
    if name != LOCAL_STEPS:
        if arguments:
            raise TextError(f"{part}: {name} has no parameters; write {name}")
        return "update_point", UpdatePoint(name)
    num = arguments.get("n")
    if arguments.keys() != {"n"} or type(num) is not int or not 1 <= num <= MAX_LOCAL_STEPS:
        raise StrategyError(f"{part}: write how many steps as a whole number, e.g. local-steps(n=10)")
    return "local_steps", num


def why_illegal(strategy: Strategy) -> str | None:
    """The reason why these plug-ins cannot work together, or None."""
    return next((reason for broken, reason in RULES if broken(strategy)), None)


def _regroups(strategy: Strategy) -> bool:
    """Whether messages may hold other elements in another step."""
    packing = strategy.packing
    searched = strategy.tuning.num_trials > 0 and isinstance(packing, HasKnobs)
    return not packing.rank_invariant or isinstance(packing, NeedsCosts) or searched


def _innermost(plugin: P) -> P:
    return layers_of(plugin)[-1]


def _wraps_warm_up(compression: Compressor) -> bool:
    return any(inner.card.wraps and isinstance(inner, StartsDense) for inner in layers_of(compression)[1:])


def _does_a_part_of_steps(compression: Compressor) -> bool:
    return isinstance(compression, NeedsOptimizer) or _applies_momentum(compression)


def _applies_momentum(plugin: Any) -> bool:
    return bool(getattr(plugin, "applies_momentum", False))


def _needs_the_others(compression: Compressor) -> bool:
    """Whether what a worker pushes alone is no estimate of its own update."""
    votes = any(isinstance(layer, Votes) and layer.votes for layer in layers_of(compression))
    return votes or compression.how in (How.MERGE, How.SCATTER)


def _orders(strategy: Strategy) -> bool:
    return bool(strategy.ordering.card.name != DEFAULTS[Slot.ORDERING])


def _does_not_wait_and(applies: Callable[[Strategy], bool], strategy: Strategy) -> bool:
    return not strategy.consistency.is_synchronous and applies(strategy)


def why_not_pushed(strategy: Strategy) -> str | None:
    """The reason why workers cannot push to servers as the strategy says, one by one, or None."""
    return next((reason for applies, reason in NOT_PUSHED if applies(strategy)), None)


Rule = tuple[Callable[[Strategy], bool], str]
NOT_PUSHED: tuple[Rule, ...] = (
    (lambda s: s.local_steps > 1, "a worker pushes to servers after each step; leave local steps out"),
    (
        lambda s: _needs_the_others(s.compression),
        "a worker pushes when it is ready, and the compressor combines what all workers send at once; use one whose "
        "code stands for the worker's own update, e.g. topk+error-feedback",
    ),
    (
        lambda s: _does_a_part_of_steps(_innermost(s.compression)),
        "workers push differences of parameters, which are no gradients to apply momentum to; use a compressor "
        "without, e.g. topk+error-feedback",
    ),
    (
        lambda s: bool(s.exchange.card.name != DEFAULTS[Slot.EXCHANGE]),
        "workers push to servers of the consistency method; leave the exchange out",
    ),
    (
        _orders,
        "a worker pushes its update when the step is done and reads all parameters before the next, one message each, "
        "so none can go before another; leave the ordering out",
    ),
    (
        lambda s: s.update_point is UpdatePoint.AT_PRE_HOOK,
        "a worker reads all parameters at once; update after-all",
    ),
)
RULES: tuple[Rule, ...] = (
    (
        lambda s: s.local_steps > 1 and s.update_point is UpdatePoint.AT_PRE_HOOK,
        "with local steps every rank updates by itself, at once, and weights are adopted together; update after-all",
    ),
    (
        lambda s: s.local_steps > 1 and (s.updates_on_servers or s.num_workers(2) < 2),
        "with local steps the workers update; use parameter-server(servers=0, update='worker') or another exchange",
    ),
    (
        lambda s: s.local_steps > 1 and _does_a_part_of_steps(_innermost(s.compression)),
        "with local steps differences of weights travel, which are no gradients to apply momentum to; use a compressor "
        "without, e.g. sbc+error-feedback",
    ),
    (
        lambda s: s.local_steps > 1 and (s.needs_costs or s.tuning.num_trials > 0),
        "with local steps everything travels at once, and there are no times of single steps to plan or tune with; use "
        "a packing and ordering without",
    ),
    (
        lambda s: s.tuning.num_trials > 0 and not s.knobs,
        "there is nothing to tune: neither packing nor ordering has knobs; use e.g. tensor-fusion or slices",
    ),
    (
        lambda s: s.packing.slices and s.compression.scope is Scope.TENSOR,
        "the compressor needs whole tensors and the packing cuts them; use a packing that does not slice",
    ),
    (
        lambda s: s.compression.scope is Scope.MODEL and s.packing.card.name != "single-bucket",
        "the compressor looks at the whole model; use it with single-bucket",
    ),
    (
        lambda s: s.compression.card.wraps and isinstance(_innermost(s.compression), KeepsResidual),
        "the compressor keeps what it does not send itself, and nothing goes around it; name it alone (dgc has a "
        "warm-up of its own, warmup_steps)",
    ),
    (
        lambda s: _wraps_warm_up(s.compression),
        "warm-up goes around everything else, so that nothing is compressed in it; write it last, e.g. "
        "onebit+error-feedback+warm-up",
    ),
    (
        lambda s: _applies_momentum(_innermost(s.compression)) and _applies_momentum(s.optimizer),
        "the compressor applies momentum before the wire and the optimizer would apply it again; use sgd(momentum=0.0)",
    ),
    (
        lambda s: (
            isinstance(own := _innermost(s.compression), NeedsOptimizer) and not own.fits(_innermost(s.optimizer))
        ),
        "the compressor does a part of its optimizer's work: use onebit-adam with frozen-adam, freeze_after equal to "
        "warmup_steps, and the same beta1",
    ),
    (
        lambda s: s.compression.how is How.MERGE and How.MERGE not in s.exchange.takes,
        "the compressor merges two payloads at a time; use the exchange tree",
    ),
    (
        lambda s: s.compression.how is How.SCATTER and How.SCATTER not in s.exchange.takes,
        "the compressor sends each server its part; use all-reduce (every rank serves) or parameter-server",
    ),
    (
        lambda s: s.compression.how is How.CONCAT and How.CONCAT not in s.exchange.takes,
        "the exchange only sums and the compressor's payloads cannot be summed; use all-reduce or all-gather, or put "
        "double-squeeze around the compressor for servers",
    ),
    (
        lambda s: s.compression.how not in s.exchange.takes,
        "the exchange cannot carry what the compressor asks for; use all-reduce",
    ),
    (
        lambda s: s.update_point is UpdatePoint.AT_PRE_HOOK and s.optimizer.scope is Scope.MODEL,
        "the optimizer needs the whole model at once; update after-all",
    ),
    (
        lambda s: s.updates_on_servers and s.optimizer.scope is not Scope.ELEMENT,
        "the optimizer needs whole tensors and a server has parts of them; use update='worker'",
    ),
    (
        lambda s: s.updates_on_servers and s.compression.lossy,
        "servers reply with parameters, which the compressor would change; use update='worker' or uncompressed",
    ),
    (
        lambda s: s.updates_on_servers and _regroups(s),
        "a server keeps the optimizer's state of its part of each message, and the packing changes messages from step "
        "to step; use update='worker' or a packing that does not",
    ),
    # Workers that wait for each other push to servers only where a trial has a cluster, which its check knows.
    *((partial(_does_not_wait_and, applies), reason) for applies, reason in NOT_PUSHED),
)
