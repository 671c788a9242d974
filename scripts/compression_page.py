"""Draw the roofline of compressors and write the speed table of docs/guide/compression.md from a saved benchmark run.

make benchmark ARGS='-k test_compression.py'
    .venv/bin/python -m scripts.compression_page            # from the last saved run
    .venv/bin/python -m scripts.compression_page RUN.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from analysis.codes.roofline import SpeedError, figure, read_run, table
from scripts.marked_block import PageError, replace_block

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs", "guide", "compression.md")
IMAGE = Path("docs", "images", "compression-roofline.png")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 2, with the remedy, if there is no run to read."""
    parser = argparse.ArgumentParser(description="speed of compressors: page and figure")
    parser.add_argument("run", nargs="?", type=Path, help="JSON of pytest-benchmark (default: the last one saved)")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout that is written to")
    chosen = parser.parse_args(argv)
    try:
        fill(chosen.root, chosen.run or last_run(chosen.root))
    except (SpeedError, PageError, OSError) as error:
        print(f"compression_page: {error}", file=sys.stderr)
        return 2
    return 0


def fill(root: Path, path: Path) -> None:
    """Write figure and table into the checkout at `root`. Raises: SpeedError, PageError, OSError."""
    run = read_run(path)
    replace_block(root / PAGE, "speed", "\n".join(table(run)))
    figure(run).savefig(root / IMAGE, dpi=200)


def last_run(root: Path) -> Path:
    """The newest file under `.benchmarks` that times compressors. Raises: SpeedError if there is none."""
    saved = sorted((root / ".benchmarks").glob("*/*.json"), key=lambda path: path.stat().st_mtime)
    for path in reversed(saved):
        with suppress(SpeedError):  # of other benchmarks
            read_run(path)
            return path
    raise SpeedError("no run of compressors is saved; make one with make benchmark ARGS='-k test_compression.py'")


if __name__ == "__main__":
    sys.exit(main())
