"""Compression both ways, through servers: workers send codes, servers send the code of the sum.

Papers: Tang et al., DoubleSqueeze, ICML 2019; Seide et al., 1-bit SGD, Interspeech 2014 (the node that aggregates a
stripe quantises it again, with a residual of its own). Server j combines its share of every parameter:

    a = Σ C(workers' parts) + ē,    send C(a) to all,    ē ← a − C(a)

so a rank sends n/P codes to P−1 servers and one code of n/P to P−1 workers, 2(P−1)/P codes of n in all, where gathering
takes P−1. Worker residuals are `error-feedback` around it: `onebit+double-squeeze+error-feedback`. Conservation: what
was applied, the mean of the workers' residuals and the servers' residuals together are the sum of all mean gradients.

Shares are whole rows (first dimension) of each parameter, row i of R on server ⌊i·S/R⌋, whatever the packing: so a
residual stays with its elements when messages change. With `parameter-server(servers=S)` the last S ranks do it, with
other exchanges every rank.

Differs from the papers: the residuals' memory is a whole parameter on each server, though it uses its share alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Card, Compressor, Context, How, Reduction, Scope, Slot, State
from baselines.codec import Codec
from baselines.squeezing import squeezed


@dataclass(frozen=True, slots=True)
class DoubleSqueeze:
    inner: Compressor
    card: ClassVar[Card] = Card(
        name="double-squeeze",
        slot=Slot.COMPRESSION,
        summary="codes to servers and codes back, with a residual on the servers",
        paper="Tang et al., DoubleSqueeze, ICML 2019; Seide et al., Interspeech 2014",
        wraps=True,
    )
    lossy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Codec):
            raise ValueError(
                f"double-squeeze around {self.inner.card.name}: that is no code which can travel alone; name a "
                "compressor that is (onebit, qsgd, topk, …), and error-feedback after double-squeeze"
            )

    @property
    def scope(self) -> Scope:
        """The inner code's."""
        return self.inner.scope

    @property
    def how(self) -> How:
        """Each server gets its share of every worker's code."""
        return How.SCATTER

    def init(self, name: str, parameter: Tensor) -> State:
        """A server's residual [numel], float32, beside the inner state."""
        residual = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        return {"server_residual": residual, **self.inner.init(name, parameter)}

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """Scatter codes to servers, gather the codes of their sums."""
        assert isinstance(self.inner, Codec)
        return squeezed(
            self.inner, grad, {s.name: states[s.name]["server_residual"] for s in ctx.message.segments}, ctx
        )

    def wire_bytes(self, numel: int, world: int) -> float:
        """One code to the servers, and a server's reply of 1/P of it."""
        return self.inner.wire_bytes(numel, world) * (1 + 1 / world)
