"""The paced link and the flow engine price the same collectives: on a star with the same α and rate they must agree."""

import numpy as np
import pytest

from fabric.collectives import Collective
from fabric.paced import PacedLink
from fabric.simulated.flow import simulate_flows
from fabric.simulated.topologies import LeafSpine
from fabric.simulated.traffic import TrafficJob, collective_rounds

ALPHA_S, GBIT = 20e-6, 10.0
SENDING = [own for own in Collective if own is not Collective.BARRIER]


def star_s(collective: Collective, world: int, num_bytes: float) -> float:
    """What the flow engine says of `world` hosts on one switch whose cables have no delay."""
    graph = LeafSpine(1, 1, world, gbit=GBIT, delay_us=0.0).build()
    rounds = collective_rounds(collective, world, num_bytes)
    job = TrafficJob(tuple(range(world)), rounds, round_s=ALPHA_S)
    return float(simulate_flows(graph, [job]).finish_s[0])


@pytest.mark.parametrize("world", [2, 4, 8, 16])
@pytest.mark.parametrize("collective", SENDING)
def test_a_collective_costs_on_the_paced_link_what_its_flows_take_on_a_star(collective: Collective, world: int) -> None:
    link = PacedLink(world, ALPHA_S, GBIT * 1e9)
    for num_bytes in (1e3, 1e6, 1e8):
        paced_s = link.seconds(collective, num_bytes)
        # the same rounds, α and rate: only the order of the sums differs
        np.testing.assert_allclose(star_s(collective, world, num_bytes), paced_s, rtol=1e-9)


def test_the_agreement_is_not_by_having_no_rounds() -> None:
    # 14 steps of n/8 bytes and 20 µs each
    assert star_s(Collective.ALL_REDUCE, 8, 1e8) == pytest.approx(14 * (20e-6 + 1e8 / 8 * 8 / 10e9), rel=1e-9)
