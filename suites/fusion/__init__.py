"""Which tensors travel together, on links from 1 to 100 Gbit/s: measured beside predicted."""
