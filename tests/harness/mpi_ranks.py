"""A rank under mpiexec that trains over gloo and over MPI: `python mpi_ranks.py FOLDER STRATEGY...`.

Rank r writes FOLDER/r.json: a digest of the weights by strategy and transport.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from tiny_models import awkward, loss_at

from baselines.strategy import parse_strategy
from harness.engine.engine import Engine
from harness.engine.transport import ProcessGroupTransport, Transport
from harness.mpi.transport import MpiTransport
from harness.trace import Recorder

NUM_STEPS = 4


def trained(text: str, transport: Transport) -> str:
    model, strategy = awkward(), parse_strategy(text)
    engine = Engine(model, strategy, transport, recorder=Recorder(), seed=7)
    for step in range(NUM_STEPS):
        engine.begin_step()
        loss_at(step)(transport.rank, model).backward()
        engine.end_backward()
        engine.wait()
        for parameter in model.parameters():  # by hand: torch's optimizers take seconds to import
            assert parameter.grad is not None
            parameter.data.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None
    engine.close()
    weights = (parameter.detach().contiguous().numpy().tobytes() for _, parameter in sorted(model.named_parameters()))
    return hashlib.sha256(b"".join(weights)).hexdigest()


def main(folder: Path, texts: list[str]) -> None:
    rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), size), rank=rank, world_size=size)
    told = {}
    for text in texts:
        depth = parse_strategy(text).ordering.depth
        told[text] = {
            "gloo": trained(text, ProcessGroupTransport(depth)),
            "mpi": trained(text, MpiTransport(depth)),
        }
    (folder / f"{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
