"""Communication beside a computation, to measure by how much it slows it: on one processor, not by nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

NUM_BYTES = 4 << 20


@contextmanager
def other_communication(num_bytes: int = NUM_BYTES) -> Iterator[None]:
    """All-reduces one after the other in a thread, as another job's would be, until every rank has left the body.

    The ranks agree on the end through the message itself: its first element counts who is done.
    """
    group = dist.new_group()
    done = threading.Event()

    def exchange() -> None:
        payload = torch.zeros(num_bytes // 4)
        # Nobody may leave before all are done: a rank that stopped sending would block the others' last all-reduce.
        while payload[0] < dist.get_world_size():
            payload.zero_()
            payload[0] = float(done.is_set())
            dist.all_reduce(payload, group=group)

    thread = threading.Thread(target=exchange, name="other communication")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        dist.destroy_process_group(group)
