"""Compression: how a message is written."""
