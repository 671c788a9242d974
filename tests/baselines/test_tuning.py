"""Tuning: the search finds the optimum of a toy, repeats itself, and turns only knobs that matter."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import pytest
from layouts import segments_of

from baselines.api import HasKnobs, Knob, Message, Ordering, Packing, Slot, Tried
from baselines.catalogue import plugins
from baselines.strategy import StrategyError, parse_strategy
from baselines.text import TextError
from baselines.tuning.bayesian import Bayesian

KNOBS = {"packing.slice_elements": Knob(10_000, 32_000_000), "ordering.credit_bytes": Knob(1e5, 1e9)}
BEST = {"packing.slice_elements": 300_000.0, "ordering.credit_bytes": 2e7}
BEST_STEP_S = 0.1
TUNABLE = [kind for kind in plugins().values() if isinstance(kind, type) and hasattr(kind, "knobs")]


def toy_step_s(values: Mapping[str, float]) -> float:
    """Quadratic in the logarithms: 0.1 s at the best, twice that a factor of 30 away from it."""
    distances = [math.log(values[knob] / best) / math.log(30) for knob, best in BEST.items()]
    return BEST_STEP_S * (1 + sum(distance**2 for distance in distances))


def search(tuner: Bayesian, step_s: Callable[[Mapping[str, float]], float]) -> list[Tried]:
    tried: list[Tried] = []
    while len(tried) < tuner.num_trials:
        values = tuner.propose(KNOBS, tried)
        tried.append(Tried(values, step_s(values)))
    return tried


def test_twelve_trials_come_near_the_optimum_and_beat_chance() -> None:
    """Within a twentieth of the best step time; settings drawn at random have 12 trials too."""
    found, drawn = [], []
    for seed in (1, 2):
        tuner, chance = Bayesian(seed=seed), random.Random(seed)
        tried = search(tuner, toy_step_s)
        kept = tuner.propose(KNOBS, tried)
        assert kept == min(tried, key=lambda one: one.step_s).values
        found.append(toy_step_s(kept))
        at_random = [
            {name: math.exp(chance.uniform(math.log(k.low), math.log(k.high))) for name, k in KNOBS.items()}
            for _ in range(tuner.num_trials)
        ]
        drawn.append(min(map(toy_step_s, at_random)))
    assert max(found) < 1.05 * BEST_STEP_S
    assert fmean(found) < fmean(drawn)


def test_any_seed_draws_and_proposes() -> None:
    tuner = Bayesian(seed=10**20, random_trials=1)
    first = Tried(tuner.propose(KNOBS, []), 0.2)
    assert tuner.propose(KNOBS, [first]) == tuner.propose(KNOBS, [first]) != first.values


def test_noise_of_three_per_cent_does_not_lead_it_astray() -> None:
    noise = random.Random(5)
    tried = search(Bayesian(), lambda values: toy_step_s(values) * (1 + noise.uniform(-0.03, 0.03)))
    assert toy_step_s(Bayesian().propose(KNOBS, tried)) < 1.15 * BEST_STEP_S


def test_the_same_history_and_seed_propose_the_same() -> None:
    tried = search(Bayesian(trials=6), toy_step_s)
    assert Bayesian().propose(KNOBS, tried) == Bayesian().propose(KNOBS, list(tried))
    assert Bayesian().propose(KNOBS, tried) != Bayesian(seed=2).propose(KNOBS, tried)
    assert Bayesian().propose(KNOBS, ()) == Bayesian().propose(KNOBS, ())


def test_proposals_stay_within_the_knobs_even_when_the_written_setting_does_not() -> None:
    outside = {"packing.slice_elements": 1.0, "ordering.credit_bytes": 1e12}
    tried = [Tried(outside, 0.2)]
    while len(tried) < 7:
        values = Bayesian().propose(KNOBS, tried)
        assert all(knob.low <= values[name] <= knob.high for name, knob in KNOBS.items())
        tried.append(Tried(values, toy_step_s(values)))


@pytest.mark.parametrize("step_s", [0.05, 0.4])
def test_a_setting_beyond_a_range_is_no_point_of_its_edge(step_s: float) -> None:
    """The search goes the same way with any such setting, and keeps it where it is the fastest."""
    found = []
    for written in (0.0, 1.0, 1e12):
        tried = [Tried({"packing.slice_elements": written, "ordering.credit_bytes": 1e8}, step_s)]
        while len(tried) < Bayesian().num_trials:
            values = Bayesian().propose(KNOBS, tried)
            tried.append(Tried(values, toy_step_s(values)))
        found.append([one.values for one in tried[1:]])
        kept = Bayesian().propose(KNOBS, tried)["packing.slice_elements"]
        assert (kept == written) == (step_s < BEST_STEP_S)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("written", ["threshold_bytes=0", "cycle_s=0.0", "threshold_bytes=0, cycle_s=0.0"])
@pytest.mark.parametrize("random_trials", [1, 4])
def test_every_legal_setting_can_be_tuned(written: str, random_trials: int) -> None:
    strategy = parse_strategy(f"tensor-fusion({written})+bayesian(trials=6, random_trials={random_trials})")
    tried = [Tried(strategy.settings, 0.3)]
    while len(tried) < 6:
        strategy = strategy.tuned(strategy.tuning.propose(strategy.knobs, tried))
        tried.append(Tried(strategy.settings, 0.2))
    assert strategy.tuning.propose(strategy.knobs, tried) == tried[1].values


def test_a_size_that_was_rounded_at_the_edge_of_its_scaled_range_is_inside() -> None:
    tuner, knobs = Bayesian(size_scale=100, random_trials=1), {"packing.bucket_bytes": Knob(65_536, 2e8)}
    edge, beyond, far = (tuner.propose(knobs, [Tried({"packing.bucket_bytes": x}, 0.1)]) for x in (655.0, 654.0, 1.0))
    assert edge != beyond == far


def test_a_linear_knob_is_searched_linearly() -> None:
    knobs = {"x": Knob(0.0, 1.0, log=False)}
    tuner, tried = Bayesian(trials=9), [Tried({"x": 1.0}, 0.2)]
    while len(tried) < tuner.num_trials:
        values = tuner.propose(knobs, tried)
        tried.append(Tried(values, 0.1 + (values["x"] - 0.3) ** 2))
    assert tuner.propose(knobs, tried)["x"] == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unfused+bayesian", "nothing to tune: neither packing nor ordering has knobs"),
        ("slices+bayesian(trials=0)", "trials is 0"),
        ("slices+bayesian(steps=0)", "steps 0"),
        ("slices+bayesian(seed=-1)", "seed -1"),
    ],
)
def test_bad_texts_name_the_value(text: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        parse_strategy(text)
    assert issubclass(StrategyError, TextError)


def test_settings_are_those_of_packing_and_ordering_and_can_be_set() -> None:
    strategy = parse_strategy("tensor-fusion+bayesian")
    assert strategy.settings == {"packing.threshold_bytes": 128.0 * 1024 * 1024, "packing.cycle_s": 0.001}
    tuned = strategy.tuned({"packing.threshold_bytes": 1_000_000.4, "packing.cycle_s": 0.0125})
    assert tuned.settings == {"packing.threshold_bytes": 1_000_000.0, "packing.cycle_s": 0.0125}
    assert dataclasses.replace(tuned, packing=strategy.packing) == strategy
    assert strategy.tuned(strategy.settings) == strategy


def test_something_is_tunable_and_the_number_of_lanes_is_not() -> None:
    assert len(TUNABLE) >= 3
    for kind in TUNABLE:
        assert isinstance(kind(), HasKnobs)
        assert kind.card.slot in (Slot.PACKING, Slot.ORDERING)
        assert "depth" not in kind.knobs, "lanes are made once, for one depth"


SIZES = (40_000_000, 3_000, 120_000, 2_000_000, 500, 9_000_000, 250_000)


def sent_by(plugin: Any) -> object:
    """What a packing or an ordering makes of tensors from 2 KB to 160 MB."""
    segments = segments_of(SIZES)
    if plugin.card.slot is Slot.PACKING:
        assert isinstance(plugin, Packing)
        return plugin.pack(segments)
    assert isinstance(plugin, Ordering)
    pending, flying = [Message(i, (segment,)) for i, segment in enumerate(segments)], []
    while picked := plugin.pick(pending, flying, 0.0):
        pending.remove(picked)
        flying.append(picked)
    return [message.index for message in flying]


@pytest.mark.parametrize(
    ("kind", "knob"), [(kind, knob) for kind in TUNABLE for knob in kind.knobs], ids=lambda value: str(value)[-40:]
)
def test_every_knob_changes_what_is_sent(kind: type[Any], knob: str) -> None:
    """A tuner that turns a knob nothing reads is a mistake seen in public code."""
    plugin, limits = kind(), kind.knobs[knob]
    whole = isinstance(getattr(plugin, knob), int)
    low, high = (round(value) if whole else float(value) for value in (limits.low, limits.high))
    assert limits.low < limits.high
    assert sent_by(dataclasses.replace(plugin, **{knob: low})) != sent_by(dataclasses.replace(plugin, **{knob: high}))


def test_ranges_of_sizes_shrink_with_the_tensors_and_others_stay() -> None:
    knobs = {"packing.slice_elements": Knob(1_000, 1_000_000), "packing.cycle_s": Knob(0.001, 0.1)}
    proposed = [Bayesian(size_scale=100, random_trials=8, seed=seed).propose(knobs, ()) for seed in range(8)]
    assert all(10 <= values["packing.slice_elements"] <= 10_000 for values in proposed)
    assert all(0.001 <= values["packing.cycle_s"] <= 0.1 for values in proposed)
    assert len({values["packing.slice_elements"] for values in proposed}) > 1
