"""How far hosts are from each other."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from fabric.simulated.graph import Floats, NetworkGraph


def edge_distances(graph: NetworkGraph) -> Floats:
    """Edges of the shortest path from each host to each other one [hosts, hosts]; ∞ if they are parted."""
    return distances(graph, np.ones(graph.num_cables))


def distances(graph: NetworkGraph, weights: Floats) -> Floats:
    """Weighted distances [hosts, hosts] over cables that are up."""
    kept = graph.ends[graph.up]
    shape = (graph.num_nodes, graph.num_nodes)
    matrix = coo_array((weights[graph.up], (kept[:, 0], kept[:, 1])), shape=shape).tocsr()
    unweighted = bool((weights == 1.0).all())
    every = np.arange(graph.num_hosts)
    found: Floats = dijkstra(matrix, directed=False, indices=every, unweighted=unweighted)[:, : graph.num_hosts]
    return found
