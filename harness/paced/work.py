"""An operation on its way: complete when it is both carried out and paid for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fabric.cluster import FabricError

Carried = Callable[[Exception | None], None]


class PacedWork(dist.Work):
    """torch's handle on an operation. On a GPU too `wait` blocks the calling thread: the link is no stream."""

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until it is complete. Raises: what went wrong, on this rank or a peer."""
        self._future.wait()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Completes with the operation's outputs, as DDP's hooks expect."""
        return self._future

    def is_completed(self) -> bool:
        """Whether it is complete or has failed; does not block."""
        return self._future.done()

    def result(self) -> Any:
        """The outputs. Raises: what went wrong."""
        return self._future.value()


class Both:
    """Completes `future` once: with `answer` when the operation is both carried and paid, or with the first error. `on`
    is a tensor of the device that the answer is on."""

    def __init__(self, answer: Any, on: Tensor | None) -> None:
        # torch refuses an answer on a GPU that its future was not told of.
        devices: list[int | str | torch.device] = [] if on is None or on.device.type == "cpu" else [on.device]
        self.future: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
        self._answer, self._lock = answer, threading.Lock()
        self._num_missing = 2  # to be carried, and to be paid

    def carried(self, error: Exception | None) -> None:
        """The operation has run, or failed with `error`; told once."""
        self._settle(error)

    def paid(self, error: FabricError | None) -> None:
        """The link has carried it, or is lost with `error`; told once."""
        self._settle(error)

    def _settle(self, error: Exception | None) -> None:
        with self._lock:
            if self._num_missing == 0:
                return  # an error has been told already
            # After an error nothing is missing any more, so the other part's news is not told.
            self._num_missing = 0 if error is not None else self._num_missing - 1
            complete = self._num_missing == 0
        if error is not None:
            self.future.set_exception(error)
        elif complete:
            self.future.set_result(self._answer)


def follow(work: dist.Work, carried: Carried, on: Tensor | None, waiting: Executor) -> None:
    """Call `carried` when `work` of the inner group has ended; `waiting` has threads to wait in."""
    if on is not None and on.is_cuda:
        work.wait()  # NCCL: the present stream waits, this thread does not
        landed = torch.cuda.Event(blocking=True)
        landed.record()
        waiting.submit(_call, landed.synchronize, carried)
        return
    try:
        future = work.get_future()
    except RuntimeError:  # gloo's messages from rank to rank have none
        waiting.submit(_call, work.wait, carried)
        return
    future.add_done_callback(lambda ended: _call(ended.value, carried))


def _call(end: Callable[[], object], carried: Carried) -> None:
    try:
        end()
    except Exception as error:  # noqa: BLE001  reaches whoever waits
        carried(error)
    else:
        carried(None)
