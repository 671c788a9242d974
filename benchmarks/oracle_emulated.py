"""Emulated hosts beside the flow engine: the same flows over real sockets, and on a star.

    crossover-bench emulate --hosts 4 --rate 1gbit -- .venv/bin/python benchmarks/oracle_emulated.py

Ranks send and receive with gloo what the flow engine is given: rounds of flows, each begun when all of the one before
has arrived, which a barrier sees to. α, the barrier in it, and β of the star are those of messages from host 0 to
host 1, so no pattern is held against itself. Sizes are large: small ones pass in the shaper's burst. A library's own
collectives may send in other rounds than the table of collectives has (`fabric/collectives.py`); what they take is the
business of the suite `collectives`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist

from fabric.collectives import Collective
from fabric.simulated.flow import simulate_flows
from fabric.simulated.topologies import LeafSpine
from fabric.simulated.traffic import FlowRound, TrafficJob, collective_rounds

SIZES = (4_000_000, 8_000_000, 16_000_000)  # bytes of the largest flow
NUM_WARMUP, NUM_MESSAGES = 1, 8


def patterns(world: int, num_bytes: int) -> dict[str, tuple[FlowRound, ...]]:
    """Rounds whose largest flow has `num_bytes`, by name."""
    others = np.arange(1, world)
    zeros, sizes = np.zeros(world - 1, np.int64), np.full(world - 1, float(num_bytes))
    uneven = num_bytes * np.arange(1, world) / (world - 1)
    to_all = collective_rounds(Collective.ALL_TO_ALL, world, (world - 1) * num_bytes)
    found = {
        "ring all-reduce": collective_rounds(Collective.ALL_REDUCE, world, num_bytes * world),
        "all-to-all": to_all,
        "all pairs at once": (_at_once(to_all),),
        "broadcast by rounds": collective_rounds(Collective.BROADCAST, world, num_bytes),
    }
    if world == 2:  # all the others are one
        return found
    return found | {
        "one to all": (FlowRound(zeros, others, sizes),),
        "all to one": (FlowRound(others, zeros, sizes),),
        "all to one, unequal": (FlowRound(others, zeros, uneven),),
    }


def _at_once(rounds: Sequence[FlowRound]) -> FlowRound:
    """All flows of `rounds` as one round."""
    return FlowRound(
        np.concatenate([own.sources for own in rounds]),
        np.concatenate([own.destinations for own in rounds]),
        np.concatenate([own.num_bytes for own in rounds]),
    )


def messages(num_bytes: int) -> tuple[FlowRound, ...]:
    """From host 0 to host 1, one after the other: only the first finds the shaper rested."""
    return (FlowRound(np.array([0]), np.array([1]), np.array([float(num_bytes)]), NUM_MESSAGES),)


class Rank:
    """Sends and receives this rank's share of a pattern."""

    def __init__(self) -> None:
        self.number, self.world = dist.get_rank(), dist.get_world_size()
        self._out = torch.zeros(max(SIZES), dtype=torch.uint8)
        self._into = [torch.zeros(max(SIZES), dtype=torch.uint8) for _ in range(self.world)]

    def carry(self, rounds: Sequence[FlowRound]) -> float:
        """Seconds until every rank has its last byte; the start is a barrier."""
        dist.barrier()
        start_s = perf_counter()
        for own in rounds:
            flows = list(zip(own.sources.tolist(), own.destinations.tolist(), own.num_bytes.tolist(), strict=True))
            for _ in range(own.repeats):
                works = [
                    dist.irecv(self._into[source][: round(size)], source)
                    for source, destination, size in flows
                    if destination == self.number
                ]
                works += [
                    dist.isend(self._out[: round(size)], destination)
                    for source, destination, size in flows
                    if source == self.number
                ]
                for work in works:
                    assert work is not None
                    work.wait()
                dist.barrier()  # a send is over for gloo when the kernel has its bytes, which is before they arrive
        took_s = torch.tensor([perf_counter() - start_s], dtype=torch.float64)
        dist.all_reduce(took_s, dist.ReduceOp.MAX)
        return float(took_s)


def star_s(rounds: Sequence[FlowRound], world: int, alpha_s: float, beta_s_per_byte: float) -> float:
    """What the flow engine says of `world` hosts on one switch."""
    graph = LeafSpine(1, 1, world, gbit=8e-9 / beta_s_per_byte, delay_us=0.0).build()
    job = TrafficJob(tuple(range(world)), tuple(rounds), round_s=alpha_s)
    return float(simulate_flows(graph, [job]).finish_s[0])


def main() -> None:
    """Time every pattern in turns, and print a row each beside what the star says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=6)
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("run it on emulated hosts: crossover-bench emulate --hosts 4 --rate 1gbit -- python " + __file__)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = Rank()
    grid = {("messages", size): messages(size) for size in SIZES}
    grid |= {(name, size): rounds for size in SIZES for name, rounds in patterns(rank.world, size).items()}
    times_s: dict[tuple[str, int], list[float]] = {cell: [] for cell in grid}
    for repeat in range(NUM_WARMUP + options.repeats):
        for cell, rounds in grid.items():
            took_s = rank.carry(rounds)
            if repeat >= NUM_WARMUP:
                times_s[cell].append(took_s)
    if rank.number == 0:
        middle = [statistics.median(times_s["messages", size]) / NUM_MESSAGES for size in SIZES]
        beta_s_per_byte, alpha_s = np.polyfit(SIZES, middle, 1)
        print(
            json.dumps(
                {"hosts": rank.world, "alpha us": round(1e6 * alpha_s, 1), "gbit": round(8e-9 / beta_s_per_byte, 4)}
            )
        )
        for (name, size), own in times_s.items():
            told_s = star_s(grid[name, size], rank.world, max(0.0, alpha_s), beta_s_per_byte)
            ratios = [took_s / told_s for took_s in own]
            row = {
                "flows": name,
                "bytes": size,
                "measured over told": round(statistics.median(ratios), 3),
                "from": round(min(ratios), 3),
                "to": round(max(ratios), 3),
                "n": len(ratios),
            }
            print(json.dumps(row), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
