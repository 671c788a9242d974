"""What layers need of each other, from autograd's graph, and orders that follow it."""

from __future__ import annotations

import torch
from rooms_of_one import engine_alone
from torch import Tensor, nn
from torch.nn import functional

from baselines.api import Costs, Message
from baselines.ordering.p3 import P3
from baselines.ordering.tictac import TicTac
from harness.engine.adaptation import WARM_STEPS, needs_of
from harness.engine.layer_graph import ModuleGraph
from harness.engine.layout import lay_out, trainable_parameters


class Block(nn.Module):
    """A residual block with a shortcut that has weights, registered last as in torchvision."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4, bias=False)
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.shortcut = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 2, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        stem = self.stem(inputs)
        out: Tensor = self.head(self.second(self.first(stem).relu()) + self.shortcut(stem))
        return out


class Attention(nn.Module):
    """One head with three projections."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.out = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        mixed = functional.scaled_dot_product_attention(self.query(inputs), self.key(inputs), self.value(inputs))
        out: Tensor = self.out(mixed)
        return out


def needs(model: nn.Module, inputs: Tensor) -> dict[str, set[str]]:
    names = {id(p): name for name, p in trainable_parameters(model).items()}
    graph = ModuleGraph(names)
    for module in model.modules():
        if own := [names[id(p)] for p in module.parameters(recurse=False)]:
            module.register_forward_hook(lambda _, __, output, own=own: graph.layer(own, output))
    model(inputs)
    return {name: set(found) for name, found in graph.needs.items()}


def test_branches_need_what_came_before_and_not_each_other() -> None:
    found = needs(Block(), torch.ones(3, 4))
    assert found == {
        "stem.weight": {"stem.weight"},
        "first.weight": {"stem.weight", "first.weight"},
        "second.weight": {"stem.weight", "first.weight", "second.weight"},
        "shortcut.weight": {"stem.weight", "shortcut.weight"},
        "head.weight": {f"{name}.weight" for name in ("stem", "first", "second", "shortcut", "head")},
    }


def test_attentions_projections_need_themselves_alone() -> None:
    found = needs(Attention(), torch.ones(2, 3, 4))
    for name in ("query", "key", "value"):
        assert found[f"{name}.weight"] == {f"{name}.weight"}
    assert len(found["out.weight"]) == len(found["out.bias"]) == 5


def bound(model: nn.Module, inputs: Tensor, forward_s: dict[str, float]) -> tuple[TicTac, list[str]]:
    parameters = trainable_parameters(model)
    graph = ModuleGraph({id(p): name for name, p in parameters.items()})
    graph.needs.update({name: frozenset(found) for name, found in needs(model, inputs).items()})
    segments = lay_out(parameters, list(parameters))
    costs = Costs(
        1e-4,
        1e-6,
        (0.01,) * len(segments),
        tuple(forward_s.get(segment.name, 0.0) for segment in segments),
        nbytes=tuple(segment.nbytes for segment in segments),
        needs=needs_of(graph, {segment.name: segment.index for segment in segments}),
    )
    return TicTac().bind(costs), [segment.name for segment in segments]


def order(ordering: TicTac | P3, model: nn.Module, names: list[str]) -> list[str]:
    segments = lay_out(trainable_parameters(model), names)
    pending, found = [Message(i, (segment,)) for i, segment in enumerate(segments)], []
    while pending:
        pending.remove(chosen := ordering.pick(pending, (), 0.0) or pending[0])
        found.append(chosen.segments[0].name.removesuffix(".weight"))
    return found


def test_on_a_residual_block_tictac_sends_what_unblocks_more_first_and_p3_in_order_of_registration() -> None:
    """After the stem, first takes 0.1 ms and the shortcut 0.4 ms, each for a transfer of 0.164 ms: with P = 0.1 and
    0.4, shortcut before first ⇔ min(0.1, 0.164) < min(0.4, 0.164): yes."""
    model, inputs = Block(), torch.ones(3, 4)
    times = {"stem.weight": 1e-4, "first.weight": 1e-4, "second.weight": 1e-4, "shortcut.weight": 4e-4}
    tictac, names = bound(model, inputs, times)
    forward = ["stem", "first", "second", "shortcut", "head"]
    assert order(P3(), model, names) == forward
    assert order(tictac, model, names) == ["stem", "shortcut", "first", "second", "head"]


def test_attentions_longest_projection_goes_first() -> None:
    model, times = Attention(), {"query.weight": 1e-5, "key.weight": 1e-5, "value.weight": 9e-5}
    tictac, names = bound(model, torch.ones(2, 3, 4), times)
    assert order(tictac, model, names)[0] == "value"
    assert order(P3(), model, names)[0] == "query"


def test_the_engine_looks_at_the_graph_of_the_first_forward_and_binds_to_it() -> None:
    model = Block()
    engine = engine_alone(model, "unfused+tictac")
    for _ in range(WARM_STEPS + 1):
        engine.begin_step()
        model(torch.ones(3, 4)).square().mean().backward()
        engine.end_backward()
        engine.wait()
        model.zero_grad()
    adaptation = engine._adaptation
    assert adaptation is not None
    assert adaptation.costs is not None
    index = {segment.name: segment.index for segment in engine.segments}
    assert set(adaptation.costs.needs[index["shortcut.weight"]]) == {index["shortcut.weight"], index["stem.weight"]}
    engine.close()
