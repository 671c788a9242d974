"""Optimizer: what a step does."""
