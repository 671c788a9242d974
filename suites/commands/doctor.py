"""`crossover-bench doctor`: what this machine can do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from analysis import terminal
from analysis.terminal import Column, output_console
from analysis.wording import NOT_KNOWN
from fabric.api import FabricError, FabricKind, FabricSpec, format_rate, parse_rate
from harness.doctor import Finding, diagnose

if TYPE_CHECKING:
    from harness.bench import Bench

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
    specs = _specs(arguments)
    findings = diagnose()
    links = measure(specs)
    if arguments.json:
        json.dump(
            {"findings": [asdict(f) for f in findings], "links": [asdict(row) for row in links]}, sys.stdout, indent=1
        )
        print()
        return 0
    console = output_console()
    console.print(_findings_table(findings))
    if links:
        console.print(_links_table(links, console.width))
    return 0


def _findings_table(findings: Sequence[Finding]) -> Table:
    """A line a finding, with what to do under what is missing."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(min_width=max((len(finding.name) for finding in findings), default=0), no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mark = Text("✓", style="green") if finding.ok else Text("✗", style="yellow")
        remedy = "" if finding.ok or not finding.remedy else f"\n→ {finding.remedy}"
        table.add_row(mark, Text(finding.name), Text.assemble(finding.detail, (remedy, "yellow")))
    return table


def _specs(arguments: argparse.Namespace) -> list[FabricSpec]:
    """The fabrics to measure, none without `--fabric`. Raises: FabricError."""
    if arguments.fabric is None:
        for name in ("hosts", "rate"):
            if (given := getattr(arguments, name)) is not None:
                raise FabricError(f"--{name} {given[0]} says what to measure; add --fabric emulated or --fabric native")
        return []
    if arguments.fabric not in (FabricKind.EMULATED, FabricKind.NATIVE):
        raise FabricError(f"fabric {arguments.fabric!r} has no links to measure; use emulated or native")
    kind = FabricKind(arguments.fabric)
    if few := [hosts for hosts in arguments.hosts or () if hosts < 2]:
        raise FabricError(f"--hosts {few[0]}: an all-reduce needs at least 2 hosts; ask for --hosts 2 or more")
    rates = arguments.rate or (["none"] if kind is FabricKind.NATIVE else list(RATES))
    return [
        FabricSpec(kind=kind, num_hosts=hosts, rate_bps=parse_rate(rate))
        for rate in rates
        for hosts in arguments.hosts or HOSTS
    ]


def measure(specs: Sequence[FabricSpec]) -> list[LinkRow]:
    """Time all-reduces on each fabric. Raises: FabricError."""
    if not specs:
        return []
    from harness.bench import Bench  # torch comes with it, and may be what is broken here

    console = Console(stderr=True)
    rows = []
    with Bench() as bench:
        for spec in specs:
            with console.status(f"{spec.num_hosts} hosts at {format_rate(spec.rate_bps)}"):
                rows.append(_measure(bench, spec))
    return rows


def _measure(bench: Bench, spec: FabricSpec) -> LinkRow:
    from harness.calibrate import CALIBRATION_BYTES, LINE_RATE_BYTES, fit_link, share_of_line_rate
    from harness.lab.messages import LinkQuestion

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


def _links_table(links: Sequence[LinkRow], width: int) -> Group:
    columns = [
        Column("time\ns", tuple(f"{row.all_reduce_25mb_s:.3f}" for row in links), 1),
        Column("of line\nrate", tuple(_share(row.share_of_line_rate) for row in links), 0),
        Column("α\nµs", tuple(f"{row.alpha_us:.0f}" for row in links), 2),
        Column("β\nns/kB", tuple(f"{row.beta_ns_per_kb:.0f}" for row in links), 3),
        Column("fit\n±", tuple(f"{row.fit_residual:.0%}" for row in links), 4),
    ]
    labels = [f"{row.fabric}, {row.hosts} hosts, {row.rate}" for row in links]
    title = "ring all-reduce of 25 MB (median of 5, slowest rank), and time = α + β·bytes"
    return terminal.titled(title, terminal.table("fabric", labels, columns, width), width)


def _share(share: float | None) -> str:
    return NOT_KNOWN if share is None else f"{share:.3f}"
