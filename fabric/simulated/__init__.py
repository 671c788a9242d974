"""Simulated data-centre networks: topologies, a fluid engine of flows, a packet engine with transports.

Usable alone. Nothing here knows what a gradient is: what is sent is (source, destination, bytes).
"""
