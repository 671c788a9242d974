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

# The last five leave equal tensors as they are. Looked up once: torch's operations are slow to come by.
_KNOWN = {name: getattr(dist.ReduceOp, name) for name in ("SUM", "PRODUCT", "AVG", "MIN", "MAX", "BAND", "BOR")}


def reduced(tensors: Sequence[Tensor], known: str, world: int) -> None:
    """Each tensor becomes the reduction `known`, as `known_reduction` names it, of `world` tensors like it."""
    for tensor in tensors:
        if known == "SUM":
            # In place and by arithmetic: no peers' copies are made, so a world of any size costs the same.
            tensor.mul_(world)
        elif known == "PRODUCT":
            tensor.pow_(world)


def known_reduction(operation: object, world: int) -> str:
    """The name of `operation` among `world` equal tensors. Raises: FabricError for one whose result is not known."""
    # `ReduceOp` compares equal to its members but is none of them.
    for name, known in _KNOWN.items():
        if operation == known:
            return name
    raise FabricError(f"what {operation} of {world} equal tensors is, virtual peers do not know; use SUM or real ranks")


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
