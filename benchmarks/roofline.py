"""What a kernel could at best take: the bytes it must move at the rate at which `copy_` moves bytes on this machine.

Times belong to one machine and one moment, so the copy is timed in the same run, before and after the kernel, and the
best of all is taken; the kernel's best stands beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from pytest_benchmark.fixture import BenchmarkFixture

NUM_ROUNDS = 8


def settle(device: str) -> None:
    """Wait until the device has done what was asked of it."""
    if device != "cpu":
        torch.cuda.synchronize()


@dataclass(slots=True)
class Roofline:
    """Times `copy_` of `numel` float32 elements between two tensors that exist and have been written to."""

    numel: int
    device: str = "cpu"
    _tensors: tuple[torch.Tensor, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self._tensors = (torch.ones(self.numel, device=self.device), torch.ones(self.numel, device=self.device))

    def copy_s(self) -> float:
        """Best of some rounds."""
        source, target = self._tensors
        best = float("inf")
        for _ in range(NUM_ROUNDS):
            settle(self.device)
            start = time.perf_counter()
            target.copy_(source)
            settle(self.device)
            best = min(best, time.perf_counter() - start)
        return best

    def time(
        self,
        benchmark: BenchmarkFixture,
        call: Callable[[], object],
        *,
        moved_bytes: float,
        target_copies: float | None,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        """Run `call` as the benchmark, each time after `prepare`, which is not timed, and note in `extra_info`:

        `copy_s`; `copies`, its best time in copies, beside `target_copies`; `roofline_copies`, what moving
        `moved_bytes` alone takes; `roofline_share`, how much of its time that is.
        """

        def settled() -> None:
            call()
            settle(self.device)

        def prepared() -> None:
            prepare()
            settle(self.device)

        prepared()
        settled()
        copy_s = self.copy_s()
        benchmark.pedantic(settled, setup=prepared, rounds=NUM_ROUNDS)  # type: ignore[no-untyped-call]
        copy_s = min(copy_s, self.copy_s())
        roofline_copies = moved_bytes / (2 * 4 * self.numel)
        benchmark.extra_info |= {"copy_s": copy_s, "roofline_copies": round(roofline_copies, 3)}
        if benchmark.stats is not None:  # None where benchmarks are disabled and `call` runs once
            copies = benchmark.stats.stats.min / copy_s
            benchmark.extra_info |= {
                "copies": round(copies, 2),
                "target_copies": target_copies,
                "roofline_share": round(roofline_copies / copies, 3),
            }
