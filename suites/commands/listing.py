"""`crossover-bench list`: the catalogue."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from baselines.catalogue import plugins, summary_of
from fabric.api import FabricKind
from harness.systems import systems
from harness.trial import Sharing
from models.workload import catalogue
from suites.catalogue import all_suites

FABRICS = {
    FabricKind.NATIVE: "this machine's own network, unshaped: loopback, or a real cluster under torchrun",
    FabricKind.EMULATED: "a host in a network namespace each, links shaped both ways",
}
SHARINGS = {
    Sharing.EXCLUSIVE: "one job after the other",
    Sharing.HOLD: "turns, kept while the job communicates (gains nothing, and shows it)",
    Sharing.NAIVE: "all jobs at once",
    Sharing.CROSSOVER: "turns, given back before the job communicates",
}


def rows() -> dict[str, list[dict[str, Any]]]:
    """The catalogue by kind of entry."""
    known = catalogue()
    return {
        "suites": [{"name": suite.name, "question": suite.question} for suite in all_suites().values()],
        "baselines": [dict(summary_of(kind)) for kind in plugins().values()],
        "systems": [
            {"name": name, "summary": kind.card.summary, "source": kind.card.source, "missing": kind().why_unavailable()}
            for name, kind in systems().items()
        ],
        "networks": [{"name": name, "summary": text} for name, text in known.networks.items()],
        "data": [{"name": name, "summary": text} for name, text in known.data.items()],
        "profiles": [{"name": name} for name in known.profiles],
        "sharing": [{"name": sharing.value, "summary": text} for sharing, text in SHARINGS.items()],
        "fabrics": [{"name": kind.value, "summary": text} for kind, text in FABRICS.items()],
    }


def show(*, as_json: bool) -> int:
    """Print the catalogue."""
    found = rows()
    if as_json:
        json.dump(found, sys.stdout, indent=1)
        print()
        return 0
    console = Console()
    for kind, entries in found.items():
        table = Table(title=kind, title_justify="left", title_style="bold")
        for column in entries[0] if entries else ():
            table.add_column(column, overflow="fold")
        for entry in entries:
            table.add_row(*("" if value is None else str(value) for value in entry.values()))
        console.print(table)
    return 0
