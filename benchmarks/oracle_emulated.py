"""Emulated hosts beside the flow engine: gloo's collectives over real sockets, and their flows on a star.

    python benchmarks/oracle_emulated.py [--hosts 2 4] [--rate 1gbit] [--repeats 3] [--json]

α and β of the star are those of messages from host to host on the same emulated links, so no collective is held
against itself. The flow engine has the rounds of the table of collectives (`fabric/collectives.py`); where gloo sends
in another way, the row says so by its distance.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

from fabric.api import FabricError, FabricKind, FabricSpec, parse_rate
from fabric.collectives import Collective
from fabric.simulated.flow import simulate_flows
from fabric.simulated.topologies import LeafSpine
from fabric.simulated.traffic import TrafficJob
from harness.collectives.launch import run_collective
from harness.simulated.rounds import collective_rounds
from harness.trial import TimedCollective
from results.collectives import CollectiveFacts, Operation

FROM_BYTES, TO_BYTES = 1_000_000, 25_000_000  # below, a round's start-up decides, which gloo has by operation
MOST_S, TIMEOUT_S = 4.0, 120.0
# The engine's n of what the rank program calls the size; see `harness/collectives/libraries.py`.
SHARES = {
    Operation.ALL_REDUCE: (Collective.ALL_REDUCE, lambda num_bytes, world: num_bytes),
    Operation.ALL_GATHER: (Collective.ALL_GATHER, lambda num_bytes, world: num_bytes / world),
    Operation.ALL_TO_ALL: (Collective.ALL_TO_ALL, lambda num_bytes, world: num_bytes * (world - 1) / world),
    Operation.BROADCAST: (Collective.BROADCAST, lambda num_bytes, world: num_bytes),
}


def timed(operation: Operation, num_hosts: int, rate_bps: float) -> CollectiveFacts:
    """One repeat of gloo's operation on emulated hosts."""
    spec = FabricSpec(kind=FabricKind.EMULATED, num_hosts=num_hosts, rate_bps=rate_bps)
    return run_collective(TimedCollective(library="gloo", operation=operation, most_s=MOST_S), spec, TIMEOUT_S)


def star_s(operation: Operation, world: int, num_bytes: int, alpha_s: float, beta_s_per_byte: float) -> float:
    """What the flow engine says of `world` hosts on one switch."""
    collective, own_bytes = SHARES[operation]
    graph = LeafSpine(1, 1, world, gbit=8e-9 / beta_s_per_byte, delay_us=0.0).build()
    rounds = tuple(collective_rounds(collective, world, own_bytes(num_bytes, world)))
    job = TrafficJob(tuple(range(world)), rounds, round_s=alpha_s)
    return float(simulate_flows(graph, [job]).finish_s[0])


def main() -> None:
    """Time every operation on every number of hosts, interleaved, and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rate_bps = parse_rate(options.rate)
    ratios: dict[tuple[int, Operation, int], list[float]] = {}
    for _ in range(options.repeats):
        message = timed(Operation.POINT_TO_POINT, 2, rate_bps)
        assert message.alpha_s is not None
        assert message.beta_s_per_byte is not None
        for num_hosts in options.hosts:
            for operation in SHARES:
                try:
                    sizes = timed(operation, num_hosts, rate_bps).sizes
                except FabricError as error:  # gloo's ranks may abort at their end; the other rows stand
                    print(f"left out: {error}", file=sys.stderr)
                    continue
                for size in sizes:
                    if FROM_BYTES <= size.num_bytes <= TO_BYTES:
                        told_s = star_s(operation, num_hosts, size.num_bytes, message.alpha_s, message.beta_s_per_byte)
                        ratios.setdefault((num_hosts, operation, size.num_bytes), []).append(size.median_s / told_s)
    for (num_hosts, operation, num_bytes), own in ratios.items():
        row = {
            "hosts": num_hosts,
            "operation": operation.value,
            "bytes": num_bytes,
            "measured over told": round(statistics.median(own), 3),
            "from": round(min(own), 3),
            "to": round(max(own), 3),
            "n": len(own),
        }
        print(json.dumps(row) if options.json else "  ".join(f"{key}: {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
