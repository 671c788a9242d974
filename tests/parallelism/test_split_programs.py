"""A split step as data, its virtual clock, and split jobs as jobs of a trial."""

import math
import random
from dataclasses import replace

import pytest
from toy_graphs import ToyLayer, toy_graphs

from baselines.parallelism.api import ParallelismError
from baselines.parallelism.operator_costs import OperatorConfig, configs_of, total_s
from baselines.parallelism.plans import Machine, Workshare
from baselines.parallelism.split_programs import Computation, ExchangeKind, SplitExchange, split_program
from crossover import Sharing
from fabric.api import FabricKind, FabricSpec
from harness.checks.trial import check
from harness.facts import plugins_of
from harness.lab.messages import Answer, Ending
from harness.lab.rank import RankResult, Signals
from harness.outcome import Background, record_of
from harness.parallel.placement import Pipelining
from harness.splits.split_clock import run_split_on_clock
from harness.splits.split_trial import run_split_in_process
from harness.splits.splitting import Splitting
from harness.trial import Job, Trial
from models.values import Device, WorkloadSpec
from results.codec import from_jsonable, to_jsonable
from results.record import Environment, Record, Status

WORK = Workshare(batch_size=24)
GRAPHS = list(toy_graphs(120))
REPLAYED = WorkloadSpec(network="vgg16", device=Device.REPLAY, batch_size=64, size_scale=50)
TEXT = WorkloadSpec(network="lstm_lm", data="text", batch_size=12, sequence_length=8, dropout=0.0, num_evaluation=32)
HYBRID = "mesh-tensorflow(mesh='rows=2,columns=2', layout='sample=rows,channel-out=columns')"


def trial_of(planner: str, workload: WorkloadSpec = REPLAYED, num_hosts: int = 4, *, overlap: bool = True) -> Trial:
    job = Job(
        name="a",
        workload=workload,
        optimizer="sgd(lr=0.05, momentum=0.9)",
        splitting=Splitting(planner=planner, overlap=overlap),
    )
    fabric = FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=num_hosts, rate_bps=200e6)
    return Trial(suite="x", cell="g/w/l", jobs=(job,), fabric=fabric, num_warmup=1, num_steps=3)


def run(trial: Trial) -> tuple[RankResult, ...]:
    check(trial)
    return tuple(run_split_in_process(trial, Signals(lambda: None)))


def record(trial: Trial) -> Record:
    return record_of(trial, Answer(ending=Ending.DONE, ranks=run(trial)), Background(Environment()))


def random_configs(layers: list[ToyLayer], num_devices: int, seed: int) -> list[OperatorConfig]:
    chance = random.Random(seed)
    return [chance.choice(configs_of(layer, num_devices, WORK)) for layer in layers]


def test_without_overlap_a_programs_times_add_up_to_the_planners_costs() -> None:
    for seed, (layers, machine) in enumerate(GRAPHS):
        configs = random_configs(layers, machine.num_devices, seed)
        program = split_program(layers, configs, WORK, input_bytes=5)
        found = run_split_on_clock(program, machine, overlap=False)
        assert found.step_s == pytest.approx(total_s(layers, configs, machine, WORK, 5))
        assert found.step_s == pytest.approx(found.compute_s + found.exchange_s)


def test_overlap_is_never_later_and_never_sooner_than_what_cannot_hide() -> None:
    hidden = 0
    for seed, (layers, machine) in enumerate(GRAPHS):
        configs = random_configs(layers, machine.num_devices, seed)
        program = split_program(layers, configs, WORK)
        plain, found = (run_split_on_clock(program, machine, overlap=overlap) for overlap in (False, True))
        waited_for = sum(
            own.duration_s(machine) for own in program if isinstance(own, SplitExchange) and not own.is_deferred
        )
        assert found.step_s >= max(found.compute_s + waited_for, found.exchange_s) - 1e-9
        # A deferred sum under way may hold up an exchange that would have come first, but only in place of itself.
        assert found.step_s <= plain.step_s + 1e-9
        hidden += found.step_s < plain.step_s - 1e-9
    assert hidden > len(GRAPHS) // 10


def test_deferred_sums_leave_in_order_behind_what_is_waited_for() -> None:
    def sums(num_bytes: float, *, is_deferred: bool) -> SplitExchange:
        return SplitExchange(
            layer=0, kind=ExchangeKind.ALL_REDUCE, num_bytes=num_bytes, num_devices=2, is_deferred=is_deferred
        )

    machine = Machine(num_devices=2, alpha_s=0.0, beta_s_per_byte=1.0)  # a sum of n bytes by two takes n seconds
    program = (
        sums(10, is_deferred=True),  # from 0 to 10: nothing is in its way
        Computation(0, False, 4.0),
        sums(5, is_deferred=True),  # would begin at 10 …
        Computation(0, False, 1.0),
        sums(3, is_deferred=False),  # … but this one is waited for from 5 on: from 10 to 13
        Computation(0, False, 2.0),  # to 15
    )
    found = run_split_on_clock(program, machine)
    assert found.step_s == 18.0  # the second deferred sum from 13 to 18
    assert found.exposed_s == 11.0


def test_data_parallelism_as_a_program_is_a_sum_for_each_layer_with_parameters() -> None:
    layers = [ToyLayer(parameter_bytes=8, output_bytes=4) for _ in range(3)]
    program = split_program(layers, [OperatorConfig(sample=4)] * 3, WORK)
    exchanges = [own for own in program if isinstance(own, SplitExchange)]
    assert [own.layer for own in exchanges] == [2, 1, 0]
    assert all(own.is_deferred and own.kind is ExchangeKind.ALL_REDUCE for own in exchanges)
    assert sum(own.sent_bytes for own in exchanges) == 3 * 8 * 2 * 3 / 4


@pytest.mark.parametrize("planner", ["data-parallel", "tofu", "hypar", "flexflow(num_steps=500)", HYBRID])
def test_a_replayed_split_job_takes_what_its_planner_counts_where_nothing_overlaps(planner: str) -> None:
    facts = record(trial_of(planner, overlap=False)).jobs[0].split
    assert facts is not None
    assert facts.step_planned_s is not None
    assert facts.step_clock_s == pytest.approx(facts.step_planned_s)
    hidden = record(trial_of(planner)).jobs[0].split
    assert hidden is not None
    assert hidden.step_clock_s is not None
    assert hidden.step_clock_s <= facts.step_planned_s
    assert len(facts.splits) == 16
    assert facts.memory_bytes[0] > 0


def test_a_record_of_a_split_job_is_read_back_as_it_was_written() -> None:
    written = record(trial_of("tofu"))
    assert from_jsonable(Record, to_jsonable(written)) == written
    assert written.status is Status.OK
    assert (written.jobs[0].clock, written.jobs[0].strategy) == ("virtual", "tofu")
    assert [(plugin.name, plugin.slot) for plugin in plugins_of(trial_of("tofu").jobs[0])] == [("tofu", "planner")]
    assert len(written.jobs[0].ranks) == 4


@pytest.mark.parametrize("planner", ["data-parallel", "tofu", "hypar"])
def test_a_split_job_trains_to_the_weights_of_one_device(planner: str) -> None:
    trial = replace(trial_of(planner, TEXT, num_hosts=2), num_steps=5, evaluate_every=3)
    found = record(trial)
    (job,) = found.jobs
    assert job.split is not None
    assert job.split.distance is not None
    assert 0 < job.split.distance < 1e-5  # float32, summed in another order
    if planner != "data-parallel":
        assert set(job.split.splits) > {"sample=2"}  # else it would be data parallelism under another name
    assert [point.step for point in job.curve if point.accuracy is not None] == [3, 6]
    assert all(math.isfinite(point.time_s or math.inf) for point in job.curve)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"splitting": Splitting(planner="tofoo")}, "unknown planner 'tofoo'"),
        ({"splitting": Splitting(planner="pipedream-planner")}, "stages; give the job pipelining"),
        ({"accumulate": 2}, "use a larger batch"),
        ({"workload": replace(TEXT, dropout=0.1)}, "use dropout=0.0"),
        ({"workload": TEXT, "optimizer": "lamb"}, "lamb needs whole tensors.*use sgd or adam"),
        ({"workload": TEXT, "splitting": Splitting(planner=HYBRID)}, "one dimension of all ranks"),
        ({"pipelining": Pipelining()}, "it has pipelining too"),
    ],
)
def test_a_split_that_cannot_be_is_refused_with_the_remedy(change: dict[str, object], says: str) -> None:
    trial = trial_of("tofu")
    with pytest.raises(ParallelismError, match=says):
        check(replace(trial, jobs=(replace(trial.jobs[0], **change),)))  # type: ignore[arg-type]


def test_split_jobs_run_alone_and_where_every_peer_has_its_part() -> None:
    trial = trial_of("tofu")
    pair = replace(trial, jobs=(trial.jobs[0], replace(trial.jobs[0], name="b")), sharing=Sharing.CROSSOVER)
    with pytest.raises(ParallelismError, match="run each alone"):
        check(pair)
    paced = FabricSpec(kind=FabricKind.PACED, num_hosts=1, num_virtual=3, rate_bps=1e9)
    check(replace(trial, fabric=paced))
    with pytest.raises(ParallelismError, match="virtual peers hold no parts of their own; use replay"):
        check(replace(trial_of("tofu", TEXT), fabric=paced))
    with pytest.raises(ParallelismError, match="give the fabric rate_bps"):
        check(replace(trial, fabric=replace(paced, rate_bps=None)))
