"""A rank that times a collective: `python -m harness.collectives.ranks LIBRARY OPERATION OUT SECONDS`.

As nccl-tests does: operations follow each other without a barrier, and a time is that of a row divided by its length,
on the slowest rank. Each size has NUM_ROWS rows. A size is left out where its rows would outlast SECONDS, which is
judged from the size before. Rank 0 writes OUT: `num_ranks`, and `sizes` as `results.collectives.SizeTimes`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

from harness.collectives.libraries import Library, Run, open_library
from results.codec import to_jsonable
from results.collectives import Operation, SizeTimes

SIZES = (
    4,
    16,
    64,
    256,
    1_024,
    4_096,
    16_384,
    65_536,
    262_144,
    1_048_576,
    4_194_304,
    25_000_000,
    67_108_864,
    256_000_000,
)
NUM_ROWS = 3  # repeats of the trial say more than further rows
ROW_S = 0.1  # about
LONGEST_ROW = 200


def time_operation(library: Library, operation: Operation, seconds: float) -> Iterator[SizeTimes]:
    """Every size that fits into `seconds`, none where the library has no such operation; the same on all ranks."""
    once_s, before = 0.0, SIZES[0]
    for num_bytes in SIZES:
        if once_s * max(1.0, num_bytes / before) * (NUM_ROWS + 1) > seconds:
            break
        run = library.prepare(operation, num_bytes)
        if run is None:
            break
        once_s, before = _row(library, run, 1), num_bytes
        length = max(1, min(LONGEST_ROW, round(ROW_S / once_s)))
        halves = 2 if operation is Operation.POINT_TO_POINT else 1
        times_s = tuple(_row(library, run, length) / halves for _ in range(NUM_ROWS))
        once_s = min(times_s) * halves
        yield SizeTimes(num_bytes=num_bytes, row_length=length, times_s=times_s)


def _row(library: Library, run: Run, length: int) -> float:
    library.largest(0.0)
    start_s = perf_counter()
    for _ in range(length):
        run()
    return library.largest((perf_counter() - start_s) / length)


def main(name: str, operation: Operation, out: Path, seconds: float) -> None:
    """Time one operation of library `name`."""
    torch.set_num_threads(1)
    library = open_library(name)
    try:
        sizes = to_jsonable(tuple(time_operation(library, operation, seconds)))
        if library.rank == 0:
            out.write_text(json.dumps({"num_ranks": library.size, "sizes": sizes}) + "\n")
    finally:
        # MPI and Horovod end by themselves. Threads of a group of torch's that is left to the interpreter's exit may
        # abort the process.
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Operation(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
