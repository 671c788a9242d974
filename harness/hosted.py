"""Run any command inside an emulated cluster, which its own children may enter by host.

    python -m harness.hosted --hosts 2 --rate 200mbit -- bash
    python -m harness.hosted --enter host1 -- hostname      # from inside, one command on one host
    python -m harness.hosted --hosts 2 --everywhere -- python train.py      # a rank on every host

The hosts' names are in CROSSOVER_BENCH_HOSTS, as name=pid of a process that lives there: whoever may signal it may
enter its network, host name and files. All of it ends with the command, and with whoever started it.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory

from crossover.supervisor import end_descendants, granting, supervised
from fabric.api import FabricError, FabricKind, FabricSpec, build, command_prefix, parse_rate
from fabric.cluster import Cluster
from fabric.run_module import module_command

VARIABLE = "CROSSOVER_BENCH_HOSTS"
ADDRESSES = "CROSSOVER_BENCH_ADDRESSES"
STORE = "CROSSOVER_BENCH_STORE"
GRACE_S = 2.0  # for ranks to end after a signal, or once another one has ended badly
MOST_S = 2.7  # for all of it to end after a signal; with the time that ending takes, three seconds
INTERRUPTED = 130
CANNOT_START = 127  # a shell's code for a command that it does not find
MASTER_PORT = "29500"  # free: the namespaces are the cluster's own
_INSIDE = "CROSSOVER_BENCH_INSIDE"
_READY = b"\0"  # what a keeper says when it lives on its host


def keepers(environment: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Host name → pid of the process that lives there. Raises FabricError outside of an emulated cluster."""
    return {name: int(pid) for name, _, pid in _by_host(VARIABLE, environment)}


def addresses(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Host name → its address on the cluster's network. Raises FabricError outside of an emulated cluster."""
    return {name: address for name, _, address in _by_host(ADDRESSES, environment)}


def _by_host(variable: str, environment: Mapping[str, str]) -> list[tuple[str, str, str]]:
    entries = [entry.partition("=") for entry in environment.get(variable, "").split(",") if entry]
    if not entries:
        raise FabricError(
            "no emulated cluster around: start this under `python -m harness.hosted --hosts 2 -- COMMAND`"
        )
    return entries


def on_host(name: str, command: Sequence[str]) -> list[str]:
    """The command line that runs `command` on a host of the cluster around."""
    pid = keepers().get(name)
    if pid is None:
        raise FabricError(f"no host {name!r} in the cluster around; its hosts are {', '.join(keepers())}")
    return ["nsenter", f"--target={pid}", "--net", "--uts", "--mount", f"--wdns={os.getcwd()}", "--", *command]


def run_everywhere(spec: FabricSpec, command: Sequence[str]) -> int:
    """Build the cluster, run the command on every host as a rank of one job, and return the first bad exit code, or 0.

    When one rank ends badly the others are ended. Ctrl-C and SIGTERM reach the ranks as well, which then have the same
    grace; the code is 130. Call it inside `command_prefix(spec)`. Our own programs meet in the file that STORE names,
    others at MASTER_ADDR.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with build(spec) as cluster, TemporaryDirectory(prefix="crossover-bench-ranks-") as folder:
        try:
            ranks = [_start_rank(cluster, host.index, command, f"{folder}/store") for host in cluster.hosts]
            code = _first_bad_end(ranks)
            for pid in ranks:
                os.kill(pid, signal.SIGTERM)
        except KeyboardInterrupt:
            code = INTERRUPTED
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        end_descendants(GRACE_S)
    return code if code >= 0 else 128 - code


def _first_bad_end(ranks: list[int]) -> int:
    """Wait until a rank has ended badly, or all well; `ranks` keeps those that live."""
    code = 0
    while ranks and code == 0:
        pid, status = os.wait()
        if pid in ranks:  # and no orphan of theirs, which process 1 collects
            code = os.waitstatus_to_exitcode(status)
            ranks.remove(pid)
    return code


def _start_rank(cluster: Cluster, rank: int, command: Sequence[str], store: str) -> int:
    """A process on host `rank` that becomes the command; it ends with the namespace's first process, this one."""
    pid = os.fork()
    if pid:
        return pid
    master, own = cluster.hosts[0], cluster.hosts[rank]
    try:
        cluster.enter(rank)
        place = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(len(cluster.hosts)), "LOCAL_WORLD_SIZE": "1"}
        meeting = {"MASTER_ADDR": master.address, "MASTER_PORT": MASTER_PORT, "GLOO_SOCKET_IFNAME": own.interface}
        os.execvpe(command[0], list(command), {**os.environ, **place, **meeting, STORE: store})
    except (OSError, FabricError) as error:
        print(f"error: {own.name} cannot start {command[0]}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(CANNOT_START)


def run(spec: FabricSpec, command: Sequence[str]) -> int:
    """Build the cluster, run the command in it and return its exit code. Call it inside `command_prefix(spec)`."""
    with build(spec) as cluster:
        living = [_keeper(cluster, host.index) for host in cluster.hosts]
        names = [host.name for host in cluster.hosts]
        environment = {
            **os.environ,
            VARIABLE: ",".join(f"{name}={pid}" for name, pid in zip(names, living, strict=True)),
            ADDRESSES: ",".join(f"{host.name}={host.address}" for host in cluster.hosts),
        }
        try:
            return _run_as_first_process(command, environment)
        finally:
            for pid in living:
                with suppress(ProcessLookupError, ChildProcessError):  # it was killed, and collected as an orphan is
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def _run_as_first_process(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command and collect what it orphans, as process 1 must; its exit code as a shell would give it."""
    try:
        child = subprocess.Popen(command, env=environment)
    except OSError as error:
        print(f"error: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return CANNOT_START
    signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to the command as well, which may tidy up
    while (ended := os.wait())[0] != child.pid:
        continue
    child.returncode = os.waitstatus_to_exitcode(ended[1])
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _keeper(cluster: Cluster, host: int) -> int:
    """A process that does nothing but live on a host; it ends with the namespace's first process.

    Raises: FabricError if it cannot enter the host.
    """
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        # The command gets them as well, and may want to tidy up on the hosts.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        try:
            cluster.enter(host)
            os.write(told, _READY)
            while True:
                signal.pause()
        except (OSError, FabricError) as error:
            os.write(told, str(error).encode())
        finally:
            os._exit(1)
    os.close(told)
    with open(ready, "rb", buffering=0) as stream:
        word = stream.read(select.PIPE_BUF)
    if word != _READY:
        os.waitpid(pid, 0)
        raise FabricError(f"nobody can live on host {host}: {word.decode() or 'its process was killed'}")
    return pid


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    given = _parser().parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        print("error: name a command after --", file=sys.stderr)
        return 2
    try:
        if given.enter:
            line = on_host(given.enter, command)
            os.execvp(line[0], line)
        if given.native:
            return run_everywhere(FabricSpec(kind=FabricKind.NATIVE, num_hosts=given.hosts, rate_bps=None), command)
        spec = FabricSpec(kind=FabricKind.EMULATED, num_hosts=given.hosts, rate_bps=parse_rate(given.rate))
        if os.environ.get(_INSIDE):
            return run_everywhere(spec, command) if given.everywhere else run(spec, command)
        again = module_command("harness.hosted", *(sys.argv[1:] if arguments is None else arguments))
        # A supervisor takes this process' place: unshare itself blocks SIGTERM, and outlives whoever started it.
        # Process 1 of a container has no parent that could end.
        until = [f"--parent={os.getppid()}"] if os.getppid() else []
        # Longer than the grace of ranks: the cluster is then gone before the supervisor kills.
        line = [*supervised(*until, granting(MOST_S)), *command_prefix(spec), *again]
        os.execvpe(line[0], line, {**os.environ, _INSIDE: "1"})
    except FabricError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.hosted", description="Run a command in an emulated cluster."
    )
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default 2)")
    parser.add_argument("--rate", default="200mbit", help="rate of every host's link, e.g. 200mbit, 1gbit, none")
    parser.add_argument("--everywhere", action="store_true", help="run the command on every host, as ranks of one job")
    parser.add_argument(
        "--native", action="store_true", help="the same ranks on this machine itself, without a cluster"
    )
    parser.add_argument("--enter", metavar="HOST", help="run the command on this host of the cluster around")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return parser


if __name__ == "__main__":
    sys.exit(main())
