"""Prediction: the strategies' own policies on a virtual clock, from layer times and what messages cost."""
