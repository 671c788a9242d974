"""FlexFlow: Markov chain Monte Carlo over a configuration per layer, with a simulator as the judge.

Paper: Jia, Zaharia and Aiken, Beyond Data and Model Parallelism for Deep Neural Networks, MLSys 2019. A layer may be
split over samples, attributes (rows) and parameters (channels). The search starts from data parallelism; it replaces
one layer's configuration by a random one, keeps it if the simulated step is shorter, and else with the probability
exp(−α·(new − old)/best). The best one seen is the plan.

Defaults: `num_steps` 40,000; differences are relative to the best step, so that one α serves all machines (the authors'
α is 1.2 per millisecond), and α grows from 12 to 12·`cooling` = 12,000 over the search. A constant α of 12 was too hot
for BERT's graphs (it ended above data parallelism), 120 too cold for small ones (up to 2.2 times the optimum); growing,
it ends within 0.2 % of the optimum on BERT-large and 16 devices. Only the changed layer and its two borders are
simulated again (delta simulation).
Differs from the paper: the growing α; the simulator is `operator_costs`, in which layers do not overlap; all devices of
a layer are the first ones, since all are alike. Its simulator has no overlap with backward, so its plan may take longer
than data parallelism that overlaps: `plan-parallel` shows that beside it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.parallelism.api import ParallelCard, require_positive
from baselines.parallelism.operator_costs import OperatorConfig, border_s, configs_of, layer_s, total_s
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedLayer, PlannedStage, Workshare


@dataclass(frozen=True, slots=True)
class FlexFlow:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="flexflow",
        summary="a configuration per layer by MCMC from data parallelism, judged by a simulator",
        paper="Jia, Zaharia and Aiken, FlexFlow, MLSys 2019",
    )
    num_steps: int = 40_000
    alpha: float = 12.0
    cooling: float = 1000.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive(num_steps=self.num_steps)

    def plan(self, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> ParallelPlan:
        """The best configuration that `num_steps` random changes came by; the same for the same `seed`."""
        chance = random.Random(self.seed)
        choices = [configs_of(layer, machine.num_devices, work) for layer in layers]
        configs = [_most_samples(options) for options in choices]
        now_s = best_s = total_s(layers, configs, machine, work)
        best = list(configs)
        for step in range(self.num_steps):
            alpha = self.alpha * self.cooling ** (step / self.num_steps)
            place = chance.randrange(len(layers))
            old, new = configs[place], chance.choice(choices[place])
            before_s = _around_s(layers, configs, place, machine, work)
            configs[place] = new
            changed_s = now_s + _around_s(layers, configs, place, machine, work) - before_s
            worse = (changed_s - now_s) / best_s
            if worse > 0 and chance.random() >= math.exp(-alpha * worse):
                configs[place] = old
                continue
            now_s = changed_s
            if now_s < best_s:
                best_s, best = now_s, list(configs)
        return plan_of(best, total_s(layers, best, machine, work), machine)


def plan_of(configs: Sequence[OperatorConfig], cost_s: float, machine: Machine) -> ParallelPlan:
    """One stage on all devices, its layers split as they say."""
    return ParallelPlan(
        stages=(PlannedStage(0, len(configs), machine.num_devices),),
        splits=tuple(config.splits() for config in configs),
        cost=cost_s,
        unit="s",
    )


def _most_samples(options: Sequence[OperatorConfig]) -> OperatorConfig:
    """Data parallelism, as far as samples divide."""
    alone = [config for config in options if config.num_devices == config.sample]
    return max(alone, key=lambda config: config.sample)


def _around_s(
    layers: Sequence[PlannedLayer], configs: Sequence[OperatorConfig], place: int, machine: Machine, work: Workshare
) -> float:
    """What depends on the configuration of one layer."""
    before_bytes = layers[place - 1].output_bytes if place else 0
    total = layer_s(layers[place], before_bytes, configs[place], machine, work)
    if place:
        total += border_s(before_bytes, configs[place - 1], configs[place], machine, work.batch_size)
    if place + 1 < len(layers):
        behind = configs[place + 1]
        total += border_s(layers[place].output_bytes, configs[place], behind, machine, work.batch_size)
    return total
