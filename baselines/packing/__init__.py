"""Packing: which ready gradients travel as one message."""
