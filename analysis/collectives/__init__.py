"""Collectives by library and size: rows, tables and figures."""
