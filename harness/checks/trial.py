"""Everything about a trial that can be known before it starts, memory apart."""

from __future__ import annotations

import math

from crossover import Sharing
from fabric.api import FabricKind, NetworkSpec
from harness.checks.pipelines import check_pipelines
from harness.checks.replicas import check_replicas
from harness.checks.splits import check_splits
from harness.problems.asked import check_problem
from harness.trial import LIBRARIES, TimedCollective, Trial, TrialError

MOST_ID_BYTES = 240  # file systems take 255 for a name; a hundredth repeat, an attempt and the suffix need the rest


def check(trial: Trial) -> None:
    """Everything about a trial that can be known before it starts, memory apart.

    Raises: TrialError, TextError, CatalogueError, WorkloadError, NetworkError, ProblemError with value and remedy.
    """
    if (num_bytes := len(trial.id.encode())) > MOST_ID_BYTES:
        raise TrialError(
            f"{trial.cell}: the name of its record has {num_bytes} bytes, and at most {MOST_ID_BYTES} make a file's "
            "name; give a shorter strategy"
        )
    if trial.traffic is not None:
        _check_traffic(trial)
        return
    if trial.collective is not None:
        _check_collective(trial, trial.collective)
        return
    if trial.problem is not None:
        check_problem(trial.problem)
        return
    _check_placement(trial)
    if trial.is_split:
        check_splits(trial)
    elif trial.is_pipelined:
        check_pipelines(trial)
    else:
        if trial.fabric.network is not None:
            _check_network(trial, trial.fabric.network)
        check_replicas(trial)


def _check_placement(trial: Trial) -> None:
    if trial.finds_phases and not (trial.is_pipelined and trial.sharing is Sharing.CROSSOVER):
        raise TrialError(
            f"{trial.cell}: finds_phases is for pipelined jobs under crossover; give start_phase, or share by cassini"
        )
    if trial.ranks_per_host == 1:
        return
    if trial.sharing is not None:
        raise TrialError(
            f"{trial.cell}: ranks_per_host={trial.ranks_per_host} under {trial.sharing}: a host's arbiter seats one "
            "rank of a job; use ranks_per_host=1"
        )
    if trial.fabric.kind is FabricKind.PACED:
        raise TrialError(
            f"{trial.cell}: ranks_per_host={trial.ranks_per_host} on the paced fabric, whose model has one rank a "
            "host; use ranks_per_host=1, or another fabric"
        )


def _check_network(trial: Trial, network: NetworkSpec) -> None:
    """Whether the network can be built, has room for all jobs and joins their hosts. Raises: NetworkError."""
    from fabric.simulated.placed import place_network  # numba comes with it

    if trial.cluster is not None:
        raise TrialError(f"{trial.cell}: unequal workers train in lockstep, not on a simulated network; leave it out")
    place_network(network, trial.world, len(trial.jobs))


def _check_traffic(trial: Trial) -> None:
    """Whether all its flows can be. Raises: NetworkError."""
    from fabric.simulated.drawn_flows import check_traffic  # numba comes with it

    assert trial.traffic is not None
    assert trial.fabric.network is not None
    check_traffic(trial.traffic, trial.fabric.network, trial.seed)


def _check_collective(trial: Trial, asked: TimedCollective) -> None:
    """Whether the library's ranks can be started there."""
    if trial.fabric.kind not in LIBRARIES:
        raise TrialError(
            f"{trial.cell}: {asked.text} on the fabric {trial.fabric.kind}, which has no wire to be timed; use "
            "emulated, or native for nccl"
        )
    if asked.library not in LIBRARIES[trial.fabric.kind]:
        known = ", ".join(LIBRARIES[trial.fabric.kind])
        raise TrialError(f"{trial.cell}: library {asked.library!r} on the fabric {trial.fabric.kind}; use {known}")
    if trial.fabric.num_hosts < 2:
        raise TrialError(f"{trial.cell}: a collective among {trial.fabric.num_hosts} hosts; use 2 or more")
    if not 0 < asked.most_s < math.inf:  # NaN too
        raise TrialError(f"{trial.cell}: rows of at most {asked.most_s:g} s; give seconds above 0, e.g. 15")
