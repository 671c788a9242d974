"""Partitioned operators: linear, embedding, convolution, normalisation and loss over samples, channels and rows.

Each is a generator that yields what is to be combined over the ranks and is sent the answer, so the same operator runs
in lockstep and among processes. Answers are differentiable. The rule for gradients: the loss is the sum over ranks of
each rank's copy, divided by their number. Then every collective's backward is its transpose, a weight that is split has
its whole gradient where it is, and one that all ranks have wants the sum over ranks.

Rank r of P has the r-th of P equal parts. Attention is split over heads by its linear layers: what makes queries, keys
and values is split over channels out and stays so, what follows is split over channels in.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from baselines.parallelism.api import ParallelismError


@dataclass(frozen=True, slots=True)
class SumOfParts:
    """The sum of all ranks' tensors, for all ranks."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class JoinedParts:
    """All ranks' tensors behind each other along `dim`, in order of ranks, for all ranks."""

    tensor: Tensor
    dim: int


@dataclass(frozen=True, slots=True)
class WithHalo:
    """The tensor with the last `before` rows (dim 2) of the rank before and the first `after` of the one behind, zeros
    where there is none."""

    tensor: Tensor
    before: int
    after: int


Combination = SumOfParts | JoinedParts | WithHalo
OperatorRun = Generator[Combination, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class RankPart:
    """Which of how many equal parts."""

    rank: int
    world: int

    def of(self, tensor: Tensor, dim: int) -> Tensor:
        """This part of `tensor`. Raises: ParallelismError if it does not divide."""
        extent = tensor.shape[dim]
        if extent % self.world:
            raise ParallelismError(
                f"{extent} elements of dimension {dim} do not divide into {self.world} parts; use a number of ranks "
                "that divides them, or another dimension"
            )
        return tensor.narrow(dim, self.rank * (extent // self.world), extent // self.world)


def linear_out(x: Tensor, weight: Tensor, bias: Tensor | None, *, join: bool) -> OperatorRun:
    """x […, in] by a part of the outputs, weight [out/P, in]; → [..., out], or this part alone without `join`."""
    y = functional.linear(x, weight, bias)
    return (yield JoinedParts(y, y.dim() - 1)) if join else y


def linear_in(x: Tensor, weight: Tensor, bias: Tensor | None, part: RankPart, *, whole_input: bool) -> OperatorRun:
    """A part of the inputs, weight [out, in/P]; x is whole, or already this part."""
    own = part.of(x, x.dim() - 1) if whole_input else x
    total = yield SumOfParts(functional.linear(own, weight))
    return total if bias is None else total + bias


def embedding_out(tokens: Tensor, weight: Tensor, padding: int | None = None) -> OperatorRun:
    """A part of each word's vector, weight [words, width/P]. The word `padding` gets no gradient."""
    y = functional.embedding(tokens, weight, padding)
    return (yield JoinedParts(y, y.dim() - 1))


def embedding_in(tokens: Tensor, weight: Tensor, part: RankPart, padding: int | None = None) -> OperatorRun:
    """A part of the words, weight [words/P, width]: others' words count as zeros in the sum."""
    first = part.rank * len(weight)
    mine = (tokens >= first) & (tokens < first + len(weight))
    vectors = functional.embedding((tokens - first).where(mine, 0), weight)
    learning = mine if padding is None else mine & (tokens != padding)
    vectors = vectors.where(learning.unsqueeze(-1), vectors.detach())
    return (yield SumOfParts(vectors * mine.unsqueeze(-1)))


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """A square convolution without groups: stride and padding in rows and columns."""

    stride: int
    padding: int


def convolution_out(x: Tensor, weight: Tensor, bias: Tensor | None, shape: ConvolutionShape) -> OperatorRun:
    """A part of the output channels, weight [out/P, in, k, k]."""
    return (yield JoinedParts(functional.conv2d(x, weight, bias, shape.stride, shape.padding), 1))


def convolution_in(
    x: Tensor, weight: Tensor, bias: Tensor | None, shape: ConvolutionShape, part: RankPart
) -> OperatorRun:
    """A part of the input channels, weight [out, in/P, k, k]."""
    total = yield SumOfParts(functional.conv2d(part.of(x, 1), weight, None, shape.stride, shape.padding))
    return total if bias is None else total + bias.view(-1, 1, 1)


def convolution_rows(x: Tensor, weight: Tensor, bias: Tensor | None, shape: ConvolutionShape) -> OperatorRun:
    """A part of the rows of the image, all channels: neighbours lend the rows that the kernel reaches over to.

    Raises: ParallelismError unless the stride divides a part's rows, the whole image gives a row for each stride, so
    that every part gives as many, and the kernel reaches no further than a neighbour.
    """
    kernel, rows = weight.shape[2], x.shape[2]
    # ⌊(R + 2p − k)/s⌋ + 1 = R/s for all R that s divides
    if (2 * shape.padding - kernel) // shape.stride != -1:
        raise ParallelismError(
            f"kernel {kernel}, stride {shape.stride}, padding {shape.padding}: a convolution over rows needs a padding "
            f"of at least half of kernel − stride and less than half of the kernel; split another dimension"
        )
    before, after = shape.padding, max(0, kernel - shape.stride - shape.padding)
    if rows % shape.stride or max(before, after) > rows:
        raise ParallelismError(
            f"{rows} rows per rank, stride {shape.stride}, kernel {kernel}; use fewer ranks or larger images"
        )
    around = x
    if before or after:
        around = yield WithHalo(x, before, after)
    return functional.conv2d(around, weight, bias, shape.stride, (0, shape.padding))


def batch_statistics(x: Tensor, part: RankPart) -> Generator[Combination, Tensor, tuple[Tensor, Tensor, int]]:
    """(mean, biased variance, elements) per channel of x [samples/P, channels, …] over all ranks' samples and rows."""
    dims = [dim for dim in range(x.dim()) if dim != 1]
    count = x.numel() // x.shape[1] * part.world
    mean = (yield SumOfParts(x.sum(dims))) / count
    centred = x - _as_channels(mean, x)
    variance = (yield SumOfParts(centred.square().sum(dims))) / count
    return mean, variance, count


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    """Normalise with given statistics per channel."""
    scale = weight * torch.rsqrt(variance + eps)
    return (x - _as_channels(mean, x)) * _as_channels(scale, x) + _as_channels(bias, x)


def layer_norm_channels(x: Tensor, weight: Tensor, bias: Tensor, eps: float, part: RankPart) -> OperatorRun:
    """x [..., channels/P]: mean and variance over all channels."""
    count = x.shape[-1] * part.world
    mean = (yield SumOfParts(x.sum(-1, keepdim=True))) / count
    variance = (yield SumOfParts((x - mean).square().sum(-1, keepdim=True))) / count
    return (x - mean) * torch.rsqrt(variance + eps) * weight + bias


def loss_over_samples(logits: Tensor, targets: Tensor, num_targets: int, ignored: int) -> OperatorRun:
    """Cross entropy of this rank's samples, logits [n, classes]; → the mean over all ranks' targets."""
    own = functional.cross_entropy(logits, targets, ignore_index=ignored, reduction="sum")
    return (yield SumOfParts(own / num_targets))


def loss_over_classes(logits: Tensor, targets: Tensor, num_targets: int, ignored: int, part: RankPart) -> OperatorRun:
    """Cross entropy where each rank has a part of the classes, logits [n, classes/P], and all have all targets."""
    highest = (yield JoinedParts(logits.detach().amax(1, keepdim=True), 1)).amax(1, keepdim=True)
    exponents = yield SumOfParts((logits - highest).exp().sum(1))
    first = part.rank * logits.shape[1]
    mine = (targets >= first) & (targets < first + logits.shape[1])
    picked = (logits - highest).gather(1, (targets - first).where(mine, 0).unsqueeze(1)).squeeze(1) * mine
    chosen = yield SumOfParts(picked)
    return ((exponents.log() - chosen) * (targets != ignored)).sum() / num_targets


def _as_channels(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *(1,) * (x.dim() - 2))
