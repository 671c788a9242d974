"""How late a paced completion is: from the end of its link time to the callback in the process that asked.

    python benchmarks/pacing.py [--operations 200] [--json]

Three ways of keeping the time: the link's own process as the harness uses it (`server`, threads change hands every
0.2 ms), the same at the interpreter's default of 5 ms (`server, default slices`), and a thread of the asking process
that sleeps (`thread, default slices`). Each on an idle machine, beside a Python loop in the asking process, and with
every core burnt by others.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from harness.lab.fluid_server import shared_fluid
from harness.paced.link_client import SWITCH_INTERVAL_S, LinkClient, Paid
from models.device import sleep_until
from models.fluid import FluidDevice

WORK_S = (0.002, 0.02)
Carry = Callable[[int, float, Paid], None]


@contextmanager
def over_server(interval_s: float) -> Iterator[Carry]:
    """The link's process keeps the time."""
    before_s = sys.getswitchinterval()
    with tempfile.TemporaryDirectory() as folder, shared_fluid(Path(folder) / "link", FluidDevice(linger_s=0)) as path:
        client = LinkClient(Path(path))
        sys.setswitchinterval(interval_s)
        try:
            yield client.carry
        finally:
            sys.setswitchinterval(before_s)
            client.close()


def carry_on_a_thread(flow: int, work_s: float, paid: Paid) -> None:
    """A thread of this process keeps the time."""
    end_s = time.monotonic() + work_s

    def wait() -> None:
        sleep_until(end_s)
        paid(None)

    threading.Thread(target=wait).start()


@contextmanager
def looping() -> Iterator[None]:
    """A thread of this process computes in pure Python."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def burning() -> Iterator[None]:
    """A process a core computes without end."""
    pids = []
    try:
        for _ in range(os.cpu_count() or 1):
            pid = os.fork()
            if not pid:
                signal.alarm(120)  # in case the parent is killed
                while True:
                    pass
            pids.append(pid)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def overshoots_us(carry: Carry, num_operations: int) -> list[float]:
    """Microseconds by which each operation ended too late; one after the other, of random lengths."""
    chance, late_us = random.Random(1), []
    for _ in range(num_operations):
        done, ended_s = threading.Event(), [0.0]
        work_s = chance.uniform(*WORK_S)

        def paid(error: Exception | None, done: threading.Event = done, ended_s: list[float] = ended_s) -> None:
            ended_s[0] = time.monotonic()
            done.set()

        begun_s = time.monotonic()
        carry(0, work_s, paid)
        done.wait()
        late_us.append(1e6 * (ended_s[0] - begun_s - work_s))
    return late_us


def measure(num_operations: int) -> dict[str, dict[str, float]]:
    """p50 and p99 in microseconds, by situation and way."""
    ways = {
        "server": lambda: over_server(SWITCH_INTERVAL_S),
        "server, default slices": lambda: over_server(0.005),
        "thread, default slices": lambda: nullcontext(carry_on_a_thread),
    }
    situations = {"idle": nullcontext, "python loop": looping, "cores busy": burning}
    results = {}
    for situation, load in situations.items():
        for way, keep in ways.items():
            with keep() as carry, load():
                cuts = statistics.quantiles(overshoots_us(carry, num_operations), n=100)
            results[f"{situation}, {way}"] = {"p50_us": cuts[49], "p99_us": cuts[98]}
    return results


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="How late paced completions are.")
    parser.add_argument("--operations", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = measure(given.operations)
    if given.json:
        print(json.dumps(results, indent=2))
    else:
        for name, values in results.items():
            print(f"{name:40} p50 {values['p50_us']:8.0f} µs   p99 {values['p99_us']:8.0f} µs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
