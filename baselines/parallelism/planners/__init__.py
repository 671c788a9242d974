"""Planners, one file each: from layers and devices to stages, replicas and splits."""
