"""Trees, hierarchies and parameter servers train as synchronous SGD does: on virtual ranks, threads and processes."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from engine_threads import NUM_STEPS, SharedRoom, train_with_engine
from lab_tasks import digest, done, spec_of, task
from tiny_models import averaged_sgd, awkward, loss_at, random_arrivals
from torch import nn

from baselines.api import Aggregate, ExchangeRun, Message, Segment, Serve
from baselines.exchange.parameter_server import ParameterServer
from baselines.exchange.ring import Ring
from baselines.strategy import parse_strategy
from crossover import Sharing
from fabric.api import FabricKind, FabricSpec
from harness.checks.trial import check
from harness.engine.shards import Adopt, ServingError, Shards, pieces_of
from harness.lab.labs import Labs
from harness.lab.messages import Task
from harness.lockstep.ranks import Lockstep, replicas
from harness.outcome import Background, record_of
from harness.trial import Job, Trial, TrialError
from models.workload import WorkloadSpec
from results.record import Environment, Status

WRITTEN_OUT = (
    "tree",
    "hierarchical",
    "parameter-server",
    "parameter-server(update='server')",
    "parameter-server(update='server')+adam",
    "parameter-server(update='server')+at-pre-hook",
    "parameter-server+fixed-buckets+half",
)
AMONG_VIRTUAL = FabricSpec(kind=FabricKind.PACED, num_hosts=1, num_virtual=4, rate_bps=1e9)
NUM_ELEMENTS = sum(p.numel() for p in awkward().parameters())


def trained(text: str, world: int, num_steps: int = NUM_STEPS) -> Lockstep:
    """Gradients become ready in another order on every rank, and another one every step."""
    ranks = Lockstep(replicas(awkward(), world), parse_strategy(text), seed=7)
    for step in range(num_steps):
        ranks.step(loss_at(step), arrivals=random_arrivals(ranks, seed=step))
    return ranks


def plain(text: str, world: int) -> nn.Module:
    """Synchronous SGD by hand, with the optimizer of `text`."""
    models = replicas(awkward(), world)
    optimizers = [parse_strategy(text).optimizer.build(model.parameters()) for model in models]
    for step in range(NUM_STEPS):
        averaged_sgd(models, optimizers, step)
    return models[0]


def assert_same(one: nn.Module, other: nn.Module, world: int) -> None:
    """Bit for bit up to 2 ranks; beyond, sums of another order round otherwise, which Adam's root magnifies."""
    for name, parameter in one.named_parameters():
        if world <= 2:
            assert torch.equal(parameter, other.get_parameter(name)), name
        else:
            torch.testing.assert_close(parameter, other.get_parameter(name), rtol=1e-4, atol=2e-5)


# ---- one process


@pytest.mark.parametrize(
    ("text", "packing", "world"),
    [
        (text, ("unfused", "fixed-buckets")[(number + world) % 2], world)
        for number, text in enumerate(text for text in WRITTEN_OUT if "half" not in text)
        for world in range(1, 5)
    ],
)
def test_every_exchange_trains_as_synchronous_sgd(text: str, packing: str, world: int) -> None:
    ranks = trained(f"{packing}+{text}", world)
    for model in ranks.models:
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, ranks.models[0].get_parameter(name)), f"{name} differs over ranks"
    assert_same(ranks.models[0], plain(text, world), world)


@pytest.mark.parametrize("packing", ["unfused", "fixed-buckets", "tensor-fusion"])
def test_four_ranks_on_two_hosts_train_as_synchronous_sgd(packing: str) -> None:
    assert_same(trained(f"{packing}+hierarchical(ranks_per_host=2)", 4).models[0], plain(packing, 4), 4)


@pytest.mark.parametrize("update", ["worker", "server"])
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_dedicated_servers_leave_the_workers_their_result(workers: int, servers: int, update: str) -> None:
    """Bit for bit what the workers alone get from colocated servers: the same sums in the same order."""
    text = f"parameter-server(servers={servers}, update='{update}')"
    ranks, alone = trained(text, workers + servers), trained("parameter-server", workers)
    for model in ranks.models[:workers]:
        for name, parameter in alone.models[0].named_parameters():
            assert torch.equal(parameter, model.get_parameter(name)), name
    initial = awkward()
    for model in ranks.models[workers:]:
        assert all(torch.equal(p, initial.get_parameter(name)) for name, p in model.named_parameters())
    assert len(ranks.step(loss_at(0))) == workers


def test_dedicated_servers_go_with_negotiated_messages() -> None:
    ranks = trained("tensor-fusion+parameter-server(servers=1)", 3)
    assert_same(ranks.models[0], plain("unfused", 2), 2)
    assert ranks.traffic.wire_bytes["gradient"] == NUM_STEPS * 4 * NUM_ELEMENTS


@pytest.mark.parametrize(("world", "servers"), [(3, 0), (4, 0), (3, 1), (5, 3)])
def test_a_server_updates_once_a_version_and_keeps_its_part_alone(world: int, servers: int) -> None:
    ranks = trained(f"fixed-buckets+parameter-server(servers={servers}, update='server')", world)
    first = world - servers if servers else 0
    kept = [shards.num_elements for shards in ranks.shards]
    assert kept[:first] == [0] * first
    assert sum(kept) == NUM_ELEMENTS
    num_messages = ranks.traffic.num_messages // NUM_STEPS
    assert max(kept[first:]) - min(kept[first:]) <= num_messages  # within one element a message
    versions = {shard.version for shards in ranks.shards for shard in shards._shards.values()}
    assert versions == {NUM_STEPS}


P3 = "slices(slice_elements=4)+p3"
ORDERED = (P3, "slices(slice_elements=4)+bytescheduler(credit_bytes=32)", "unfused+tictac(variant='tic')")


@pytest.mark.parametrize(("servers", "update"), [(0, "worker"), (2, "server")])
@pytest.mark.parametrize("text", [*ORDERED, "unfused+tictac(variant='tac')"])
def test_orderings_over_servers_train_as_synchronous_sgd(text: str, servers: int, update: str) -> None:
    """Two workers, bit for bit: a sum of two does not depend on which server makes it, or when."""
    ranks = trained(f"{text}+at-pre-hook+parameter-server(servers={servers}, update='{update}')", 2 + servers)
    assert_same(ranks.models[0], plain("unfused", 2), 2)


def test_p3_serves_slices_round_robin_and_a_push_is_answered_with_the_updated_values() -> None:
    ranks = trained(f"{P3}+at-pre-hook+parameter-server(servers=2, update='server')", 4)
    worker = ranks.models[0]
    parameters = list(worker.named_parameters())[::-1]  # in ready order
    slices = [
        (name, start, min(start + 4, value.numel()))
        for name, value in parameters
        for start in range(0, value.numel(), 4)
    ]
    for place, server in enumerate(ranks.shards[2:]):
        assert set(server._shards) == {(own,) for own in slices[place::2]}
        for ((name, start, stop),), shard in server._shards.items():
            assert torch.equal(shard.values, worker.get_parameter(name).detach().reshape(-1)[start:stop])


@pytest.mark.parametrize("text", ORDERED)
def test_messages_go_to_servers_in_the_order_in_which_they_would_go_round_a_ring(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose laws `test_ordering_agreement` holds."""
    sent: dict[str, list[Message]] = {}
    for name, kind in (("ring", Ring), ("parameter-server", ParameterServer)):
        own, run = sent.setdefault(name, []), kind.run

        def noting(
            self: Any, aggregate: Aggregate, rank: int, world: int, own: Any = own, run: Any = run
        ) -> ExchangeRun:
            if rank == 0:
                own.append(aggregate.message)
            return run(self, aggregate, rank, world)

        monkeypatch.setattr(kind, "run", noting)
        trained(f"{text}+at-pre-hook+{name}", 2)
    assert sent["parameter-server"] == sent["ring"]
    step = [message.segments[0].index for message in sent["ring"]][: len(sent["ring"]) // NUM_STEPS]
    assert step != sorted(step)  # messages do overtake others


def test_momentum_lives_on_the_servers_alone() -> None:
    ranks = trained("parameter-server(servers=1, update='server')", 3)
    assert all(not optimizer.state for own in ranks._optimizers for optimizer in own.values())
    (server,) = (shards for shards in ranks.shards if shards.num_elements)
    states = [shard.optimizer.state[shard.values] for shard in server._shards.values()]
    assert sum(state["momentum_buffer"].numel() for state in states) == NUM_ELEMENTS


def test_pieces_are_the_elements_of_the_flattened_message() -> None:
    message = Message(0, (Segment("a", (10,), 2, 6, 0), Segment("b", (3,), 0, 3, 1)))
    assert pieces_of(message, 0, 7) == (("a", 2, 6), ("b", 0, 3))
    assert pieces_of(message, 1, 4) == (("a", 3, 6), ("b", 0, 1))
    assert pieces_of(message, 5, 2) == (("b", 1, 3),)
    assert pieces_of(message, 7, 0) == ()


def test_a_server_that_missed_a_version_says_so() -> None:
    shards = Shards({"a": torch.zeros(4)}, parse_strategy("sgd").optimizer)
    whole, half = Message(0, (Segment("a", (4,), 0, 4, 0),)), Message(0, (Segment("a", (4,), 0, 2, 0),))
    assert shards.step(whole, Serve(torch.ones(4), 0), 0).tolist() == pytest.approx([-0.05] * 4)
    with pytest.raises(ServingError, match=r"version 2 of a\[0:2\] and has updated it never"):
        shards.step(half, Serve(torch.ones(2), 0), 1)
    with pytest.raises(ServingError, match="updated it 1 times"):
        shards.step(whole, Serve(torch.ones(4), 0), 2)


def test_adopting_takes_the_reply_for_the_parameter() -> None:
    parameter = nn.Parameter(torch.zeros(2, 3))
    optimizer = Adopt().build([parameter])
    parameter.grad = torch.arange(6.0).view(2, 3)
    optimizer.step()
    optimizer.zero_grad()
    assert parameter.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    optimizer.step()  # nothing has come back: nothing changes
    assert parameter.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_a_world_that_does_not_suit_the_exchange_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="ranks_per_host=2 does not divide 3 ranks"):
        Lockstep(replicas(awkward(), 3), parse_strategy("hierarchical(ranks_per_host=2)"))
    with pytest.raises(TrialError, match="leaves no worker"):
        check(trial_of("parameter-server(servers=2)", num_hosts=2))


# ---- threads


@pytest.mark.parametrize(
    "text",
    [
        *WRITTEN_OUT,
        "tensor-fusion+tree",
        "tensor-fusion+parameter-server",
        "tensor-fusion+parameter-server(servers=1)",
        "unfused+parameter-server(servers=2, update='server')",
    ],
)
def test_the_engine_trains_exactly_as_lockstep_does(text: str) -> None:
    """Bit for bit, on three ranks that run as threads: sums are taken in order of rank in both."""
    strategy, world = parse_strategy(text), 3
    room, models = SharedRoom(world), replicas(awkward(), world)
    exact = Lockstep(replicas(awkward(), world), strategy, seed=7)
    for step in range(NUM_STEPS):
        exact.step(loss_at(step))
    with ThreadPoolExecutor(world) as threads:
        engines = list(threads.map(lambda rank: train_with_engine(models[rank], strategy, room, rank), range(world)))
    for model, other in zip(models, exact.models, strict=True):
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, other.get_parameter(name)), name
    ours, theirs = (
        [t.wire_bytes["gradient"] for t in ranks] for ranks in ([e.traffic for e in engines], exact.traffic_of)
    )
    assert sum(ours) == pytest.approx(sum(theirs))
    if strategy.rank_invariant:  # else who gets a message's odd element depends on how messages are fused
        assert ours == theirs


# ---- real processes


def trial_of(strategy: str, num_hosts: int = 2, **asked: object) -> Trial:
    """What `lab_tasks.task` asks for, with other settings of the trial."""
    trial = task(spec_of("native", num_hosts), strategy=strategy, num_steps=NUM_STEPS).trial
    assert trial is not None
    return dataclasses.replace(trial, **asked)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def expected(labs: Labs) -> str:
    return digest(labs.ask(Task(trial=trial_of("unfused"))))


@pytest.mark.parametrize(
    "strategy",
    [
        "fixed-buckets+tree",
        "fixed-buckets+hierarchical(ranks_per_host=2)",
        "fixed-buckets+parameter-server",
        "unfused+parameter-server(update='server')+at-pre-hook",
        "tensor-fusion+parameter-server",
    ],
)
def test_two_real_ranks_train_bit_for_bit_as_with_all_reduce(labs: Labs, expected: str, strategy: str) -> None:
    assert digest(labs.ask(Task(trial=trial_of(strategy)))) == expected


@pytest.mark.parametrize("update", ["worker", "server"])
def test_two_real_workers_and_a_server_train_as_two_ranks(labs: Labs, expected: str, update: str) -> None:
    """And the record is the workers': their times and losses, with the server counted apart."""
    trial = trial_of(f"fixed-buckets+parameter-server(servers=1, update='{update}')", 3, num_cost_steps=2)
    answer = labs.ask(Task(trial=trial))
    *workers, server = done(answer)
    assert [rank.serves for rank in answer.ranks] == [False, False, True]
    assert {rank.weights_digest for rank in workers} == {expected}
    assert server.losses == ()
    assert server.weights_digest != expected
    record = record_of(trial, answer, Background(Environment()))
    (job,) = record.jobs
    assert (record.status, len(job.ranks), job.num_servers) == (Status.OK, 2, 1)
    assert job.wire_bytes["gradient"] == pytest.approx(2 * 4 * job.num_parameters)  # the server's, twice a worker's
    assert len(job.curve) == NUM_STEPS


def test_a_rank_that_dies_in_an_exchange_of_its_own_rounds_is_named(labs: Labs) -> None:
    """An exchange that does not fit is an error of the rank that names it, and no hang."""
    answer = labs.ask(Task(trial=trial_of("hierarchical(ranks_per_host=3)")))
    assert "ranks_per_host=3 does not divide 2 ranks" in answer.reason


@pytest.mark.emulated
def test_four_ranks_on_two_hosts_send_between_leaders_alone(labs: Labs) -> None:
    """The hosts' interfaces carry the leaders' ring, 2(H−1)/H·n; the rest of it stays in the hosts."""
    fabric = spec_of("emulated")
    answers = [
        labs.ask(Task(trial=trial_of(f"single-bucket+{exchange}", ranks_per_host=2, fabric=fabric)))
        for exchange in ("hierarchical(ranks_per_host=2)", "tree")
    ]
    hierarchical = answers[0]
    assert digest(hierarchical)
    assert digest(answers[1])
    assert [rank.rank for rank in hierarchical.ranks] == [0, 1, 2, 3]
    assert hierarchical.sent_bytes is not None
    payload = NUM_STEPS * 4 * hierarchical.ranks[0].num_parameters
    for sent in hierarchical.sent_bytes:
        assert payload <= sent <= 1.25 * payload  # headers, acknowledgements, the store
    assert [rank.wire_bytes["gradient"] for rank in hierarchical.ranks] == pytest.approx(
        [2 * payload / NUM_STEPS, payload / NUM_STEPS] * 2, rel=1e-3
    )


# ---- what is refused, and what a paced link takes


@pytest.mark.parametrize(
    ("strategy", "asked", "message"),
    [
        ("parameter-server(servers=1)", {"sharing": Sharing.CROSSOVER}, "take no turns under crossover"),
        ("parameter-server(update='server')", {"clip_norm": 1.0}, "each server has a part"),
        ("unfused", {"ranks_per_host": 0}, "ranks_per_host is 0"),
        ("unfused", {"ranks_per_host": 2, "sharing": Sharing.CROSSOVER}, "seats one rank of a job"),
        ("unfused", {"ranks_per_host": 2, "fabric": FabricSpec(kind=FabricKind.PACED)}, "one rank a host"),
        *(
            (
                f"unfused+{name}",
                {"fabric": AMONG_VIRTUAL},
                f"the exchange '{name}' sends each rank something of its own",
            )
            for name in ("parameter-server", "tree", "ring", "hierarchical")
        ),
    ],
)
def test_what_a_trial_cannot_have_is_refused_with_the_remedy(
    strategy: str, asked: dict[str, Any], message: str
) -> None:
    clip_norm = asked.pop("clip_norm", None)
    names = "ab" if "sharing" in asked else "a"
    workload = WorkloadSpec(network="resnet20", batch_size=4)
    jobs = tuple(Job(name=name, workload=workload, strategy=strategy, clip_norm=clip_norm) for name in names)
    with pytest.raises(TrialError, match=message):
        check(trial_of(strategy, jobs=jobs, **asked))
