"""Renew the table of docs/guide/networks.md: what each network of the suite `networks` costs, and its hops.

.venv/bin/python -m scripts.topology_costs
"""

from __future__ import annotations

from pathlib import Path

from scripts.marked_block import replace_block
from suites.networks.costs import rows, table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guide" / "networks.md"
BLOCK = "topology-costs"


def main() -> None:
    """Build every network, count, and rewrite the table."""
    replace_block(PAGE, BLOCK, table(rows()))


if __name__ == "__main__":
    main()
