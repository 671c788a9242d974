"""Programs that the fabric's tests run as labs: `lab_programs.py NAME KIND NUM_HOSTS RATE`, one JSON line out."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from patience import patience_s

from crossover.supervisor import die_with_parent
from fabric.api import Cluster, FabricKind, FabricSpec, build, parse_rate

PORT = 7077
CHUNK = b"\0" * 65536


def on_host(cluster: Cluster, host: int, act: Callable[[], Any]) -> Callable[[], Any]:
    """Start `act` in a process of `host`; the function returned waits for its result."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        cluster.enter(host)
        os.write(writer, json.dumps(act()).encode())
        os._exit(0)
    os.close(writer)

    def result() -> Any:
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        return json.loads(text)

    return result


def names(cluster: Cluster) -> list[dict[str, Any]]:
    """Return each host's own name and what every name resolves to there."""

    def look() -> dict[str, Any]:
        return {
            "own": socket.gethostname(),
            "resolved": {host.name: socket.gethostbyname(host.name) for host in cluster.hosts},
            "network": os.readlink("/proc/self/ns/net"),
            "descriptors": [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd_open(fd)],
        }

    return [on_host(cluster, host.index, look)() for host in cluster.hosts]


def fd_open(fd: str) -> bool:
    """Tell whether a descriptor listed in /proc is still there after the listing."""
    return os.path.lexists(f"/proc/self/fd/{fd}")


def streams(cluster: Cluster, num_bytes: int = 1_500_000) -> dict[str, Any]:
    """Send from every other host to host 0 at once; return what arrived, how fast, and the counters."""
    senders = cluster.hosts[1:]

    def receive() -> dict[str, Any]:
        with socket.create_server((cluster.hosts[0].address, PORT)) as server:
            peers = [server.accept()[0] for _ in senders]
            start_s = time.perf_counter()  # before the word: what is sent while this process waits for a core counts
            for peer in peers:
                peer.sendall(b"go")
            received = sum(drain(peer) for peer in peers)
            return {"bytes": received, "time_s": time.perf_counter() - start_s}

    def send() -> str:
        with connect(cluster.hosts[0].address) as peer:
            peer.recv(2)
            for _ in range(num_bytes // len(CHUNK)):
                peer.sendall(CHUNK)
            name = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            return name.rstrip(b"\0").decode()

    before = cluster.counters()
    receiving = on_host(cluster, 0, receive)
    sending = [on_host(cluster, host.index, send) for host in senders]
    congestion = [result() for result in sending]
    outcome = receiving()
    after = cluster.counters()
    assert before is not None
    assert after is not None
    crossed = [late - early for late, early in zip(after, before, strict=True)]
    return {
        **outcome,
        "congestion": congestion,
        "tx_bytes": [count.tx_bytes for count in crossed],
        "rx_bytes": [count.rx_bytes for count in crossed],
        "tx_packets": [count.tx_packets for count in crossed],
        "quiet_bytes": sum(count.tx_bytes + count.rx_bytes for count in before),
    }


def drain(peer: socket.socket) -> int:
    """Read a connection to its end and return the number of bytes."""
    total = 0
    with peer:
        while data := peer.recv(1 << 20):
            total += len(data)
    return total


def connect(address: str) -> socket.socket:
    """Connect as soon as the server listens."""
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            time.sleep(0.01)


def wait_for_end(cluster: Cluster) -> None:
    """Put a process and its child on each host, say which namespaces are in use, and wait to be killed."""
    reader, writer = os.pipe()
    lab_pid = os.getpid()
    for host in cluster.hosts:
        if os.fork() == 0:
            die_with_parent(lab_pid)  # as ranks do
            cluster.enter(host.index)
            if cluster.spec.kind is FabricKind.EMULATED:
                os.fork()
            os.write(writer, f"{os.readlink('/proc/self/ns/net')}\n".encode())
            signal.pause()
    expected = len(cluster.hosts) * (2 if cluster.spec.kind is FabricKind.EMULATED else 1)
    with os.fdopen(reader) as lines:
        networks = {lines.readline().strip() for _ in range(expected)}
        print(json.dumps(sorted(networks)), flush=True)
        signal.pause()


def orphans(cluster: Cluster) -> int:
    """Leave orphans behind and return how many of them are still there when all have ended."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        for _ in range(3):
            if os.fork() == 0:
                os._exit(0)
        os._exit(0)
    os.wait()
    os.close(writer)
    os.read(reader, 1)  # ends when no process holds the other end
    os.close(reader)
    deadline_s = time.monotonic() + patience_s(10)
    while len(others := [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid())]):
        if time.monotonic() > deadline_s:
            break
        time.sleep(0.01)
    return len(others)


PROGRAMS: dict[str, Callable[[Cluster], Any]] = {
    "names": names,
    "streams": streams,
    "wait_for_end": wait_for_end,
    "orphans": orphans,
}


def main() -> None:
    """Build the cluster, run the program and print its result."""
    program, kind, num_hosts, rate = sys.argv[1:5]
    spec = FabricSpec(kind=FabricKind(kind), num_hosts=int(num_hosts), rate_bps=parse_rate(rate))
    with build(spec) as cluster:
        print(json.dumps(PROGRAMS[program](cluster)), flush=True)


if __name__ == "__main__":
    main()
