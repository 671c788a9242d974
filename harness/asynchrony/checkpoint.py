"""A run on the virtual clock in a file: written between two pushes, whole or not at all, and gone on with bit for bit.

for pushed in run:
    write_checkpoint(path, run, training)
...
read_checkpoint(path, run, training)  # into new ones; then go on iterating, with data from training.num_drawn on
"""

from __future__ import annotations

from pathlib import Path

from harness.asynchrony.coding import WorkerCodes
from harness.asynchrony.recovery import read_whole, write_whole
from harness.asynchrony.training import Training
from harness.asynchrony.virtual import VirtualRun
from harness.engine.checkpoint import CheckpointError

FORMAT = 3


def write_checkpoint(path: Path, run: VirtualRun, training: Training, codes: WorkerCodes | None = None) -> None:
    """Replace the file at `path` by where the run is now."""
    saved = {
        "format": FORMAT,
        "run": run.state_dict(),
        "training": training.state_dict(),
        "codes": None if codes is None else codes.state_dict(),
    }
    write_whole(path, saved)


def read_checkpoint(path: Path, run: VirtualRun, training: Training, codes: WorkerCodes | None = None) -> None:
    """Bring new objects to where the file's were; the optimizer has to be the same.

    Raises: CheckpointError if it is damaged, or of another cluster, policy, seed, model or compression.
    """
    saved = read_whole(path)
    if saved.get("format") != FORMAT or (saved["codes"] is None) != (codes is None):
        raise CheckpointError(f"{path} is of another format or compression; go on with what wrote it")
    run.load_state_dict(saved["run"])
    training.load_state_dict(saved["training"])
    if codes is not None:
        codes.load_state_dict(saved["codes"])
