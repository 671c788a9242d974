"""Network namespaces held by file descriptor, and the step by which a process joins a host.

A namespace lives while a process is in it or a descriptor refers to it. Nothing is mounted under
/run/netns, so nothing stays behind when the holder dies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fabric import syscalls
from fabric.cluster import Host

_OWN_NETWORK = "/proc/thread-self/ns/net"
_HOSTS_FILE = "/etc/hosts"
_SCRATCH = "/tmp"  # covered for a moment in a private mount namespace; nothing is written to it


def new_network() -> int:
    """Make a network namespace and return a descriptor that holds it; the caller stays where it is."""
    home = os.open(_OWN_NETWORK, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        try:
            return os.open(_OWN_NETWORK, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            syscalls.setns(home, syscalls.CLONE_NEWNET)
    finally:
        os.close(home)


@contextmanager
def inside(network: int) -> Iterator[None]:
    """Put the calling thread into a network namespace for the length of a `with` block."""
    home = os.open(_OWN_NETWORK, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.setns(network, syscalls.CLONE_NEWNET)
        try:
            yield
        finally:
            syscalls.setns(home, syscalls.CLONE_NEWNET)
    finally:
        os.close(home)


def join(network: int, host: Host, hosts: Sequence[Host]) -> None:
    """Move a single-threaded process into `host`: its network, host name and hosts file."""
    syscalls.setns(network, syscalls.CLONE_NEWNET)
    syscalls.unshare(syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWNS)
    syscalls.set_host_name(host.name)
    syscalls.mount("none", "/", "none", syscalls.MS_REC | syscalls.MS_PRIVATE)
    _replace_hosts_file(hosts_file(hosts))


def hosts_file(hosts: Sequence[Host]) -> str:
    """Return /etc/hosts for a cluster: localhost, every host by name, and names for reverse look-ups.

    Programs that listen on IPv6 look up IPv4 peers by their mapped addresses, which would go to a
    name server that is not there. Those have names of their own, so that a host's name stays IPv4.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{host.address} {host.name}" for host in hosts]
    lines += [f"::ffff:{host.address} {host.name}.mapped" for host in hosts]
    return "\n".join(lines) + "\n"


def _replace_hosts_file(text: str) -> None:
    """Bind a file from a detached tmpfs over /etc/hosts; the file lives and dies with the mount namespace."""
    syscalls.mount("tmpfs", _SCRATCH, "tmpfs")
    try:
        source = os.path.join(_SCRATCH, "hosts")
        with open(source, "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(source, 0o644)
        syscalls.mount(source, _HOSTS_FILE, "none", syscalls.MS_BIND)
    finally:
        syscalls.detach(_SCRATCH)
