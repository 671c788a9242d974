"""What share of the line servers carry, and their processor time per MB beside gloo's all-reduce of the same model.

    crossover-bench emulate --hosts 4 --rate 1gbit -- .venv/bin/python benchmarks/servers_rate.py --gbit 1
    python benchmarks/servers_rate.py            # four processes over the loopback, no line to fill

The last rank serves, the others push and pull; nothing is computed. Under BSP pushes and answers follow each other, and
the share is that of one way at a time; under ASP they overlap, and the share is that of each way. Processor time is
that of a whole process per MB that it has sent or received. n rounds, the first not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
from collections.abc import Callable
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import torch
import torch.distributed as dist

from baselines.api import Consistency
from baselines.consistency.asp import Asp
from baselines.consistency.bsp import Bsp
from harness.asynchrony.client import ServerPlace, ServersLink
from harness.asynchrony.cluster import OnLoss
from harness.asynchrony.parameters import Parameters
from harness.asynchrony.server import ParameterServerProcess

NUM_RANKS = 4


def main() -> None:
    """One rank, or all of them on this machine where no launcher has set RANK."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=25.0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--gbit", type=float, default=0.0, help="the line's rate, for the share; 0: no line")
    options = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(options)
        return
    os.environ.update(MASTER_ADDR="127.0.0.1", WORLD_SIZE=str(NUM_RANKS), GLOO_SOCKET_IFNAME="lo")
    with TemporaryDirectory() as folder:
        for rank in range(NUM_RANKS):
            if os.fork() == 0:
                run_rank(options, dist.FileStore(f"{folder}/store", NUM_RANKS), rank)
                os._exit(0)
        for _ in range(NUM_RANKS):
            os.wait()


def run_rank(options: argparse.Namespace, store: dist.Store | None = None, rank: int = -1) -> None:
    """Time gloo, then servers under BSP and ASP; rank 0 prints. Without a store, ranks meet as a launcher says."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS if store is not None else -1)
    rank, world = dist.get_rank(), dist.get_world_size()
    numel = round(options.megabytes * 1e6 / 4)
    values = torch.ones(numel)
    dist.all_reduce(values)
    cpu_s, times_s = process_time(), timed(lambda: dist.all_reduce(values), options.rounds)
    crossed_mb = 2 * 2 * (world - 1) / world * options.megabytes * options.rounds  # sent and received, on a ring
    rows = [row("gloo all-reduce", times_s, (process_time() - cpu_s) / crossed_mb)]
    for policy in (Bsp(), Asp()):
        rows.append(serve_or_work(policy, rank, world, numel, options))
    if rank == 0:
        for found in rows:
            print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def serve_or_work(
    policy: Consistency, rank: int, world: int, numel: int, options: argparse.Namespace
) -> dict[str, object]:
    """The row of a policy, which rank 0 fills; `cpu` comes from the server."""
    told: list[object] = [None]
    server = None
    if rank == world - 1:
        own = Parameters(torch.zeros(numel), world - 1, policy.share)
        address = own_address()
        server = ParameterServerProcess(
            own,
            address,
            num_clocks=options.rounds + 1,  # `work` warms up with one
            exact_reads=policy.is_synchronous,
            on_loss=OnLoss.STOP,
        )
        told = [(address, server.port, server.token.hex())]
    dist.broadcast_object_list(told, src=world - 1)
    times_s: list[float] = []
    if server is not None:
        report = server.serve()
        cost: list[object] = [report.cpu_s / (report.num_bytes / 1e6)]
    else:
        address, port, token = told[0]  # type: ignore[misc]
        link = ServersLink(rank, [ServerPlace(address, port, bytes.fromhex(token), 0, numel)], [["all"]])
        times_s, cost = work(policy, link, numel, options.rounds), [None]
        link.close()
    dist.broadcast_object_list(cost, src=world - 1)
    found = row(str(policy), times_s, float(str(cost[0]))) if times_s else {}
    if options.gbit and times_s:
        ways = 2 if policy.is_synchronous else 1
        line_s = ways * (world - 1) * options.megabytes * 8e-3 / options.gbit
        shares = [line_s / own for own in times_s]
        found["share of the line"] = round(line_s / statistics.fmean(times_s), 3)
        found["share spread"] = [round(min(shares), 3), round(max(shares), 3)]
    return found


def own_address() -> str:
    """This host's address on the way to the master."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))
        address: str = probe.getsockname()[0]
    return address


def work(policy: Consistency, link: ServersLink, numel: int, num_rounds: int) -> list[float]:
    """Seconds per round of a push and the pull after it."""
    update, clock = torch.ones(numel), 0

    def once() -> None:
        nonlocal clock
        link.push(clock, update)
        clock += 1
        link.pull(policy.must_include(clock))

    once()
    return timed(once, num_rounds)


def timed(once: Callable[[], object], num_rounds: int) -> list[float]:
    """Seconds of each."""
    times_s = []
    for _ in range(num_rounds):
        start_s = perf_counter()
        once()
        times_s.append(perf_counter() - start_s)
    return times_s


def row(name: str, times_s: list[float], cpu_s_per_mb: float) -> dict[str, object]:
    """What is printed."""
    return {
        "what": name,
        "n": len(times_s),
        "median s": round(statistics.median(times_s), 4),
        "spread s": [round(min(times_s), 4), round(max(times_s), 4)],
        "cpu ms per MB": round(1e3 * cpu_s_per_mb, 3),
    }


if __name__ == "__main__":
    main()
