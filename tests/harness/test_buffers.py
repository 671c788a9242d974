"""Gradients lie one after the other in a message, and its mean comes back to each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from baselines.api import Message, Segment
from harness.engine.buffers import BufferPool, Buffers, StandingBuffers, flatten_gradients, scatter_gradients
from harness.engine.layout import lay_out

FORMATS = (torch.float32, torch.bfloat16, torch.float32, torch.bfloat16)
SHAPES = {"matrix": (3, 4), "scalar": (), "nothing": (0,), "filter": (2, 3, 2, 2), "cut": (5,)}


def parameters() -> dict[str, nn.Parameter]:
    """With fresh gradients; the filter is laid out channels last."""
    generator = torch.Generator().manual_seed(0)
    made = {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}
    made["filter"] = nn.Parameter(made["filter"].detach().to(memory_format=torch.channels_last))
    give_gradients(made, 1.0)
    return made


def give_gradients(made: dict[str, nn.Parameter], value: float) -> None:
    for place, parameter in enumerate(made.values()):
        parameter.grad = torch.full_like(parameter, value + 10 * place)


def message_of(made: dict[str, nn.Parameter], stop: int = 3) -> Message:
    """All parameters, of the last one its first elements alone."""
    segments = [
        Segment(name, tuple(p.shape), 0, stop if name == "cut" else p.numel(), index)
        for index, (name, p) in enumerate(made.items())
    ]
    return Message(0, tuple(segments))


def buffers_for(kind: str, made: dict[str, nn.Parameter]) -> Buffers:
    return StandingBuffers(lay_out(made, list(made)), made) if kind == "standing" else BufferPool()


def gradients(made: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in made.items() if p.grad is not None}


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in place", "in another tensor"])
@pytest.mark.parametrize("places", [[0, 1, 2, 3, 4], [1, 2, 3], [3, 4], [4, 0, 2], [0, 1, 3]], ids=str)
@pytest.mark.parametrize("kind", ["pool", "standing"])
def test_each_gradient_gets_its_part_of_the_mean(kind: str, places: list[int], elsewhere: bool) -> None:
    """Neighbours or not, in the layout's order or not."""
    made = parameters()
    buffers, everything = buffers_for(kind, made), message_of(made).segments
    for step in range(3):
        message = Message(step % 2, tuple(everything[place] for place in places))
        give_gradients(made, float(step))
        before = gradients(made)
        flat = flatten_gradients(message, made, buffers, scale=0.5)
        mean = flat + 1.0 if elsewhere else flat.add_(1.0)
        scatter_gradients(message, flat, mean, made, buffers)
        travelled = {segment.name for segment in message.segments}
        for name, grad in gradients(made).items():
            expected = before[name] * 0.5 + 1.0 if name in travelled else before[name].clone()
            if name == "cut":  # what did not travel stays as it was
                expected[3:] = before[name][3:]
            assert torch.equal(grad, expected), (step, name)


def test_a_message_of_every_step_keeps_its_memory_and_gradients_are_views_of_it() -> None:
    made = parameters()
    buffers, message = buffers_for("standing", made), message_of(made)
    flat = flatten_gradients(message, made, buffers, scale=1.0)
    scatter_gradients(message, flat, flat, made, buffers)
    start, end = flat.data_ptr(), flat.data_ptr() + flat.nbytes
    inside = {name for name, p in made.items() if p.grad is not None and start <= p.grad.data_ptr() < end}
    assert inside == {"matrix", "scalar"}  # a cut one, one laid out otherwise and an empty one are copied
    give_gradients(made, 2.0)
    assert flatten_gradients(message, made, buffers, scale=1.0).data_ptr() == start


def test_gradients_that_were_not_cleared_are_sent_as_they_have_become() -> None:
    """Accumulation adds to the views in place; they are then both what is sent and where it is gathered."""
    made = parameters()
    buffers, message = buffers_for("standing", made), message_of(made)
    flat = flatten_gradients(message, made, buffers, scale=1.0)
    scatter_gradients(message, flat, flat, made, buffers)
    for parameter in made.values():
        assert parameter.grad is not None
        parameter.grad += 1.0
    before = gradients(made)
    again = flatten_gradients(message, made, buffers, scale=2.0)
    scatter_gradients(message, again, again, made, buffers)
    assert torch.equal(gradients(made)["matrix"], before["matrix"] * 2.0)


def test_messages_cut_otherwise_leave_each_others_means_alone() -> None:
    """Negotiated messages differ from step to step, and some parameters keep gradients that were not sent anew."""
    made = parameters()
    buffers, everything = buffers_for("standing", made), message_of(made, stop=5).segments
    whole = Message(0, everything)
    flat = flatten_gradients(whole, made, buffers, scale=1.0)
    scatter_gradients(whole, flat, flat, made, buffers)
    before = gradients(made)
    some = Message(0, everything[2:4])
    for segment in some.segments:
        made[segment.name].grad = torch.full_like(made[segment.name], 5.0)
    flat = flatten_gradients(some, made, buffers, scale=1.0)
    scatter_gradients(some, flat, flat, made, buffers)
    for name, grad in gradients(made).items():
        sent = name in {segment.name for segment in some.segments}
        assert torch.equal(grad, torch.full_like(grad, 5.0) if sent else before[name]), name


def test_formats_lie_in_memory_of_their_own() -> None:
    made = {f"p{place}": nn.Parameter(torch.ones(2, dtype=dtype)) for place, dtype in enumerate(FORMATS)}
    give_gradients(made, 1.0)
    buffers, segments = buffers_for("standing", made), lay_out(made, list(made))
    for index, places in enumerate(([0, 2], [1, 3])):
        message = Message(index, tuple(segments[place] for place in places))
        flat = flatten_gradients(message, made, buffers, scale=1.0)
        assert flat.dtype == FORMATS[places[0]]
        scatter_gradients(message, flat, flat, made, buffers)
    assert [float(grad[0]) for grad in gradients(made).values()] == [1.0, 11.0, 21.0, 31.0]


def test_a_new_layout_leaves_the_gradients_of_the_last_one_alone() -> None:
    made = parameters()
    buffers, message = buffers_for("standing", made), message_of(made)
    flat = flatten_gradients(message, made, buffers, scale=1.0)
    scatter_gradients(message, flat, flat, made, buffers)
    held, before = {name: p.grad for name, p in made.items()}, gradients(made)
    give_gradients(made, 5.0)
    flatten_gradients(message, made, buffers_for("standing", made), scale=1.0)
    for name, grad in held.items():
        assert grad is not None
        assert torch.equal(grad, before[name]), name
