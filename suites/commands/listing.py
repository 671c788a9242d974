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
from baselines.api import UpdatePoint
from baselines.catalogue import plugins, summary_of
from baselines.parallelism.catalogue import planners, rows_of, schedules
from crossover import Sharing
from fabric.api import FabricKind
from harness.precision import FIRST_SCALE, GROWTH_INTERVAL, Precision
from harness.systems import systems
from models.workload import catalogue
from suites.catalogue import all_suites

FABRICS = {
    FabricKind.NATIVE: "this machine's own network, unshaped: loopback, or a real cluster under torchrun",
    FabricKind.EMULATED: "a host in a network namespace each, links shaped both ways",
    FabricKind.PACED: "loopback, every collective held back by a link model that all jobs of a host share",
    FabricKind.LOCKSTEP: "no network and no time: one process computes for all ranks, steps are predicted",
    FabricKind.SIMULATED: "a named data-centre network on a virtual clock: jobs' flows share its links",
}
OURS = "this project"
MIXED = "Micikevicius et al., Mixed Precision Training, ICLR 2018"
WAVELET = "Wang et al., Wavelet, MLSys 2021"
MURI = "Zhao et al., Muri, SIGCOMM 2022"
CASSINI = "Rajasekaran et al., CASSINI, NSDI 2024"
SHARINGS: dict[str, tuple[str, str]] = {
    "none": ("a job alone", "textbook"),
    Sharing.EXCLUSIVE: ("one job after the other", "textbook"),
    Sharing.HOLD: ("turns, kept while the job communicates (gains nothing, and shows it)", OURS),
    Sharing.NAIVE: ("all jobs at once", "textbook"),
    Sharing.MPS: ("all jobs at once under the GPU's own service; with `crossover run` alone", "NVIDIA MPS"),
    Sharing.SLOT_BARRIER: ("turns in slots that end when the longest of them does", OURS),
    Sharing.CROSSOVER: ("turns, given back before the job communicates", OURS),
    Sharing.WEIGHTED: ("as crossover, with so many turns a cycle for each job as its costs ask for", OURS),
    Sharing.TICK_TOCK: ("two jobs whose forward and backward alternate on the device", WAVELET),
    Sharing.MURI: ("groups of jobs that interleave best by their costs, one group at a time", MURI),
    Sharing.CASSINI: ("all jobs at once, their starts shifted so that bursts on the link do not meet", CASSINI),
}
PRECISIONS = {
    Precision.FLOAT32: ("what the workload computes in", "textbook"),
    Precision.FLOAT16: ("layers in float16, float32 parameters, the loss scaled", MIXED),
    Precision.BFLOAT16: ("layers in bfloat16, float32 parameters", MIXED),
}
UPDATE_POINTS = {
    UpdatePoint.AFTER_ALL: ("once all messages are complete", "textbook"),
    UpdatePoint.AT_PRE_HOOK: ("each parameter just before the next forward needs it", "Peng et al., SOSP 2019"),
}
STEP_SETTINGS = (
    ("loss-scale", f"{FIRST_SCALE:g} at first, ×2 after {GROWTH_INTERVAL} clean steps, ÷2 and skip on overflow; with "
     "float16", MIXED),
    ("local-steps", "local-steps(n=10) in a strategy: steps of each rank alone between two exchanges of weights",
     "Stich, Local SGD, ICLR 2019; Sattler et al., IJCNN 2019"),
    ("accumulate", "micro-batches per step, whose gradients add up before they are sent", "textbook"),
    ("clip_norm", "the L2 norm that the averaged gradient is clipped to", "Pascanu et al., ICML 2013"),
)  # fmt: skip


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
        "schedules": rows_of(schedules()),
        "planners": rows_of(planners()),
        "networks": [{"name": name, "summary": text} for name, text in known.networks.items()],
        "data": [{"name": name, "summary": text} for name, text in known.data.items()],
        "profiles": [{"name": name} for name in known.profiles],
        "sharing": _sourced(SHARINGS),
        "precisions": _sourced(PRECISIONS),
        "update points": _sourced(UPDATE_POINTS),
        "step": [{"name": name, "summary": text, "source": source} for name, text, source in STEP_SETTINGS],
        "fabrics": [{"name": kind.value, "summary": text} for kind, text in FABRICS.items()],
    }


def _sourced(entries: Mapping[Any, tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"name": str(own), "summary": text, "source": source} for own, (text, source) in entries.items()]


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
