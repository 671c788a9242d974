"""What a sharing takes from the jobs' own costs before a trial starts."""

from dataclasses import replace

import pytest

from crossover import Sharing
from fabric.api import FabricKind, FabricSpec
from harness.sharing_settings import with_rules
from harness.trial import Job, Trial, TrialError
from models.workload import Device, WorkloadSpec
from results.record import JobCosts

WORKLOAD = WorkloadSpec(network="resnet50", device=Device.REPLAY)
COMPUTES = JobCosts(compute_s=0.2, communication_s=0.02, solo_s=0.21)
COMMUNICATES = JobCosts(compute_s=0.05, communication_s=0.2, solo_s=0.22)


def pair(sharing: Sharing) -> Trial:
    jobs = tuple(Job(name=name, workload=WORKLOAD) for name in "ab")
    return Trial(
        suite="s",
        cell=f"g/{sharing}",
        jobs=jobs,
        fabric=FabricSpec(kind=FabricKind.EMULATED, num_hosts=2),
        sharing=sharing,
    )


@pytest.mark.parametrize("sharing", [Sharing.EXCLUSIVE, Sharing.HOLD, Sharing.NAIVE, Sharing.CROSSOVER])
def test_a_sharing_without_rules_needs_no_costs(sharing: Sharing) -> None:
    assert with_rules(pair(sharing), ()) == pair(sharing)


@pytest.mark.parametrize("sharing", [Sharing.WEIGHTED, Sharing.MURI, Sharing.CASSINI])
def test_a_sharing_with_rules_says_that_it_needs_costs(sharing: Sharing) -> None:
    with pytest.raises(TrialError, match="run the exclusive trial of the same jobs before it"):
        with_rules(pair(sharing), ())


@pytest.mark.parametrize(
    ("sharing", "name"), [(Sharing.WEIGHTED, "shares"), (Sharing.MURI, "groups"), (Sharing.CASSINI, "beats")]
)
def test_rules_come_from_costs_and_cover_every_job(sharing: Sharing, name: str) -> None:
    ruled = with_rules(pair(sharing), (COMPUTES, COMMUNICATES))
    value = getattr(ruled, name)
    assert len([job for group in value for job in group] if name == "groups" else value) == 2
    assert with_rules(ruled, ()) == ruled


def test_a_phase_becomes_a_delay_of_that_part_of_the_jobs_own_step() -> None:
    trial = pair(Sharing.NAIVE)
    phased = replace(trial, jobs=(trial.jobs[0], replace(trial.jobs[1], start_phase=0.5)))
    delays = [job.start_delay_s for job in with_rules(phased, (COMPUTES, COMMUNICATES)).jobs]
    assert delays == pytest.approx([0.0, 0.11])
