"""Flows in the packet engine, from records of trials without jobs."""
