"""What the table of `crossover-bench predict` says beneath: whose costs, which α, and what is not charged."""

import json
import re

import pytest

from suites.cli import main

CELL = ("predict", "--workload", "resnet50", "--hosts", "4,256", "--rates", "10gbit")
METHODS = ("fixed-buckets", "fixed-buckets+natural", "fixed-buckets+topk(density=0.01)+error-feedback")


def test_the_table_says_whose_alpha_it_uses_and_what_it_does_not_charge(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CELL, "--strategies", *METHODS]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("32 samples per worker and step, whatever the number of hosts. Default cluster: one device")
    assert "per host, 20us per ring step, rates as asked. Times: Tesla V100-SXM2-16GB in fp32, derived for 32" in shown
    assert re.search(r"costs: α 2e-05 s per ring step, β .* as given; α 120 to 10200 µs per message", shown)
    assert "2 cells not charged: no time of natural is in the profile of codecs" in shown
    assert "no time of topk" not in shown  # at this density it was timed


def test_measured_costs_are_for_about_the_hosts_and_rates_measured(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("predict", "--workload", "resnet50", "--strategies", "fixed-buckets", "--fabric", "emulated")
    assert main([*asked, "--hosts", "8,512", "--rates", "1gbit"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "not predicted, 1 cells: 512 hosts at 1 Gbit/s are more than 2 times beyond what was measured: 4" in shown
    assert main([*asked, "--hosts", "8", "--rates", "25gbit"]) == 2
    assert "25 Gbit/s are more than 2 times beyond" in capsys.readouterr().err.replace("\n", " ")
    assert main([*asked, "--hosts", "8", "--alpha", "20us"]) == 2
    assert "--alpha 20us is given, and --calibration" in capsys.readouterr().err.replace("\n", " ")


def test_given_costs_are_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CELL, "--strategies", "fixed-buckets", "--alpha", "500us", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    assert {cell["source"] for cell in cells} == {"α 0.0005 s per ring step, β 8e-10 s per byte, as given"}
    assert {cell["charge"] for cell in cells} == {"nothing is compressed"}
    assert all(cell["alpha_s"] > 0 for cell in cells)


@pytest.mark.parametrize("asked", [("collectives",), ("networks", "--only", "packets-incast-16")], ids=" ".join)
def test_what_takes_no_step_is_refused(asked: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Operations of a library, or flows without jobs, have nothing to be predicted."""
    assert main(["predict", *asked]) == 2
    assert "has a step to predict" in capsys.readouterr().err
