"""The flow engine beside SimGrid: the same flows over the same routes, times and processor time of both.

    python benchmarks/oracle_networks.py [--simgrid-python /usr/bin/python3] [--ring 1024] [--rounds 64] [--json]

SimGrid runs in an interpreter of its own that has its Python module; links without delay, model CM02. Its ring is run
for `--rounds` of its rounds, since a thousand hosts' 2,046 take minutes through Python, and its time is scaled.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from fabric.collectives import Collective
from fabric.simulated.flow import simulate_flows
from fabric.simulated.graph import NetworkGraph, PathSet
from fabric.simulated.routing import route
from fabric.simulated.topologies import FatTree, Torus
from fabric.simulated.traffic import FlowRound, TrafficJob, collective_rounds

AGREES = 1e-3  # relative: what the flow engine owes its oracle
CHILD = Path(__file__).parent / "oracles" / "simgrid_flows.py"


def platform_xml(graph: NetworkGraph, pairs: list[tuple[int, int]], paths: PathSet) -> str:
    """Hosts, one link per direction, and the routes of `pairs`."""
    lines = ['<?xml version="1.0"?>', '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">']
    lines += ['<platform version="4.1">', '<zone id="net" routing="Full">']
    lines += [f'<host id="h{host}" speed="1Gf"/>' for host in range(graph.num_hosts)]
    lines += [
        f'<link id="l{link}" bandwidth="{rate:.0f}bps" latency="0s"/>' for link, rate in enumerate(graph.link_rate_bps)
    ]
    for place, (source, destination) in enumerate(pairs):
        hops = "".join(f'<link_ctn id="l{link}"/>' for link in paths[place])
        lines.append(f'<route src="h{source}" dst="h{destination}" symmetrical="NO">{hops}</route>')
    return "\n".join([*lines, "</zone>", "</platform>"])


def by_simgrid(python: str, graph: NetworkGraph, rounds: list[FlowRound]) -> tuple[list[float], float]:
    """Ends of rounds and processor seconds of SimGrid."""
    pairs = sorted(
        {pair for each in rounds for pair in zip(each.sources.tolist(), each.destinations.tolist(), strict=True)}
    )
    paths = route(graph, [a for a, _ in pairs], [b for _, b in pairs], np.zeros(len(pairs), np.int64))
    flows = [
        list(zip(each.sources.tolist(), each.destinations.tolist(), each.num_bytes.tolist(), strict=True))
        for each in rounds
    ]
    with tempfile.TemporaryDirectory() as folder:
        platform, table = Path(folder) / "platform.xml", Path(folder) / "flows.json"
        platform.write_text(platform_xml(graph, pairs, paths))
        table.write_text(json.dumps(flows))
        command = [python, str(CHILD), str(platform), str(table)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"SimGrid failed: {done.stderr[-2000:]}\n(Debian: apt-get install python3-simgrid)")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    return answer["end_s"], answer["cpu_s"]


def by_us(graph: NetworkGraph, rounds: list[FlowRound]) -> tuple[list[float], float]:
    """The same of the flow engine, routing and tables included; compiled before."""
    job = TrafficJob(tuple(range(graph.num_hosts)), tuple(rounds))
    num_flows = sum(len(each.sources) for each in rounds)
    start = time.process_time()
    result = simulate_flows(graph, [job], choices=[np.zeros(num_flows, np.int64)])
    return result.round_ends_s[0].tolist(), time.process_time() - start


def random_round(num_hosts: int, num_flows: int, seed: int) -> FlowRound:
    """Flows of 1 to 100 MB between random hosts."""
    rng = np.random.default_rng(seed)
    sources = rng.integers(0, num_hosts, num_flows)
    destinations = (sources + rng.integers(1, num_hosts, num_flows)) % num_hosts
    return FlowRound(sources, destinations, np.rint(rng.uniform(1e6, 1e8, num_flows)))


def main() -> None:
    """Compare on every pattern and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simgrid-python", default="/usr/bin/python3")
    parser.add_argument("--ring", type=int, default=1024, help="hosts of the large ring, k³/4 of a fat-tree")
    parser.add_argument("--rounds", type=int, default=64, help="rounds of the large ring that SimGrid runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    small, torus = FatTree(8, delay_us=0).build(), Torus((8, 8), delay_us=0).build()
    ring = collective_rounds(Collective.ALL_REDUCE, options.ring, 1e9)[0]
    one = FlowRound(ring.sources, ring.destinations, np.rint(ring.num_bytes))
    cases: list[tuple[str, NetworkGraph, list[FlowRound]]] = [
        ("ring of 128, fat-tree", small, [collective_rounds(Collective.ALL_REDUCE, 128, 128e6)[0]]),
        ("all-to-all of 64, fat-tree", small, [*collective_rounds(Collective.ALL_TO_ALL, 64, 63e6)]),
        ("all-to-all of 64, torus", torus, [*collective_rounds(Collective.ALL_TO_ALL, 64, 63e6)]),
        *((f"500 random flows, fat-tree, seed {seed}", small, [random_round(128, 500, seed)]) for seed in range(3)),
        *((f"500 random flows, torus, seed {seed}", torus, [random_round(64, 500, seed)]) for seed in range(3)),
        (
            f"ring of {options.ring}, {options.rounds} rounds",
            FatTree(round((4 * options.ring) ** (1 / 3)), delay_us=0).build(),
            [one] * options.rounds,
        ),
    ]
    by_us(small, [random_round(128, 2, 0)])  # compile
    rows = []
    for name, graph, rounds in cases:
        single = [FlowRound(each.sources, each.destinations, each.num_bytes) for each in rounds]
        (theirs, their_cpu_s), (ours, our_cpu_s) = (
            by_simgrid(options.simgrid_python, graph, single),
            by_us(graph, single),
        )
        difference = float(np.max(np.abs(np.array(ours) / np.array(theirs) - 1)))
        rows.append(
            {
                "case": name,
                "flows": sum(len(each.sources) for each in single),
                "largest difference": difference,
                "SimGrid cpu_s": round(their_cpu_s, 3),
                "ours cpu_s": round(our_cpu_s, 3),
            }
        )
    for row in rows:
        print(json.dumps(row) if options.json else "  ".join(f"{key}: {value}" for key, value in row.items()))
    if apart := [row["case"] for row in rows if float(str(row["largest difference"])) > AGREES]:
        raise SystemExit(f"more than {AGREES:.1%} apart from SimGrid: {', '.join(map(str, apart))}")


if __name__ == "__main__":
    main()
