"""What optimizers for large batches share: which tensors they leave to the plain rule, and checks of settings."""

from __future__ import annotations

import math

from torch import Tensor

from baselines.api import Parameters


def groups_of(parameters: Parameters, exclude: str, *, scales: bool = True) -> list[dict[str, object]]:
    """Parameter groups for torch, with `excluded` and, if names came, as named parameters.

    `parameters` are tensors of any shape, or (name, tensor). Excluded are those whose name holds one of the
    comma-separated words of `exclude` and, with `scales`, those of less than two dimensions (biases, scales of
    normalisation).
    Raises: ValueError if there are words and no names to look for them in.
    """
    words = [word.strip() for word in exclude.split(",") if word.strip()]
    given: list[Tensor | tuple[str, Tensor]] = list(parameters)
    if words and any(isinstance(one, Tensor) for one in given):
        raise ValueError(f"exclude is {exclude!r} and the parameters have no names; build it from named_parameters()")
    sides: dict[bool, list[object]] = {False: [], True: []}
    for one in given:
        name, tensor = ("", one) if isinstance(one, Tensor) else one
        sides[(scales and tensor.dim() < 2) or any(word in name for word in words)].append(one)
    return [{"params": own, "excluded": excluded} for excluded, own in sides.items() if own]


def check_rate(lr: float) -> None:
    """Raises: ValueError unless `lr` is a finite number above 0."""
    require(0 < lr < math.inf, "lr", lr, "a learning rate above 0, e.g. 0.01")


def require(holds: bool, name: str, value: object, wanted: str) -> None:
    """Raises: ValueError that names the setting, its value and what is wanted, unless `holds`."""
    if not holds:
        raise ValueError(f"{name} is {value}; use {wanted}")
