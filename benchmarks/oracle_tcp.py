"""The packet engine's TCP beside ns-3's on one dumbbell: goodput, drops, events per second.

    python benchmarks/oracle_tcp.py ./ns3_dumbbell [--senders 4] [--seconds 2]

docs/guide/networks.md says how the program is built from PyPI's `ns3` (3.44).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time

from fabric.simulated.packet import PacketFlow, PacketRun
from fabric.simulated.switches import SwitchSettings
from fabric.simulated.topologies import LeafSpine
from fabric.simulated.transports import Marking

WIRE_BYTES = 1538
PAIRS = {"TcpLinuxReno": ("reno", 0), "TcpCubic": ("cubic", 0), "TcpDctcp": ("dctcp", 20)}


def main() -> None:
    """Run both on every pair and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--senders", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--packets", type=int, default=128)
    options = parser.parse_args()
    graph = LeafSpine(1, 1, options.senders + 1, gbit=1, delay_us=20).build()
    PacketRun(graph, [PacketFlow(1, 0, 1e4, "reno")], SwitchSettings()).advance(1.0)  # compile
    for theirs, (ours, mark) in PAIRS.items():
        numbers = (options.senders, options.seconds, options.packets, mark)
        command = [options.program, theirs, *map(str, numbers)]
        answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        flows = [PacketFlow(host, 0, 1e10, ours, 10e-6 * host) for host in range(1, options.senders + 1)]
        marking = Marking(mark * WIRE_BYTES, mark * WIRE_BYTES) if mark else None
        limit = options.packets * WIRE_BYTES
        settings = SwitchSettings(marking=marking, port_bytes=limit, timeout_min_s=10e-3)
        run = PacketRun(graph, flows, settings)
        start = time.perf_counter()
        run.advance(options.seconds)
        wall_s, result = time.perf_counter() - start, run.result()
        goodput = result.delivered_bytes.sum() * 8 / options.seconds
        print(
            f"{ours}: goodput {goodput / 1e6:.1f} Mbit/s, ns-3 {answer['goodput_bps'] / 1e6:.1f}; "
            f"drops {result.num_drops.sum()}, ns-3 {answer['drops']}; "
            f"million events/s {result.num_events / wall_s / 1e6:.2f}, "
            f"ns-3 {answer['events'] / answer['wall_s'] / 1e6:.2f}; "
            f"wall {wall_s:.2f} s, ns-3 {answer['wall_s']:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
