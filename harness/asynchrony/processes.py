"""Workers and servers as processes on hosts: one rank of a trial whose workers need not wait for each other.

The first ranks train, the `num_servers` last ones serve. A worker computes real gradients; its step lasts at least as
long as the cluster's disturbances say, so that the same specification slows a virtual worker and a real one.

    result = run_on_host(trial, place, signals)  # the process group is up; it is used to meet, and not afterwards
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn

from crossover import Alone, Participant, TurnTaking
from fabric.api import FabricKind
from harness.asynchrony.client import ServerPlace, ServersLink, names_within, parts_of
from harness.asynchrony.cluster import VirtualCluster
from harness.asynchrony.parameters import Parameters
from harness.asynchrony.server import ParameterServerProcess
from harness.asynchrony.training import PUSHED, Loss, Training
from harness.asynchrony.wire import TOKEN_BYTES
from harness.asynchrony.worker import train_on_servers
from harness.engine.layout import fitting_parameters
from harness.lab.gpu import logged_turns, own_times
from harness.lab.rank import Place, RankResult, Signals, weights_digest
from harness.loop import Evaluated
from harness.trial import Trial
from harness.turns import spans_of
from models.workload import Device, Workload, open_workload
from results.record import Phases

_ADDRESS_BYTES, _PORT_BYTES = 4, 2


def run_on_host(trial: Trial, place: Place, signals: Signals) -> RankResult:
    """Serve or train, as the rank is. Raises: ServerLostError, WorkerLostError, WorkerFaultError, StaleReadError."""
    cluster, job = trial.cluster, trial.jobs[place.job]
    assert cluster is not None, "a trial without a cluster has no workers of this kind"
    workload, strategy = open_workload(job.workload), job.resolve()
    model = workload.build_model(trial.seed)
    parameters = fitting_parameters(model, strategy.takes | PUSHED)
    # Every rank builds the model of the trial's seed, so the first parameters need not travel.
    values = torch.cat([parameter.detach().reshape(-1) for parameter in parameters.values()])
    parts = parts_of(values.numel(), cluster.num_servers)
    if place.rank >= cluster.num_workers:
        number = place.rank - cluster.num_workers
        start, stop = parts[number]
        own = Parameters(values[start:stop], cluster.num_workers, strategy.consistency.share)
        paced_by = cluster if trial.fabric.kind is FabricKind.PACED else None
        server = ParameterServerProcess(
            own,
            place.host.address,
            num_clocks=trial.num_warmup + trial.num_steps_of(place.job),
            exact_reads=strategy.consistency.is_synchronous,
            on_loss=trial.on_loss,
            paced_by=paced_by,
        )
        _meet(server, place.host.address, cluster, parts)
        signals.ready()
        return _served(server, trial, place, model, tells=number == 0)
    places = _meet(None, place.host.address, cluster, parts)
    link = ServersLink(place.rank, places, [names_within(parameters, *part) for part in parts])
    training = Training(
        model, strategy.optimizer.build, _own_batches(trial, workload, place.rank), cluster.num_workers, seed=trial.seed
    )
    turns = logged_turns(Participant(place.arbiter_socket, job.name) if place.arbiter_socket else Alone(), Device.CPU)
    # Leaving the block gives the seat up, and nobody waits for this job's turns any more.
    with turns:
        signals.ready()
        result = _trained(trial, place, signals, training, link, turns)
    link.close()
    # Once, at the end: in between it would slow this worker, and with it whoever waits for it.
    if place.rank == 0 and trial.evaluate_every and (found := workload.evaluate(model)) is not None:
        last = Evaluated(len(result.step_times_s), sum(result.step_times_s), found.loss, found.accuracy)
        result = replace(result, evaluated=(last,))
    taken = own_times(turns) if place.arbiter_socket else ()
    return replace(result, turns=taken, compute_times=spans_of(taken))


def _meet(
    server: ParameterServerProcess | None, address: str, cluster: VirtualCluster, parts: Sequence[tuple[int, int]]
) -> list[ServerPlace]:
    """Tell all ranks where the servers are, and their tokens, over the process group."""
    # Workers have nothing to tell, but a gather takes equal sizes from all ranks.
    own = torch.zeros(_ADDRESS_BYTES + _PORT_BYTES + TOKEN_BYTES, dtype=torch.uint8)
    if server is not None:
        told = socket.inet_aton(socket.gethostbyname(address)) + server.port.to_bytes(_PORT_BYTES, "big") + server.token
        own = torch.frombuffer(bytearray(told), dtype=torch.uint8)
    told_by = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(told_by, own)
    return [_place_of(bytes(told_by[cluster.num_workers + n].tolist()), *part) for n, part in enumerate(parts)]


def _place_of(told: bytes, start: int, stop: int) -> ServerPlace:
    port_at, token_at = _ADDRESS_BYTES, _ADDRESS_BYTES + _PORT_BYTES
    port = int.from_bytes(told[port_at:token_at], "big")
    return ServerPlace(socket.inet_ntoa(told[:port_at]), port, told[token_at:], start, stop)


def _own_batches(trial: Trial, workload: Workload, worker: int) -> Loss:
    assert trial.cluster is not None
    batches = workload.batches(worker, trial.cluster.num_workers, trial.seed)

    def loss(_: int, model: nn.Module) -> Tensor:
        return workload.loss(model, next(batches))

    return loss


def _trained(
    trial: Trial, place: Place, signals: Signals, training: Training, link: ServersLink, turns: TurnTaking
) -> RankResult:
    cluster, policy = trial.cluster, trial.jobs[place.job].resolve().consistency
    assert cluster is not None
    worker, num_clocks = place.rank, trial.num_warmup + trial.num_steps_of(place.job)
    start_s = perf_counter()
    ends_s = train_on_servers(
        worker,
        training,
        link,
        policy,
        num_clocks,
        turns=turns,
        lasts_until_s=lambda clock, since_s: cluster.computed_at_s(worker, clock, since_s, trial.seed),
        on_push=signals.step,
    )
    return replace(
        _result(trial, place, training.model, start_s, perf_counter()),
        step_times_s=tuple(later - earlier for earlier, later in pairwise(ends_s)),
        losses=tuple(training.losses[worker]),
        wire_bytes={"push": link.num_pushed_bytes / num_clocks},
    )


def _served(server: ParameterServerProcess, trial: Trial, place: Place, model: nn.Module, *, tells: bool) -> RankResult:
    """`tells`: of several servers the first one's counts go into the record, since all see the same updates."""
    start_s = perf_counter()
    report = server.serve()
    facts = report.tally.facts(server.parameters.clocks, report.lost)
    facts = replace(facts, server_cpu_s_per_mb=report.cpu_s_per_mb)
    result = _result(trial, place, model, start_s, perf_counter())
    wire_bytes = {"answer": report.num_sent_bytes / (trial.num_warmup + trial.num_steps_of(place.job))}
    return replace(result, serves=True, wire_bytes=wire_bytes, consistency=facts if tells else None)


def _result(trial: Trial, place: Place, model: nn.Module, start_s: float, end_s: float) -> RankResult:
    assert trial.cluster is not None
    return RankResult(
        job=place.job,
        rank=place.rank,
        step_times_s=(),
        losses=(),
        evaluated=(),
        phases=Phases(),
        num_messages=2.0 * trial.cluster.num_servers,
        wire_bytes={},
        weights_digest=weights_digest(model),
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        tensor_sizes=tuple(p.numel() for p in model.parameters()) if place.rank == 0 else (),
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        start_s=start_s,
        end_s=end_s,
    )
