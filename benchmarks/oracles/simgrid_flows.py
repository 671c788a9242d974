"""Run flows in SimGrid, for `benchmarks/oracle_networks.py`: needs SimGrid's Python module (Debian: python3-simgrid).

    python3 simgrid_flows.py platform.xml flows.json    # prints {"end_s": […], "cpu_s": …}

`flows.json` is a list of rounds, a round a list of [source, destination, bytes]; a round starts when the one before has
ended. Latencies must be 0: with them SimGrid weighs flows by their round trips, which max-min does not.
"""

import json
import sys
import time

from simgrid import Actor, Comm, Engine, Host


def main() -> None:
    """Run all rounds from one actor and print when each ended."""
    platform, path = sys.argv[1:]
    with open(path) as file:
        rounds = json.load(file)
    engine = Engine(
        ["oracle", "--log=root.threshold:error", "--cfg=network/model:CM02", "--cfg=network/crosstraffic:0"]
    )
    engine.load_platform(platform)
    ends: list[float] = []
    hosts = {int(host.name[1:]): host for host in engine.all_hosts}

    def run_rounds() -> None:
        for flows in rounds:
            comms = [Comm.sendto_async(hosts[a], hosts[b], int(size)) for a, b, size in flows]
            Comm.wait_all(comms)
            ends.append(Engine.clock)

    Actor.create("rounds", Host.by_name("h0"), run_rounds)
    start = time.process_time()
    engine.run()
    print(json.dumps({"end_s": ends, "cpu_s": time.process_time() - start}))


if __name__ == "__main__":
    main()
