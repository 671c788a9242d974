"""Pipelined jobs: steps, bubbles and stashes beside formulas and the virtual clock."""
