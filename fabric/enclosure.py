"""The enclosure of a lab: namespaces that die with it.

    launcher ─► supervisor ─► unshare ─► supervisor (process 1 inside) ─► lab ─► ranks

The supervisors are the caller's (`crossover.supervisor`); a command may also stand alone as process 1. A SIGKILL of
unshare or of process 1 ends all that stand to its right: unshare asks the kernel for it, and a process namespace whose
first process ends is emptied. Network namespaces go with the last process that holds them.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from fabric.cluster import FabricError

ALTERNATIVE = "or use the native fabric (--fabric native, --rate none)"
_CHECK_TIMEOUT_S = 20.0


def enclosure(*, rootless: bool | None = None) -> list[str]:
    """Return the prefix that runs a command inside namespaces of its own, as their first process.

    `rootless` adds a user namespace; by default wherever the caller is not root.
    """
    without_root = os.geteuid() != 0 if rootless is None else rootless
    users = ["--user", "--map-root-user"] if without_root else []
    namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    return ["unshare", *users, *namespaces]


def refusal(*, rootless: bool | None = None) -> str | None:
    """Try the enclosure and return why this machine refuses it, or None if it works."""
    if shutil.which("unshare") is None:
        return "the command unshare is not installed"
    command = [*enclosure(rootless=rootless), "true"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=_CHECK_TIMEOUT_S, check=False)
    if tried.returncode == 0:
        return None
    return tried.stderr.strip() or f"unshare ended with status {tried.returncode}"


def remedy(*, rootless: bool) -> str:
    """Return what to do where an enclosure is refused."""
    if shutil.which("unshare") is None:
        return "install util-linux"
    if rootless:
        return (
            "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000 "
            "kernel.apparmor_restrict_unprivileged_userns=0), or run as root"
        )
    return "give the container the capabilities SYS_ADMIN and NET_ADMIN and an unmasked /proc (docker run --privileged)"


def check_enclosure() -> None:
    """Raise FabricError, with the remedy, unless this process can start an enclosed lab."""
    reason = refusal()
    if reason is not None:
        advice = remedy(rootless=os.geteuid() != 0)
        raise FabricError(f"the emulated fabric needs namespaces, refused here: {reason}; {advice}; {ALTERNATIVE}")
