"""What a job's weights came to, so that two runs can be compared bit by bit.

Where CROSSOVER_DIGESTS names a folder, every attachment of every worker writes its digest there when it is closed, with
or without turns: RANK-NUMBER.json with `sha256`, `num_turns` and `num_values`. `crossover verify` compares them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

DIGESTS = "CROSSOVER_DIGESTS"
RANKS = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")  # what launchers call it


def rank_of_environment() -> int:
    """This worker's number in its job, by its launcher; 0 where none says."""
    given = next((os.environ[name] for name in RANKS if name in os.environ), "0")
    return int(given) if given.isdecimal() else 0


def write_digest(folder: str, models: Iterable[Any], num_turns: int) -> Path:
    """Write what `models` (torch modules) hold now; returns the file. A worker's attachments are numbered in the order
    in which they are closed. Raises OSError where the folder cannot be written."""
    sums, num_values = hashlib.sha256(), 0
    for model in models:
        for name, value in sorted(model.state_dict().items()):
            sums.update(name.encode())
            if hasattr(value, "numel"):  # what else modules keep in their state is no weight
                sums.update(f"{tuple(value.shape)} {value.dtype}".encode())
                sums.update(_bytes_of(value))
                num_values += value.numel()
    found = {"sha256": sums.hexdigest(), "num_turns": num_turns, "num_values": num_values}
    return write_numbered(folder, str(rank_of_environment()), found)


def write_numbered(folder: str, stem: str, found: dict[str, Any]) -> Path:
    """Write JSON to the first free STEM-NUMBER.json of a folder; returns the file. Raises OSError, and leaves no part
    of a file then."""
    text = json.dumps(found, allow_nan=False)
    for number in count():
        path = Path(folder) / f"{stem}-{number}.json"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
            return path
        except FileExistsError:
            continue
        except OSError:
            path.unlink(missing_ok=True)
            raise
    raise AssertionError("numbers have no end")


def _bytes_of(tensor: Any) -> bytes:
    """The tensor's bytes, whatever its type: numpy knows no bfloat16."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""
