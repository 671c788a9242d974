"""The emulated fabric as its hosts see it: names, line rate, counters."""

from __future__ import annotations

import pytest
from lab_process import run_program

pytestmark = pytest.mark.emulated

ROOTLESS = pytest.mark.parametrize("rootless", [False, True], ids=["as root", "without root"])


@ROOTLESS
def test_every_host_has_a_name_that_resolves_to_its_address_everywhere(rootless: bool) -> None:
    seen = run_program("names", 3, "none", rootless=rootless)
    assert [host["own"] for host in seen] == ["host0", "host1", "host2"]
    for host in seen:
        assert host["resolved"] == {"host0": "10.77.0.1", "host1": "10.77.0.2", "host2": "10.77.0.3"}


def test_hosts_share_no_network_and_hold_no_other_hosts_network() -> None:
    seen = run_program("names", 3, "none")
    assert len({host["network"] for host in seen}) == 3
    for host in seen:
        assert not [name for name in host["descriptors"] if name.startswith("net:")]


@ROOTLESS
def test_a_stream_is_never_faster_than_the_line(rootless: bool) -> None:
    rate_bps = 50e6
    seen = run_program("streams", 2, "50mbit", rootless=rootless)
    # 5 % for what a burst and a full socket buffer at the start give for nothing
    assert seen["bytes"] * 8 / seen["time_s"] <= 1.05 * rate_bps


def test_streams_to_one_host_share_its_link() -> None:
    seen = run_program("streams", 4, "100mbit")
    assert seen["bytes"] * 8 / seen["time_s"] <= 1.05 * 100e6


@pytest.mark.parametrize("rate", ["100mbit", "1gbit", "none"])
def test_counters_see_packets_as_on_a_wire(rate: str) -> None:
    seen = run_program("streams", 2, rate)
    num_packets = seen["bytes"] / 1448  # payload of a full frame: 1500 − 20 (IP) − 32 (TCP with time stamps)
    on_wire = num_packets * 1514
    # retransmissions, and frames that are not full because a write ended, add a little
    assert on_wire <= seen["tx_bytes"][1] <= 1.1 * on_wire
    assert num_packets <= seen["tx_packets"][1] <= 1.2 * num_packets
    assert on_wire <= seen["rx_bytes"][0] <= seen["tx_bytes"][1]


def test_an_idle_link_carries_nothing() -> None:
    assert run_program("streams", 2, "1gbit")["quiet_bytes"] == 0


def test_connections_use_the_congestion_control_asked_for() -> None:
    assert run_program("streams", 3, "1gbit")["congestion"] == ["cubic", "cubic"]


def test_init_collects_the_labs_orphans() -> None:
    assert run_program("orphans", 1, "none") == 0
