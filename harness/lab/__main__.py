"""`python -m harness.lab SCRATCH`: a lab, whose imports take most of its start."""

from __future__ import annotations

import sys

from harness.garbage import lasting


def main() -> int:
    """Serve until the launcher hangs up."""
    with lasting():
        from harness.lab import process

    return process.main()


if __name__ == "__main__":
    sys.exit(main())
