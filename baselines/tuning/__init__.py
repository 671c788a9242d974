"""Tuning: how settings are searched while a job trains."""
