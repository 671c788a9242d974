"""What a record says of a job as values, from the plug-ins themselves and, for old records, from their texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from baselines.catalogue import plugins
from fabric.api import FabricKind, FabricSpec
from harness.facts import asked_of, code_of, plugins_of, role_of
from harness.machine import MachineWatch
from harness.outcome import tuned_of
from harness.sizes import scaled
from harness.trial import Job, Trial
from models.workload import Device, WorkloadSpec
from results.codec import from_jsonable, to_jsonable
from results.facts import CodeFacts, Combine, PluginFacts, Role, Unit, in_real_sizes, text_of
from results.record import Adapted, Environment, FabricFacts, Record, RecordError, Status, read_record, write_record
from results.schema1 import facts_of

REPLAYED = WorkloadSpec(network="resnet50", device=Device.REPLAY, size_scale=50)
SIZES = (1000, 24)
WORLD = 4
METHODS = [
    ("fixed-buckets", 32.0, 1.5),
    ("unfused+half", 16.0, 1.5),
    ("unfused+qsgd(bits=4, bucket=512)", 4.0625, 3.0),
    ("unfused+qsgd(bits=2, bucket=64)", 2.5, 3.0),
    ("unfused+topk(density=0.01)+error-feedback", 0.32 + 0.0807931, 3.0),
    ("unfused+random-k(density=0.01)", 0.32, 1.5),
    ("unfused+random-k(density=0.01, shared=False)", 0.32 + 0.0807931, 3.0),
    ("unfused+onebit+double-squeeze", 1.0, 1.5),
    ("unfused+sbc(density=0.01)+error-feedback", 0.081, 3.0),
    ("unfused+gtopk(density=0.01)+tree", 0.32 + 0.0807931, 2.0),
]
# By exchanges that send otherwise than an all-reduce; a dense warm-up's float32 behind the code.
SHARES = [
    ("half", 1.5, None),
    ("half+all-gather", 3.0, None),
    ("half+tree", 2.0, None),
    ("half+parameter-server", 1.5, None),
    ("half+parameter-server(servers=1)", 3.0, None),  # the server sends to three workers
    ("half+parameter-server(servers=3)", 1.0, None),  # the worker to three servers
    ("topk+warm-up(steps=4)", 3.0, 1.5),
    ("topk+warm-up(steps=4)+all-gather", 3.0, 3.0),
    ("qsgd(bits=8)+double-squeeze", 1.5, None),
    ("qsgd(bits=8)+double-squeeze+parameter-server(servers=1)", 3.0, None),
    ("half+hierarchical(ranks_per_host=3)", None, None),  # goes with 3, 6, … ranks
]


def job(text: str, **changes: Any) -> Job:
    return replace(Job(name="job", workload=REPLAYED, strategy=text), **changes)


def old(text: str, system: str = "ours") -> dict[str, Any]:
    return facts_of({"system": system, "strategy": text})


def old_code(text: str, system: str = "ours") -> CodeFacts:
    return from_jsonable(CodeFacts, old(text, system)["code"])


@pytest.mark.parametrize(("text", "bits", "share"), METHODS)
def test_bits_are_the_papers_and_the_same_for_old_and_new_records(text: str, bits: float, share: float) -> None:
    code = code_of(job(text), SIZES, WORLD)
    assert code.sent_share == pytest.approx(share)
    for own in (code, old_code(text)):
        assert own.bits_per_element == pytest.approx(bits, rel=1e-3)  # SBC's is rounded above


@pytest.mark.parametrize(("text", "share", "dense_share"), SHARES)
def test_how_often_a_rank_sends_its_code_follows_from_the_exchange(
    text: str, share: float | None, dense_share: float | None
) -> None:
    code = code_of(job(f"unfused+{text}"), SIZES, WORLD)
    assert (code.sent_share, code.dense_share) == (share, dense_share)


def test_of_other_systems_nothing_is_said() -> None:
    ddp = job("", system="torch-ddp(hook='fp16')")
    for code in (code_of(ddp, SIZES, WORLD), old_code("torch-ddp(hook='fp16')", "torch-ddp")):
        assert code.bits_per_element is None
        assert code.sent_share is None
    assert old_code("unfused+powersgd(rank=4)").bits_per_element is None


def test_a_compressor_that_states_no_bits_is_counted_by_its_bytes_tensor_by_tensor() -> None:
    """Two tensors: 1000 and 24 elements in four bits each and a norm a bucket of 512, by the bytes that it foresees."""
    from baselines.compression.qsgd import Qsgd
    from harness.facts import _bits

    class Plain:
        scope = Qsgd().scope

        def wire_bytes(self, numel: int, world: int) -> float:
            return 4.0 + numel / 4

    assert _bits(Plain(), SIZES, WORLD) == pytest.approx(2 + 32 / 1024)


def test_warm_ups_are_told_apart_from_rising_densities() -> None:
    for text in (
        "fixed-buckets+onebit+double-squeeze+error-feedback+warm-up(steps=12)",
        "unfused+dgc(warmup_steps=12)",
    ):
        live = code_of(job(text, optimizer="sgd(momentum=0.0)"), SIZES, WORLD)
        assert (live.dense_steps, live.ramp_steps) == ((0, 12) if "dgc" in text else (12, 0))
        past = old_code(text)
        assert (past.dense_steps, past.ramp_steps) == (live.dense_steps, live.ramp_steps)


def test_every_slot_is_held_and_what_was_written_comes_first_in_its_order() -> None:
    found = plugins_of(job("slices(slice_elements=800)+p3+at-pre-hook+topk(density=1e-2)+error-feedback"))
    written = [own.name for own in found if own.written]
    assert written == ["slices", "p3", "at-pre-hook", "topk", "error-feedback"]
    assert {own.slot for own in found} >= {"packing", "ordering", "compression", "exchange", "optimizer", "tuning"}
    assert text_of(found) == "slices(slice_elements=800)+p3+at-pre-hook+topk(density=1e-2)+error-feedback"


def test_parameters_hold_the_value_that_ran_and_the_text_that_was_given() -> None:
    (topk,) = (own for own in plugins_of(job("unfused+topk(density=1e-2)")) if own.name == "topk")
    by_name = {own.name: own for own in topk.parameters}
    assert (by_name["density"].value, by_name["density"].given) == (0.01, "1e-2")
    assert (by_name["values"].value, by_name["values"].given) == ("float32", None)


@pytest.mark.parametrize(
    "text",
    [
        "fixed-buckets(bucket_bytes=26200000, first_bucket_bytes=1050000)+half(dtype='bfloat16')",
        "slices(slice_elements=8000000)+bytescheduler(credit_bytes=64000000)+at-pre-hook+bayesian(trials=12, steps=3)",
        "tensor-fusion(threshold_bytes=134000000, cycle_s=0.005)",
    ],
)
def test_sizes_that_were_divided_are_multiplied_back(text: str) -> None:
    small = scaled(text, 50)
    assert small != text
    for facts in (plugins_of(job(small)), _old_plugins(small)):
        assert text_of(in_real_sizes(facts, 50)) == text


def _old_plugins(text: str) -> tuple[PluginFacts, ...]:
    return from_jsonable(tuple[PluginFacts, ...], old(text)["plugins"])


def test_parameters_named_after_a_unit_of_size_say_so() -> None:
    """Names carry units; a size that does not say that it is one would keep its value on small tensors."""
    for kind in plugins().values():
        for name, field in kind.__dataclass_fields__.items():
            if name.endswith(("_bytes", "_elements", "_mb")):
                assert Unit(field.metadata["unit"]) is not Unit.SCALE, f"{kind.card.name}.{name}"


def test_what_replay_charges_is_a_value_or_a_reason() -> None:
    charged = asked_of(job("fixed-buckets+half"), 3, WORLD).charge
    assert charged is not None
    assert charged.is_charged
    assert charged.stages_s
    assert "V100" in charged.device
    missing = asked_of(job("fixed-buckets+qsgd(bits=8, bucket=77)"), 3, WORLD).charge
    assert missing is not None
    assert "not charged" in missing.reason
    assert asked_of(job("fixed-buckets"), 3, WORLD).charge is None
    hook = asked_of(job("", system="torch-ddp(hook='fp16')"), 3, WORLD).charge
    assert hook is not None
    assert not hook.is_charged


def test_the_ideal_line_is_ideal_whatever_its_suite_says() -> None:
    assert role_of(job("", system="local", role=Role.DENSE)) is Role.IDEAL
    assert role_of(job("unfused", role=Role.DENSE)) is Role.DENSE
    assert Role(old("local", "local")["role"]) is Role.IDEAL


def test_the_settings_that_a_tuner_kept_last_are_those_of_the_record() -> None:
    first = Adapted(step=3, what="chosen", values={"packing.bucket_bytes": 1.0})
    last = Adapted(step=9, what="chosen", values={"packing.bucket_bytes": 2.0})
    assert tuned_of((first, last)) == {"packing.bucket_bytes": 2.0}
    assert tuned_of(()) == {}


def test_the_machine_is_watched_from_the_start_to_the_end_of_a_trial() -> None:
    began = MachineWatch().start()
    ended_at, machine = began.stop()
    assert began.started_at <= ended_at
    assert 0.0 < machine.before.speed_s < 10.0
    assert 0.0 <= machine.stolen_share <= 1.0
    assert 0.0 <= machine.busy_share <= 1.0
    assert machine.other_share is not None
    assert 0.0 <= machine.other_share <= 1.0
    assert machine.fastest_s is not None
    assert machine.fastest_s <= min(machine.before.speed_s, machine.after.speed_s)


def record() -> Record:
    trial = Trial(suite="s", cell="replay-4/resnet50-replay/dense", jobs=(job("fixed-buckets+half"),), fabric=FABRIC)
    return Record(
        id=trial.id,
        suite="s",
        cell=trial.cell,
        repeat=0,
        seed=1,
        status=Status.OK,
        fabric=FabricFacts(kind="paced", label="replay", num_hosts=1),
        jobs=(asked_of(trial.jobs[0], 3, WORLD),),
        trial=to_jsonable(trial),
        environment=Environment(),
    )


FABRIC = FabricSpec(kind=FabricKind.PACED, num_hosts=1)


def test_a_record_with_its_facts_is_read_as_it_was_written(tmp_path: Any) -> None:
    made = record()
    assert read_record(write_record(made, tmp_path)) == made
    assert (made.group, made.label) == ("replay-4", "dense")


def test_a_record_of_schema_1_is_read_with_its_facts(tmp_path: Any) -> None:
    plain = to_jsonable(record())
    job_facts = {"plugins", "role", "code", "charge", "tuned"}
    jobs = [{key: value for key, value in own.items() if key not in job_facts} for own in plain["jobs"]]
    jobs[0]["notes"] = {"compression in replay": "charged: half() takes 2 ns an element among 4 ranks (V100, derived)"}
    new = {"schema", "jobs", "started_at", "ended_at", "machine"}
    path = tmp_path / "old.json"
    path.write_text(_json({key: value for key, value in plain.items() if key not in new} | {"jobs": jobs, "schema": 1}))
    (found,) = (read := read_record(path)).jobs
    assert read.machine is None
    assert found.role is Role.DENSE
    assert found.code == CodeFacts(bits_per_element=16.0, combine=Combine.SUM, lossy=True)
    assert found.charge is not None
    assert (found.charge.method, found.charge.stages_s, found.charge.device) == ("half()", (2e-9,), "V100, derived")


def test_a_record_of_another_schema_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "new.json"
    path.write_text(_json({"schema": 99}))
    with pytest.raises(RecordError, match="schema version 99"):
        read_record(path)


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


def test_local_steps_and_wrappers_of_optimizers_are_told() -> None:
    told = {own.name: own for own in plugins_of(job("local-steps(n=10)+sbc+error-feedback"))}
    assert [(one.name, one.value, one.given) for one in told["local-steps"].parameters] == [("n", 10, "10")]
    told = {own.name: own for own in plugins_of(job("unfused", optimizer="sgd+linear-scaling(times=4.0)"))}
    assert told["linear-scaling"].slot == "optimizer"
