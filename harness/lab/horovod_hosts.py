r"""Start one Horovod job with a rank on every host of the emulated cluster around, as `horovodrun` does with ssh.

    python -m harness.hosted --hosts 2 -- crossover run \
        a="python -m harness.lab.horovod_hosts -- python examples/horovod_train.py" \
        b="python -m harness.lab.horovod_hosts -- python examples/horovod_train.py"

Ranks meet in Horovod's own rendezvous server, which runs on the first host. Every rank has one core of this machine,
its host's number modulo the cores, so that two hosts do not share one.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from crossover.supervisor import KILLED, die_with_parent, wake_on
from fabric.api import FabricError
from fabric.links import UPLINK
from harness.hosted import addresses, on_host

CYCLE_MS = "5"  # Horovod's default of 1 ms costs two jobs on two cores a third of their compute
_SERVE = """
import sys
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer
server = RendezvousServer(verbose=0)
port = server.start()
names = sys.argv[1].split(",")
server.init(get_host_assignments(parse_hosts(",".join(name + ":1" for name in names)), len(names), len(names)))
print(port, flush=True)
sys.stdin.read()
server.stop()
"""


def rank_environment(rank: int, names: Sequence[str], address: str, port: int) -> dict[str, str]:
    """What Horovod reads to find its peers."""
    size = str(len(names))
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": size,
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": str(rank),
        "HOROVOD_CROSS_SIZE": size,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": UPLINK,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_HOSTNAME": names[rank],
        "HOROVOD_CYCLE_TIME": os.environ.get("HOROVOD_CYCLE_TIME", CYCLE_MS),
        "OMP_NUM_THREADS": "1",
    }


def run(command: Sequence[str], stop_fd: int) -> int:
    """Run the command as a rank on every host; its exit code, or that of the first rank to fail, which ends all.

    The number of a signal on `stop_fd` ends all, too.
    """
    hosts = addresses()
    names = list(hosts)
    with ExitStack() as stack:
        # Started inside the first host: ranks must reach the server over the emulated links.
        serve = on_host(names[0], [sys.executable, "-c", _SERVE, ",".join(names)])
        server = stack.enter_context(_Running(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert server.stdout is not None
        if stop_fd in select.select([stop_fd, server.stdout.fileno()], [], [])[0]:
            return _stopped(stop_fd)
        port = int(server.stdout.readline() or 0)
        if not port:
            raise FabricError("Horovod's rendezvous server did not start on the first host; is Horovod installed?")
        ranks = []
        for rank, name in enumerate(names):
            environment = os.environ | rank_environment(rank, names, hosts[names[0]], port)
            settle = partial(_settle, os.getpid(), rank)
            child = _Running(on_host(name, command), env=environment, preexec_fn=settle, text=True)
            ranks.append(stack.enter_context(child))
        return _wait(ranks, stop_fd)


def _settle(parent_pid: int, rank: int) -> None:
    """In the child, before it becomes the command.

    Like `horovodrun` it gives every rank a session of its own. In a session that spans cores the kernel's automatic
    groups split the job's weight by load: a rank that communicates beside a computing one of another job then waits for
    that one's whole turn.
    """
    os.setsid()
    die_with_parent(parent_pid)
    own = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {own[rank % len(own)]})


class _Running(subprocess.Popen[str]):
    """A child that does not outlive its `with`."""

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                pipe.close()
        if self.poll() is None:
            self.terminate()
            try:
                self.wait(2)
            except subprocess.TimeoutExpired:
                self.kill()
        self.wait()


def _wait(ranks: Sequence[subprocess.Popen[str]], stop_fd: int) -> int:
    with ExitStack() as stack:
        left = {os.pidfd_open(rank.pid): rank for rank in ranks}
        for fd in left:
            stack.callback(os.close, fd)
        while left:
            ready, _, _ = select.select([stop_fd, *left], [], [])
            if stop_fd in ready:
                return _stopped(stop_fd)
            for fd in ready:
                # The others would wait for their peer for ever; leaving the `with` around them ends them.
                if code := left.pop(fd).wait():
                    return code if code > 0 else KILLED - code
    return 0


def _stopped(stop_fd: int) -> int:
    return KILLED + os.read(stop_fd, 1)[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m harness.lab.horovod_hosts", description="A Horovod rank a host.")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    command = parser.parse_args(arguments).command
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        parser.error("name a command after --")
    try:
        return run(command, wake_on(signal.SIGTERM, signal.SIGINT))
    except FabricError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
