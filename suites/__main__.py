"""`python -m suites` and `crossover-bench`."""

from __future__ import annotations

import sys

from suites.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
