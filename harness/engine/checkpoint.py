"""Compressors' states in a checkpoint: plain dictionaries of tensors by parameter name, one set a rank.

`Lockstep.state_dict` and `Engine.state_dict` hold nothing but tensors, numbers, texts, lists and dictionaries, so
`torch.load(…, weights_only=True)` reads them. Since no state knows of messages, packing and ordering may be others when
training goes on; the compression has to be the same. Every rank has residuals of its own: one rank's checkpoint does
not stand for another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from baselines.api import State

Saved = dict[str, Any]


class CheckpointError(ValueError):
    """A checkpoint that does not suit what is to go on from it; the message says what differs."""


def saved_states(states: Mapping[str, State]) -> dict[str, State]:
    """A copy of one rank's compressor states."""
    return {name: {key: tensor.clone() for key, tensor in state.items()} for name, state in states.items()}


def restore_states(
    states: Mapping[str, State], saved: Mapping[str, State], parameters: Mapping[str, nn.Parameter]
) -> None:
    """Take the saved states, in place and on the device of each parameter.

    Raises: CheckpointError for other parameters, or states that another compressor made.
    """
    if differing := states.keys() ^ saved.keys():
        raise CheckpointError(f"the checkpoint has other parameters than the model: {', '.join(sorted(differing))}")
    for name, state in states.items():
        own, other = _shapes(state), _shapes(saved[name])
        # A state may have gained tensors while it trained, so the saved one may hold more than a fresh one, but never
        # less.
        if any(other.get(key) != shape for key, shape in own.items()):
            raise CheckpointError(
                f"{name}: the compressor keeps {own or 'nothing'} and the checkpoint {other or 'nothing'}; go on with "
                "the compression that wrote it"
            )
    for name, state in states.items():
        state.clear()
        state.update({key: tensor.to(parameters[name].device, copy=True) for key, tensor in saved[name].items()})


def _shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {key: tuple(tensor.shape) for key, tensor in state.items()}
