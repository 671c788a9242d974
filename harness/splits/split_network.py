"""A network whose layers are split over ranks: each link along a dimension of its own, with its layout changed between.

Each rank has its own modules. Weights that are split are parts of the network's; all others are copies, whose gradients
are summed. Activations are whole on every rank, or parts of the samples or rows; channels are split inside a
link alone.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from baselines.parallelism.api import ParallelismError
from baselines.parallelism.operators import (
    ConvolutionShape,
    JoinedParts,
    SumOfParts,
    batch_norm,
    batch_statistics,
    convolution_in,
    convolution_out,
    convolution_rows,
    embedding_in,
    embedding_out,
    linear_in,
    linear_out,
    loss_over_samples,
)
from baselines.parallelism.plans import LayerSplit
from harness.parallel.stages import IGNORED, MicroBatch
from harness.splits.groups import RankGroup, run_operator
from models.chain import chain_of
from models.graph import Dimension

_ROWS, _SAMPLES = 2, 0  # dimensions of an activation


class SplitLinear(nn.Module):
    """A linear layer of which this rank has some outputs or inputs. `chained`: the neighbour is split to match."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, group: RankGroup, *, out: bool, chained: bool):
        super().__init__()
        self.weight, self.bias = weight, bias
        self.group, self.out, self.chained = group, out, chained

    def forward(self, x: Tensor) -> Tensor:
        if self.out:
            return run_operator(self.group, linear_out(x, self.weight, self.bias, join=not self.chained))
        run = linear_in(x, self.weight, self.bias, self.group.part, whole_input=not self.chained)
        return run_operator(self.group, run)


class SplitEmbedding(nn.Module):
    """An embedding of which this rank has some words (`out` false) or some elements of each vector."""

    def __init__(self, weight: nn.Parameter, padding: int | None, group: RankGroup, *, out: bool) -> None:
        super().__init__()
        self.weight, self.padding, self.group, self.out = weight, padding, group, out

    def forward(self, tokens: Tensor) -> Tensor:
        if self.out:
            return run_operator(self.group, embedding_out(tokens, self.weight, self.padding))
        return run_operator(self.group, embedding_in(tokens, self.weight, self.group.part, self.padding))


class SplitConvolution(nn.Module):
    """A convolution of which this rank has some channels, or works on some rows with all of them."""

    def __init__(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        shape: ConvolutionShape,
        group: RankGroup,
        over: Dimension,
    ) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.shape, self.group, self.over = shape, group, over

    def forward(self, x: Tensor) -> Tensor:
        if self.over is Dimension.SPATIAL:
            return run_operator(self.group, convolution_rows(x, self.weight, self.bias, self.shape))
        if self.over is Dimension.CHANNEL_OUT:
            return run_operator(self.group, convolution_out(x, self.weight, self.bias, self.shape))
        return run_operator(self.group, convolution_in(x, self.weight, self.bias, self.shape, self.group.part))


class JointBatchNorm(nn.Module):
    """Batch normalisation with the statistics of all ranks' samples and rows."""

    def __init__(self, norm: nn.BatchNorm2d, group: RankGroup) -> None:
        super().__init__()
        self.norm, self.group = norm, group

    def forward(self, x: Tensor) -> Tensor:
        mean, variance, count = run_operator(self.group, batch_statistics(x, self.group.part))
        norm = self.norm
        if norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None:
            with torch.no_grad():
                norm.running_mean.lerp_(mean, norm.momentum)
                norm.running_var.lerp_(variance * (count / max(1, count - 1)), norm.momentum)
        return batch_norm(x, norm.weight, norm.bias, mean, variance, norm.eps)


class SplitNetwork(nn.Module):
    """One rank's network. `splits` has a dimension per link, or None for a link that every rank computes whole.

    Raises: ParallelismError for a split that a link does not have, or that does not divide.
    """

    def __init__(self, network: str, model: nn.Module, splits: Sequence[Dimension | None], group: RankGroup) -> None:
        super().__init__()
        # A copy: parts are cut out of modules in place, and each rank starts from the whole model.
        links = chain_of(network, copy.deepcopy(model))
        if len(splits) != len(links):
            raise ParallelismError(f"{len(splits)} splits for {len(links)} layers; give one for each")
        self.group = group
        self.splits = tuple(splits)
        self.parts: dict[int, int] = {}  # the id of a parameter that is a part → the dimension that is split
        self._made: dict[int, tuple[Tensor, int, nn.Parameter]] = {}
        self.links = nn.ModuleList(self._split(link.module, over) for link, over in zip(links, splits, strict=True))
        self._refuse_mixed()

    def forward(self, x: Tensor) -> Tensor:
        """Logits of x [samples, …], whole on every rank; whole too unless the last link is split over samples."""
        held: int | None = None
        for link, over in zip(self.links, self.splits, strict=True):
            wanted = {Dimension.SAMPLE: _SAMPLES, Dimension.SPATIAL: _ROWS}.get(over) if over else None
            # Only where the layout changes: links that are split alike hand on their parts as they are.
            if held != wanted:
                x = x if held is None else self.group.combine(JoinedParts(x, held))
                x = x if wanted is None else self.group.part.of(x, wanted)
            held = wanted
            x = link(x)
        return x

    def loss(self, batch: MicroBatch) -> Tensor:
        """The mean loss of a whole batch, the same on every rank."""
        logits, targets = self(batch.inputs), batch.targets
        if self.splits[-1] is Dimension.SAMPLE:
            targets = self.group.part.of(targets, 0)
            run = loss_over_samples(logits.flatten(0, -2), targets.flatten(), batch.num_targets, IGNORED)
            return run_operator(self.group, run)
        total = nn.functional.cross_entropy(
            logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return total / batch.num_targets

    def backward(self, loss: Tensor) -> None:
        """All gradients; those of copies are summed over ranks."""
        self.group.backward(loss)
        for parameter in self.parameters():
            if id(parameter) not in self.parts:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                with torch.no_grad():
                    parameter.grad = self.group.combine(SumOfParts(gradient))

    def whole_parameters(self) -> list[Tensor]:
        """Every parameter of the network, put together again, in the order of the links."""
        with torch.no_grad():
            return [
                self.group.combine(JoinedParts(parameter, self.parts[id(parameter)]))
                if id(parameter) in self.parts
                else parameter.detach()
                for parameter in self.parameters()
            ]

    def _split(self, link: nn.Module, over: Dimension | None) -> nn.Module:
        if over is None:
            return link
        if over is Dimension.SAMPLE:
            return _replace(link, lambda module, name: self._jointly(module))
        if over is Dimension.SPATIAL:
            if not any(isinstance(module, nn.Conv2d) for module in link.modules()):
                raise ParallelismError("a layer without convolutions has no rows to split; use another dimension")
            return _replace(link, lambda module, name: self._jointly(module) or self._by_rows(module))
        chain = _attention_or_ffn(link)
        tables = [module.num_embeddings for module in link.modules() if isinstance(module, nn.Embedding)]
        found = _replace(
            link, lambda module, name: self._by_channels(module, over, chain.get(name), max(tables, default=0))
        )
        kinds = (SplitLinear, SplitConvolution, SplitEmbedding)
        if not any(isinstance(module, kinds) for module in found.modules()):
            raise ParallelismError(f"a layer has no {over.value} to split; use sample, or leave it whole")
        return found

    def _jointly(self, module: nn.Module) -> nn.Module | None:
        return JointBatchNorm(module, self.group) if isinstance(module, nn.BatchNorm2d) else None

    def _by_rows(self, module: nn.Module) -> nn.Module | None:
        if not isinstance(module, nn.Conv2d):
            return None
        return SplitConvolution(module.weight, module.bias, _shape(module), self.group, Dimension.SPATIAL)  # type: ignore[arg-type]

    def _by_channels(self, module: nn.Module, over: Dimension, role: bool | None, largest: int) -> nn.Module | None:
        """`role`: in a chain of two, whether the layer is the first (split over outputs) or the second."""
        out = over is Dimension.CHANNEL_OUT if role is None else role
        if isinstance(module, nn.Embedding):
            if module.num_embeddings < largest:
                return None  # positions and types are small tables, and stay whole
            return SplitEmbedding(self._part(module.weight, 1 if out else 0), module.padding_idx, self.group, out=out)
        if not isinstance(module, nn.Linear | nn.Conv2d):
            return None
        weight = self._part(module.weight, 0 if out else 1)
        bias: Any = module.bias
        if bias is not None and out:
            bias = self._part(bias, 0)
        if isinstance(module, nn.Conv2d):
            return SplitConvolution(weight, bias, _shape(module), self.group, over)
        return SplitLinear(weight, bias, self.group, out=out, chained=role is not None)

    def _part(self, whole: Tensor, dim: int) -> nn.Parameter:
        """This rank's part; a tied weight has one part wherever it is used."""
        _, known_dim, part = self._made.get(id(whole), (whole, dim, None))
        if known_dim != dim:
            raise ParallelismError(
                f"a tied weight of {tuple(whole.shape)} is split over dimensions {known_dim} and {dim}; split words in "
                "the embedding (channel-in) and in the head (channel-out), or neither"
            )
        if part is None:
            part = nn.Parameter(self.group.part.of(whole.detach(), dim).clone())
            self._made[id(whole)] = (whole, dim, part)
            self.parts[id(part)] = dim
        return part

    def _refuse_mixed(self) -> None:
        for module in self.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if id(parameter) in self._made and any(True for _ in module.children()):
                    # A container's second name for what its child computes with (the bias of BERT's decoder).
                    setattr(module, name, self._made[id(parameter)][2])
        for parameter in self.parameters():
            if id(parameter) in self._made:
                raise ParallelismError(
                    f"a tied weight of {tuple(parameter.shape)} is split in one layer and whole in another; split both"
                )


def dimensions_of(splits: Sequence[Sequence[LayerSplit]], world: int) -> tuple[Dimension | None, ...]:
    """A plan's splits as `SplitNetwork` takes them. Raises: ParallelismError for more than one dimension per layer."""
    found: list[Dimension | None] = []
    for place, own in enumerate(splits):
        if not own:
            found.append(None)
        elif len(own) == 1 and own[0].degree == world:
            found.append(Dimension(own[0].dimension))
        else:
            text = ", ".join(f"{split.dimension}/{split.degree}" for split in own)
            raise ParallelismError(
                f"layer {place} is split {text} over {world} ranks; what runs here is one dimension of all ranks"
            )
    return tuple(found)


def _replace(module: nn.Module, make: Any, name: str = "") -> nn.Module:
    """`module` with every descendant that `make(module, name)` answers for replaced."""
    made: nn.Module | None = make(module, name)
    if made is not None:
        return made
    for child_name, child in list(module.named_children()):
        setattr(module, child_name, _replace(child, make, f"{name}.{child_name}".removeprefix(".")))
    return module


def _attention_or_ffn(link: nn.Module) -> dict[str, bool]:
    """In BERT's links: names of linear layers → whether they come first of two that are split to match, heads by heads.

    Between the two stand attention by head or an activation, which need no other channel.
    """
    linear = [name for name, module in link.named_modules() if isinstance(module, nn.Linear)]
    if any(name.endswith("self.query") for name in linear) or any("intermediate" in name for name in linear):
        return {name: not name.endswith("output.dense") for name in linear}
    if len(linear) == 2 and any(type(module).__name__ == "BertIntermediate" for module in link.modules()):
        return {linear[0]: True, linear[1]: False}
    return {}


def _shape(module: nn.Conv2d) -> ConvolutionShape:
    stride, padding = module.stride[0], module.padding[0]
    if isinstance(padding, str) or set(module.stride) != {stride} or set(module.padding) != {padding}:
        raise ParallelismError(f"{module} is not square; leave its layer whole")
    if module.groups != 1 or set(module.dilation) != {1}:
        raise ParallelismError(f"{module} has groups or dilation; leave its layer whole")
    return ConvolutionShape(stride, padding)
