"""TicTac: transfers in the order in which the computation graph can use them.

Paper: Hashemi et al., TicTac, MLSys 2019, arXiv 1803.03288. Given a graph of operations and the transfers that each
needs, with M the time of a transfer r, for all operations o and outstanding transfers R:

    D(o) = transfers in R that o needs, directly or through others
    P(r) = Σ time of o with D(o) = {r}             computation that r alone unblocks
    M⁺(r) = min over o with r in D(o), |D(o)| > 1, of Σ M over D(o)

TIC (no times known: transfers take 1, operations 0) sorts by M⁺. TAC takes, again and again, the transfer that comes
before all others: A before B ⇔ min(P_B, M_A) < min(P_A, M_B), ties by M⁺; then P and M⁺ are computed anew.

The graph is what costs tell: with each layer all parameters that it needs, directly or through layers before it, as
autograd's graph of the model shows them (`harness/engine/layer_graph.py`); a transfer takes α + β·bytes. Where layers
branch (ResNet's shortcuts, attention's projections) the order differs from p3's, the order of the forward: of two
branches the one comes first that unblocks more computation for its bytes. A layer's weight and bias are two transfers,
of which the first unblocks nothing: in layers with biases M⁺ decides more often than P. Where costs tell no graph
(profiles, hence predictions), layers are a chain; on a chain both variants give the order of the forward, whatever the
times: in each round only the first outstanding transfer has P > 0, and M⁺ grows along it. Unbound: first in, first out.

Differs from the paper: it orders the pulls of parameters from servers, by priorities that are the same on all workers;
here it orders gradient messages as they become ready, so ranks agree as for any ordering by priority. M⁺ ties keep the
order of the list. Not verified against the paper's text, but against the authors' public code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar, Self

from baselines.api import Card, Costs, Message, Slot, check_depth

PS = 1e12  # times are whole picoseconds, so that sums are exact and ties are ties


@dataclass(frozen=True, slots=True)
class Op:
    """An operation; `needs` names transfers and operations before it."""

    name: str
    time_s: float
    needs: tuple[str, ...]


def chain(forward_s: Sequence[float]) -> list[Op]:
    """Layers in forward order: layer i needs transfer `i` and layer i − 1."""
    return [
        Op(f"layer {i}", time_s, (f"{i}", f"layer {i - 1}") if i else (f"{i}",)) for i, time_s in enumerate(forward_s)
    ]


def branching(costs: Costs) -> list[Op]:
    """The layers of `costs.needs` in the order of the forward, each with all transfers that it needs."""
    last = len(costs.forward_s) - 1
    layers = zip(costs.forward_s[::-1], costs.needs[::-1], strict=True)
    return [Op(f"layer {i}", time_s, tuple(f"{last - n}" for n in needs)) for i, (time_s, needs) in enumerate(layers)]


def transfers_needed(ops: Sequence[Op], transfers: Sequence[str]) -> list[int]:
    """D of each operation with all transfers outstanding, bit i for `transfers[i]`; `ops` come after what they need."""
    known = {name: 1 << i for i, name in enumerate(transfers)}
    for op in ops:
        known[op.name] = 0
        for need in op.needs:
            known[op.name] |= known[need]
    return [known[op.name] for op in ops]


Row = tuple[int, int, int]  # of an operation: Σ M over D, D as bits, its own time


def properties(rows: Sequence[Row], num: int) -> list[tuple[int, float]]:
    """(P, M⁺) of `num` transfers."""
    unblocks, needed_with, unset = [0] * num, [inf] * num, -1
    for total, needed, time in sorted(rows):
        if needed.bit_count() == 1:
            unblocks[needed.bit_length() - 1] += time
            continue
        fresh = needed & unset  # totals rise, so the first operation that needs a transfer gives its M⁺
        unset &= ~fresh
        while fresh:
            needed_with[fresh.bit_length() - 1] = total
            fresh ^= 1 << (fresh.bit_length() - 1)
    return list(zip(unblocks, needed_with, strict=True))


def tic_order(ops: Sequence[Op], transfers: Sequence[str]) -> list[str]:
    """All transfers, by M⁺ with each of time 1."""
    rows = [(needed.bit_count(), needed, 0) for needed in transfers_needed(ops, transfers)]
    found = properties(rows, len(transfers))
    return [transfers[i] for i in sorted(range(len(transfers)), key=lambda i: found[i][1])]


def tac_order(ops: Sequence[Op], transfers_s: Mapping[str, float]) -> list[str]:
    """All transfers, which map to their times."""
    names, m = list(transfers_s), [round(time_s * PS) for time_s in transfers_s.values()]
    rows = [
        (sum(time for i, time in enumerate(m) if needed >> i & 1), needed, round(op.time_s * PS))
        for op, needed in zip(ops, transfers_needed(ops, names), strict=True)
    ]
    outstanding, order = list(range(len(names))), list[str]()
    while outstanding:
        found = properties(rows, len(names))
        best = outstanding[0]
        for other in outstanding:
            if _before(m[other], found[other], m[best], found[best]):
                best = other
        order.append(names[best])
        outstanding.remove(best)
        bit = 1 << best
        rows = [(t - m[best], d ^ bit, s) if d & bit else (t, d, s) for t, d, s in rows if d != bit]
    return order


def _before(m_a: int, a: tuple[int, float], m_b: int, b: tuple[int, float]) -> bool:
    first, second = min(b[0], m_a), min(a[0], m_b)
    return first < second or (first == second and a[1] < b[1])


@dataclass(frozen=True, slots=True)
class TicTac:
    card: ClassVar[Card] = Card(
        name="tictac",
        slot=Slot.ORDERING,
        summary="what the graph of the forward can use first, from its times (tac) or its shape (tic)",
        paper="Hashemi et al., TicTac, MLSys 2019, arXiv 1803.03288",
    )
    rank_invariant: ClassVar[bool] = False
    variant: str = "tac"
    depth: int = 2
    ranks: tuple[int, ...] = field(default_factory=tuple)  # by Segment.index, once bound; texts cannot set it

    def __post_init__(self) -> None:
        if self.variant not in ("tac", "tic"):
            raise ValueError(f"variant is {self.variant!r}; it is tac or tic")
        check_depth(self.depth)

    def bind(self, costs: Costs) -> Self:
        """Rank all transfers by TIC or TAC on the graph that `costs` tell, or on a chain where they tell none."""
        last = len(costs.forward_s) - 1
        ops = branching(costs) if costs.needs else chain(costs.forward_s[::-1])  # what is ready last is needed first
        sizes = costs.nbytes[::-1] or (0,) * (last + 1)
        transfers_s = {f"{i}": costs.message_s(nbytes) for i, nbytes in enumerate(sizes)}
        order = tac_order(ops, transfers_s) if self.variant == "tac" else tic_order(ops, list(transfers_s))
        rank = {last - int(name): position for position, name in enumerate(order)}
        return replace(self, ranks=tuple(rank[index] for index in range(last + 1)))

    def key(self, message: Message) -> tuple[int, ...]:
        """The best rank among its parameters; unbound, the order in which messages were made."""
        ranks = (self.ranks[segment.index] for segment in message.segments) if self.ranks else (0,)
        return min(ranks), message.index

    def pick(self, pending: Sequence[Message], in_flight: Sequence[Message], now_s: float) -> Message | None:
        """The pending message of the best rank."""
        return min(pending, key=self.key, default=None)
