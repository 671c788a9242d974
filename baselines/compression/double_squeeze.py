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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import (
    Aggregate,
    Card,
    Compressor,
    Context,
    How,
    Message,
    Reduced,
    Reduction,
    Scope,
    Segment,
    Slot,
    State,
)
from baselines.codec import Codec, decoded

Share = tuple[int, Segment]  # where a piece of the message begins, and the piece


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
        return self.inner.scope

    @property
    def how(self) -> How:
        return How.SCATTER

    def init(self, name: str, parameter: Tensor) -> State:
        residual = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        return {"server_residual": residual, **self.inner.init(name, parameter)}

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        codec, num_servers = self._codec, len(ctx.servers)
        shares = [_share(ctx.message, server, num_servers) for server in range(num_servers)]
        own = [replace(ctx, message=Message(ctx.message.index, tuple(s for _, s in share))) for share in shares]
        codes = tuple(codec.encode(_take(grad, share), part) for share, part in zip(shares, own, strict=True))
        arrived = yield Aggregate(codes, How.SCATTER, "gradient", equal_sizes=codec.equal_sizes)
        contributed = None
        if ctx.wants_contribution:
            contributed = torch.zeros_like(grad)
            for share, part, code in zip(shares, own, codes, strict=True):
                _put(contributed, share, decoded(codec, code, _numel(share), part))
        reply = codes[0][:0]
        if ctx.rank in ctx.servers:
            here = ctx.rank - ctx.servers.start
            reply = self._combine([code for (code,) in arrived.parts], shares[here], states, own[here])
        replies = yield Aggregate((reply,), How.CONCAT, "gradient")
        for server, share, part in zip(ctx.servers, shares, own, strict=True):
            (code,) = replies.parts[server]
            if share and code.numel():  # a rank that only serves gets no replies
                _put(grad, share, decoded(codec, code, _numel(share), part))
        return Reduced(grad, contributed)

    def _combine(
        self, codes: Sequence[Tensor], share: Sequence[Share], states: Mapping[str, State], ctx: Context
    ) -> Tensor:
        """The code of the workers' sum and this server's residual, which then keeps what that code loses."""
        residuals = [states[s.name]["server_residual"][s.start : s.stop] for _, s in share]
        total = torch.cat(residuals) if residuals else torch.zeros(0)
        for code in codes:
            self._codec.add_decoded(code, total, ctx)
        reply = self._codec.encode(total, ctx)
        total.sub_(decoded(self._codec, reply, total.numel(), ctx))
        for residual, part in zip(residuals, total.split([r.numel() for r in residuals]), strict=True):
            residual.copy_(part)
        return reply

    @property
    def _codec(self) -> Codec:
        assert isinstance(self.inner, Codec)
        return self.inner

    def wire_bytes(self, numel: int, world: int) -> float:
        return self.inner.wire_bytes(numel, world) * (1 + 1 / world)


def _share(message: Message, server: int, num_servers: int) -> list[Share]:
    """The pieces of `message` that one server combines."""
    pieces, offset = [], 0
    for segment in message.segments:
        num_rows = segment.shape[0] if segment.shape else 1
        whole = math.prod(segment.shape)
        row = whole // max(1, num_rows)
        low, high = (-(-num_rows * j // num_servers) * row for j in (server, server + 1))
        low, high = max(low, segment.start), min(high, segment.stop)
        if low < high:
            pieces.append((offset + low - segment.start, replace(segment, start=low, stop=high)))
        offset += segment.numel
    return pieces


def _numel(share: Sequence[Share]) -> int:
    return sum(segment.numel for _, segment in share)


def _take(flat: Tensor, share: Sequence[Share]) -> Tensor:
    """The elements of a share, one piece behind the other."""
    return torch.cat([flat[at : at + s.numel] for at, s in share]) if share else flat[:0].clone()


def _put(flat: Tensor, share: Sequence[Share], values: Tensor) -> None:
    """Undo `_take`."""
    offset = 0
    for at, segment in share:
        flat[at : at + segment.numel] = values[offset : offset + segment.numel]
        offset += segment.numel
