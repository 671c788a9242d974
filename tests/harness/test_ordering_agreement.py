"""Orderings in which messages overtake: ranks agree, credit holds, rounds are hidden, weights are those of FIFO."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

import pytest
import torch
import torch.distributed as dist
from engine_threads import SharedRoom
from forked_ranks import forked
from hypothesis import given, settings
from hypothesis import strategies as st
from micro_batch_ranks import weights_of
from rooms_of_one import engine_alone
from simulated_ranks import TimedStep, negotiate, segments
from tiny_models import Awkward, awkward, loss_at, random_arrivals
from torch import Tensor, nn
from torch.nn import functional

from baselines.api import Costs, Message, NeedsCosts, Segment
from baselines.strategy import Strategy, parse_strategy
from harness.engine.dispatch import Coordinator
from harness.engine.engine import Engine
from harness.engine.transport import ProcessGroupTransport
from harness.lockstep.collectives import Room
from harness.lockstep.ranks import Lockstep, replicas
from harness.systems.ours import EagerSession, EngineSession
from harness.trace import Recorder

ORDERINGS = ["p3", "p3(depth=1)", "bytescheduler(credit_bytes=100)", "bytescheduler", "tictac", "tictac(variant='tic')"]
PACKINGS = ["slices(slice_elements=3)", "unfused", "fixed-buckets(first_bucket_bytes=20, bucket_bytes=60)"]
SLICE_BYTES = 3 * 4


def bound(text: str, num: int) -> Strategy:
    """As after the engine has measured costs."""
    strategy = parse_strategy(text)
    if isinstance(strategy.ordering, NeedsCosts):
        costs = Costs(1e-4, 1e-9, (1e-3,) * num, (1e-3,) * num)
        return dataclasses.replace(strategy, ordering=strategy.ordering.bind(costs))
    return strategy


@pytest.mark.parametrize("packing", [*PACKINGS, "tensor-fusion(threshold_bytes=60)"])
@pytest.mark.parametrize("ordering", ORDERINGS)
@settings(max_examples=12)
@given(world=st.integers(2, 4), num=st.integers(1, 10), seed=st.integers(0, 9999))
def test_ranks_send_the_same_messages_in_the_same_order(
    packing: str, ordering: str, world: int, num: int, seed: int
) -> None:
    strategy = bound(f"{packing}+{ordering}", num)
    ranks = negotiate(strategy, segments(num), world, random.Random(seed))
    for rank in ranks:
        assert rank.sent == ranks[0].sent
        assert [message.index for message in rank.sent] == list(range(len(rank.sent)))
    elements = sorted(
        (s.index, e) for message in ranks[0].sent for s in message.segments for e in range(s.start, s.stop)
    )
    assert elements == [(s.index, e) for s in segments(num) for e in range(s.numel)]


@settings(max_examples=60)
@given(world=st.integers(1, 4), num=st.integers(1, 12), credit=st.integers(1, 200), seed=st.integers(0, 9999))
def test_no_more_than_credit_and_one_partition_is_in_flight(world: int, num: int, credit: int, seed: int) -> None:
    strategy = parse_strategy(f"slices(slice_elements=3)+bytescheduler(credit_bytes={credit}, depth=50)")
    for rank in negotiate(strategy, segments(num), world, random.Random(seed)):
        assert rank.most_bytes_in_flight < credit + SLICE_BYTES


@settings(max_examples=60)
@given(num=st.integers(2, 12), credit=st.integers(1, 200), seed=st.integers(0, 9999))
def test_credit_bounds_what_is_decided_while_more_can_become_ready(num: int, credit: int, seed: int) -> None:
    """The last gradient never comes, so urgent messages may still come."""
    strategy = parse_strategy(f"slices(slice_elements=3)+bytescheduler(credit_bytes={credit})")
    coordinator = Coordinator(strategy.packing, strategy.ordering, segments(num))
    order = random.Random(seed).sample(range(num), num - 1)
    decided: list[Message] = []
    for upto in range(1, num):
        decided += coordinator.decide(order[:upto], decided, 0.0)
        outstanding = sum(message.nbytes for message in decided)
        assert outstanding < credit + SLICE_BYTES
        assert outstanding >= credit or not coordinator.has_waiting


@given(num=st.integers(1, 12), seed=st.integers(0, 9999))
def test_infinite_credit_without_partitions_is_first_in_first_out(num: int, seed: int) -> None:
    strategy = parse_strategy(f"unfused+bytescheduler(credit_bytes={2**62})")
    coordinator = Coordinator(strategy.packing, strategy.ordering, segments(num))
    order = random.Random(seed).sample(range(num), num)
    decided: list[Message] = []
    for upto in range(1, num + 1):
        decided += coordinator.decide(order[:upto], decided, 0.0)
    assert [message.segments[0].index for message in decided] == order


def test_credit_and_partition_change_what_is_sent() -> None:
    def sent(slice_elements: int, credit_bytes: int) -> list[Message]:
        text = f"slices(slice_elements={slice_elements})+bytescheduler(credit_bytes={credit_bytes})"
        return negotiate(parse_strategy(text), segments(12), 2, random.Random(5))[0].sent

    assert len(sent(3, 20)) > len(sent(12, 20)) == 12
    assert sent(3, 20) != sent(3, 2000)


@pytest.mark.parametrize("ordering", ["p3", "bytescheduler(credit_bytes=30)", "tictac"])
@given(num=st.integers(1, 10), slice_elements=st.integers(1, 20), seed=st.integers(0, 9999))
def test_of_what_is_ready_the_most_urgent_goes_next_and_equals_keep_their_order(
    ordering: str, num: int, slice_elements: int, seed: int
) -> None:
    """Against the plainest model: a list that is searched through for every message."""
    dice = random.Random(seed)
    strategy = bound(f"slices(slice_elements={slice_elements})+{ordering}", num)
    coordinator = Coordinator(strategy.packing, strategy.ordering, segments(num))
    plan = [Message(i, group) for i, group in enumerate(strategy.packing.pack(segments(num)).groups)]
    ready: list[int] = []
    pending: list[Message] = []
    for index in dice.sample(range(num), num):
        ready.append(index)
        pending += [message for message in plan if message.segments[0].index == index]
        flying = [Message(9999, segments(num))][: dice.randrange(2)]
        for message in coordinator.decide(ready, flying, 0.0):
            urgent = max(pending, key=lambda m: (m.segments[0].index, -m.index))
            assert message == urgent
            pending.remove(urgent)
    assert not pending


READY_S = [[1e-4 * (1 + i) + 1e-5 * rank for i in range(59)] + [30e-3] for rank in range(2)]


def overtaking(strategy: Strategy, *, hop_s: float, num_steps: int = 4) -> tuple[TimedStep, int]:
    """A backward that makes gradients faster than the link carries them, 60 messages of 1 ms, the last gradient late;
    after some steps in which rank 0 learns what to decide ahead. Also: the last parameter's message."""
    layout = tuple(Segment(f"p{i}", (100,), 0, 100, i) for i in range(60))
    step = None
    for _ in range(num_steps):
        step = TimedStep(strategy, layout, READY_S, hop_s=hop_s, message_s=lambda _: 1e-3, before=step).run()
    assert step is not None
    last = next(message.index for message in step.ranks[0].sent if message.segments[0].index == 59)
    return step, last


@pytest.mark.parametrize("hop_s", [1e-5, 0.5e-3, 1.5e-3, 4e-3])
@pytest.mark.parametrize("ordering", ["p3", "tictac", "bytescheduler(credit_bytes=6000)"])
def test_the_link_does_not_wait_for_control_rounds(ordering: str, hop_s: float) -> None:
    """60 ms of messages. The first window holds no more than was ready as its round began, so what the second round
    takes longer than that is waited for once. 6,000 bytes of credit are 15 messages, more than start in a round."""
    step, _ = overtaking(bound(f"unfused+{ordering}", 60), hop_s=hop_s)
    first_sent_s = min(step.sent_s.values())
    num_first = sum(time_s < first_sent_s - 2 * hop_s + 1e-8 for time_s in READY_S[1])
    waited_s = max(0.0, 2 * hop_s - num_first * 1e-3)
    assert max(step.landed_s.values()) - first_sent_s - waited_s == pytest.approx(60e-3, rel=0.01)


@pytest.mark.parametrize("hop_s", [1e-5, 0.5e-3, 1.5e-3])
def test_what_is_urgent_waits_for_a_round_and_what_was_decided_for_it(hop_s: float) -> None:
    """FIFO sends it last, after 60 ms. Here it is ready after 30: then one round under way and one of its own, what is
    decided for a round (a quarter more), two messages in flight and one more."""
    step, last = overtaking(parse_strategy("unfused+p3"), hop_s=hop_s)
    assert step.sent_s[last] - 30e-3 <= 2 * (2 * hop_s) + 1.25 * 2 * hop_s + 4e-3
    assert step.ranks[0].sent[-1].segments[0].index == 0


def test_rounds_are_fewer_than_messages() -> None:
    """A round of 3 ms decides three messages at a time, and the last one all that remain."""
    step, _ = overtaking(parse_strategy("unfused+p3"), hop_s=1.5e-3)
    assert 5 <= step.ranks[0].traffic.num_control_rounds <= 16
    step, _ = overtaking(parse_strategy("unfused+p3"), hop_s=1e-5)
    assert step.ranks[0].traffic.num_control_rounds <= 60


UPDATES = ["after-all", "at-pre-hook"]


@pytest.mark.parametrize(
    ("ordering", "world", "update"),  # every two of them together
    [
        (ordering, world, UPDATES[(number + world) % 2])
        for number, ordering in enumerate(["p3", "bytescheduler(credit_bytes=100)", "tictac"])
        for world in (2, 3, 4)
    ],
)
def test_weights_are_those_of_fifo_whatever_becomes_ready_first(ordering: str, world: int, update: str) -> None:
    """Bit for bit, since an element's sum does not depend on when its message goes. A tied weight, a layer used twice
    and an unused parameter are in the model; every rank sees another order."""
    models = []
    for text in (f"slices(slice_elements=4)+{ordering}+{update}", "slices(slice_elements=4)+fifo"):
        ranks = Lockstep(replicas(awkward(), world), parse_strategy(text))
        for step in range(4):
            ranks.step(loss_at(step), arrivals=random_arrivals(ranks, seed=step) if ordering in text else None)
        models.append(ranks.models[0])
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


def train_with_engine(model: Awkward, strategy: Strategy, room: Room, rank: int) -> int:
    """One rank's steps as the loop makes them, some late; the number of control rounds."""
    engine = Engine(model, strategy, room.seat(rank), recorder=Recorder(), seed=7)
    session_of = EagerSession if "at-pre-hook" in strategy.text else EngineSession
    session = session_of(model, strategy.optimizer, engine)
    for step in range(6):
        session.wait()
        session.update()
        loss = loss_at(step)(rank, model)
        sleep(0.002 * ((step + rank) % 3))
        session.backward(loss)
    session.finish()
    engine.close()
    return engine.traffic.num_control_rounds


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("ordering", ["p3", "bytescheduler(credit_bytes=40)", "tictac"])
def test_engines_with_threads_train_as_lockstep_does(ordering: str, update: str) -> None:
    """Bit for bit, on two ranks."""
    strategy, room = parse_strategy(f"slices(slice_elements=4)+{ordering}+{update}"), SharedRoom(2)
    exact = Lockstep(replicas(awkward(), 2), parse_strategy("slices(slice_elements=4)+fifo"), seed=7)
    for step in range(6):
        exact.step(loss_at(step))
    models: Sequence[Awkward] = replicas(awkward(), 2)  # type: ignore[assignment]
    with ThreadPoolExecutor(2) as threads:
        rounds = list(threads.map(lambda rank: train_with_engine(models[rank], strategy, room, rank), range(2)))
    for model in models:
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, exact.models[0].get_parameter(name)), name
    assert rounds[0] == rounds[1] > 0


class PartsUsedByFunctions(nn.Module):
    """Of its modules only the last one's forward is called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.inner, self.last = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, places: Tensor) -> Tensor:
        found = torch.tanh(functional.embedding(places, self.table.weight))
        out: Tensor = self.last(functional.linear(found, self.inner.weight, self.inner.bias))
        return out


def test_a_module_whose_forward_is_not_called_is_updated_before_the_models() -> None:
    model, plain = PartsUsedByFunctions(), PartsUsedByFunctions()
    engine = engine_alone(model, "unfused+at-pre-hook+sgd(lr=0.5)")
    session = EagerSession(model, engine.strategy.optimizer, engine)
    optimizer = engine.strategy.optimizer.build(plain.named_parameters())
    for _ in range(4):
        session.wait()
        session.update()
        session.backward(model(torch.arange(5)).square().mean())
        plain(torch.arange(5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    session.finish()
    session.close()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_processes_that_see_gradients_at_different_times_end_with_the_same_weights(tmp_path: Path) -> None:
    """Three ranks on gloo. A disagreement on the order would add up other elements, or hang."""
    texts = [f"slices(slice_elements=4)+{o}+at-pre-hook" for o in ("p3", "bytescheduler(credit_bytes=60)")]
    world = 3

    def trained(text: str, rank: int) -> tuple[list[float], int, int]:
        model, strategy, dice = awkward(), parse_strategy(text), random.Random(rank)
        engine = Engine(model, strategy, ProcessGroupTransport.of(strategy), recorder=Recorder())
        session = EagerSession(model, strategy.optimizer, engine)
        for parameter in model.parameters():  # gradients become ready at times of their own on each rank
            parameter.register_hook(lambda grad: sleep(dice.random() * 2e-3))
        for step in range(6):
            session.wait()
            session.update()
            session.backward(loss_at(step)(rank, model))
        session.finish()
        dist.barrier()  # nobody leaves while another one still sends
        engine.close()
        return weights_of(model), engine.traffic.num_messages, engine.traffic.num_control_rounds

    def run(rank: int) -> list[tuple[list[float], int, int]]:
        store = dist.FileStore(str(tmp_path / "store"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        return [trained(text, rank) for text in texts]

    codes, told = zip(*forked(run, world), strict=True)
    assert codes == (0,) * world
    exact = Lockstep(replicas(awkward(), world), parse_strategy("slices(slice_elements=4)+fifo"))
    for step in range(6):
        exact.step(loss_at(step))
    for of_ranks in zip(*told, strict=True):
        assert of_ranks == (of_ranks[0],) * world
        _, num_messages, num_rounds = of_ranks[0]
        assert num_messages == exact.traffic.num_messages
        assert num_rounds > 0
