"""One of two ranks on a real process group. Rank 1 dies in mid-step; rank 0 says what it sees.

python engine_rank.py RANK STORE STRATEGY
"""

from __future__ import annotations

import os
import sys

import torch.distributed as dist
from tiny_models import awkward, loss_at

from baselines.strategy import parse_strategy
from harness.engine.engine import Engine, EngineError
from harness.engine.transport import ProcessGroupTransport
from harness.trace import Recorder

DIES_AT_STEP = 2


def main() -> int:
    rank, store, text = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    model, strategy = awkward(), parse_strategy(text)
    engine = Engine(model, strategy, ProcessGroupTransport.of(strategy), recorder=Recorder())
    try:
        for step in range(DIES_AT_STEP + 2):
            engine.begin_step()
            if rank == 1 and step == DIES_AT_STEP:
                os._exit(9)
            loss_at(step)(rank, model).backward()
            engine.end_backward()
            engine.wait()
    except EngineError as error:
        print(f"EngineError at step {step}: {error}", flush=True)
        os._exit(3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
