"""Trials on a simulated network: real policies on the virtual clock, messages as flows that share links."""
