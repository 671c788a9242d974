"""Muri's groups (Zhao et al., "Multi-Resource Interleaving for Deep Learning Training", SIGCOMM 2022).

Job i uses each of k resources in turn, for t_i^0 … t_i^(k−1) a step. Up to k jobs interleave: in slot j, job i uses
resource (j + o_i) mod k, with an offset o_i of its own, and a slot ends when all are done with it. Then one step of
each takes, and the resources are used to,

    T = Σ_j max_i t_i^((j+o_i) mod k)          γ = Σ_i Σ_r t_i^r / (k·T)

for the best offsets. γ, the interleaving efficiency, is the weight of an edge; Blossom matches jobs in pairs, then
pairs with pairs (and with jobs that stayed alone), until no group may grow.

Differs from the paper: a merge that its own T says gains nothing (T ≥ Σ of the groups' periods) is no edge. In the
authors' code every merge is one: its comparison of T with the highest priority job's time stands in a function that is
never called. All jobs have the same number of devices and the same priority; memory is not looked at here; the measured
slow-down of packed jobs, which their simulator multiplies T by (1.31 for two), is left to `interference`. Resources are
the device and the network, and the input stage where profiles know it (the paper also tells storage from
preprocessing).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from crossover.errors import Refused
from crossover.planning.pairing import best_pairs
from crossover.planning.profiles import JobProfile
from crossover.theory import JobCost

Stages = tuple[float, ...]
"""Seconds a step on each resource, in the order in which a step uses them."""


@dataclass(frozen=True, slots=True)
class Interleaving:
    """The period of one step of each job in a group, its efficiency γ (1: every resource always busy), and the offsets
    that reach it."""

    period_s: float
    efficiency: float
    offsets: tuple[int, ...]


def stages_of(profiles: Sequence[JobProfile]) -> list[Stages]:
    """Input, device and network times; without input where no job's is known."""
    knows_input = any(profile.loading_s > 0 for profile in profiles)
    return [
        (*((profile.loading_s,) if knows_input else ()), profile.compute_s, profile.communication_s)
        for profile in profiles
    ]


def groups_of(costs: Sequence[JobCost]) -> tuple[tuple[int, ...], ...]:
    """Groups over the device and the network, of jobs of which no more is known than their costs."""
    return muri_groups([(cost.compute_s, cost.communication_s) for cost in costs])


def interleave(jobs: Sequence[Stages]) -> Interleaving:
    """The best offsets of up to k jobs over k resources, by trying them all."""
    num_resources = len(jobs[0]) if jobs else 0
    if not 1 <= len(jobs) <= num_resources or any(len(stages) != num_resources for stages in jobs):
        raise Refused(f"interleave 1 to {num_resources} jobs with as many stages each, not {len(jobs)}")
    used_s = sum(map(sum, jobs))
    if used_s <= 0:
        raise Refused("these jobs use no resource: give stage times above 0")
    rest = range(1, num_resources)
    choices = ((0, *offsets) for offsets in permutations(rest, len(jobs) - 1))
    period_s, offsets = min((_period_s(jobs, offsets), offsets) for offsets in choices)
    return Interleaving(period_s, used_s / (num_resources * period_s), offsets)


def muri_groups(jobs: Sequence[Stages]) -> tuple[tuple[int, ...], ...]:
    """Groups of job numbers, in their order; a group has as many jobs as there are resources, at most."""
    groups: list[tuple[int, ...]] = [(job,) for job in range(len(jobs))]
    while merged := best_pairs(len(groups), _merges(jobs, groups)):
        taken = {index for pair in merged for index in pair}
        kept = [group for index, group in enumerate(groups) if index not in taken]
        groups = [*kept, *(groups[first] + groups[second] for first, second in merged)]
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _merges(jobs: Sequence[Stages], groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, int], float]:
    """γ of every merge that may be made."""
    weights = {}
    for first, second in combinations(range(len(groups)), 2):
        together = [jobs[job] for job in groups[first] + groups[second]]
        if len(together) > len(together[0]):
            continue
        apart_s = sum(interleave([jobs[job] for job in groups[index]]).period_s for index in (first, second))
        merged = interleave(together)
        if merged.period_s < apart_s * (1 - 1e-9):
            weights[first, second] = merged.efficiency
    return weights


def _period_s(jobs: Sequence[Stages], offsets: Sequence[int]) -> float:
    num_resources = len(jobs[0])
    return sum(
        max(stages[(slot + offset) % num_resources] for stages, offset in zip(jobs, offsets, strict=True))
        for slot in range(num_resources)
    )
