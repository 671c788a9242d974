"""What networks cost: counts by hand, and the guide's table against the networks as they are built."""

from pathlib import Path

import pytest

from scripts.topology_costs import BLOCK, PAGE
from suites.networks.costs import cost_of, rows, table


def test_a_small_fat_tree_counted_by_hand() -> None:
    cost = cost_of("fat-tree(k=4, gbit=25)")
    assert (cost.num_hosts, cost.num_switches, cost.num_cables) == (16, 20, 48)
    assert (cost.num_switch_ports, cost.num_server_ports) == (80, 16)
    assert cost.longest_path == 6
    # of 15 other hosts one is under the same switch, two are in the pod, twelve beyond it
    assert cost.mean_path == pytest.approx((1 * 2 + 2 * 4 + 12 * 6) / 15)
    assert cost.bisection_bps == 25e9


def test_servers_that_forward_have_ports_and_no_switches_between_them() -> None:
    cost = cost_of("torus(sides=(4, 4), gbit=25)")
    assert (cost.num_switches, cost.num_switch_ports, cost.num_server_ports) == (0, 0, 64)
    # around a ring of four: 0, 1, 2, 1 steps, in each of two directions
    assert cost.mean_path == pytest.approx(2 * 1 * 16 / 15)
    assert cost.bisection_bps == 8 * 25e9 / 8


def test_the_guide_shows_the_networks_as_they_are_built() -> None:
    page = Path(PAGE).read_text(encoding="utf-8")
    shown = page.partition(f"<!-- {BLOCK}:begin -->")[2].partition(f"<!-- {BLOCK}:end -->")[0].strip().splitlines()
    # those of 1,024 ranks take as long as everything else here together; the script writes all in one go
    made = table(rows((0, 1))).splitlines()
    assert shown[: len(made)] == made
    assert len(shown) == 2 + len(rows((0,))) * 3
