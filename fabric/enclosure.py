"""The enclosure of a lab: namespaces that die with it, and a leash to the launcher.

    launcher ─► leash, then unshare ─► init (pid 1 inside) ─► lab ─► ranks

A SIGKILL of the launcher, of unshare, of init or of the lab ends all that stand to its right: the
leash and unshare ask the kernel for it, init ends with the lab, and a process namespace whose first
process ends is emptied. Network namespaces go with the last process that holds them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from fabric.cluster import FabricError

ALTERNATIVE = "or use the native fabric (--fabric native, --rate none)"
_CHECK_TIMEOUT_S = 20.0


def leash() -> list[str]:
    """Return the prefix that makes a command die with the calling thread."""
    return [*_script("leash.py"), str(os.getpid())]


def enclosure(*, rootless: bool | None = None) -> list[str]:
    """Return the prefix that runs a command inside namespaces of its own.

    `rootless` adds a user namespace; by default wherever the caller is not root.
    """
    without_root = os.geteuid() != 0 if rootless is None else rootless
    users = ["--user", "--map-root-user"] if without_root else []
    namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    return ["unshare", *users, *namespaces, *_script("init.py")]


def _script(name: str) -> list[str]:
    """Return the command of a script beside this file: isolated, so that no setting of the caller's changes it."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name(name))]


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
