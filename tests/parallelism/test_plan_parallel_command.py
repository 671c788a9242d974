import json

import pytest
from one_device import even_stages

from baselines.parallelism.api import ParallelismError
from baselines.parallelism.catalogue import planners, schedules
from baselines.parallelism.dapple import Dapple
from baselines.parallelism.plans import Machine, Workshare
from harness.parallel.planning import choose, config_of, forecasts, pipeline_step
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
    fastest = min((entry for entry in answer["plans"] if entry["plan"]), key=lambda entry: entry["step_s"])
    assert answer["chosen"] == fastest["planner"]
    assert by_name["one-device"]["step_s"] > fastest["step_s"]


def test_a_planner_may_be_asked_for_with_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    servers = "pipedream-planner(server_devices=4, server_speed=10)"
    assert main([*ASKED, "--planner", servers, "--planner", "one-device", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {entry["planner"] for entry in answer["plans"]} == {"pipedream-planner", "one-device"}
    assert answer["chosen"] == "pipedream-planner"


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--planner", "gpipe"], "unknown planner 'gpipe'"),
        (["--planner", "pipedream-planner(server_devices=0)"], "server_devices is 0"),
        (["--memory", "1MB"], "lacks"),
        (["--memory", "plenty"], "write it as 16GB"),
        (["--batch-size", "4"], "use at most 4"),
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
