"""Three ranks on a real process group, each late now and then in its own way; each prints what it ended with.

python ordering_ranks.py STORE STRATEGY...
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from multiprocessing import get_context
from time import sleep

import torch.distributed as dist
from tiny_models import awkward, loss_at

from baselines.strategy import parse_strategy
from harness.engine.engine import Engine
from harness.engine.transport import ProcessGroupTransport
from harness.garbage import lasting
from harness.systems.ours import EagerSession
from harness.trace import Recorder

WORLD, NUM_STEPS = 3, 6


def train(rank: int, store: str, text: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, WORLD), rank=rank, world_size=WORLD)
    model, strategy, dice = awkward(), parse_strategy(text), random.Random(rank)
    engine = Engine(model, strategy, ProcessGroupTransport.of(strategy), recorder=Recorder())
    session = EagerSession(model, strategy.optimizer, engine)
    for parameter in model.parameters():  # gradients become ready at times of their own on each rank
        parameter.register_hook(lambda grad: sleep(dice.random() * 2e-3))
    for step in range(NUM_STEPS):
        session.wait()
        session.update()
        session.backward(loss_at(step)(rank, model))
    session.finish()
    weights = b"".join(parameter.detach().contiguous().numpy().tobytes() for parameter in model.parameters())
    traffic = engine.traffic
    told = f"{text} {hashlib.sha256(weights).hexdigest()} {traffic.num_messages} {traffic.num_control_rounds}\n"
    os.write(sys.stdout.fileno(), told.encode())  # in one piece, whatever the other ranks write
    dist.barrier()  # nobody leaves while another one still sends
    engine.close()


def main() -> int:
    """Forked ranks, since importing torch takes longer than all they do, and an optimizer imports most of it."""
    with lasting():
        parse_strategy("unfused").optimizer.build(awkward().parameters())
    failed = 0
    for number, text in enumerate(sys.argv[2:]):
        ranks = [
            get_context("fork").Process(target=train, args=(rank, f"{sys.argv[1]}{number}", text), daemon=True)
            for rank in range(WORLD)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
            failed += process.exitcode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
