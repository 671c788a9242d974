"""Packings and placements beside the originals: torch's, Horovod's, ByteScheduler's and P3's."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import FORMATS, segments_of
from torch import nn
from torch.distributed import _compute_bucket_assignment_by_size

from baselines.api import Aggregate, AllToAll, How, Message, Segment
from baselines.exchange.parameter_server import ParameterServer
from baselines.packing.fixed_buckets import FixedBuckets
from baselines.packing.slices import Slices
from baselines.packing.tensor_fusion import TensorFusion
from baselines.strategy import parse_strategy
from baselines.text import TextError
from harness.lockstep.ranks import Lockstep, replicas

MIXED = st.lists(st.tuples(st.integers(1, 300), st.sampled_from(FORMATS)), min_size=1, max_size=20)


@given(tensors=MIXED, first=st.integers(1, 800), limit=st.integers(800, 2000))
def test_buckets_of_mixed_formats_are_torchs_in_torchs_order(
    tensors: list[tuple[int, torch.dtype]], first: int, limit: int
) -> None:
    layout = segments_of([size for size, _ in tensors], [kind for _, kind in tensors])
    groups = FixedBuckets(bucket_bytes=limit, first_bucket_bytes=first).pack(layout).groups
    theirs, _ = _compute_bucket_assignment_by_size(
        [torch.empty(size, dtype=kind) for size, kind in tensors], [first, limit]
    )
    assert [[segment.index for segment in group] for group in groups] == theirs


def test_alternating_formats_make_one_message_each_as_in_horovod() -> None:
    layout = segments_of([1000] * 20, [torch.bfloat16, torch.float32] * 10)
    groups = TensorFusion().pack(layout).groups
    assert [[segment.index for segment in group] for group in groups] == [[*range(0, 20, 2)], [*range(1, 20, 2)]]


def test_the_look_ahead_ends_where_what_is_passed_over_does_not_fit_beside_the_message() -> None:
    """Threshold 100: p0 (40 B, short), p1 (40 B, long) is passed; p2 (40 B, short) joins: 80 + 40 passed. p3 is long
    and 80 + 44 > 100, so the message ends, though p4 (8 B, short) would fit. p1 and p3 then go together, p4 alone."""
    short, long = torch.float16, torch.float32
    layout = segments_of([20, 10, 20, 1, 4], [short, long, short, long, short])
    groups = TensorFusion(threshold_bytes=100).pack(layout).groups
    assert [[segment.index for segment in group] for group in groups] == [[0, 2], [1, 3], [4]]


@given(rows=st.integers(1, 500), width=st.integers(1, 50), size=st.integers(1, 5_000))
def test_partitions_by_rows_are_even_as_in_byteschedulers_code(rows: int, width: int, size: int) -> None:
    """The bounds as that code computes them: ⌊rows/m⌋ rows each, and one more from part m − extra on."""
    num = min((rows * width - 1) // size + 1, rows)
    each, extra = rows // num, rows % num
    start, end, expected = 0, each, []
    for part in range(num):
        expected.append((start * width, min(end, rows) * width))
        start, end = end, end + each + (part >= num - extra - 1)
    segment = Segment("w", (rows, width), 0, rows * width, 0)
    groups = Slices(slice_elements=size, cut="rows").pack([segment]).groups
    assert [(part.start, part.stop) for (part,) in groups] == expected


@pytest.mark.parametrize("cut", ["elements", "rows"])
def test_scalars_and_empty_tensors_are_one_slice(cut: str) -> None:
    layout = [Segment("scalar", (), 0, 1, 0), Segment("none", (0, 4), 0, 0, 1)]
    groups = Slices(slice_elements=3, cut=cut).pack(layout).groups
    assert [(part.start, part.stop) for (part,) in groups] == [(0, 1), (0, 0)]


def sent_to(exchange: ParameterServer, message: Message, world: int) -> list[int]:
    """Elements that rank 0 pushes to each rank."""
    run = exchange.run(Aggregate((torch.zeros(message.numel),), How.SUM, "gradient", message=message), 0, world)
    push = next(run)
    assert isinstance(push, AllToAll)
    return [part.numel() for part in push.parts]


def test_slices_go_whole_to_servers_in_turn_and_other_messages_are_cut_evenly() -> None:
    layout = segments_of([9, 4])
    plan = [Message(i, group) for i, group in enumerate(Slices(slice_elements=4).pack(layout).groups)]
    servers = ParameterServer(servers=2)
    assert [sent_to(servers, message, 4) for message in plan] == [
        [0, 0, 4, 0],
        [0, 0, 0, 4],
        [0, 0, 1, 0],
        [0, 0, 0, 4],
    ]
    assert sent_to(ParameterServer(servers=2, placement="even"), plan[0], 4) == [0, 0, 2, 2]
    whole = Message(0, layout[1:])
    assert sent_to(servers, whole, 4) == [0, 0, 2, 2]
    assert sent_to(ParameterServer(servers=2, placement="whole"), whole, 4) == [0, 0, 0, 4]
    with pytest.raises(TextError, match="placement is 'round'; use 'auto', 'even' or 'whole'"):
        parse_strategy("parameter-server(placement='round')")


@given(sizes=st.lists(st.integers(1, 400_000), min_size=1, max_size=12), num_servers=st.integers(1, 5))
def test_servers_in_turn_have_the_same_number_of_slices_within_one(sizes: list[int], num_servers: int) -> None:
    slices = [part.slice for (part,) in Slices().pack(segments_of(sizes)).groups]
    assert slices == list(range(len(slices)))
    loads = [sum(1 for number in slices if number % num_servers == server) for server in range(num_servers)]
    assert max(loads) - min(loads) <= 1


class Uneven(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def trained(text: str, world: int) -> list[list[torch.Tensor]]:
    ranks = Lockstep(replicas(Uneven(), world), parse_strategy(text), seed=1)
    for step in range(3):
        dice = torch.Generator().manual_seed(step)
        batch = torch.randn(world, 4, 5, generator=dice)
        ranks.step(lambda rank, model, batch=batch: model.layers(batch[rank]).square().mean())
    return [[p.detach() for p in model.parameters()] for model in ranks.models]


@pytest.mark.parametrize("ordering", ["fifo", "p3+at-pre-hook"])
@pytest.mark.parametrize("settings", ["", "update='server'", "servers=1", "servers=2, update='server'"])
def test_weights_do_not_depend_on_the_placement(ordering: str, settings: str) -> None:
    """Sums are in order of rank whoever takes them: bit for bit."""
    made = [
        trained(f"slices(slice_elements=6)+{ordering}+parameter-server({settings}, placement='{placement}')", 4)
        if settings
        else trained(f"slices(slice_elements=6)+{ordering}+parameter-server(placement='{placement}')", 4)
        for placement in ("even", "whole")
    ]
    for even, whole in pairwise(made):
        assert all(torch.equal(a, b) for a, b in zip(even[0], whole[0], strict=True))
