"""Compression charged in replay: to the device and to the virtual clock, as often and as long as the profile says."""

import time
from dataclasses import dataclass, replace

import pytest
import torch

from baselines.api import Aggregated, Context, Message, Segment
from baselines.compression.topk import TopK
from baselines.strategy import parse_strategy
from harness.predict import codec_recording
from harness.predict.codec_recording import METHODS, WORLDS, record_method
from harness.predict.codecs import Charge, Charged, charge_for, charge_of, codec_text, dense_steps, with_charge
from harness.predict.costs import given_costs
from harness.predict.demand import Demands
from harness.predict.layers import plain_layers
from harness.predict.step import predict_step
from harness.trial import Job
from models.codec_profile import CodecProfile, StageTimes, codecs_of, load_codecs, on_device, save_codecs
from models.device import VirtualDevice
from models.values import WorkloadError
from models.workload import Device, WorkloadSpec

TEXT = "topk(density=0.02)+error-feedback"
KEY = "topk(density=0.02, values='float32')+error-feedback"
PROFILE = CodecProfile(
    device="a device", source="made up", network="none", num_elements=1, copy_s=1e-9,
    methods={KEY: (
        StageTimes(world=2, stages_s=(4e-9, 2e-9)), StageTimes(world=4, stages_s=(4e-9, 4e-9)),
    )},
)  # fmt: skip


def charge(text: str = TEXT, world: int = 2, size_scale: int = 50) -> Charge:
    found = charge_for(parse_strategy(text), PROFILE, size_scale, world)
    assert isinstance(found, Charge)
    return found


def message(numel: int) -> Message:
    return Message(0, (Segment("w", (numel,), 0, numel, 0),))


def test_a_method_is_known_by_its_settings_but_not_by_its_warm_up() -> None:
    compression = parse_strategy(f"{TEXT}+warm-up(steps=7)").compression
    assert codec_text(compression) == KEY
    assert dense_steps(compression) == 7
    assert codec_text(parse_strategy("half").compression) == "half(dtype='float16')"
    assert codec_text(parse_strategy("half(dtype='bfloat16')").compression) == "half(dtype='bfloat16')"


@pytest.mark.parametrize(("world", "last_s"), [(2, 2e-9), (3, 3e-9), (4, 4e-9), (8, 8e-9)])
def test_times_between_and_beyond_recorded_numbers_of_ranks_follow_a_line(world: int, last_s: float) -> None:
    times = PROFILE.stages(KEY, world)
    assert times is not None
    assert times.stages_s == pytest.approx((4e-9, last_s))


def test_a_charge_is_for_the_real_tensor() -> None:
    own = charge()
    assert own.stage_s(0, 1000) == pytest.approx(4e-9 * 1000 * 50)
    assert own.stage_s(1, 1000) == pytest.approx(2e-9 * 1000 * 50)
    assert own.stage_s(2, 1000) == 0.0
    assert own.before_s_per_byte * 4000 == pytest.approx(own.stage_s(0, 1000))


@dataclass(slots=True)
class StillClock:
    """Time passes in sleeps alone, and exactly."""

    now_s: float = 100.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    """In the place of the machine's clock, whose load would be charged too."""
    still = StillClock()
    monkeypatch.setattr(time, "monotonic", lambda: still.now_s)
    monkeypatch.setattr(time, "sleep", still.sleep)
    return still


def reduce_once(clock: StillClock, compressor: Charged, numel: int, step: int = 0) -> tuple[float, torch.Tensor]:
    """Seconds of a reduction among two equal ranks, and its value."""
    states = {"w": parse_strategy(TEXT).compression.init("w", torch.zeros(numel))}
    ctx = Context(0, 2, step, message(numel), torch.Generator())
    start_s = clock.now_s
    run = compressor.reduce(torch.linspace(-1, 1, numel), states, ctx)
    aggregate = next(run)
    try:
        run.send(Aggregated((aggregate.payload,) * 2))
    except StopIteration as end:
        return clock.now_s - start_s, end.value.value
    raise AssertionError("asks for more than one aggregate")


def test_a_charged_reduction_gives_the_same_and_takes_the_charged_time(clock: StillClock) -> None:
    strategy, numel = parse_strategy(TEXT), 10_000
    times = StageTimes(world=2, stages_s=(4e-8, 2e-8))
    dear = Charged(strategy.compression, replace(charge(), times=times), VirtualDevice.local())
    free = Charged(strategy.compression, replace(charge(), times=replace(times, stages_s=(0.0, 0.0))), dear.device)
    own_s, own = reduce_once(clock, free, numel)
    charged_s, value = reduce_once(clock, dear, numel)
    assert torch.equal(own, value)
    assert (own_s, charged_s) == (0.0, pytest.approx(0.03))


def test_nothing_is_charged_while_a_warm_up_sends_everything(clock: StillClock) -> None:
    strategy = parse_strategy(TEXT)
    dear = replace(charge(), times=StageTimes(world=2, stages_s=(1e-6, 0.0)), dense_steps=1)
    seconds, _ = reduce_once(clock, Charged(strategy.compression, dear, VirtualDevice.local()), 1000, step=0)
    assert seconds == 0.0
    seconds, _ = reduce_once(clock, Charged(strategy.compression, dear, VirtualDevice.local()), 1000, step=1)
    assert seconds == pytest.approx(0.05)


def test_an_interrupted_layer_ends_as_much_later(clock: StillClock) -> None:
    device, start_s = VirtualDevice.local(), clock.now_s
    with device.take(0.06):
        clock.sleep(0.01)
        for _ in range(2):
            with device.interrupt(0.03):
                pass
        codec_s = clock.now_s - start_s
    assert codec_s == pytest.approx(0.07)
    assert clock.now_s - start_s == pytest.approx(0.12)


def test_a_layer_that_comes_during_an_interruption_starts_behind_it(clock: StillClock) -> None:
    device, start_s = VirtualDevice.local(), clock.now_s
    with device.interrupt(0.04):
        device.run(0.02)
    assert clock.now_s - start_s == pytest.approx(0.06)


def test_an_idle_device_owes_nothing_for_an_interruption(clock: StillClock) -> None:
    device = VirtualDevice.local()
    device.run(0.01)
    with device.interrupt(0.02):
        pass
    start_s = clock.now_s
    device.run(0.03)
    assert clock.now_s - start_s == pytest.approx(0.03)


def test_the_predicted_step_holds_the_charge() -> None:
    layers = plain_layers([0.01] * 2, [0.02] * 2, [100_000] * 2)
    costs = given_costs(2, alpha_s=1e-4, beta_s_per_byte=1e-9)
    own = charge()
    charged = replace(
        costs, engine=replace(costs.engine, device_codec_s_per_byte=(own.before_s_per_byte, own.after_s_per_byte))
    )
    strategy = parse_strategy(f"unfused+{TEXT}")
    demand = Demands(strategy, charged).of(message(100_000))
    assert demand.before_s == pytest.approx(own.stage_s(0, 100_000))
    assert demand.after_s == pytest.approx(own.stage_s(1, 100_000))
    # Two messages of 20 + 10 ms of device time; all of it delays computation, or is waited for behind it.
    free_s, charged_s = (predict_step(layers, strategy, c).step_s for c in (costs, charged))
    assert charged_s - free_s == pytest.approx(0.06, rel=0.05)


def test_only_replay_is_charged_and_the_reason_is_told() -> None:
    replayed = WorkloadSpec(network="resnet50", device=Device.REPLAY, size_scale=50)
    assert isinstance(charge_of(Job(name="job", workload=replayed, strategy="half"), 4), Charge)
    assert "nothing" in str(charge_of(Job(name="job", workload=replayed), 4))
    assert "not ours" in str(charge_of(Job(name="job", workload=replayed, system="torch-ddp(hook='fp16')"), 4))
    real = Job(name="job", workload=WorkloadSpec(network="resnet20"), strategy="half")
    assert "computed" in str(charge_of(real, 2))
    unknown = Job(name="job", workload=replayed, strategy="topk(density=0.123)")
    assert "topk(density=0.123, " in str(charge_of(unknown, 2))
    costs = given_costs(4, alpha_s=0.0, beta_s_per_byte=0.0)
    assert with_charge(costs, unknown, 4) == costs


def test_what_computes_also_compresses() -> None:
    assert codecs_of("Tesla V100-SXM2-16GB") == "v100"
    assert codecs_of("cpu (x86_64, 1 threads)") == "cpu"
    on_gpu = charge_of(
        Job(name="job", workload=WorkloadSpec(network="resnet50", device=Device.REPLAY), strategy="half"), 2
    )
    on_core = charge_of(
        Job(name="job", workload=WorkloadSpec(network="lstm_lm", device=Device.REPLAY), strategy="half"), 2
    )
    assert isinstance(on_gpu, Charge)
    assert isinstance(on_core, Charge)
    assert "V100, derived" in on_gpu.note
    assert on_gpu.stage_s(0, 1) < on_core.stage_s(0, 1) / 10


def test_recording_times_every_stage_of_a_method() -> None:
    small = Message(0, tuple(Segment(f"w{i}", (64, 64), 0, 4096, i) for i in range(3)))
    for text, num_stages in ((TEXT, 2), ("onebit+double-squeeze+error-feedback", 3), ("powersgd(rank=1)", 3)):
        rows = list(record_method(parse_strategy(text), small, num_runs=1))
        assert tuple(row.world for row in rows) == WORLDS
        assert all(len(row.stages_s) == num_stages and min(row.stages_s) > 0 for row in rows)
    (row, *_) = record_method(parse_strategy("gtopk+tree"), small, num_runs=1)
    assert row.merge_s > 0


def test_the_profile_that_comes_along_has_every_method_of_the_table() -> None:
    profile, derived = load_codecs(), load_codecs("v100")
    known = {codec_text(parse_strategy(text).compression) for text in METHODS}
    assert known <= set(profile.methods)
    assert derived == on_device(profile, "Tesla V100", 8 / 750e9)
    half = codec_text(parse_strategy("half").compression)
    copies = [sum(p.methods[half][0].stages_s) / p.copy_s for p in (profile, derived)]
    assert copies[0] == pytest.approx(copies[1])
    assert profile.num_elements == 25_557_032
    assert all(sum(row.stages_s) > 0.1 * profile.copy_s for rows in profile.methods.values() for row in rows)


def test_a_profile_survives_its_file_and_a_broken_one_is_named(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "own.json"
    save_codecs(PROFILE, path)
    assert load_codecs(str(path)) == PROFILE
    path.write_text('{"device": 1}')
    with pytest.raises(WorkloadError, match=r"own\.json holds no times"):
        load_codecs(str(path))
    with pytest.raises(WorkloadError, match="no times of codecs called 'nowhere'"):
        load_codecs("nowhere")
    save_codecs(replace(PROFILE, methods={"x": (StageTimes(world=2, stages_s=(-1.0,)),)}), path)
    with pytest.raises(WorkloadError, match=r"stages_s is -1\.0; it must be a number from 0"):
        load_codecs(str(path))


def test_a_default_that_changes_takes_no_other_method_s_time() -> None:
    assert codec_text(TopK()) == "topk(density=0.01, values='float32')"


def test_a_method_that_there_is_not_is_refused_before_anything_is_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["codec_recording", "topp"])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    with pytest.raises(SystemExit):
        codec_recording.main()
    assert "error: unknown baseline 'topp'" in capsys.readouterr().err
