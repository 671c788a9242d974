"""The contract of every discovered plug-in, in every legal pair of plug-ins, on virtual ranks.

Training every combination of six slots would take an hour, so few are picked that hold every pair that any legal
combination holds.
"""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from tiny_models import averaged_sgd, awkward, loss_at, random_arrivals

from baselines.api import Slot, UpdatePoint
from baselines.catalogue import plugins
from baselines.strategy import RULES, Strategy, parse_strategy
from baselines.text import TextError
from harness.lockstep import Lockstep, replicas

NUM_STEPS = 3
WORLDS = (1, 2, 3, 4)


def names(slot: Slot, *, wraps: bool = False) -> list[str]:
    return [name for name, kind in plugins().items() if kind.card.slot is slot and kind.card.wraps is wraps]


def compressions() -> list[str]:
    plain, wrappers = names(Slot.COMPRESSION), names(Slot.COMPRESSION, wraps=True)
    return plain + [f"{inner}+{wrapper}" for inner in plain for wrapper in wrappers]


def exchanges() -> list[str]:
    return [*names(Slot.EXCHANGE), "parameter-server(update='server')"]


Parts = tuple[str, ...]


def combinations() -> list[Parts]:
    slots = (names(Slot.PACKING), names(Slot.ORDERING), compressions(), exchanges(), names(Slot.OPTIMIZER))
    return list(itertools.product(*slots, list(UpdatePoint)))


def legal_and_illegal() -> tuple[dict[Parts, Strategy], dict[str, str]]:
    legal, illegal = {}, {}
    for parts in combinations():
        try:
            legal[parts] = parse_strategy("+".join(parts))
        except TextError as error:
            illegal["+".join(parts)] = str(error)
    return legal, illegal


def pairs_of(parts: Parts) -> set[Parts]:
    return set(itertools.combinations(parts, 2))


def covering(legal: dict[Parts, Strategy]) -> dict[str, Strategy]:
    """Few of these strategies that hold every pair: of a few at random always the one with the most new pairs."""
    dice, chosen = random.Random(5), dict[str, Strategy]()
    missing = set[Parts]().union(*map(pairs_of, legal))
    candidates = list(legal)
    while missing:
        wanted = min(missing)
        holding = [parts for parts in candidates if set(wanted) <= set(parts)]
        best = max(dice.sample(holding, min(40, len(holding))), key=lambda parts: len(pairs_of(parts) & missing))
        chosen["+".join(best)] = legal[best]
        missing -= pairs_of(best)
    return chosen


ALL_LEGAL, ILLEGAL = legal_and_illegal()
LEGAL = covering(ALL_LEGAL)


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
    plain: dict[str, list[torch.Tensor]] = {}
    for text, strategy in LEGAL.items():
        if strategy.packing.card.name != packing:
            continue
        first, *others = train(strategy, world, shuffled=True).models
        for other in others:
            for name, parameter in other.named_parameters():
                assert torch.equal(parameter, first.get_parameter(name)), f"{text}: {name} differs over ranks"
        assert all(bool(parameter.isfinite().all()) for parameter in first.parameters()), text
        if not strategy.compression.lossy:
            optimizer = strategy.optimizer.card.name
            if optimizer not in plain:
                plain[optimizer] = plain_bsp(strategy, world)
            assert_equal_weights(text, list(first.parameters()), plain[optimizer], world)


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
    for text, strategy in LEGAL.items():
        if strategy.packing.card.name == packing and not strategy.compression.lossy:
            calm, shuffled = (train(strategy, 2, shuffled=s).models[0] for s in (False, True))
            for one, other in zip(calm.parameters(), shuffled.parameters(), strict=True):
                assert torch.equal(one, other), text


def test_every_plugin_takes_part_in_a_legal_combination() -> None:
    used = {name for text in LEGAL for name in text.split("+")}
    assert {name for name, kind in plugins().items() if kind.card.slot is not Slot.TUNING} <= used


def test_what_is_trained_holds_every_pair_that_is_legal() -> None:
    trained = set[Parts]().union(*(pairs_of(parts) for parts in ALL_LEGAL if "+".join(parts) in LEGAL))
    assert trained == set[Parts]().union(*map(pairs_of, ALL_LEGAL))
    assert len(LEGAL) < len(ALL_LEGAL) / 4


def test_what_is_illegal_says_why() -> None:
    assert ILLEGAL
    reasons = [reason for _, reason in RULES] + [" around "]  # the rules, and a wrapper's own refusal
    for text, message in ILLEGAL.items():
        assert any(reason in message for reason in reasons), f"{text}: {message}"
