"""`crossover-bench list`: the catalogue."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.terminal import output_console
from baselines.catalogue import plugins, summary_of
from fabric.api import FabricKind
from harness.systems import systems
from harness.trial import Sharing
from models.workload import catalogue
from suites.catalogue import all_suites

FABRICS = {
    FabricKind.NATIVE: "this machine's own network, unshaped: loopback, or a real cluster under torchrun",
    FabricKind.EMULATED: "a host in a network namespace each, links shaped both ways",
    FabricKind.PACED: "loopback, every collective held back by a link model that all jobs of a host share",
    FabricKind.LOCKSTEP: "no network and no time: one process computes for all ranks, steps are predicted",
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
            {
                "name": name,
                "summary": kind.card.summary,
                "source": kind.card.source,
                "missing": kind().why_unavailable(),
            }
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
    console = output_console()
    width = max(len(entry["name"]) for entries in found.values() for entry in entries)
    for kind, entries in found.items():
        for slot, of_slot in itertools.groupby(entries, key=lambda entry: entry.get("slot")):
            _show_entries(console, f"{kind}: {slot}" if slot else kind, list(of_slot), width)
    return 0


def _show_entries(console: Console, title: str, entries: Sequence[Mapping[str, Any]], name_width: int) -> None:
    """Names on the left; what each does, where it comes from and its parameters on the right."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=name_width, no_wrap=True)
    table.add_column()
    for entry in entries:
        table.add_row(Text(f"{entry['name']}", style="cyan"), _description(entry))
    console.print(Text(title, style="bold"), table, Text())


def _description(entry: Mapping[str, Any]) -> Text:
    lines = [Text(entry.get("summary") or entry.get("question") or "")]
    source = entry.get("paper") or entry.get("source")
    lines += [Text(text, style="dim") for text in (source, entry.get("parameters")) if text]
    if entry.get("missing"):
        lines.append(Text(f"missing: {entry['missing']}", style="yellow"))
    return Text("\n").join(lines)
