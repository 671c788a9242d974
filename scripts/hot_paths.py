"""Time the engine's hot paths, in six processes one after the other, and keep the times for a comparison.

    .venv/bin/python -m scripts.hot_paths before      # writes runs/hot-paths/before
    .venv/bin/python -m scripts.hot_paths after       # after the change
    .venv/bin/crossover-bench compare runs/hot-paths/before runs/hot-paths/after

A process during which the machine was busy does not count (docs/guide/regressions.md). Exit codes: 0 done; 1 the
benchmarks failed; 2 the request was wrong; 75 the machine was too busy.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from analysis.stats import FEWEST_FOR_LEVEL
from harness.machine import MachineWatch
from harness.validity import LIMITS, EvidenceKind, disturbances_beyond
from results.facts import MachineFacts

ROOT = Path(__file__).resolve().parent.parent
MOST_IN_A_ROW = 3  # processes that were disturbed: then it is better to wait
TOO_BUSY = 75


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="time the hot paths for a comparison")
    parser.add_argument("name", help="of the folder under runs/hot-paths, such as before or after")
    parser.add_argument("-k", metavar="WORDS", default="", help="only benchmarks whose name matches, as in pytest")
    parser.add_argument("--any-machine", action="store_true", help="count every process, however busy the machine is")
    chosen = parser.parse_args(argv)
    folder = ROOT / "runs" / "hot-paths" / chosen.name
    if any(folder.glob("*.json")):
        print(f"hot_paths: {folder} holds times already; choose another name, or delete it", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    words = ["-m", "pytest", "benchmarks/test_hot_paths.py", "-q", "-p", "no:cacheprovider", "-k", chosen.k]
    words += ["--benchmark-enable", "--benchmark-max-time=0.3", "--benchmark-columns=median"]

    def once(path: Path) -> int:
        return subprocess.run([sys.executable, *words, f"--benchmark-json={path}"], cwd=ROOT, check=False).returncode

    return repeated(folder, once, MachineWatch(), any_machine=chosen.any_machine)


def repeated(folder: Path, once: Callable[[Path], int], watch: MachineWatch, *, any_machine: bool) -> int:
    """Call `once` with the path of a file until six of them count; returns the exit code."""
    num_counted = num_disturbed = 0
    while num_counted < FEWEST_FOR_LEVEL:
        path, watched = folder / f"{num_counted + 1}.json", watch.start()
        if once(path):
            print("hot_paths: the benchmarks failed; see above", file=sys.stderr)
            return 1
        reasons = [] if any_machine else list(_told(watched.stop()[1]))
        if not reasons:
            num_counted, num_disturbed = num_counted + 1, 0
            continue
        path.unlink(missing_ok=True)
        num_disturbed += 1
        print(f"hot_paths: does not count: {'; '.join(reasons)}", file=sys.stderr)
        if num_disturbed == MOST_IN_A_ROW:
            print(
                "hot_paths: this machine is too busy; end what else runs (`top`), or add --any-machine", file=sys.stderr
            )
            return TOO_BUSY
    return 0


def _told(machine: MachineFacts) -> list[str]:
    beyond = disturbances_beyond(machine, LIMITS[EvidenceKind.REAL])
    return [f"{one.quantity}: {one.found:.0%}, at most {one.most:.0%} allowed" for one in beyond]


if __name__ == "__main__":
    sys.exit(main())
