"""The virtual clock: closed forms, laws, and that it asks the same objects as the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines.api import Card, Message, Primitive, Segment, Slot
from baselines.strategy import parse_strategy
from crossover.simulator.fluid import Agenda, Fluid
from harness.engine.traffic import Planned
from harness.engine.transport import Done
from harness.predict.bounds import bounds
from harness.predict.clock import carry, run_until
from harness.predict.costs import (
    Cost,
    EngineCosts,
    LinkCosts,
    PredictError,
    given_costs,
    hop_of,
    ring_theory,
    serialised,
)
from harness.predict.demand import Demand, Demands
from harness.predict.layers import Layers, layers_of, plain_layers
from harness.predict.step import predict_exchange_s, predict_step, predict_workers
from harness.predict.worker import Medium, Worker, run_workers
from models.layer_profile import load_profile

ONE_LANE = "unfused+fifo(depth=1)"
BYTE_S = 1e-6


def costs(alpha_s: float, beta_s_per_byte: float, *, world: int = 4, **others: object) -> LinkCosts:
    """All-reduce takes exactly α + β·n."""
    primitives = {"AllReduce": Cost(alpha_s, beta_s_per_byte)}
    return LinkCosts(world=world, primitives=primitives, **others)  # type: ignore[arg-type]


def small(*numels: int) -> Layers:
    return plain_layers([1.0] * len(numels), [2.0] * len(numels), numels)


# ---- closed forms


@pytest.mark.parametrize(
    ("exchange", "world", "expected_bits"),
    [("", 8, 2 * 7 / 8), ("", 64, 2 * 63 / 64), ("+parameter-server(servers=1)", 9, 1.0)],
)
def test_a_reply_of_servers_is_as_small_as_their_parts(exchange: str, world: int, expected_bits: float) -> None:
    """A bit per element goes to the servers but for the own part, and each part goes to all others; of a server of its
    own rank 0, a worker, sends the first alone."""
    numel, link = 64 * 15 * 9 * 1000, given_costs(world, alpha_s=1e-5, beta_s_per_byte=1e-9)
    message = Message(0, (Segment("w", (numel,), 0, numel, 0),))
    for code in ("onebit(per='tensor')+double-squeeze", "onebit-adam(warmup_steps=1)+frozen-adam(freeze_after=1)"):
        demand = Demands(parse_strategy(f"single-bucket+{code}{exchange}"), link).of(message)
        assert 8 * demand.sent_bytes / numel == pytest.approx(expected_bits, rel=0.01)


def test_without_overlap_a_step_is_computation_and_one_message() -> None:
    layers, link = small(100, 200, 300), costs(0.5, 0.01)
    step = predict_step(layers, parse_strategy("single-bucket"), link)
    assert step.step_s == pytest.approx(9.0 + 0.5 + 0.01 * 4 * 600)
    assert step.exposed_s == pytest.approx(step.communication_s) == pytest.approx(24.5)
    assert (step.num_messages, step.compute_s) == (1, pytest.approx(9.0))
    assert step.wire_bytes == {"gradient": pytest.approx(2 * 3 / 4 * 2400), "framing": 4 * 3 * 144}


def test_of_a_single_layer_everything_is_exposed() -> None:
    step = predict_step(small(100), parse_strategy("unfused+at-pre-hook"), costs(0.5, 0.01))
    assert step.step_s == pytest.approx(3.0 + 0.5 + 4.0)


@pytest.mark.parametrize("text", ["unfused", "fixed-buckets", "tensor-fusion(cycle_s=0)", "unfused+at-pre-hook"])
def test_one_worker_and_an_infinitely_fast_link_leave_the_computation(text: str) -> None:
    layers = small(100, 200, 300)
    for link in (given_costs(1, alpha_s=1.0, beta_s_per_byte=1.0), costs(0.0, 0.0)):
        assert predict_step(layers, parse_strategy(text), link).step_s == pytest.approx(
            layers.forward_s + 6.0, abs=1e-6
        )


def test_without_start_up_unfused_sends_as_the_recurrence_of_mg_wfbp_says() -> None:
    """τ_c[l] = max(τ_c[l+1] + t_c[l+1], τ_b[l] + t_b[l]), layers in reverse."""
    numels, backward_s = (500, 10, 900, 40), (1.0, 3.0, 0.5, 2.0)
    link = costs(0.0, 1e-3)
    end_s = ready_s = 0.0
    for numel, own_s in zip(reversed(numels), reversed(backward_s), strict=True):
        ready_s += own_s
        end_s = max(end_s, ready_s) + 4e-3 * numel
    layers = plain_layers([0.25] * 4, backward_s, numels)
    step = predict_step(layers, parse_strategy(ONE_LANE), link)
    assert step.step_s == pytest.approx(end_s + 1.0)


def test_cross_iteration_overlap_reaches_the_larger_of_computation_and_communication() -> None:
    """Many small layers in the best order: the period is max(c, m) but for the first and the last one."""
    num = 50
    layers = plain_layers([1.0] * num, [2.0] * num, [100] * num)
    for beta in (1e-3, 4e-3, 1e-2):  # m of 20, 80 and 200 s beside 150 s
        m = beta * 4 * 100 * num
        eager = predict_step(layers, parse_strategy(f"{ONE_LANE}+at-pre-hook"), costs(0.0, beta)).step_s
        late = predict_step(layers, parse_strategy(ONE_LANE), costs(0.0, beta)).step_s
        assert max(150.0, m) <= eager <= late + 1e-9
        assert late == pytest.approx(50.0 + max(100.0 + m / num, m + 2.0))


def test_the_engine_is_paid_on_every_message_and_hidden_behind_a_second_lane() -> None:
    layers = plain_layers([0.0] * 40, [0.0] * 40, [1] * 40)
    link = costs(1.0, 0.0, engine=EngineCosts(message_s=0.25, wake_s=0.125))
    alone = predict_exchange_s(layers, parse_strategy(ONE_LANE), link)
    assert alone == pytest.approx(40 * 1.25 + 2 * 0.125)
    beside = predict_exchange_s(layers, parse_strategy("unfused"), link)
    assert 20 * 1.25 <= beside < 0.55 * alone


@pytest.mark.parametrize(("occupied", "overlap", "seconds"), [(0.0, 1.0, 4.0), (0.0, 0.0, 5.0), (1.0, 1.0, 6.0)])
def test_two_lanes_share_bytes_and_what_of_the_start_up_is_link_time(
    occupied: float, overlap: float, seconds: float
) -> None:
    """Two messages at once of α = 1 and β·n = 2: max(2w, a + w); a + 2w; 2(a + w)."""
    layers = plain_layers([0.0] * 2, [0.0] * 2, [5, 5])
    link = costs(1.0, 0.1, occupied=occupied, overlap=overlap)
    assert predict_exchange_s(layers, parse_strategy("unfused"), link) == pytest.approx(seconds)


def test_sums_that_queue_up_follow_each_other_in_the_link() -> None:
    """Three messages at once of α = 1 and β·n = 2, 4, 6: each has the link to itself, and none waits between."""
    layers = plain_layers([0.0] * 3, [0.0] * 3, [15, 10, 5])
    link = dataclasses.replace(serialised(costs(1.0, 0.1)), gap_s=100.0, queues=True)
    landed_s = [
        predict_exchange_s(layers, parse_strategy(f"unfused+{name}"), link) for name in ("fifo", "fifo(depth=1)")
    ]
    assert landed_s == pytest.approx([15.0, 315.0])


@pytest.mark.parametrize(
    ("exchange", "num_gaps", "num_rounds"),
    [("all-reduce", 0, 14), ("all-gather", 1, 7), ("parameter-server", 2, 14), ("ring", 14, 14)],
)
def test_a_gap_is_as_long_before_any_primitive_and_takes_no_link(exchange: str, num_gaps: int, num_rounds: int) -> None:
    """Two messages at once among eight ranks: they wait side by side, and their rounds share the link. Plain sums queue
    up in the library and have no gap."""
    layers = plain_layers([0.0] * 2, [0.0] * 2, [8, 8])
    alone = serialised(given_costs(8, alpha_s=20e-6, beta_s_per_byte=0.0))
    link = dataclasses.replace(alone, gap_s=300e-6, queues=True)
    expected_s = num_gaps * 300e-6 + 2 * num_rounds * 20e-6
    assert predict_exchange_s(layers, parse_strategy(f"unfused+{exchange}"), link) == pytest.approx(expected_s)


def test_a_gap_comes_before_each_round_of_control_too() -> None:
    """A gather takes one round among eight ranks, a broadcast three and the message 14, each behind its gap."""
    link = dataclasses.replace(serialised(given_costs(8, alpha_s=20e-6, beta_s_per_byte=0.0)), gap_s=300e-6)
    found_s = predict_exchange_s(plain_layers([0.0], [0.0], [8]), parse_strategy("tensor-fusion(cycle_s=0)"), link)
    assert found_s == pytest.approx(3 * 300e-6 + 18 * 20e-6, rel=1e-3)


def test_computation_is_slowed_while_messages_travel_and_only_then() -> None:
    """8 s of messages in a step of backward 6 s: one of 2 s after the first layer and so on."""
    layers, strategy = small(50, 50, 50), parse_strategy(ONE_LANE)
    link = costs(0.0, 1e-2)  # 2 s each, ready at 2, 4 and 6
    assert predict_step(layers, strategy, link).step_s == pytest.approx(11.0)
    slowed = predict_step(layers, strategy, link, slowdown=0.5)
    # ready at 2; 2 s beside a message do 4/3 s of work, then 2/3 alone: 4⅔; again: 7⅓; 9⅓ when it is through
    assert slowed.step_s == pytest.approx(9 + 1 / 3 + 3)


# ---- negotiated


def test_a_negotiation_costs_its_rounds_and_fuses_what_is_ready_meanwhile() -> None:
    layers = plain_layers([1e-3] * 20, [1e-3] * 20, [1000] * 20)
    link = costs(5e-4, 1e-7)
    fused = predict_step(layers, parse_strategy("tensor-fusion(cycle_s=0.005)"), link)
    static = predict_step(layers, parse_strategy("unfused"), link)
    assert 1 < fused.num_messages < 20
    assert fused.wire_bytes["control"] > 0
    assert "control" not in static.wire_bytes
    assert fused.wire_bytes["gradient"] == pytest.approx(static.wire_bytes["gradient"])
    slow = {**link.primitives, "Gather": Cost(0.2, 0.0), "Broadcast": Cost(0.2, 0.0)}
    held_up = predict_step(
        layers, parse_strategy("tensor-fusion(cycle_s=0.005)"), dataclasses.replace(link, primitives=slow)
    )
    assert held_up.step_s >= fused.step_s + 0.35


@dataclasses.dataclass(frozen=True, slots=True)
class LargestFirst:
    """An order that is asked, not planned."""

    card = Card(name="largest-first", slot=Slot.ORDERING, summary="", paper="")
    rank_invariant = False
    depth: int = 1

    def pick(self, pending: Sequence[Message], in_flight: Sequence[Message], now_s: float) -> Message | None:
        free = len(in_flight) < self.depth and pending
        return max(pending, key=lambda message: message.nbytes) if free else None


class NotingMedium(Medium):
    """Notes the link time of each message in the order in which they start."""

    def __init__(self, clock: Agenda, costs: LinkCosts) -> None:
        super().__init__(clock, costs)
        self.seconds: list[float] = []

    def start(self, rank: int, lane: int, primitive: Primitive | Planned, done: Done) -> None:
        if isinstance(primitive, Demand):
            self.seconds.append(primitive.bytes_s)
        super().start(rank, lane, primitive, done)


def test_an_ordering_is_asked_on_the_virtual_clock_as_in_a_run() -> None:
    strategy = dataclasses.replace(parse_strategy("unfused+at-pre-hook"), ordering=LargestFirst())
    medium = NotingMedium(Agenda(), costs(0.0, 1e-3))
    worker = Worker(medium, plain_layers([0.0] * 4, [0.0] * 4, [1, 4, 2, 3]), strategy)
    worker.exchange(1)
    run_workers([worker], 2)
    assert medium.seconds == pytest.approx([16e-3, 12e-3, 8e-3, 4e-3])


# ---- demands


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("exchange", ["all-gather", "ring", "tree"])
def test_an_exchange_costs_what_its_primitives_cost(exchange: str, world: int) -> None:
    hop, numel = Cost(0.01, 1e-5), 840 * 8
    step = predict_step(
        small(numel), parse_strategy(f"unfused+{exchange}"), given_costs(world, alpha_s=0.01, beta_s_per_byte=1e-5)
    )
    rounds = {2: 1, 4: 2, 8: 3}[world]
    expected = {
        "all-gather": ring_theory("AllGather", world, hop).seconds(4 * numel),
        "ring": ring_theory("AllReduce", world, hop).seconds(4 * numel),
        "tree": 2 * rounds * hop.seconds(4 * numel),
    }[exchange]
    assert step.step_s == pytest.approx(3.0 + expected)


def test_compressed_messages_carry_what_the_compressor_asks_for() -> None:
    layers, link = small(1000), costs(0.0, 1e-6)
    plain, half, top = (
        predict_step(layers, parse_strategy(f"unfused+{name}"), link)
        for name in ("uncompressed", "half", "topk(density=0.01)+error-feedback")
    )
    assert half.wire_bytes["gradient"] == pytest.approx(plain.wire_bytes["gradient"] / 2)
    assert half.exposed_s == pytest.approx(plain.exposed_s / 2)
    compression = parse_strategy("topk(density=0.01)").compression
    assert top.wire_bytes["gradient"] == pytest.approx(3 * compression.wire_bytes(1000, 4), rel=0.05)


def test_a_hop_from_an_all_reduce_gives_the_all_reduce_back() -> None:
    hop = Cost(1e-4, 4e-8)
    assert hop_of(ring_theory("AllReduce", 8, hop), 8).seconds(1000) == pytest.approx(hop.seconds(1000))


# ---- the link


@given(
    works=st.lists(
        st.tuples(st.floats(0, 2), st.floats(0, 2), st.floats(0, 2), st.floats(0, 3)), min_size=1, max_size=6
    )
)
def test_no_message_beats_its_own_time_and_the_link_is_never_used_twice(
    works: list[tuple[float, float, float, float]],
) -> None:
    """Each ends no sooner than alone, and all no later than one after the other."""
    clock, ends = Agenda(), dict[int, float]()
    link = Fluid(clock)
    for number, (wait_s, spread_s, link_s, start_s) in enumerate(works):
        done = lambda number=number: ends.__setitem__(number, clock.now_s)  # noqa: E731
        phases = (wait_s, spread_s, link_s)
        clock.after(start_s, lambda phases=phases, done=done: carry(clock, link, phases, done))
    assert run_until(clock, lambda: len(ends) == len(works))
    for number, (wait_s, spread_s, link_s, start_s) in enumerate(works):
        assert ends[number] >= start_s + wait_s + spread_s + link_s - 1e-9
    assert max(ends.values()) >= min(work[3] for work in works) + sum(work[2] for work in works) - 1e-9
    last_start_s = max(start for *_, start in works)
    assert max(ends.values()) <= last_start_s + sum(sum(work[:3]) for work in works) + 1e-9


# ---- bounds


def test_no_step_beats_its_bounds() -> None:
    layers, link = small(10, 20, 30), costs(1.0, 0.25)
    for text in (ONE_LANE, f"{ONE_LANE}+at-pre-hook"):
        strategy = parse_strategy(text)
        assert predict_step(layers, strategy, link).step_s >= bounds(layers, strategy, link).step_s - 1e-9


# ---- workers that differ


@pytest.mark.parametrize("text", ["unfused", "tensor-fusion", "unfused+at-pre-hook", "slices(slice_elements=50)+p3"])
def test_equal_workers_take_what_the_one_that_stands_for_all_takes(text: str) -> None:
    layers, link, strategy = small(100, 200, 300), costs(0.5, 0.001), parse_strategy(text)
    alone = predict_step(layers, strategy, link)
    for own in predict_workers([layers] * 3, strategy, link):
        assert own.step_s == pytest.approx(alone.step_s)
        assert own.num_messages == alone.num_messages


@pytest.mark.parametrize("text", ["unfused", "tensor-fusion"])
def test_all_wait_for_a_straggler(text: str) -> None:
    fast, slow = small(100, 200, 300), plain_layers([2.0] * 3, [4.0] * 3, (100, 200, 300))
    link, strategy = costs(0.5, 0.001), parse_strategy(text)
    steps = predict_workers([fast, slow, fast], strategy, link)
    alone = predict_step(slow, strategy, link)
    assert [own.step_s for own in steps] == pytest.approx([alone.step_s] * 3)
    # what the fast ones compute less, they wait longer
    assert steps[0].exposed_s == pytest.approx(alone.exposed_s + slow.forward_s + slow.backward_s - 9.0)


# ---- profiles and errors


def test_layers_of_a_profile_are_those_that_replay_plays() -> None:
    from models.workload import Device, WorkloadSpec, open_workload

    workload = open_workload(WorkloadSpec(network="resnet50", device=Device.REPLAY, size_scale=400, batch_size=1))
    model = workload.build_model(0)
    seen: list[int] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.numel()))
    workload.loss(model, next(workload.batches(0, 1, 0))).backward()
    layers = layers_of(load_profile("resnet50-v100"), size_scale=400)
    assert [segment.numel for segment in layers.segments] == seen


def test_known_costs_tell_planners_all_of_backward_and_forward() -> None:
    layers = plain_layers([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [10, 0, 20, 30])
    known = layers.costs(0.1, 0.2)
    assert known.backward_s == (8.0, 7.0, 11.0)
    assert known.forward_s == (4.0, 3.0, 3.0)
    assert known.message_s(10) == pytest.approx(2.1)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: given_costs(0, alpha_s=0.1, beta_s_per_byte=0.1), "world is 0"),
        (lambda: given_costs(2, alpha_s=-1.0, beta_s_per_byte=0.1), "α is -"),
        (lambda: ring_theory("Teleport", 2, Cost(0.0, 0.0)), "Teleport"),
        (lambda: predict_step(small(0, 0), parse_strategy("unfused"), costs(0.0, 0.0)), "no parameters"),
        (lambda: predict_step(small(1), parse_strategy("unfused"), costs(0.0, 0.0), slowdown=-1), "slowdown is -1"),
        (lambda: plain_layers([1.0], [1.0, 2.0], [3]), "1 forward times, 2 backward"),
    ],
)
def test_bad_input_is_told_with_its_value(action: object, words: str) -> None:
    with pytest.raises(PredictError, match=words):
        action()  # type: ignore[operator]
