"""What an operation costs on a paced link, and what may be asked of the fabric."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.api import FabricError, FabricKind, FabricSpec, build, command_prefix
from fabric.collectives import Collective
from fabric.paced import PacedLink, paced_link

RANKS = st.integers(1, 64)
BYTES = st.integers(0, 10**9)
COLLECTIVES = st.sampled_from(Collective)


def spec_of(**asked: object) -> FabricSpec:
    return FabricSpec(kind=FabricKind.PACED, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("collective", "num_steps", "num_carried"),
    [
        (Collective.ALL_REDUCE, 14, 1_750_000),
        (Collective.ALL_GATHER, 7, 7_000_000),
        (Collective.GATHER, 1, 7_000_000),
        (Collective.BROADCAST, 3, 3_000_000),
        (Collective.ALL_TO_ALL, 7, 1_000_000),
        (Collective.REDUCE_SCATTER, 7, 875_000),
        (Collective.REDUCE, 3, 3_000_000),
        (Collective.SCATTER, 1, 7_000_000),
        (Collective.BARRIER, 3, 0),
        (Collective.TRANSFER, 1, 1_000_000),
    ],
)
def test_eight_ranks_pay_for_a_megabyte_what_the_table_says(
    collective: Collective, num_steps: int, num_carried: float
) -> None:
    link = PacedLink(num_ranks=8, alpha_s=1e-4, rate_bps=1e9)
    assert link.seconds(collective, 1_000_000) == pytest.approx(num_steps * 1e-4 + num_carried * 8e-9)


@given(COLLECTIVES, BYTES)
def test_a_rank_alone_pays_nothing(collective: Collective, num_bytes: int) -> None:
    assert PacedLink(1, 1e-3, 1e6).seconds(collective, num_bytes) == 0.0


@given(COLLECTIVES, RANKS, BYTES)
def test_two_operations_cost_what_one_of_both_sizes_costs_and_its_start_again(
    collective: Collective, num_ranks: int, num_bytes: int
) -> None:
    link = PacedLink(num_ranks, 2e-5, 1e9)
    start_s = link.seconds(collective, 0)
    assert 2 * link.seconds(collective, num_bytes) == pytest.approx(link.seconds(collective, 2 * num_bytes) + start_s)


@given(COLLECTIVES, RANKS, BYTES)
def test_more_ranks_and_more_bytes_never_cost_less(collective: Collective, num_ranks: int, num_bytes: int) -> None:
    seconds = PacedLink(num_ranks, 2e-5, 1e9).seconds(collective, num_bytes)
    assert PacedLink(num_ranks + 1, 2e-5, 1e9).seconds(collective, num_bytes) >= seconds
    assert PacedLink(num_ranks, 2e-5, 1e9).seconds(collective, num_bytes + 1) >= seconds


def test_without_a_rate_only_steps_cost() -> None:
    assert PacedLink(4, 1e-3, None).seconds(Collective.ALL_REDUCE, 10**9) == pytest.approx(6e-3)


def test_a_link_counts_virtual_ranks_or_real_ones() -> None:
    virtual, real = paced_link(spec_of(num_hosts=1, num_virtual=8)), paced_link(spec_of(num_hosts=4))
    assert virtual is not None
    assert real is not None
    assert (virtual.num_ranks, real.num_ranks) == (8, 4)
    assert paced_link(FabricSpec(kind=FabricKind.EMULATED)) is None


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"alpha_s": -1e-6}, "alpha_s=-1e-06"),
        ({"alpha_s": float("nan")}, "alpha_s=nan"),
        ({"alpha_s": 2.0}, "alpha_s=2"),
        ({"num_hosts": 1, "num_virtual": 1}, "num_virtual=1"),
        ({"num_hosts": 1, "num_virtual": 5000}, "num_virtual=5000"),
        ({"num_hosts": 2, "num_virtual": 8}, "num_virtual=8 with num_hosts=2"),
        ({"rate_bps": 0.0}, "rate_bps=0"),
        ({"rate_bps": 1e15}, "rate_bps=1e"),
    ],
)
def test_a_paced_spec_out_of_bounds_names_the_value(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(FabricError, match=r"use|choose") as caught:
        spec_of(**wrong)
    assert named in str(caught.value)


@pytest.mark.parametrize("wrong", [{"alpha_s": 1e-5}, {"num_hosts": 1, "num_virtual": 4}])
@pytest.mark.parametrize("kind", [FabricKind.NATIVE, FabricKind.EMULATED])
def test_other_fabrics_take_no_model_of_a_link(kind: FabricKind, wrong: dict[str, float]) -> None:
    with pytest.raises(FabricError, match="paced fabric"):
        FabricSpec(kind=kind, rate_bps=None, **wrong)  # type: ignore[arg-type]


def test_a_paced_link_may_be_faster_than_the_kernel_can_shape() -> None:
    assert spec_of(rate_bps=400e9).rate_bps == 400e9


def test_a_paced_cluster_needs_no_privilege_and_is_this_machine() -> None:
    spec = spec_of(num_hosts=2)
    assert command_prefix(spec) == []
    with build(spec) as cluster:
        assert [host.address for host in cluster.hosts] == ["127.0.0.1"] * 2
        assert cluster.counters() is None
