"""DDP on a paced link with GPU tensors, when a message starts, and turns on the GPU's own clock."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable

import pytest
import torch
import torch.distributed as dist
from clocked_link import ClockedLink, Driven, virtual_world
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from crossover import Alone
from harness.lab.gpu import EventTurns
from harness.paced.link_client import Paid

SPIN_S = 0.05


def spin() -> None:
    """Keep the device busy for about SPIN_S, whatever its clock."""
    torch.cuda._sleep(int(SPIN_S * cycles_per_s()))


def cycles_per_s() -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(10_000_000)
    end.record()
    end.synchronize()
    return 1e10 / begin.elapsed_time(end)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 3)).cuda()


HOOKS: dict[str, Callable[[DistributedDataParallel], None]] = {
    "none": lambda model: None,
    "fp16": lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "bf16": lambda model: model.register_comm_hook(None, default_hooks.bf16_compress_hook),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_raw_ddp_trains_among_virtual_peers_and_pays_for_its_bytes(hook: str) -> None:
    alone, link = small(), ClockedLink()
    with virtual_world(Driven(link)) as pacing:
        wrapped = DistributedDataParallel(small(), device_ids=[0])
        HOOKS[hook](wrapped)
        for model in (alone, wrapped):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(4):
                before = pacing.traffic.num_bytes
                inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(step)).cuda()
                model(inputs).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        sent = pacing.traffic.num_bytes - before
    num_bytes = 4 * sum(parameter.numel() for parameter in alone.parameters())
    assert sent == pytest.approx(1.75 * num_bytes / (1 if hook == "none" else 2))
    tolerance = 0.0 if hook == "none" else 1e-2
    for mine, theirs in zip(wrapped.module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
    assert link.now_s > 0


def test_messages_start_when_their_stream_comes_to_them_and_in_their_order() -> None:
    """Python runs ahead of the device; the link must not."""
    started = list[tuple[float, float]]()

    class Carrier:
        def carry(self, flow: Hashable, work_s: float, paid: Paid) -> None:
            started.append((time.perf_counter(), work_s))
            paid(None)

        def close(self) -> None:
            """Nothing is held."""

    with virtual_world(Carrier()):
        tensors = [torch.ones(1000 * size, device="cuda") for size in range(1, 6)]
        dist.all_reduce(tensors[0])  # the first one loads kernels
        spin()
        torch.cuda.synchronize()
        started.clear()
        launched_s = time.perf_counter()
        spin()
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        returned_s = time.perf_counter()
        for work in works:
            assert work is not None
            work.wait()
    assert returned_s - launched_s < SPIN_S / 2
    assert started[0][0] - launched_s > 0.8 * SPIN_S
    assert [work_s for _, work_s in started] == sorted(work_s for _, work_s in started)
    assert all(bool((tensor == 8.0).all()) for tensor in tensors[1:])


def test_turns_are_as_long_as_the_device_took() -> None:
    spin()
    with EventTurns(Alone()) as turns:
        for _ in range(3):
            with turns.turn():
                spin()
        log = turns.on_device()
    assert len(log) == 3
    for turn in log:
        assert turn.released_s - turn.granted_s == pytest.approx(SPIN_S, rel=0.2)
    for before, after in itertools.pairwise(log):
        assert before.released_s <= after.granted_s < before.released_s + 0.5 * SPIN_S
