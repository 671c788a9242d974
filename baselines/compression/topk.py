"""Top-k sparsification: each message sends its k elements of largest magnitude.

Paper: Stich et al., Sparsified SGD with Memory, NeurIPS 2018 (with error feedback: write
`topk+error-feedback`). k = max(1, ⌈density · n⌉) of the n elements of a message, exactly; ties go to
the lower position. A rank sends b·k bytes, b = 4 bytes for a value and 1, 2 or 4 for its position
(n ≤ 256, ≤ 65 536, more); codes are gathered from all ranks and summed, so the volume grows with the
number of ranks. Contraction: ‖a − topk(a)‖² ≤ (1 − k/n)‖a‖².

`values="float16"` sends rounded values, b = 3, 4 or 6; error feedback sees the rounding too. Magnitudes
above 65 504 become infinite and are seen as such.

Differs from the paper: k is chosen a message, not a layer or the model; with unfused packing
that is a layer, with single-bucket the model. Not verified against the paper's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Card, Context, Scope, Slot
from baselines.codec import Gathered
from baselines.kernels import select
from baselines.sparsity import add_sparse_code, check_share, chosen_bits, code_bytes, num_kept, sparse_code

DTYPES = {"float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class TopK(Gathered):
    card: ClassVar[Card] = Card(
        name="topk",
        slot=Slot.COMPRESSION,
        summary="the k largest elements of each message, gathered",
        paper="Stich et al., Sparsified SGD with Memory, NeurIPS 2018",
    )
    lossy: ClassVar[bool] = True
    density: float = 0.01
    values: str = "float32"

    def __post_init__(self) -> None:
        check_share("density", self.density)
        if self.values not in DTYPES:
            raise ValueError(f"values is {self.values!r}; use one of {', '.join(DTYPES)}")

    @property
    def scope(self) -> Scope:
        """k is of a message."""
        return Scope.MESSAGE

    @property
    def equal_sizes(self) -> bool:
        """True: k depends on the message's size alone."""
        return True

    def encode(self, values: Tensor, ctx: Context) -> Tensor:
        """The k values of largest magnitude and their positions."""
        return sparse_code(values, select.top_k(values, num_kept(values.numel(), self.density)), DTYPES[self.values])

    def add_decoded(self, data: Tensor, total: Tensor, ctx: Context) -> None:
        """Add each value at its position of `total` [numel]."""
        add_sparse_code(data, total, DTYPES[self.values])

    @property
    def code_bits(self) -> float:
        """Expected bits per element."""
        return chosen_bits(self.density, 8.0 * DTYPES[self.values].itemsize)

    def wire_bytes(self, numel: int, world: int) -> float:
        """b·k bytes."""
        return code_bytes(numel, self.density, DTYPES[self.values])
