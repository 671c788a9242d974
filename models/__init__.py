"""Workloads: networks, data, recorded profiles. Knows nothing of communication."""
