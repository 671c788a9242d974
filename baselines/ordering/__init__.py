"""Ordering: which message goes next."""
