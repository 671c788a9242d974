import json

import pytest
from one_device import even_stages

from baselines.parallelism.api import ParallelismError
from baselines.parallelism.catalogue import planners, schedules
from baselines.parallelism.dapple import Dapple
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedStage, Workshare
from harness.parallel.plan_forecasts import PlanForecast, choose, forecasts
from harness.parallel.planning import config_of, pipeline_step
from models.graph_building import graph_of
from suites.cli import main

ASKED = ["plan-parallel", "--workload", "bert_base", "--hosts", "8", "--rate", "10gbit"]


def test_the_catalogue_holds_every_schedule_and_planner() -> None:
    assert set(schedules()) == {"gpipe", "dapple", "pipedream", "pipemare", "interleaved"}
    assert set(planners()) == {
        "one-device",
        "stanza",
        "mesh-tensorflow",
        "data-parallel",
        "bottleneck-planner",
        "pipedream-planner",
        "dapple-planner",
        "hypar",
        "tofu",
        "flexflow",
        "exhaustive",
    }


def test_every_planner_says_what_it_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--memory", "16GB"]) == 0
    printed = capsys.readouterr().out
    for name in planners():
        assert name in printed
    assert "devices 0–" in printed or "device 0" in printed or "sample/" in printed
    assert "derived" in printed  # whose times these are


def test_json_holds_the_chosen_plan_and_all_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    by_name = {entry["planner"]: entry for entry in answer["plans"]}
    fresh = [
        entry for entry in answer["plans"] if entry["plan"] and not entry["stale"] and entry["memory_bytes"] < 16e9
    ]
    fastest = min(fresh, key=lambda entry: entry["step_s"])
    assert by_name[answer["chosen"]]["step_s"] == fastest["step_s"]
    assert by_name["one-device"]["step_s"] > fastest["step_s"]


def test_a_planner_may_be_asked_for_with_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    servers = "pipedream-planner(server_devices=4, server_speed=10)"
    assert main([*ASKED, "--planner", servers, "--planner", "one-device", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {entry["planner"] for entry in answer["plans"]} == {"pipedream-planner", "one-device"}
    assert answer["chosen"] == "one-device"  # slower, and its weights are not stale
    assert answer["plans"][0]["step_s"] > answer["plans"][1]["step_s"]
    assert answer["plans"][1]["stale"]


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--planner", "gpipe"], "unknown planner 'gpipe'"),
        (["--planner", "pipedream-planner(server_devices=0)"], "server_devices is 0"),
        (["--memory", "1MB"], "lacks"),
        (["--memory", "plenty"], "write it as 16GB"),
        (["--batch-size", "4", "--hosts", "1"], "use at most 4"),
        (["--hosts", "0"], "at least one device"),
        (["--workload", "alexnet"], "no network 'alexnet'"),
        (["--flops", "-1"], "flops_per_s is -1"),
        (["--alpha", "nan"], "--alpha 'nan' is no time"),
        (["--alpha", "inf"], "--alpha 'inf' is no time"),
        (["--alpha", "20"], "--alpha '20' is no time without a unit"),
        (["--memory", "0.4B"], "write it as 16GB"),
        (["--memory", ""], "write it as 16GB"),
        (["--memory", "9" * 400 + "GB"], "write it as 16GB"),
        (["--hosts", "1000000"], "up to 256"),
        (["--batch-size", "100000", "--micro-batches", "50000"], "up to 256"),
    ],
)
def test_bad_requests_are_refused_with_value_and_remedy(
    extra: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ASKED, *extra]) == 2
    assert says in capsys.readouterr().err.replace("\n", " ")


NULLS = ("--planner", "data-parallel", "--planner", "one-device", "--planner", "bottleneck-planner")


@pytest.mark.parametrize(("network", "rate"), [("resnet50", "100gbit"), ("bert_base", "100mbit"), ("vgg16", "25gbit")])
def test_data_parallelism_takes_what_predict_says_and_no_planner_of_ours_is_slower(
    network: str, rate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan-parallel", "--workload", network, "--hosts", "8", "--rate", rate, *NULLS, "--json"]) == 0
    plans = {entry["planner"]: entry for entry in json.loads(capsys.readouterr().out)["plans"]}
    asked = ["predict", "--workload", network, "--hosts", "1,8", "--rates", rate, "--strategies", "fixed-buckets"]
    assert main([*asked, "--json"]) == 0
    alone, spread = json.loads(capsys.readouterr().out)
    assert plans["data-parallel"]["step_s"] == spread["step_s"]
    assert plans["one-device"]["step_s"] == pytest.approx(8 * alone["step_s"])
    own_s = plans["bottleneck-planner"]["step_s"]
    assert own_s <= min(plans[name]["step_s"] for name in ("data-parallel", "one-device"))


def test_both_commands_say_first_that_the_batch_grows_with_the_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    nulls = ("--planner", "data-parallel", "--planner", "one-device")
    assert main(["plan-parallel", "--workload", "resnet50", "--hosts", "64", *nulls]) == 0
    planned = capsys.readouterr().out
    assert main(["predict", "--workload", "resnet50", "--hosts", "64", "--strategies", "fixed-buckets"]) == 0
    for shown in (planned, capsys.readouterr().out):
        assert shown.startswith("32 samples per worker and step, whatever the number of hosts")
    assert "2048 samples per step in 8 micro-batches" in planned
    assert "refuse" not in planned
    assert "The fastest that fits: data-parallel" in planned


@pytest.mark.parametrize(("hosts", "batch"), [("7", "1"), ("64", "1"), ("3", "5")])
def test_micro_batches_never_refuse_data_parallelism(
    hosts: str, batch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan-parallel", "--workload", "resnet50", "--hosts", hosts, "--batch-size", batch, "--micro-batches", "1"]
    assert main([*asked, "--planner", "data-parallel", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"][0]["plan"]["stages"][0]["num_replicas"] == int(hosts)


def test_a_device_holds_no_more_than_its_memory_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan-parallel", "--workload", "resnet50", "--hosts", "1", "--batch-size", "256", "--micro-batches", "1"]
    assert main([*asked, "--planner", "one-device"]) == 2  # a V100 of 16 GB
    assert "no plan fits into 16 GB per device" in capsys.readouterr().err.replace("\n", " ")
    assert main([*asked, "--planner", "one-device", "--memory", "none"]) == 0


def test_of_equal_plans_the_simplest_with_the_least_memory_is_chosen() -> None:
    plans = [
        PlanForecast(planner="deep", plan=of(PlannedStage(0, 1), PlannedStage(1, 2)), step_s=1.0, memory_bytes=1),
        PlanForecast(planner="large", plan=of(PlannedStage(0, 2)), step_s=1.0, memory_bytes=3),
        PlanForecast(planner="best", plan=of(PlannedStage(0, 2)), step_s=1.0 + 1e-12, memory_bytes=2),
        PlanForecast(planner="stale", plan=of(PlannedStage(0, 2)), step_s=0.5, memory_bytes=1, stale=True),
    ]
    assert choose(plans, 0).planner == "best"
    assert choose(plans[-1:], 0).planner == "stale"


def of(*stages: PlannedStage) -> ParallelPlan:
    return ParallelPlan(stages=stages, cost=1.0, unit="s")


def test_memory_that_no_plan_fits_says_how_much_is_missing() -> None:
    machine = Machine(num_devices=2, alpha_s=0.0, beta_s_per_byte=1e-9)
    found = forecasts(graph_of("lstm_lm"), machine, Workshare(batch_size=8, num_micro_batches=2))
    least = min(entry.memory_bytes for entry in found if entry.plan)
    assert choose(found, least).memory_bytes == least
    with pytest.raises(ParallelismError, match=r"lacks .* GB; use at least"):
        choose(found, least // 2)


def test_a_pipelined_step_on_the_clock_counts_the_tied_weights_sum() -> None:
    graph = graph_of("bert_base")
    machine = Machine(num_devices=2, alpha_s=0.0, beta_s_per_byte=1e-9)
    work = Workshare(batch_size=8, num_micro_batches=4)
    _, tied_s = pipeline_step(even_stages(26, 2), Dapple(), graph, machine, work)
    _, free_s = pipeline_step(
        even_stages(26, 2), Dapple(), graph, Machine(num_devices=2, alpha_s=0.0, beta_s_per_byte=0.0), work
    )
    # At least the all-reduce between the two stages: 2(n−1)/n of the bytes at a nanosecond per byte, n = 2.
    assert tied_s - free_s > graph.layers[-1].tied_bytes * 1e-9


def test_splits_lead_back_to_their_configuration() -> None:
    for config in (config_of(()), config_of(config_of(()).splits())):
        assert config.num_devices == 1
