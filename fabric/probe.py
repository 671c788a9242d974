"""What this machine can do for a fabric, found by trying, and what to do about each thing it cannot."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fabric import enclosure

_CHECKOUT = Path(__file__).parents[1]
_TRIAL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One thing a fabric uses: whether it is there, what was seen, and the remedy if it is not.

    Without a `required` one there is no emulated fabric with default settings.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = True


def capabilities() -> tuple[Capability, ...]:
    """Try everything the emulated fabric needs, in namespaces that are gone afterwards."""
    namespaces = _namespaces()
    if not namespaces[0].ok:
        return namespaces
    if importlib.util.find_spec("pyroute2") is None:
        missing = Capability(name="pyroute2", ok=False, detail="not installed", remedy="run `make setup`")
        return (*namespaces, missing)
    return (*namespaces, *_features())


def _namespaces() -> tuple[Capability, ...]:
    """Try enclosures: the one that labs will use, then for root the one that others would use."""
    if os.geteuid() != 0:
        return (_enclosure(rootless=True, required=True),)
    return (_enclosure(rootless=False, required=True), _enclosure(rootless=True, required=False))


def _enclosure(*, rootless: bool, required: bool) -> Capability:
    name = "namespaces without root" if rootless else "namespaces as root"
    reason = enclosure.refusal(rootless=rootless)
    if reason is None:
        return Capability(name=name, ok=True, detail="network, mount and process namespaces", required=required)
    remedy = enclosure.remedy(rootless=rootless)
    return Capability(name=name, ok=False, detail=reason, remedy=remedy, required=required)


def _features() -> tuple[Capability, ...]:
    """Run `fabric.features` in an enclosure and read what it found."""
    command = [*enclosure.enclosure(), sys.executable, "-m", "fabric.features"]
    tried = subprocess.run(
        command, capture_output=True, text=True, timeout=_TRIAL_TIMEOUT_S, cwd=_CHECKOUT, check=False
    )
    if tried.returncode != 0:
        detail = tried.stderr.strip() or f"the trial ended with status {tried.returncode}"
        return (Capability(name="network features", ok=False, detail=detail, remedy="run `make setup`"),)
    return tuple(Capability(**found) for found in json.loads(tried.stdout))
