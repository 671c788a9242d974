"""Asking for a fabric: rates, bounds, and errors that say what to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.api import FabricError, FabricKind, FabricSpec, format_rate, parse_rate
from fabric.cluster import MAX_RATE_BPS, MIN_RATE_BPS
from fabric.rates import parse_seconds, parse_size
from fabric.shaping import shaping_for

RATES = st.floats(MIN_RATE_BPS, MAX_RATE_BPS)
MTUS = st.integers(576, 9000)


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("200mbit", 200e6),
        ("1gbit", 1e9),
        ("1.5gbit", 1.5e9),
        ("500 Mbit/s", 500e6),
        ("64Kbit", 64e3),
        ("9600bit", 9600.0),
        (" 1GBIT ", 1e9),
        ("10Gbps", 10e9),
        ("10 Gb/s", 10e9),
        ("10 gbit/s", 10e9),
        ("1e3mbit", 1e9),
        ("0.1Tbps", 100e9),
        ("none", None),
        ("unshaped", None),
    ],
)
def test_rates_are_read_as_people_write_them(text: str, rate_bps: float | None) -> None:
    assert parse_rate(text) == rate_bps


@pytest.mark.parametrize(
    "text", ["0", "0mbit", "0.0gbit", "-1mbit", "fast", "", "200", "200MBps", "10GB/s", "1e30gbit", "mbit"]
)
def test_a_bad_rate_is_refused_by_value_and_with_a_remedy(text: str) -> None:
    with pytest.raises(FabricError) as caught:
        parse_rate(text)
    assert repr(text) in str(caught.value)
    assert "200mbit" in str(caught.value)


@pytest.mark.parametrize("text", ["20us", "20 µs", "2e-5", "0.02ms", "20000ns", "2e-5 s"])
def test_one_start_up_is_one_number_however_it_is_written(text: str) -> None:
    assert parse_seconds(text, "--alpha") == 2e-5


@pytest.mark.parametrize("text", ["20", "2", "0.5", "20s", "2m", "1e-30s", "-1us", "nan", "inf", "soon", ""])
def test_a_time_that_no_start_up_takes_is_refused_by_value_and_with_a_remedy(text: str) -> None:
    with pytest.raises(FabricError, match=r"--alpha .*such as 20us") as caught:
        parse_seconds(text, "--alpha")
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("16GB", 16e9), ("16g", 16e9), ("0.5 mb", 5e5), ("16GiB", 2**34), ("64 KiB", 2**16)]
)
def test_sizes_are_read_with_decimal_and_with_binary_units(text: str, num_bytes: float) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "plenty", "0.4B", "1iB", "-1GB", "9" * 400 + "GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(FabricError, match=r"--memory .* is no size of a byte or more; write it as 16GB"):
        parse_size(text, "--memory")


@given(st.integers(1, 30_000_000))
def test_a_rate_written_is_the_rate_read(rate_kbps: int) -> None:
    assert parse_rate(format_rate(rate_kbps * 1e3)) == pytest.approx(rate_kbps * 1e3, rel=1e-6)


@pytest.mark.parametrize(
    ("rate_bps", "text"), [(200e6, "200 Mbit/s"), (1.5e9, "1.5 Gbit/s"), (None, "unshaped"), (100e6, "100 Mbit/s")]
)
def test_rates_are_written_without_needless_digits(rate_bps: float | None, text: str) -> None:
    assert format_rate(rate_bps) == text


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"rate_bps": 0.0}, "rate_bps=0"),
        ({"rate_bps": -1.0}, "rate_bps=-1"),
        ({"rate_bps": float("nan")}, "rate_bps=nan"),
        ({"rate_bps": float("inf")}, "rate_bps=inf"),
        ({"num_hosts": 0}, "num_hosts=0"),
        ({"num_hosts": 65}, "num_hosts=65"),
        ({"mtu": 100}, "mtu=100"),
        ({"congestion": "cubic; rm"}, "'cubic; rm'"),
    ],
)
def test_a_spec_out_of_bounds_names_the_value(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(FabricError, match=r"use|choose") as caught:
        FabricSpec(kind=FabricKind.EMULATED, **wrong)  # type: ignore[arg-type]
    assert named in str(caught.value)


def test_a_rate_on_the_native_fabric_is_an_error_and_not_ignored() -> None:
    with pytest.raises(FabricError, match="emulated fabric"):
        FabricSpec(kind=FabricKind.NATIVE, rate_bps=1e9)


@given(RATES, MTUS)
def test_a_bucket_holds_two_frames_and_never_more_than_a_short_time_of_line(rate_bps: float, mtu: int) -> None:
    shaping = shaping_for(rate_bps, mtu)
    assert shaping.bytes_per_s == round(rate_bps / 8)
    assert shaping.burst_bytes >= 2 * mtu
    assert shaping.burst_bytes <= max(2 * mtu, 0.001 * shaping.bytes_per_s)


@given(RATES, MTUS)
def test_batches_are_those_the_kernel_can_make_and_hold_two_packets(rate_bps: float, mtu: int) -> None:
    assert 2 * mtu <= shaping_for(rate_bps, mtu).batch_bytes <= 65_536


@given(RATES, RATES, MTUS)
def test_a_faster_line_never_has_a_smaller_bucket(slow_bps: float, fast_bps: float, mtu: int) -> None:
    slow, fast = (shaping_for(rate, mtu) for rate in sorted((slow_bps, fast_bps)))
    assert slow.burst_bytes <= fast.burst_bytes
    assert slow.batch_bytes <= fast.batch_bytes
