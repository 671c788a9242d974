"""`crossover-bench doctor`: what this machine can do."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from fabric.api import FabricError, FabricKind, FabricSpec, format_rate, parse_rate
from harness.bench import Bench
from harness.calibrate import CALIBRATION_BYTES, LINE_RATE_BYTES, fit_link, share_of_line_rate
from harness.doctor import diagnose
from harness.messages import LinkQuestion

HOSTS = (2, 4, 8)
RATES = ("200mbit", "1gbit")


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One measured fabric: 25 MB ring all-reduce against the line rate, and the α–β fit."""

    fabric: str
    hosts: int
    rate: str
    all_reduce_25mb_s: float
    share_of_line_rate: float | None
    alpha_us: float
    beta_ns_per_kb: float
    fit_residual: float


def examine(arguments: argparse.Namespace) -> int:
    """Print findings, and line rates with `--fabric`."""
    findings = diagnose()
    links = measure(arguments) if arguments.fabric else []
    if arguments.json:
        json.dump({"findings": [asdict(f) for f in findings], "links": [asdict(row) for row in links]}, sys.stdout, indent=1)
        print()
        return 0
    table = Table(title="this machine", title_justify="left")
    for name in ("", "what", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        mark = "[green]✓[/]" if finding.ok else "[yellow]✗[/]"
        table.add_row(mark, finding.name, finding.detail, "" if finding.ok else finding.remedy)
    Console().print(table)
    if links:
        _show_links(links)
    return 0


def measure(arguments: argparse.Namespace) -> list[LinkRow]:
    """Time all-reduces on every fabric asked for. Raises: FabricError."""
    try:
        kind = FabricKind(arguments.fabric)
    except ValueError:
        raise FabricError(f"unknown fabric {arguments.fabric!r}; use emulated or native") from None
    rates = arguments.rate or (["none"] if kind is FabricKind.NATIVE else list(RATES))
    specs = [
        FabricSpec(kind=kind, num_hosts=hosts, rate_bps=parse_rate(rate))
        for rate in rates
        for hosts in arguments.hosts or HOSTS
    ]
    console = Console(stderr=True)
    rows = []
    with Bench() as bench:
        for spec in specs:
            with console.status(f"{spec.num_hosts} hosts at {format_rate(spec.rate_bps)}"):
                rows.append(_measure(bench, spec))
    return rows


def _measure(bench: Bench, spec: FabricSpec) -> LinkRow:
    if spec.num_hosts < 2:
        raise FabricError("an all-reduce needs at least 2 hosts; ask for --hosts 2 or more")
    question = LinkQuestion(fabric=spec, num_bytes=(*CALIBRATION_BYTES, LINE_RATE_BYTES), num_repeats=5)
    times_s = dict(bench.time_links(question))
    large_s = times_s.pop(LINE_RATE_BYTES)
    link = fit_link(times_s)
    share = share_of_line_rate(LINE_RATE_BYTES, large_s, spec.num_hosts, spec.rate_bps) if spec.rate_bps else None
    return LinkRow(
        fabric=spec.kind.value,
        hosts=spec.num_hosts,
        rate=format_rate(spec.rate_bps),
        all_reduce_25mb_s=large_s,
        share_of_line_rate=share,
        alpha_us=link.alpha_s * 1e6,
        beta_ns_per_kb=link.beta_s_per_byte * 1e12,
        fit_residual=link.residual,
    )


def _show_links(links: list[LinkRow]) -> None:
    title = "ring all-reduce of 25 MB (median of 5, slowest rank), and time = α + β·bytes"
    table = Table(title=title, title_justify="left")
    for name in ("fabric", "hosts", "rate", "time s", "of line rate", "α µs", "β ns/kB", "fit ±"):
        table.add_column(name, justify="left" if name in ("fabric", "rate") else "right")
    for row in links:
        share = "" if row.share_of_line_rate is None else f"{row.share_of_line_rate:.3f}"
        numbers = (f"{row.all_reduce_25mb_s:.3f}", share, f"{row.alpha_us:.0f}", f"{row.beta_ns_per_kb:.0f}")
        table.add_row(row.fabric, str(row.hosts), row.rate, *numbers, f"{row.fit_residual:.0%}")
    Console().print(table)
