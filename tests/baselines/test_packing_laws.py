"""Laws of every packing and ordering, for random layouts."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from layouts import layouts, segments_of

from baselines.api import Message, Ordering, Packing, Segment, Slot
from baselines.catalogue import plugins
from baselines.packing.fixed_buckets import MIB, FixedBuckets
from baselines.packing.tensor_fusion import TensorFusion

PACKINGS = [kind() for kind in plugins().values() if kind.card.slot is Slot.PACKING]
ORDERINGS = [kind() for kind in plugins().values() if kind.card.slot is Slot.ORDERING]


def elements(groups: tuple[tuple[Segment, ...], ...]) -> list[tuple[str, int, int]]:
    return sorted((segment.name, segment.start, segment.stop) for group in groups for segment in group)


def drain(packing: Packing, layout: tuple[Segment, ...]) -> tuple[tuple[Segment, ...], ...]:
    """All groups: a packing that is asked in cycles may leave some for later ones."""
    groups: list[tuple[Segment, ...]] = []
    left = layout
    for _ in range(1 if packing.rank_invariant else len(layout) + 1):
        packed = packing.pack(left)
        groups += packed.groups
        taken = {segment.name for group in packed.groups for segment in group}
        left = tuple(segment for segment in left if segment.name not in taken)
    return tuple(groups)


@pytest.mark.parametrize("packing", PACKINGS, ids=lambda packing: packing.card.name)
@given(layout=layouts())
def test_every_element_is_packed_exactly_once(packing: Packing, layout: tuple[Segment, ...]) -> None:
    covered: dict[str, list[tuple[int, int]]] = {segment.name: [] for segment in layout}
    for name, start, stop in elements(drain(packing, layout)):
        covered[name].append((start, stop))
    for segment in layout:
        reached = 0
        for start, stop in covered[segment.name]:
            assert start == reached
            reached = stop
        assert reached == segment.numel


@pytest.mark.parametrize("packing", PACKINGS, ids=lambda packing: packing.card.name)
@given(layout=layouts())
def test_no_message_is_empty_or_mixes_number_formats(packing: Packing, layout: tuple[Segment, ...]) -> None:
    for group in packing.pack(layout).groups:
        assert len({segment.dtype for segment in group}) == 1


@pytest.mark.parametrize("packing", PACKINGS, ids=lambda packing: packing.card.name)
@given(layout=layouts())
def test_packing_is_pure(packing: Packing, layout: tuple[Segment, ...]) -> None:
    assert packing.pack(layout) == packing.pack(layout)


@given(layout=layouts(), threshold=st.integers(0, 8_000_000))
def test_tensor_fusion_exceeds_its_threshold_by_single_tensors_only(
    layout: tuple[Segment, ...], threshold: int
) -> None:
    for group in TensorFusion(threshold_bytes=threshold).pack(layout).groups:
        assert len(group) == 1 or sum(segment.nbytes for segment in group) <= threshold


@given(layout=layouts())
def test_tensor_fusion_with_threshold_0_is_unfused(layout: tuple[Segment, ...]) -> None:
    assert TensorFusion(threshold_bytes=0).pack(layout).groups == tuple((segment,) for segment in layout)


def test_tensor_fusion_looks_again_after_its_cycle() -> None:
    assert TensorFusion(cycle_s=0.005).pack(segments_of([3])).look_again_s == 0.005


@given(sizes=st.lists(st.integers(1, 6_000_000), min_size=1, max_size=40))
def test_fixed_buckets_are_those_of_torch_ddp(sizes: list[int]) -> None:
    """Against the function that DDP itself calls after its first step, gradients in ready order."""
    tensors = [torch.empty(size, device="meta") for size in sizes]
    limits = [MIB, 25 * MIB]
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(sizes), list(range(len(sizes))))
    groups = FixedBuckets().pack(segments_of(sizes)).groups
    assert [[segment.index for segment in group] for group in groups] == buckets


@given(layout=layouts())
def test_fixed_buckets_of_mixed_formats_are_those_of_torch_ddp(layout: tuple[Segment, ...]) -> None:
    """As sets: DDP closes the last bucket of each format in the order of a hash table."""
    tensors = [torch.empty(segment.numel, dtype=segment.dtype, device="meta") for segment in layout]
    if tensors:
        limits = [MIB, 25 * MIB]
        indices = list(range(len(tensors)))
        buckets, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors), indices)
        groups = FixedBuckets().pack(layout).groups
        assert sorted([segment.index for segment in group] for group in groups) == sorted(buckets)


@pytest.mark.parametrize("ordering", ORDERINGS, ids=lambda ordering: ordering.card.name)
@given(num_messages=st.integers(0, 20), seed=st.integers(0, 1000))
def test_every_ordering_drains(ordering: Ordering, num_messages: int, seed: int) -> None:
    """Messages appear and complete at random; with nothing in flight an ordering must pick one."""
    dice = random.Random(seed)
    waiting = [Message(index, segments_of([index + 1])) for index in range(num_messages)]
    pending: list[Message] = []
    flying: list[Message] = []
    sent: list[int] = []
    while len(sent) < num_messages:
        if waiting and (not pending or dice.random() < 0.5):
            pending.append(waiting.pop(0))
        if flying and dice.random() < 0.5:
            flying.pop(dice.randrange(len(flying)))
        picked = ordering.pick(tuple(pending), tuple(flying), 0.0)
        assert picked is not None or flying or not pending
        if picked is None:
            flying.clear()
        elif len(flying) < ordering.depth:
            pending.remove(picked)
            flying.append(picked)
            sent.append(picked.index)
        else:
            flying.clear()
    assert sorted(sent) == list(range(num_messages))
