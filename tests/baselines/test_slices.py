"""Slices: each element exactly once, none too large, in order; and gradients come back as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import layouts, segments_of
from torch import nn

from baselines.api import HasKnobs, Message, Packing, Segment, Slot
from baselines.catalogue import plugins
from baselines.packing.slices import Slices
from baselines.strategy import StrategyError, parse_strategy
from baselines.text import TextError, settable_fields
from harness.engine.buffers import BufferPool, flatten_gradients, scatter_gradients
from harness.engine.dispatch import StaticDispatch, make_plan
from harness.engine.layout import lay_out, trainable_parameters
from harness.lockstep.ranks import Lockstep, replicas

TUNABLE = [kind() for kind in plugins().values() if kind.card.slot is Slot.PACKING and isinstance(kind(), HasKnobs)]
SLICE_ELEMENTS = st.integers(20_000, 3_000_000)


class Odd(nn.Module):
    """Shapes that no slice size divides: a scalar, a matrix, a filter laid out channels last, an empty tensor."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first = nn.Linear(13, 7)
            self.scale = nn.Parameter(torch.tensor(1.5))
            self.filter = nn.Parameter(torch.randn(5, 3, 3, 3).to(memory_format=torch.channels_last))
            self.nothing = nn.Parameter(torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)[:, :3, None, None].expand(-1, 3, 5, 5)
        return nn.functional.conv2d(x, self.filter).sum() * self.scale + self.nothing.sum()


def loss(rank: int, model: nn.Module) -> torch.Tensor:
    batch = torch.randn(4, 13, generator=torch.Generator().manual_seed(rank))
    value: torch.Tensor = model(batch)
    return value


def trained(text: str, world: int = 2) -> dict[str, torch.Tensor]:
    ranks = Lockstep(replicas(Odd(), world), parse_strategy(text))
    for _ in range(3):
        ranks.step(loss)
    return {name: parameter.detach().clone() for name, parameter in ranks.models[-1].named_parameters()}


@given(layout=layouts(), slice_elements=SLICE_ELEMENTS)
def test_every_element_is_in_exactly_one_slice_and_no_slice_is_too_large(
    layout: tuple[Segment, ...], slice_elements: int
) -> None:
    groups = Slices(slice_elements=slice_elements).pack(layout).groups
    assert all(len(group) == 1 and group[0].numel <= slice_elements for group in groups)
    parts = iter(group[0] for group in groups)
    for segment in layout:
        reached = 0
        while reached < segment.numel:
            part = next(parts)
            assert (part.name, part.index, part.dtype, part.shape) == (
                segment.name,
                segment.index,
                segment.dtype,
                segment.shape,
            )
            assert part.start == reached
            reached = part.stop
        assert reached == segment.numel
    assert next(parts, None) is None


@given(layout=layouts(), slice_elements=SLICE_ELEMENTS)
def test_slices_go_in_ready_order_and_within_a_tensor_ascending(
    layout: tuple[Segment, ...], slice_elements: int
) -> None:
    parts = [group[0] for group in Slices(slice_elements=slice_elements).pack(layout).groups]
    places = [(part.index, part.start) for part in parts]
    assert places == sorted(set(places))


@given(layout=layouts(), slice_elements=SLICE_ELEMENTS)
def test_there_are_no_more_slices_than_needed(layout: tuple[Segment, ...], slice_elements: int) -> None:
    groups = Slices(slice_elements=slice_elements).pack(layout).groups
    assert len(groups) == sum(-(-segment.numel // slice_elements) for segment in layout)


@given(layout=layouts())
def test_slices_larger_than_every_tensor_are_unfused(layout: tuple[Segment, ...]) -> None:
    groups = Slices(slice_elements=2_000_000).pack(layout).groups
    assert groups == tuple((replace(segment, slice=number),) for number, segment in enumerate(layout))


def test_the_default_is_that_of_the_authors_code() -> None:
    groups = Slices().pack(segments_of([100_000])).groups
    assert [group[0].numel for group in groups] == [40_000, 40_000, 20_000]


def test_a_tensor_without_elements_is_sent_too() -> None:
    """Else its step would never be complete."""
    (group,) = Slices().pack(segments_of([0])).groups
    assert (group[0].start, group[0].stop) == (0, 0)


def test_all_slices_of_a_gradient_go_when_it_is_ready() -> None:
    dispatch = StaticDispatch(make_plan(Slices(slice_elements=3), segments_of([7, 2])))
    assert not dispatch.ready(1)
    assert dispatch.ready(0)
    sent = []
    while message := dispatch.next():
        sent.append([(segment.name, segment.start, segment.stop) for segment in message.segments])
    assert sent == [[("p0", 0, 3)], [("p0", 3, 6)], [("p0", 6, 7)], [("p1", 0, 2)]]


@pytest.mark.parametrize("slice_elements", [1, 4, 50])
def test_gradients_are_reassembled_exactly_whatever_order_slices_land_in(slice_elements: int) -> None:
    parameters = trainable_parameters(Odd())
    expected = {}
    for name, parameter in parameters.items():
        parameter.grad = torch.randn(parameter.shape) if name != "filter" else torch.randn_like(parameter)
        expected[name] = parameter.grad.clone()
    pool = BufferPool()
    messages = make_plan(Slices(slice_elements=slice_elements), lay_out(parameters, list(parameters)))
    flats = [flatten_gradients(message, parameters, pool, scale=1.0) for message in messages]
    for parameter in parameters.values():
        assert parameter.grad is not None
        parameter.grad = torch.zeros_like(parameter.grad)
    for message, flat in sorted(zip(messages, flats, strict=True), key=_by_size):
        scatter_gradients(message, flat, flat, parameters, pool)
    for name, parameter in parameters.items():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, expected[name])


def _by_size(landed: tuple[Message, torch.Tensor]) -> int:
    return landed[0].numel


@pytest.mark.parametrize("update", ["after-all", "at-pre-hook"])
@pytest.mark.parametrize("slice_elements", [8, 50])
def test_with_two_ranks_weights_equal_those_of_uncut_tensors_bit_for_bit(slice_elements: int, update: str) -> None:
    cut, whole = trained(f"slices(slice_elements={slice_elements})+{update}"), trained(f"unfused+{update}")
    for name in whole:
        assert torch.equal(cut[name], whole[name]), name


def test_a_slice_of_no_element_is_refused() -> None:
    with pytest.raises(TextError, match="slice_elements is 0; use at least 1"):
        parse_strategy("slices(slice_elements=0)")


def test_what_needs_whole_tensors_refuses_slices() -> None:
    whole = [
        kind.card.name
        for kind in plugins().values()
        if kind.card.slot is Slot.COMPRESSION and not kind.card.wraps and kind().scope == "tensor"
    ]
    for name in whole:
        with pytest.raises(StrategyError, match="use a packing that does not slice"):
            parse_strategy(f"slices+{name}")
    assert parse_strategy("slices+half").packing == Slices()


@pytest.mark.parametrize("packing", TUNABLE, ids=lambda packing: packing.card.name)
def test_knobs_are_settings_of_their_packing_and_both_ends_are_legal(packing: Packing) -> None:
    assert isinstance(packing, HasKnobs)
    defaults = settable_fields(type(packing))
    for name, knob in packing.knobs.items():
        kind = type(defaults[name])
        assert 0 < knob.low < knob.high  # the default may lie outside: P3's slices are smaller than what tuners try
        for end in (knob.low, knob.high):
            text = f"{packing.card.name}({name}={kind(end)!r})"
            assert getattr(parse_strategy(text).packing, name) == end


def test_the_packings_with_something_to_search_have_knobs() -> None:
    assert {packing.card.name for packing in TUNABLE} >= {"slices", "tensor-fusion", "fixed-buckets"}
