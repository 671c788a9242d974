"""Which message goes first, on all-reduce and on parameter servers: measured beside predicted."""
