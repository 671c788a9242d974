"""Which jobs should share a device: maximum-weight matching over what pairs gain.

A pair's weight is its predicted gain minus 1, the throughput that sharing adds; pairs that gain nothing, or are
refused, are no pairs. Edmonds' blossom algorithm (networkx) finds the matching with the greatest sum, which greedy
pairing does not. With a number of devices, no more pairs are made than are needed to place all jobs, and as many as
that allow every device to be used: together that maximises the sum over devices of gain, a job alone counting 1.

A "device" is one a worker, so a whole set of devices for jobs of several workers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

from crossover.errors import Refused

Gain = Callable[[int, int], float | None]
"""What jobs i and j gain together; None when they must not share."""


@dataclass(frozen=True, slots=True)
class PairingPlan:
    """Who is on which device, as job numbers (one or two each), who waits for a device, and the sum of gains."""

    devices: tuple[tuple[int, ...], ...]
    waiting: tuple[int, ...]
    throughput: float


def place(num_jobs: int, gain: Gain, num_devices: int | None = None) -> PairingPlan:
    """The best placement of jobs 0 … n−1, at most two on a device.

    Without `num_devices` there are as many as are needed, and whoever gains by it shares. With them, jobs share only
    where devices are short, and wait where even pairs do not suffice; the later jobs wait.
    """
    if num_jobs < 1 or (num_devices is not None and num_devices < 1):
        raise Refused(f"place {num_jobs} jobs on {num_devices} devices: give at least 1 of each")
    weights = {
        pair: found - 1 for pair in combinations(range(num_jobs), 2) if (found := gain(*pair)) is not None and found > 1
    }
    most = num_jobs // 2 if num_devices is None else max(0, min(num_devices, num_jobs - num_devices))
    pairs = best_pairs(num_jobs, weights, most)
    paired = {job for pair in pairs for job in pair}
    alone = [job for job in range(num_jobs) if job not in paired]
    free = len(alone) if num_devices is None else num_devices - len(pairs)
    devices = sorted([*pairs, *((job,) for job in alone[:free])])
    throughput = len(devices) + sum(weights[pair] for pair in pairs)
    return PairingPlan(tuple(devices), tuple(alone[free:]), throughput)


def best_pairs(
    num_jobs: int, weights: dict[tuple[int, int], float], most: int | None = None
) -> tuple[tuple[int, int], ...]:
    """Disjoint pairs (i < j) with the greatest sum of weights, `most` of them or fewer; only positive ones count.

    Limiting their number: n − 2·most extra nodes, which every job would rather be matched with than with a job.
    """
    import networkx

    useful = {pair: weight for pair, weight in weights.items() if weight > 0}
    most = num_jobs // 2 if most is None else min(most, num_jobs // 2)
    graph = networkx.Graph()
    graph.add_weighted_edges_from((i, j, weight) for (i, j), weight in sorted(useful.items()))
    dearest = 1 + 2 * max(useful.values(), default=0.0)
    for extra in range(num_jobs, 2 * (num_jobs - most)):
        graph.add_weighted_edges_from((job, extra, dearest) for job in range(num_jobs))
    matched = networkx.max_weight_matching(graph)
    pairs = ((min(pair), max(pair)) for pair in matched)
    return tuple(sorted(pair for pair in pairs if pair[1] < num_jobs))
