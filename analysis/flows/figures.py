"""Which figures of flows without jobs a summary holds, with their captions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.flows.rows import FlowRow
from analysis.rows import Drawing
from results.traffic import TrafficFacts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOPIC = "flows"
MANY_FLOWS = 50  # whose completion times make a curve
_TAKES = (
    "What flows take, relative to the slowest way of their setting: the mean over jobs, or where something waits for "
    "them the time until its end."
)


def flow_drawings(rows: Sequence[FlowRow]) -> Iterator[Drawing]:
    """Queues over time, completion times, and what varies along an axis; what was not recorded is not drawn."""
    from analysis.flows import plots

    exact: dict[str, list[FlowRow]] = {}
    groups: dict[str, list[FlowRow]] = {}
    for row in rows:
        if row.is_exact and not row.axis:  # of settings whose names begin alike one figure
            exact.setdefault(row.group.partition("-")[0], []).append(row)
        else:
            groups.setdefault(row.axis or row.group, []).append(row)
    for name, own in exact.items():
        yield _drawn(name, _TAKES, plots.bars(own), own)
    for name, own in groups.items():
        where = _where(own)
        if own[0].axis and _is_sampled(own):
            caption = "Highest and lowest queue over the number of flows, beside DCTCP's own analysis of flows in step"
            yield _drawn(f"queue-by-{name}", f"{caption}. {where}.", plots.limit_cycles(own), own)
        elif own[0].axis:
            yield _drawn(f"goodput-by-{name}", f"Goodput over {name}. {where}.", plots.sweep(own), own)
        elif _is_sampled(own) and _run(own[0]).from_s == 0.0:
            caption = (
                "The queue towards the receiver (logarithmic above 1 kB), and pause frames of all switches, of one run"
            )
            yield _drawn(name, f"{caption}. {where}.", plots.courses(own), own)
        elif sum(len(group.num_bytes) for group in _run(own[0]).groups) >= MANY_FLOWS and _all_ended(own):
            caption = "Completion times over those of the flows alone, all repeats together"
            yield _drawn(name, f"{caption}. {where}.", plots.completions(own), own)


def _drawn(name: str, caption: str, figure: Figure, rows: Sequence[FlowRow]) -> Drawing:
    from analysis import theme

    repeats = "" if all(row.is_exact for row in rows) else f" {theme.repeats_of([len(row.runs) for row in rows])}"
    ids = tuple(i for row in rows for i in row.ids)
    stem = f"{TOPIC}-{name.replace(' ', '-')}"
    said = f"{caption}{repeats}, simulated." if repeats else f"{caption} Simulated, exact."
    return Drawing(name=stem, topic=TOPIC, caption=said, figure=figure, record_ids=ids)


def _where(rows: Sequence[FlowRow]) -> str:
    """The network, where all cells have the same one."""
    networks = list(dict.fromkeys(row.network for row in sorted(rows, key=lambda row: row.at or 0.0)))
    return networks[0] if len(networks) == 1 else f"{networks[0]} to {networks[-1]}"


def _run(row: FlowRow) -> TrafficFacts:
    return row.runs[min(row.runs)]


def _is_sampled(rows: Sequence[FlowRow]) -> bool:
    return all(_run(row).times_s for row in rows)


def _all_ended(rows: Sequence[FlowRow]) -> bool:
    return all(None not in group.end_s for row in rows for run in row.runs.values() for group in run.groups)
