"""The contract of every discovered plug-in, in every legal pair of plug-ins of two slots, on virtual ranks.

Training every combination of six slots would take an hour, so few are picked that hold every pair that any legal
combination holds. Each has one number of ranks and each plug-in meets all numbers; lossless ones have them all. There
a wrapper stands around one compressor; around each of the others it is trained once.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from test_wire_bytes import CASES
from tiny_models import averaged_sgd, awkward, loss_at, random_arrivals

from baselines.api import AllToAll, OptimizerSpec, Slot, Transfer, UpdatePoint
from baselines.catalogue import plugins
from baselines.strategy import DEFAULTS, RULES, Strategy, parse_strategy, why_illegal
from baselines.text import TextError, build, read_call, split_parts
from harness.engine.core import Core, Start
from harness.engine.reduction import Tagged
from harness.lockstep.ranks import Lockstep, replicas

# The first one loads the kernels, and compiles them where no cache has them.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NUM_STEPS = 3
WORLDS = (3, 2, 4, 1)  # three where it does not matter
# Whatever else changes after some steps does so within three of them.
EARLY = {
    "onebit-adam": "onebit-adam(warmup_steps=1)",
    "frozen-adam": "frozen-adam(freeze_after=1, eps=0.001)",
    "warm-up": "warm-up(steps=1)",
    "truncated-gradient": "truncated-gradient(every=2)",
    "lars": "lars(lr=0.05)",  # here biases bear no more
}
VARIANTS = {
    Slot.EXCHANGE: ["parameter-server(update='server')"],
    Slot.OPTIMIZER: [
        "sgd(momentum=0.0)",
        "sgd+linear-scaling(times=2.0, warmup_steps=2)+step-decay(at=(2,))+polynomial-decay(num_steps=4)",
    ],
}

Parts = tuple[str, ...]


def names(slot: Slot, *, wraps: bool = False) -> list[str]:
    found = [name for name, kind in plugins().items() if kind.card.slot is slot and kind.card.wraps is wraps]
    return [EARLY.get(name, name) for name in found] + ([] if wraps else VARIANTS.get(slot, []))


@cache
def made(text: str) -> Any:
    """The plug-in that a text of one slot stands for, whatever else it may go with. Raises: TextError."""
    inner, *wrappers = split_parts(text)
    name, arguments = read_call(inner)
    own = build(plugins()[name], arguments)
    for wrapper in wrappers:
        name, arguments = read_call(wrapper)
        own = build(plugins()[name], {"inner": own, **arguments})
    return own


def chains() -> dict[str, list[str]]:
    """Every compressor that each wrapper accepts, wrapped."""
    found: dict[str, list[str]] = {}
    for wrapper in names(Slot.COMPRESSION, wraps=True):
        found[wrapper] = []
        for inner in names(Slot.COMPRESSION):
            try:
                made(text := f"{inner}+{wrapper}")
            except TextError:
                continue
            found[wrapper].append(text)
    return found


def compressions() -> list[str]:
    """All that stand alone, and each wrapper around the first one that it goes around."""
    return names(Slot.COMPRESSION) + [texts[0] for texts in chains().values()]


def combinations() -> Iterator[tuple[Parts, Strategy]]:
    """Each possible combination, not checked; plug-ins are made once, since there are many thousands."""
    slots = (Slot.PACKING, Slot.ORDERING, Slot.COMPRESSION, Slot.EXCHANGE, Slot.OPTIMIZER)
    texts = [compressions() if slot is Slot.COMPRESSION else names(slot) for slot in slots]
    tuning, consistency = made(DEFAULTS[Slot.TUNING]), made(DEFAULTS[Slot.CONSISTENCY])
    for *parts, point in itertools.product(*texts, UpdatePoint):
        own = {slot.value: made(part) for slot, part in zip(slots, parts, strict=True)}
        text = "+".join((*parts, point))
        yield (*parts, point), Strategy(text=text, tuning=tuning, consistency=consistency, update_point=point, **own)


@cache
def legal_and_illegal() -> tuple[dict[Parts, Strategy], dict[str, str]]:
    legal, illegal = {}, {}
    for parts, strategy in combinations():
        if reason := why_illegal(strategy):
            illegal[strategy.text] = reason
        else:
            legal[parts] = strategy
    return legal, illegal


def pairs_of(parts: Parts) -> set[Parts]:
    return set(itertools.combinations(parts, 2))


@cache
def covering() -> dict[str, Strategy]:
    """Few legal strategies that hold every pair: of a few at random always the one with the most new pairs."""
    legal, _ = legal_and_illegal()
    dice, chosen = random.Random(5), dict[str, Strategy]()
    holding: dict[Parts, list[Parts]] = {}
    for parts in legal:
        for pair in itertools.combinations(parts, 2):
            holding.setdefault(pair, []).append(parts)
    missing = set(holding)
    while missing:
        with_one = holding[min(missing)]
        best = max(dice.sample(with_one, min(40, len(with_one))), key=lambda parts: len(pairs_of(parts) & missing))
        chosen["+".join(best)] = legal[best]
        missing -= pairs_of(best)
    return chosen


@cache
def worlds() -> dict[str, int]:
    """A number of ranks for each of them: the one that most of its plug-ins have not met yet, rare plug-ins first."""
    how_often = Counter(part for text in covering() for part in split_parts(text))
    missing, chosen = set(itertools.product(how_often, WORLDS)), dict[str, int]()
    for text in covering():
        parts = split_parts(text)
        chosen[text] = max(WORLDS, key=lambda world: sum(1 / how_often[p] for p in parts if (p, world) in missing))
        missing -= {(part, chosen[text]) for part in parts}
    return chosen


CHAINS = chains()


def train(strategy: Strategy, world: int, *, shuffled: bool) -> Lockstep:
    ranks = Lockstep(replicas(awkward(), world), strategy, seed=7)
    for step in range(NUM_STEPS):
        ranks.step(loss_at(step), arrivals=random_arrivals(ranks, seed=step) if shuffled else None)
    return ranks


def plain_bsp(strategy: Strategy, world: int) -> list[torch.Tensor]:
    models = replicas(awkward(), world)
    optimizers = [strategy.optimizer.build(model.parameters()) for model in models]
    for step in range(NUM_STEPS):
        averaged_sgd(models, optimizers, step)
    return [parameter.detach() for parameter in models[0].parameters()]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("packing", names(Slot.PACKING))
def test_replicas_stay_identical_and_lossless_strategies_equal_plain_averaging(packing: str, world: int) -> None:
    plain: dict[OptimizerSpec, list[torch.Tensor]] = {}
    for text, strategy in covering().items():
        if strategy.packing.card.name != packing or (strategy.compression.lossy and worlds()[text] != world):
            continue
        first, *others = train(strategy, world, shuffled=True).models
        for other in others:
            for name, parameter in other.named_parameters():
                assert torch.equal(parameter, first.get_parameter(name)), f"{text}: {name} differs over ranks"
        assert all(bool(parameter.isfinite().all()) for parameter in first.parameters()), text
        if not strategy.compression.lossy:
            if strategy.optimizer not in plain:
                plain[strategy.optimizer] = plain_bsp(strategy, world)
            assert_equal_weights(text, list(first.parameters()), plain[strategy.optimizer], world)


def assert_equal_weights(text: str, own: list[torch.Tensor], plain: list[torch.Tensor], world: int) -> None:
    """Bitwise for up to 2 ranks: halving is exact and two summands have one order. Beyond, dividing
    by 3 rounds and the ring sums each chunk in another order: some ulp a step, and Adam's division
    by the root of a small second moment makes them more."""
    for mine, theirs in zip(own, plain, strict=True):
        if world <= 2:
            assert torch.equal(mine, theirs), text
        else:
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda m: f"{text}: {m}")


@pytest.mark.parametrize("packing", names(Slot.PACKING))
def test_weights_do_not_depend_on_when_gradients_become_ready(packing: str) -> None:
    for text, strategy in covering().items():
        if strategy.packing.card.name == packing and not strategy.compression.lossy:
            calm, shuffled = (train(strategy, 2, shuffled=s).models[0] for s in (False, True))
            for one, other in zip(calm.parameters(), shuffled.parameters(), strict=True):
                assert torch.equal(one, other), text


@pytest.mark.parametrize("wrapper", CHAINS)
def test_a_wrapper_keeps_replicas_identical_around_everything_that_it_accepts(wrapper: str) -> None:
    strategies = list(filter(None, map(with_what_it_needs, CHAINS[wrapper])))
    assert strategies
    for strategy in strategies:
        first, *others = train(strategy, 3, shuffled=True).models
        for other, (name, parameter) in itertools.product(others, first.named_parameters()):
            assert torch.equal(other.get_parameter(name), parameter), f"{strategy.text}: {name} differs over ranks"
        assert all(bool(parameter.isfinite().all()) for parameter in first.parameters()), strategy.text


def with_what_it_needs(compression: str) -> Strategy | None:
    """The first legal strategy with this compression, in whole messages; None if a rule refuses all of them."""
    for exchange, optimizer in itertools.product(names(Slot.EXCHANGE), reversed(names(Slot.OPTIMIZER))):
        try:
            return parse_strategy(f"fixed-buckets+{compression}+{exchange}+{optimizer}")
        except TextError:
            continue
    return None


def test_no_compressor_sends_a_primitive_whose_bytes_are_not_held_against_interfaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = set[tuple[str, type, torch.dtype]]()
    start = Core.start

    def note(core: Core, lane: int, tagged: Tagged) -> Start:
        primitive: Any = tagged.primitive
        match primitive:
            case AllToAll():
                found.add((tagged.tag, AllToAll, primitive.parts[0].dtype))
            case Transfer():
                if primitive.send is not None:
                    found.add((tagged.tag, Transfer, primitive.send.dtype))
            case _:
                found.add((tagged.tag, type(primitive), primitive.tensor.dtype))
        return start(core, lane, tagged)

    monkeypatch.setattr(Core, "start", note)
    for text, optimizer in CASES.items():
        train(parse_strategy(f"{text}+{optimizer}"), 3, shuffled=False)
    assert len(found) >= 8
    held = frozenset(found)
    for strategy in filter(None, map(with_what_it_needs, compressions())):
        train(strategy, 3, shuffled=False)
        assert found == held, strategy.text


def test_every_plugin_takes_part_in_a_legal_combination() -> None:
    used = {read_call(part)[0] for text in covering() for part in split_parts(text)}
    assert {name for name, kind in plugins().items() if kind.card.slot not in (Slot.TUNING, Slot.CONSISTENCY)} <= used


def test_what_is_trained_holds_every_pair_that_is_legal() -> None:
    (legal, _), chosen = legal_and_illegal(), covering()
    trained = set[Parts]().union(*(pairs_of(parts) for parts in legal if "+".join(parts) in chosen))
    assert trained == set[Parts]().union(*map(pairs_of, legal))
    assert len(chosen) < len(legal) / 20
    met = {(part, world) for text, world in worlds().items() for part in split_parts(text)}
    assert met == set(itertools.product({part for part, _ in met}, WORLDS))


def test_reading_a_text_says_the_same_of_what_goes_together() -> None:
    """The combinations here are put together by hand: their texts are read for one in a thousand of them."""
    chosen, (_, illegal) = covering(), legal_and_illegal()
    for text in list(chosen)[::10]:
        assert parse_strategy(text).compression == chosen[text].compression
    for text in list(illegal)[::1000]:
        with pytest.raises(TextError) as refused:
            parse_strategy(text)
        assert illegal[text] in str(refused.value)


def test_what_is_illegal_says_why() -> None:
    _, illegal = legal_and_illegal()
    assert illegal
    assert set(illegal.values()) <= {reason for _, reason in RULES}
