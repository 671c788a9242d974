"""What of a model is trained, in which order it becomes ready, and each rank's random numbers.

Shared by the engine and lockstep, so that both send the same messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from baselines.api import Segment

Takes = Mapping[str, frozenset[torch.dtype]]  # the element types that each of those takes who see gradients
SPARSE = (
    "the gradient of {} is sparse, and messages are dense; make the embedding with sparse=False, or train it under "
    "torch-ddp or horovod"
)


class GradientError(ValueError):
    """Gradients that cannot be reduced as asked; the message names the parameter and the remedy."""


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by name, a shared one once, last registered first: backward's order at a guess."""
    # `named_parameters` leaves a tied parameter's second name out, so it is sent once.
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return dict(reversed(named))


def fitting_parameters(model: nn.Module, takes: Takes) -> dict[str, nn.Parameter]:
    """`trainable_parameters`, if all who see their gradients take them. Raises: GradientError."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            raise GradientError(SPARSE.format(f"{path}.weight".lstrip(".")))
    parameters = trainable_parameters(model)
    check_types(parameters, takes)
    return parameters


def check_types(parameters: Mapping[str, nn.Parameter], takes: Takes) -> None:
    """Raises: GradientError naming the parameter and who does not take its type."""
    for name, parameter in parameters.items():
        taker = next((taker for taker, dtypes in takes.items() if parameter.dtype not in dtypes), None)
        if taker is not None:
            own, *known = (str(dtype).removeprefix("torch.") for dtype in (parameter.dtype, *takes[taker]))
            remedy = "hold it as real numbers (torch.view_as_real)" if parameter.is_complex() else "call model.float()"
            raise GradientError(
                f"the parameter {name} is {own}, and {taker} takes {', '.join(sorted(known))}; {remedy}, or replace "
                f"{taker}"
            )


class ParametersChangedError(ValueError):
    """Which parameters are trained changed after training began."""


class TrainedParameters:
    """The parameters of `model` that are trained, fixed when training begins.

    Messages, states of compressors and optimizers are made for these. One that is trained later would get the gradient
    of its own rank alone, or no update at all, and one that is frozen later would be updated with zeros.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._names = {id(p): name for name, p in named}
        self._kept = [p for _, p in named]  # so that no other one gets its id

    def check(self) -> None:
        """Raises: ParametersChangedError naming what was frozen, unfrozen, added or taken out since then."""
        now = self._now()
        if now == self._names.keys():
            return
        joined = [name for name, p in self._model.named_parameters() if id(p) in now - self._names.keys()]
        left = [name for own, name in self._names.items() if own not in now]
        raise ParametersChangedError(
            (f"not trained when training began, but now: {', '.join(joined)}; " if joined else "")
            + (f"trained when training began, but not now: {', '.join(left)}; " if left else "")
            + "which parameters are trained cannot change during a trial: set requires_grad, and add or replace "
            "layers, where the network is built"
        )

    def _now(self) -> set[int]:
        """Their ids. Called in every step: `model.parameters()` takes six times as long."""
        found, modules, seen = set[int](), list[nn.Module | None]([self._model]), set[nn.Module]()
        while modules:
            module = modules.pop()
            if module is None or module in seen:
                continue
            seen.add(module)
            modules.extend(module._modules.values())
            for parameter in module._parameters.values():  # a comprehension for a few entries would take longer
                if parameter is not None and parameter.requires_grad:
                    found.add(id(parameter))
        return found


def lay_out(parameters: Mapping[str, nn.Parameter], order: Sequence[str]) -> tuple[Segment, ...]:
    """Whole parameters as segments, `index` counting them in the ready order of names `order`."""
    return tuple(
        Segment(name, tuple(p.shape), 0, p.numel(), index, p.dtype)
        for index, (name, p) in enumerate((name, parameters[name]) for name in order)
    )


def rank_generator(seed: int, rank: int) -> torch.Generator:
    """A rank's own generator for compressors that draw."""
    # A prime factor keeps rank r of one seed apart from rank 0 of a seed nearby.
    return torch.Generator().manual_seed(seed * 10_007 + rank)
