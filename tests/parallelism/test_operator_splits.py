import copy
import itertools
from collections.abc import Callable, Generator

import pytest
import torch
from one_device import distance, model_and_steps, sgd, train_alone
from torch import Tensor, nn
from torch.nn import functional

from baselines.parallelism.api import ParallelismError
from baselines.parallelism.operators import (
    Combination,
    ConvolutionShape,
    RankPart,
    batch_norm,
    batch_statistics,
    convolution_in,
    convolution_out,
    convolution_rows,
    embedding_in,
    embedding_out,
    layer_norm_channels,
    linear_in,
    linear_out,
    loss_over_classes,
    loss_over_samples,
)
from baselines.parallelism.plans import LayerSplit
from harness.parallel.stages import MicroBatch
from harness.splits.groups import RankGroup, run_operator, run_ranks
from harness.splits.split_network import SplitNetwork, dimensions_of
from models.chain import chain_of
from models.graph import Dimension

SAMPLE, OUT, IN, ROWS = Dimension.SAMPLE, Dimension.CHANNEL_OUT, Dimension.CHANNEL_IN, Dimension.SPATIAL
Run = Generator[Combination, Tensor, Tensor]
# Each operator alone, in float64: sums in another order, nothing else.
TIGHT = {"rtol": 1e-10, "atol": 1e-12}
NUM_STEPS = 3


def check(
    world: int,
    leaves: dict[str, Tensor],
    whole: Callable[[dict[str, Tensor]], Tensor],
    split: Callable[[dict[str, Tensor], RankPart], Run],
    cut_output: Callable[[Tensor, RankPart], Tensor] = lambda y, part: y,
) -> None:
    """The same output on each rank (or its part of it), and the same gradient of every leaf, as on one device."""
    alone = {name: leaf.clone().requires_grad_(leaf.is_floating_point()) for name, leaf in leaves.items()}
    wanted = whole(alone)
    weights = torch.rand_like(wanted)
    (wanted * weights).sum().backward()
    shared = {name: leaf.clone().requires_grad_(leaf.is_floating_point()) for name, leaf in leaves.items()}

    def rank_main(group: RankGroup) -> None:
        found = run_operator(group, split(shared, group.part))
        torch.testing.assert_close(found, cut_output(wanted, group.part).detach(), **TIGHT)
        partial = found.shape != wanted.shape
        group.backward((found * cut_output(weights, group.part)).sum() * (group.part.world if partial else 1))

    run_ranks(world, rank_main)
    for name, leaf in alone.items():
        if leaf.requires_grad:
            torch.testing.assert_close(shared[name].grad, leaf.grad, **TIGHT)


def leaves_of(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("out", [True, False])
def test_a_linear_layer_over_channels(world: int, out: bool) -> None:
    def split(at: dict[str, Tensor], part: RankPart) -> Run:
        if out:
            return linear_out(at["x"], part.of(at["w"], 0), part.of(at["b"], 0), join=True)
        return linear_in(at["x"], part.of(at["w"], 1), at["b"], part, whole_input=True)

    leaves = leaves_of(x=(5, 24), w=(12, 24), b=(12,))
    check(world, leaves, lambda at: functional.linear(at["x"], at["w"], at["b"]), split)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("out", [True, False])
@pytest.mark.parametrize("padding", [None, 7])
def test_an_embedding_over_words_and_over_their_vectors(world: int, out: bool, padding: int | None) -> None:
    def split(at: dict[str, Tensor], part: RankPart) -> Run:
        if out:
            return embedding_out(at["t"], part.of(at["w"], 1), padding)
        return embedding_in(at["t"], part.of(at["w"], 0), part, padding)

    leaves = leaves_of(w=(24, 12)) | {"t": torch.arange(24).view(4, 6)}
    check(world, leaves, lambda at: functional.embedding(at["t"], at["w"], padding), split)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("over", [OUT, IN, ROWS])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (1, 1, 0), (7, 2, 3), (1, 2, 0)])
def test_a_convolution_over_channels_and_rows(
    world: int, over: Dimension, kernel: int, stride: int, padding: int
) -> None:
    shape = ConvolutionShape(stride, padding)

    def split(at: dict[str, Tensor], part: RankPart) -> Run:
        if over is OUT:
            return convolution_out(at["x"], part.of(at["w"], 0), part.of(at["b"], 0), shape)
        if over is IN:
            return convolution_in(at["x"], part.of(at["w"], 1), at["b"], shape, part)
        return convolution_rows(part.of(at["x"], 2), at["w"], at["b"], shape)

    leaves = leaves_of(x=(2, 12, 24, 8), w=(12, 12, kernel, kernel), b=(12,))
    check(
        world,
        leaves,
        lambda at: functional.conv2d(at["x"], at["w"], at["b"], stride, padding),
        split,
        (lambda y, part: part.of(y, 2)) if over is ROWS else (lambda y, part: y),
    )


def test_a_convolution_over_rows_is_right_or_refused_and_never_of_another_shape() -> None:
    """Of 96 geometries those whose whole output has a row for each stride; others' parts would not be equal."""
    leaves, num_refused = leaves_of(x=(1, 2, 24, 8), b=(2,)), 0
    for kernel, stride, padding in itertools.product(range(1, 7), (1, 2, 3, 4), range(4)):
        shape = ConvolutionShape(stride, padding)
        here = leaves | leaves_of(w=(2, 2, kernel, kernel))

        def whole(at: dict[str, Tensor], stride: int = stride, padding: int = padding) -> Tensor:
            return functional.conv2d(at["x"], at["w"], at["b"], stride, padding)

        def split(at: dict[str, Tensor], part: RankPart, shape: ConvolutionShape = shape) -> Run:
            return convolution_rows(part.of(at["x"], 2), at["w"], at["b"], shape)

        if whole(here).shape[2] == 24 // stride:
            check(2, here, whole, split, lambda y, part: part.of(y, 2))
        else:
            num_refused += 1
            with pytest.raises(ParallelismError, match=f"kernel {kernel}, stride {stride}, padding {padding}"):
                next(split(here, RankPart(0, 2)))
    assert num_refused == 69


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("dim", [0, 2])
def test_batch_normalisation_over_samples_and_rows(world: int, dim: int) -> None:
    def split(at: dict[str, Tensor], part: RankPart) -> Run:
        own = part.of(at["x"], dim)
        mean, variance, _ = yield from batch_statistics(own, part)
        return batch_norm(own, at["w"], at["b"], mean, variance, 1e-5)

    def whole(at: dict[str, Tensor]) -> Tensor:
        return functional.batch_norm(at["x"], None, None, at["w"], at["b"], training=True, eps=1e-5)

    check(world, leaves_of(x=(12, 3, 12, 4), w=(3,), b=(3,)), whole, split, lambda y, part: part.of(y, dim))


@pytest.mark.parametrize("world", [2, 3, 4])
def test_layer_normalisation_over_channels(world: int) -> None:
    def split(at: dict[str, Tensor], part: RankPart) -> Run:
        own = (part.of(at[name], at[name].dim() - 1) for name in ("x", "w", "b"))
        return layer_norm_channels(*own, 1e-5, part)

    leaves = leaves_of(x=(5, 24), w=(24,), b=(24,))
    check(
        world,
        leaves,
        lambda at: functional.layer_norm(at["x"], (24,), at["w"], at["b"], 1e-5),
        split,
        lambda y, part: part.of(y, 1),
    )


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("over", ["samples", "classes"])
def test_the_loss_over_samples_and_over_classes(world: int, over: str) -> None:
    targets = torch.tensor([3, -100, 0, 11, 5, -100, 7, 2, 1, 4, 6, 10])

    def split(at: dict[str, Tensor], part: RankPart) -> Run:
        if over == "samples":
            return loss_over_samples(part.of(at["x"], 0), part.of(targets, 0), 10, -100)
        return loss_over_classes(part.of(at["x"], 1), targets, 10, -100, part)

    check(world, leaves_of(x=(12, 12)), lambda at: functional.cross_entropy(at["x"], targets), split)


def train_split(
    network: str, model: nn.Module, steps: list[tuple[MicroBatch, ...]], splits: list[Dimension | None], world: int
) -> dict[str, Tensor]:
    def rank_main(group: RankGroup) -> list[Tensor]:
        own = SplitNetwork(network, model, splits, group)
        optimizer = sgd(own.parameters())
        for (batch,) in steps:
            optimizer.zero_grad()
            own.backward(own.loss(batch))
            optimizer.step()
        return own.whole_parameters()

    results = run_ranks(world, rank_main)
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))
    links = nn.ModuleList(link.module for link in chain_of(network, model))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(own)]: value for own, value in zip(links.parameters(), results[0], strict=True)}


NETWORKS_SPLIT: dict[str, tuple[str, int, list[Dimension | None]]] = {
    "resnet20 over samples of 3": ("resnet20", 3, [SAMPLE] * 11),
    "resnet20 over rows": ("resnet20", 2, [ROWS] * 10 + [None]),
    "resnet20 over channels out of 4": ("resnet20", 4, [OUT] * 10 + [None]),
    "resnet20 over channels in": ("resnet20", 2, [None] + [IN] * 10),
    "resnet20 mixed": ("resnet20", 2, [SAMPLE] * 4 + [ROWS] * 3 + [OUT] * 3 + [IN]),
    "bert over samples of 4": ("bert_tiny", 4, [SAMPLE] * 6),
    "bert over heads, words and features": ("bert_tiny", 2, [IN] + [OUT] * 5),
    "bert with the ffn over 4": ("bert_tiny", 4, [IN, None, OUT, SAMPLE, OUT, OUT]),
    "lstm over samples of 3": ("lstm_lm", 3, [SAMPLE] * 4),
    "lstm with embedding and head over 4": ("lstm_lm", 4, [OUT, SAMPLE, SAMPLE, IN]),
    "lstm with words over 2": ("lstm_lm", 2, [IN, None, SAMPLE, OUT]),
}


@pytest.mark.parametrize("case", NETWORKS_SPLIT)
def test_a_split_network_trains_to_the_weights_of_one_device(case: str) -> None:
    # float64: what steps of a small ResNet make of float32's rounding is larger than the bound of 1e-5. The third step
    # has what momentum and both steps before made of every gradient.
    network, world, splits = NETWORKS_SPLIT[case]
    model, steps = model_and_steps(network, num_steps=NUM_STEPS, num_micro_batches=1, double=True)
    found = train_split(network, model, steps, splits, world)
    alone = train_alone(copy.deepcopy(model), steps)
    assert distance(found, alone) < 1e-8


@pytest.mark.parametrize("case", ["bert over heads, words and features", "lstm with embedding and head over 4"])
def test_in_single_precision_too(case: str) -> None:
    network, world, splits = NETWORKS_SPLIT[case]
    model, steps = model_and_steps(network, num_steps=NUM_STEPS, num_micro_batches=1)
    found = train_split(network, model, steps, splits, world)
    assert distance(found, train_alone(copy.deepcopy(model), steps)) < 1e-5


@pytest.mark.parametrize(
    ("network", "world", "splits", "says"),
    [
        ("resnet20", 3, [OUT] * 11, "16 elements of dimension 0 do not divide into 3 parts"),
        ("resnet20", 2, [OUT] * 3, "3 splits for 11 layers"),
        ("lstm_lm", 2, [None, OUT, None, None], "has no channel-out to split"),
        ("lstm_lm", 2, [ROWS, None, None, None], "no rows to split"),
        ("bert_tiny", 2, [IN, None, None, None, None, None], "split in one layer and whole in another"),
        ("bert_tiny", 2, [OUT, None, None, None, None, OUT], "a tied weight"),
    ],
)
def test_splits_that_cannot_be_are_refused(network: str, world: int, splits: list[Dimension | None], says: str) -> None:
    model, _ = model_and_steps(network, num_steps=1, num_micro_batches=1)
    with pytest.raises(ParallelismError, match=says):
        run_ranks(world, lambda group: SplitNetwork(network, model, splits, group))


def test_rows_fewer_than_the_stride_are_refused() -> None:
    model, steps = model_and_steps("resnet20", num_steps=1, num_micro_batches=1)
    with pytest.raises(ParallelismError, match="use fewer ranks or larger images"):
        run_ranks(8, lambda group: SplitNetwork("resnet20", model, [ROWS] * 10 + [None], group).loss(steps[0][0]))


def test_a_plan_over_several_dimensions_is_refused() -> None:
    assert dimensions_of([[], [LayerSplit("sample", 4)]], 4) == (None, SAMPLE)
    with pytest.raises(ParallelismError, match="sample/2, channel-in/2 over 4 ranks"):
        dimensions_of([[LayerSplit("sample", 2), LayerSplit("channel-in", 2)]], 4)


def test_a_rank_that_fails_frees_the_others() -> None:
    def rank_main(group: RankGroup) -> None:
        if group.part.rank == 1:
            raise ValueError("one of two")
        group.backward(torch.zeros((), requires_grad=True))

    with pytest.raises(ValueError, match="one of two"):
        run_ranks(2, rank_main)
