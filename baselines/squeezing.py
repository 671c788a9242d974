"""Codes to servers and codes back, with a residual on the servers: what `double-squeeze` and `onebit-adam` share.

Every rank of `ctx.servers` combines its share of every parameter,

    a = Σ C(workers' parts) + ē,    sends C(a) to all workers,    ē ← a − C(a)

and keeps ē by parameter name. Shares are whole rows (first dimension) of each parameter, row i of R on server ⌊i·S/R⌋,
whatever the packing: so a residual stays with its elements when messages change. What is not finite in ē is given up in
the next step and logged. A code that draws does so on servers from a seed drawn when the message sets out: other
messages that arrive before it change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from baselines.api import Aggregate, Context, How, Message, Reduced, Reduction, Segment
from baselines.codec import Codec
from baselines.memory import blank
from baselines.residuals import report

Share = tuple[int, Segment]  # where a piece of the message begins, and the piece


def squeezed(codec: Codec, values: Tensor, residuals: Mapping[str, Tensor], ctx: Context) -> Reduction:
    """The code of the sum of all workers' codes of `values` [numel of the message], the same on all workers.

    `residuals` are the servers' by parameter name, whole flattened parameters; a server changes its share of them.
    Yields two aggregates, SCATTER and the CONCAT of replies. Overwrites `values` with what came back, except on a rank
    that only serves.
    """
    # Drawn now, in order of messages: when the codes of several arrive is up to the network.
    seed = int(torch.randint(torch.iinfo(torch.int64).max, (), generator=ctx.generator))
    num_servers = len(ctx.servers)
    shares = [_share(ctx.message, server, num_servers) for server in range(num_servers)]
    own = [replace(ctx, message=Message(ctx.message.index, tuple(s for _, s in share))) for share in shares]
    codes = tuple(codec.encode(_take(values, share), part) for share, part in zip(shares, own, strict=True))
    arrived = yield Aggregate(codes, How.SCATTER, "gradient", equal_sizes=codec.equal_sizes)
    contributed = blank(values.numel(), torch.float32, values.device) if ctx.wants_contribution else None
    scratch = blank(
        max(_numel(share) for share in shares), torch.float32, values.device
    )  # one for all shares: fresh memory is slow
    if contributed is not None:
        for share, part, code in zip(shares, own, codes, strict=True):
            _put(contributed, share, _decoded(codec, code, scratch[: _numel(share)], part))
    reply = codes[0][:0]
    if ctx.rank in ctx.servers:
        here = ctx.rank - ctx.servers.start
        mine = scratch[: _numel(shares[here])]
        serving = replace(own[here], generator=torch.Generator().manual_seed(seed))
        reply = _combine(codec, [code for (code,) in arrived.parts], shares[here], residuals, mine, serving)
    replies = yield Aggregate((reply,), How.CONCAT, "gradient")
    works = ctx.rank < (ctx.num_workers or ctx.world)
    for server, share, part in zip(ctx.servers, shares, own, strict=True):
        (code,) = replies.parts[server]
        if share and works:  # a rank that only serves gets no replies
            _put(values, share, _decoded(codec, code, scratch[: _numel(share)], part))
    return Reduced(values, contributed)


def _combine(
    codec: Codec,
    codes: Sequence[Tensor],
    share: Sequence[Share],
    residuals: Mapping[str, Tensor],
    scratch: Tensor,
    ctx: Context,
) -> Tensor:
    """The code of the workers' sum and this server's residual, which then keeps what that code loses."""
    kept = [residuals[s.name][s.start : s.stop] for _, s in share]
    total = torch.cat(kept) if kept else torch.zeros(0, device=codes[0].device)
    if not math.isfinite(float(total.sum())):
        report(int((~total.isfinite()).sum()), ctx.message)
        total.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    for code in codes:
        codec.add_decoded(code, total, ctx)
    reply = codec.encode(total, ctx)
    total.sub_(_decoded(codec, reply, scratch, ctx))
    if kept:
        torch._foreach_copy_(kept, total.split([residual.numel() for residual in kept]))
    return reply


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


def _decoded(codec: Codec, data: Tensor, into: Tensor, ctx: Context) -> Tensor:
    """What `data` stands for, in `into`."""
    codec.add_decoded(data, into.zero_(), ctx)
    return into


def _take(flat: Tensor, share: Sequence[Share]) -> Tensor:
    """The elements of a share, one piece behind the other; a single piece is looked at in place."""
    pieces = [flat[at : at + s.numel] for at, s in share]
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0] if pieces else flat[:0]


def _put(flat: Tensor, share: Sequence[Share], values: Tensor) -> None:
    """Undo `_take`."""
    targets = [flat[at : at + segment.numel] for at, segment in share]
    if targets:
        torch._foreach_copy_(targets, values.split([segment.numel for _, segment in share]))
