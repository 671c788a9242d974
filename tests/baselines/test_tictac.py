"""TIC and TAC against orders worked out by hand."""

from __future__ import annotations

import dataclasses
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import segments_of

from baselines.api import Costs, Message
from baselines.ordering.tictac import Op, TicTac, chain, tac_order, tic_order, transfers_needed
from baselines.strategy import parse_strategy
from baselines.text import TextError


def test_what_an_operation_needs_through_others_counts() -> None:
    """`d` needs b and c, thus r2, r1 and, through b, r1 again."""
    ops = [Op("b", 1, ("r1",)), Op("c", 1, ("b", "r2")), Op("d", 1, ("b", "c"))]
    assert transfers_needed(ops, ["r1", "r2", "r3"]) == [0b001, 0b011, 0b011]


def test_tic_takes_transfers_by_the_smallest_set_that_is_needed_together() -> None:
    """D: x = {a, b, c}, y = {c, d}, z = {d, e, f, a}, all of size-1 transfers.

    M⁺: a = min(3, 4) = 3, b = 3, c = min(3, 2) = 2, d = min(2, 4) = 2, e = 4, f = 4. Ties in the order listed.
    """
    ops = [Op("x", 9, ("a", "b", "c")), Op("y", 9, ("c", "d")), Op("z", 9, ("d", "e", "f", "a"))]
    assert tic_order(ops, list("abcdef")) == ["c", "d", "a", "b", "e", "f"]


def test_tac_first_takes_what_unblocks_long_computation() -> None:
    """Two independent branches: A (M 2) unblocks 1 s, B (M 3) unblocks 10 s; then C (M 1) is needed with both.

    Round 1: P_A = 1, P_B = 10, P_C = 0; M⁺ = 6 for all. B before A ⇔ min(P_A, M_B) = 1 < min(P_B, M_A) = 2: yes. B
    before C ⇔ min(P_C, M_B) = 0 < min(P_B, M_C) = 1: yes. B.
    Round 2: P_A = 1, P_C = 0, M⁺ = 3 (end needs A and C). A before C ⇔ min(0, 2) = 0 < min(1, 1) = 1: yes. A, then C.
    """
    ops = [Op("left", 1, ("A",)), Op("right", 10, ("B",)), Op("end", 5, ("left", "right", "C"))]
    assert tac_order(ops, {"A": 2, "B": 3, "C": 1}) == ["B", "A", "C"]


def test_tac_computes_anew_after_each_choice() -> None:
    """x = {A, B} takes 8 s, y = {C} takes 2 s. M: A 1, B 4, C 3.

    Round 1: P_A = P_B = 0, P_C = 2. C before A ⇔ min(P_A, M_C) = 0 < min(P_C, M_A) = 1: yes; likewise C before B. C.
    Round 2: P = 0 and M⁺ = 5 for both: the order listed. A, then B.
    With y of 0 s all P are 0 in round 1, so M⁺ decides: 5 for A and B, none for C. A. Now P_B = 8: B before C ⇔
    min(0, 4) = 0 < min(8, 3) = 3: yes. B, then C.
    """
    times = {"A": 1, "B": 4, "C": 3}
    assert tac_order([Op("x", 8, ("A", "B")), Op("y", 2, ("C",))], times) == ["C", "A", "B"]
    assert tac_order([Op("x", 8, ("A", "B")), Op("y", 0, ("C",))], times) == ["A", "B", "C"]


def test_tic_and_tac_differ_where_times_matter() -> None:
    """o1 = {A} 1 s, o2 = {A, B} 1 s, o3 = {C} 20 s, o4 = {B, C, D} 1 s; M: A 10, B 1, C 2, D 1.

    TIC, M⁺ with M = 1: A 2, B min(2, 3) = 2, C 3, D 3: A, B, C, D.
    TAC round 1: P_A = 1, P_B = 0, P_C = 20, P_D = 0. C before A ⇔ min(P_A, M_C) = 1 < min(P_C, M_A) = 10: yes. C before
    B ⇔ min(P_B, M_C) = 0 < min(P_C, M_B) = 1: yes, and so before D. C.
    Round 2: P_A = 1, P_B = P_D = 0; M⁺: A 11, B min(11, 2) = 2, D 2. A before B ⇔ min(0, 10) = 0 < min(1, 1): yes; A
    before D likewise. A.
    Round 3: o2 now needs B alone: P_B = 1, P_D = 0, M⁺ = 2 for both. B before D ⇔ 0 < min(1, 1): yes. B, then D.
    """
    ops = [
        Op("o1", 1, ("A",)),
        Op("o2", 1, ("A", "B")),
        Op("o3", 20, ("C",)),
        Op("o4", 1, ("B", "C", "D")),
    ]
    times = {"A": 10, "B": 1, "C": 2, "D": 1}
    assert tic_order(ops, list(times)) == ["A", "B", "C", "D"]
    assert tac_order(ops, times) == ["C", "A", "B", "D"]


def makespan(order: list[str], ops: list[Op], transfers_s: dict[str, float]) -> float:
    """One link, one processor that takes what can run in the order listed."""
    done, now_s = dict[str, float](), 0.0
    for name in order:
        now_s += transfers_s[name]
        done[name] = now_s
    left, now_s = list(ops), 0.0
    while left:
        op = min((op for op in left if all(n in done for n in op.needs)), key=lambda o: max(done[n] for n in o.needs))
        now_s = max(now_s, *(done[need] for need in op.needs)) + op.time_s
        done[op.name] = now_s
        left.remove(op)
    return now_s


def test_tac_is_best_of_all_orders_where_branches_are_independent() -> None:
    """Then it is Johnson's rule for two machines, which is optimal."""
    for seed in range(40):
        times = {f"r{i}": 1.0 + (seed * 7 + i * 13) % 9 for i in range(5)}
        ops = [Op(f"o{i}", 1.0 + (seed * 5 + i * i * 3) % 11, (f"r{i}",)) for i in range(5)]
        best = min(makespan(list(order), ops, times) for order in permutations(times))
        assert makespan(tac_order(ops, times), ops, times) == best


times = st.floats(0, 1, allow_nan=False)


@given(layers=st.lists(st.tuples(times, times), min_size=1, max_size=20))
def test_on_a_chain_both_give_the_order_of_the_forward_whatever_the_times(layers: list[tuple[float, float]]) -> None:
    ops = chain([forward_s for forward_s, _ in layers])
    transfers_s = {f"{i}": transfer_s for i, (_, transfer_s) in enumerate(layers)}
    assert tac_order(ops, transfers_s) == tic_order(ops, list(transfers_s)) == list(transfers_s)


@pytest.mark.parametrize("variant", ["tac", "tic"])
def test_once_bound_what_the_forward_needs_first_is_picked_and_before_that_the_first(variant: str) -> None:
    unbound = TicTac(variant=variant)
    messages = [Message(i, (segment,)) for i, segment in enumerate(segments_of([3, 1, 4, 1]))]
    assert unbound.pick(messages, (), 0.0) == messages[0]
    bound = unbound.bind(Costs(1e-3, 1e-9, (0.1, 0.1, 0.0, 0.1), (0.1, 0.0, 0.1, 0.1)))
    assert bound.pick(messages, (), 0.0) == messages[3]
    assert bound.pick(messages[:2], (), 0.0) == messages[1]
    assert dataclasses.replace(bound, ranks=()) == unbound


def test_texts_choose_the_variant_and_nothing_unknown() -> None:
    assert parse_strategy("unfused+tictac(variant='tic')").ordering == TicTac(variant="tic")
    with pytest.raises(TextError, match="tactic"):
        parse_strategy("tictac(variant='tactic')")
    with pytest.raises(TextError, match="no parameter 'ranks'"):
        parse_strategy("tictac(ranks=(1, 2))")
