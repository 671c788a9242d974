"""What collectives would give if all peers held what this rank holds; and which of them cannot be answered so.

An operation is answerable where equal peers make its result known: a sum of equal tensors, copies of one tensor. It is
not where a peer would have to hold something of its own: another rank's broadcast, a message from it, its part of a sum
or of a table. Those are refused rather than made up.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from fabric.cluster import FabricError

_KNOWN = ("SUM", "PRODUCT", "AVG", "MIN", "MAX", "BAND", "BOR")  # the last five leave equal tensors as they are


def reduced(tensors: Sequence[Tensor], operation: object, world: int) -> None:
    """Each tensor becomes the reduction of `world` tensors like it. `check_reduction` says which are known."""
    name = _name_of(operation)
    for tensor in tensors:
        if name == "SUM":
            # In place and by arithmetic: no peers' copies are made, so a world of any size costs the same.
            tensor.mul_(world)
        elif name == "PRODUCT":
            tensor.pow_(world)


def check_reduction(operation: object, world: int) -> None:
    """Raises: FabricError for an operation whose result is not known."""
    if _name_of(operation) not in _KNOWN:
        raise FabricError(
            f"what {operation} of {world} equal tensors is, virtual peers do not know; use SUM or real ranks"
        )


def _name_of(operation: object) -> str:
    """`ReduceOp` compares equal to its members but is none of them."""
    return next((name for name in _KNOWN if operation == getattr(dist.ReduceOp, name)), "")


def check_copies(outputs: Sequence[Tensor], source: Tensor, rank: int) -> None:
    """Raises: FabricError where equal peers could not have sent what is gathered."""
    sizes = sorted({output.numel() for output in outputs})
    if sizes != [source.numel()]:
        raise refusal(f"an all-gather of {sizes} elements, where this rank gives {source.numel()}")
    others = [output for index, output in enumerate(outputs) if index != rank]
    # In place each rank's part lies in the same buffer; what the others' parts hold is not known here.
    if others and outputs[rank].data_ptr() == source.data_ptr():
        raise refusal("an all-gather in place, into a buffer of which each rank holds another part")


def refusal(what: str) -> FabricError:
    """The error for an operation that needs a peer with something of its own."""
    return FabricError(
        f"{what}, needs peers that hold something, and virtual peers hold nothing of their own; use real ranks "
        "(num_virtual=0), or data parallelism by all-reduce (for our engine the exchange 'all-reduce')"
    )
