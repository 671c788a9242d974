"""Hand-over latency: from one job's release to the next job's start, beside a bare socket relay in the same run.

    python benchmarks/handover.py [--hand-overs 2000] [--turn-ms 1] [--busy] [--json]

Two processes take turns through an arbiter; then two others pass a packet of the same size through a third process
that copies whatever comes to the other one, from a selector loop like the arbiter's. Blocks of both alternate. All
clocks are the machine's monotonic one. `--busy` burns every core at the same time.
"""

import argparse
import json
import os
import selectors
import signal
import socket
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from crossover import Participant, start
from crossover.protocol import HEADER_BYTES

NUM_BLOCKS = 5
Stamps: TypeAlias = "array[float]"  # of one job: granted, released, granted, released, …


def forked(action: Callable[[], bytes]) -> tuple[int, int]:
    """Run `action` in a child; its pid, and a descriptor from which its bytes can be read."""
    source, sink = os.pipe()
    pid = os.fork()
    if pid:
        os.close(sink)
        return pid, source
    code = 1
    try:
        with os.fdopen(sink, "wb") as stream:
            stream.write(action())
        code = 0
    finally:
        os._exit(code)


def collect(children: Sequence[tuple[int, int]]) -> list[Stamps]:
    """The stamps of all children, once they have ended well."""
    stamps = []
    for pid, source in children:
        with os.fdopen(source, "rb") as stream:
            stamps.append(array("d", stream.read()))
        if os.waitpid(pid, 0)[1]:
            raise RuntimeError(f"process {pid} of the benchmark failed")
    return stamps


def play(wait: Callable[[], None], end: Callable[[], None], num_turns: int, turn_s: float) -> bytes:
    """Take turns of `turn_s` (asleep: a device computes, not the host) and stamp both ends."""
    stamps = array("d")
    for _ in range(num_turns):
        wait()
        stamps.append(time.monotonic())
        time.sleep(turn_s)
        stamps.append(time.monotonic())
        end()
    return stamps.tobytes()


def arbiter_stamps(path: Path, num_turns: int, turn_s: float) -> list[Stamps]:
    """Both jobs' stamps through the arbiter at `path`."""

    def job(name: str) -> bytes:
        with Participant(path, name) as seat:
            leases = []
            return play(lambda: leases.append(seat.acquire()), lambda: seat.release(leases.pop()), num_turns, turn_s)

    return collect([forked(lambda name=name: job(name)) for name in ("a", "b")])  # type: ignore[misc]


def relay_stamps(num_turns: int, turn_s: float) -> list[Stamps]:
    """Both jobs' stamps through a process that only copies packets, and its processor time."""
    ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    packet = bytes(HEADER_BYTES)

    def relay() -> bytes:
        (_, first), (_, second) = ends
        before_s = cpu_s(os.getpid())
        first.send(packet)
        with selectors.DefaultSelector() as selector:
            selector.register(first, selectors.EVENT_READ, second)
            selector.register(second, selectors.EVENT_READ, first)
            for _ in range(2 * num_turns - 1):
                ((key, _),) = selector.select()
                key.data.send(key.fileobj.recv(HEADER_BYTES))  # type: ignore[union-attr]
        second.recv(HEADER_BYTES)  # of the last turn, which nobody follows
        return array("d", [cpu_s(os.getpid()) - before_s]).tobytes()

    def job(index: int) -> bytes:
        mine = ends[index][0]
        return play(lambda: check(mine.recv(HEADER_BYTES)), lambda: check(mine.send(packet)), num_turns, turn_s)

    children = [forked(lambda: job(0)), forked(lambda: job(1)), forked(relay)]
    for end in chain(*ends):
        end.close()
    return collect(children)


def check(result: bytes | int) -> None:
    """The other end is still there."""
    if not result:
        raise ConnectionError("the benchmark's relay went away")


def hand_overs_us(first: Stamps, second: Stamps) -> list[float]:
    """Release to start of the next turn, both ways, in microseconds."""
    there = [start - end for end, start in zip(first[1::2], second[0::2], strict=True)]
    back = [start - end for end, start in zip(second[1::2], first[2::2], strict=False)]
    return [1e6 * latency for latency in there + back]


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def burners(num: int) -> Iterator[None]:
    """`num` processes that compute without end, gone afterwards."""
    pids = []
    try:
        for _ in range(num):
            pid = os.fork()
            if not pid:
                signal.alarm(60)  # in case the parent is killed
                while True:
                    pass
            pids.append(pid)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def measure(num_hand_overs: int, turn_s: float) -> dict[str, float]:
    """Percentiles of both, their ratios, and the arbiter's share of a core."""
    ours: list[float] = []
    bare: list[float] = []
    arbiter_cpu_s = relay_cpu_s = elapsed_s = 0.0
    num_turns = max(2, num_hand_overs // (2 * NUM_BLOCKS))
    with tempfile.TemporaryDirectory() as folder:
        for block in range(NUM_BLOCKS):
            with start(Path(folder) / f"{block}.sock") as arbiter:
                before_s, begun_s = cpu_s(arbiter.pid), time.monotonic()
                ours += hand_overs_us(*arbiter_stamps(arbiter.path, num_turns, turn_s))
                arbiter_cpu_s += cpu_s(arbiter.pid) - before_s
                elapsed_s += time.monotonic() - begun_s
            first, second, (spent_s,) = relay_stamps(num_turns, turn_s)
            bare += hand_overs_us(first, second)
            relay_cpu_s += spent_s
    num = 2 * num_turns * NUM_BLOCKS
    result: dict[str, float] = {"num_hand_overs": len(ours), "turns_per_s": num / elapsed_s}
    for name, values in (("arbiter", ours), ("relay", bare)):
        cuts = statistics.quantiles(values, n=100)
        result |= {f"{name}_p50_us": cuts[49], f"{name}_p99_us": cuts[98]}
    result |= {f"ratio_{at}": result[f"arbiter_{at}_us"] / result[f"relay_{at}_us"] for at in ("p50", "p99")}
    result |= {"arbiter_us_a_turn": 1e6 * arbiter_cpu_s / num, "relay_us_a_turn": 1e6 * relay_cpu_s / num}
    return result | {"arbiter_core_share": arbiter_cpu_s / elapsed_s}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Latency of a hand-over, arbiter and bare relay.")
    parser.add_argument("--hand-overs", type=int, default=2000)
    parser.add_argument("--turn-ms", type=float, default=1.0)
    parser.add_argument("--busy", action="store_true", help="burn every core meanwhile")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with burners(os.cpu_count() or 1 if given.busy else 0):
        result = measure(given.hand_overs, given.turn_ms / 1e3)
    if given.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result.items():
            print(f"{name:20} {value:10.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
