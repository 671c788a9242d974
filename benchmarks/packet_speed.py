"""Events per second of the packet engine, per transport, on a fat-tree under an all-to-all of random pairs.

    python benchmarks/packet_speed.py [--k 16] [--megabytes 0.2] [--repeats 3] [--json]

Processor time of the loop alone; compiled before. k=16 has 1,024 hosts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np

from fabric.simulated.packet import PacketFlow, PacketRun
from fabric.simulated.switches import SwitchSettings
from fabric.simulated.topologies import FatTree, LeafSpine
from fabric.simulated.transports import TRANSPORTS


def flows_of(num_hosts: int, num_bytes: float, transport: str) -> list[PacketFlow]:
    """One flow from each host to the next of a random order: nobody sends to itself."""
    order = np.random.default_rng(0).permutation(num_hosts)
    return [PacketFlow(int(a), int(b), num_bytes, transport) for a, b in zip(order, np.roll(order, 1), strict=True)]


def main() -> None:
    """Time every transport, and all of them in one network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--megabytes", type=float, default=0.2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    graph = FatTree(options.k, gbit=40).build()
    PacketRun(LeafSpine(1, 1, 2).build(), [PacketFlow(0, 1, 1e4)], SwitchSettings()).advance(1.0)  # compile
    for name in [*sorted(TRANSPORTS), "all at once"]:
        rates = []
        for _ in range(options.repeats):
            flows = flows_of(graph.num_hosts, options.megabytes * 1e6, "irn" if name == "all at once" else name)
            if name == "all at once":
                kinds = sorted(set(TRANSPORTS) - {"infiniband"})
                flows = [
                    PacketFlow(flow.source, flow.destination, flow.num_bytes, kinds[index % len(kinds)])
                    for index, flow in enumerate(flows)
                ]
            run = PacketRun(graph, flows, SwitchSettings(timeout_min_s=1e-3))
            start = time.process_time()
            run.advance(0.1)
            rates.append(run.result().num_events / (time.process_time() - start) / 1e6)
        row = {
            "transport": name,
            "hosts": graph.num_hosts,
            "events": run.result().num_events,
            "million events/s": round(statistics.median(rates), 2),
            "spread": [round(min(rates), 2), round(max(rates), 2)],
        }
        text = json.dumps(row) if options.json else "  ".join(f"{key}: {value}" for key, value in row.items())
        print(text, flush=True)


if __name__ == "__main__":
    main()
