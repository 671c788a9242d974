"""The networks of the workloads, in plain torch."""
