"""Figures of simulated networks that no record holds: drawings of topologies, and how busy links are. PNG and PDF.

    python -m suites.networks.figures --out figures

Queues, pauses, completion times and incast are in the suite's report, from its records (`analysis/flows`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from analysis import theme
from fabric.api import HostChoice, NetworkSpec
from fabric.collectives import Collective
from fabric.simulated.flow import simulate_flows
from fabric.simulated.graph import Floats, NetworkGraph
from fabric.simulated.placed import place_network
from fabric.simulated.topologies import parse_topology
from fabric.simulated.traffic import TrafficJob, collective_rounds

DRAWN = ("fat-tree(k=4)", "leaf-spine(leaves=4, spines=2, hosts_per_leaf=4)", "bcube(n=4, k=1)", "torus(sides=(4, 4))")


def draw_all(folder: Path) -> list[Path]:
    """Write every figure to `folder`; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    made: Mapping[str, Callable[[], Figure]] = {
        "topologies": topologies,
        "link-use": link_use,
    }
    written = []
    for name, draw in made.items():
        with theme.style():
            figure = draw()
            for suffix in ("png", "pdf"):
                written.append(folder / f"networks-{name}.{suffix}")
                figure.savefig(written[-1], dpi=200)
    return written


def topologies() -> Figure:
    """Four networks of 16 servers (circles) and their switches (squares)."""
    figure = Figure(figsize=(2 * theme.WIDTH_IN, 1.5 * theme.WIDTH_IN), layout="constrained")
    for axes, text in zip(figure.subplots(2, 2).flat, DRAWN, strict=True):
        graph = parse_topology(text).build()
        places = _places(graph)
        for a, b in graph.ends:
            axes.plot(*places[[a, b]].T, color=theme.GRID, linewidth=0.6, zorder=1)
        hosts, switches = places[: graph.num_hosts], places[graph.num_hosts :]
        axes.scatter(*hosts.T, s=16, color=theme.palette()[0], zorder=2)
        axes.scatter(*switches.T, s=20, marker="s", color=theme.palette()[1], zorder=2)
        axes.set_title(text)
        axes.set_axis_off()
    return figure


def _places(graph: NetworkGraph) -> Floats:
    """A row per distance from the servers; where servers join each other directly, a square grid of them."""
    if not graph.num_switches:
        side = int(np.ceil(np.sqrt(graph.num_hosts)))
        # a little skewed, so that the cables which close the rings do not cover the others
        rows, columns = np.divmod(np.arange(graph.num_hosts), side)
        return np.stack([columns + 0.12 * rows**1.7, rows + 0.12 * columns**1.7], axis=1)
    level = np.where(np.arange(graph.num_nodes) < graph.num_hosts, 0, -1)
    while (level < 0).any():
        for a, b in np.concatenate([graph.ends, graph.ends[:, ::-1]]):
            if level[a] >= 0 and level[b] < 0:
                level[b] = -2 - level[a]
        level = np.where(level < -1, -level - 1, level)
    places = np.zeros((graph.num_nodes, 2))
    for own in range(level.max() + 1):
        (members,) = np.nonzero(level == own)
        places[members] = np.stack([(np.arange(len(members)) + 0.5) / len(members), np.full(len(members), own)], axis=1)
    return places


def link_use() -> Figure:
    """How busy each switch's links are during a ring of 32 on a 4:1 leaf-spine, packed and at random."""
    figure = Figure(figsize=(2 * theme.WIDTH_IN, 0.8 * theme.WIDTH_IN), layout="constrained")
    image = None
    for axes, choice in zip(figure.subplots(1, 2), (HostChoice.PACKED, HostChoice.RANDOM), strict=True):
        topology = "leaf-spine(leaves=8, spines=4, hosts_per_leaf=16, gbit=25)"
        placed = place_network(NetworkSpec(topology=topology, placement=choice), 32)
        job = TrafficJob(placed.jobs[0].hosts, collective_rounds(Collective.ALL_REDUCE, 32, 100e6))
        result = simulate_flows(placed.graph, [job])
        busy = result.link_bytes * 8 / (placed.graph.link_rate_bps * result.finish_s[0])
        image = axes.imshow(_leaves_and_spines(placed.graph, busy), vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axes.set_title(f"{choice}: {result.finish_s[0] * 1e3:.0f} ms for 100 MB")
        axes.set_xlabel("host port, then spine port")
        axes.set_ylabel("leaf")
        axes.grid(visible=False)
    assert image is not None, "two panels were drawn"
    figure.colorbar(image, label="busy share of time")
    return figure


def _leaves_and_spines(graph: NetworkGraph, busy: Floats) -> Floats:
    """A row per leaf: use of the links from its hosts, then of those to its spines."""
    leaves = sorted({int(graph.ends[cable].max()) for cable in range(graph.num_cables) if graph.ends[cable].min() == 0})
    first = leaves[0]
    rows: dict[int, list[float]] = {}
    for cable, (a, b) in enumerate(graph.ends):
        rows.setdefault(int(b if a < graph.num_hosts else a) - first, []).append(float(busy[2 * cable]))
    return np.array([rows[row] for row in sorted(rows)])


def main() -> None:
    """Draw all figures into a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    for path in draw_all(parser.parse_args().out):
        print(path)


if __name__ == "__main__":
    main()
