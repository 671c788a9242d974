"""One line makes a training script take turns.

    optimizer = hvd.DistributedOptimizer(optimizer, …)          # or model = DistributedDataParallel(model)
    crossover.attach(model, optimizer, job="resnet50")

Under `crossover run` everything else comes from the environment: CROSSOVER_JOB (the job's name), CROSSOVER_SETTINGS
(JSON of `crossover.settings.Settings`, the same on every host) and, if it is not the host's usual one,
CROSSOVER_SOCKET. Where there is neither an environment nor settings, the script runs alone and unchanged.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from math import inf
from types import TracebackType
from typing import Any, Self, cast
from weakref import WeakSet

from crossover.client import Participant
from crossover.digests import DIGESTS, rank_of_environment, write_digest
from crossover.errors import Refused
from crossover.integrations import REST_LIMIT_S, Bond, Integration, Manner, ReleasePoint, Team
from crossover.integrations.unwrapping import show_new_step, unwrapped
from crossover.keeper import TurnSpan, TurnStatistics
from crossover.process import default_path
from crossover.settings import Settings
from crossover.worker_report import WORKER_REPORTS, write_report

JOB, SOCKET, SETTINGS = "CROSSOVER_JOB", "CROSSOVER_SOCKET", "CROSSOVER_SETTINGS"
INTEGRATIONS = {  # the framework that must have been imported → who speaks to it; the most particular first
    "deepspeed": "crossover.integrations.deepspeed",
    "horovod.torch": "crossover.integrations.horovod",
    "torch.distributed": "crossover.integrations.ddp",
    "torch": "crossover.integrations.plain",
}


_log = logging.getLogger("crossover")


class Attachment:
    """An attached job; a context manager, else it is closed at exit. Alone, it does nothing and counts nothing."""

    def __init__(
        self,
        job: str,
        bond: Bond | None = None,
        models: tuple[Any, ...] = (),
        write_report: Callable[[], None] = lambda: None,
    ) -> None:
        self.job = job
        self._bond = bond
        self._models = models
        self._write_report = write_report
        self._is_open = bond is not None
        self._is_digest_due = DIGESTS in os.environ and bool(models)
        self._owner_pid = os.getpid()
        if self._is_open or self._is_digest_due:
            atexit.register(self._close_at_exit)

    @property
    def takes_turns(self) -> bool:
        """Whether the job shares its device now: it was given something to join, is not closed, and this is no forked
        child, which computes out of turn."""
        return self._is_open and not self.is_inherited

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy of its parent's attachment."""
        return os.getpid() != self._owner_pid

    @property
    def statistics(self) -> TurnStatistics:
        """Turns, and seconds waited for and held, of this worker."""
        return TurnStatistics() if self._bond is None else self._bond.keeper.statistics

    @property
    def spans(self) -> tuple[TurnSpan, ...]:
        """The latest turns one by one, oldest first."""
        return () if self._bond is None else self._bond.keeper.spans

    def pause(self) -> AbstractContextManager[None]:
        """A block in which nobody waits for this job, for a checkpoint, an evaluation or a download of any length.

            with attachment.pause():
                save(model)

        All workers of the job must come to it, at the same step, even if only one has something to do: they come back
        into the queue together, at a round on which they agree (a collective, at the end of the block). Inside, an
        evaluation still asks for the device batch by batch; training steps raise no error but count as late turns.
        """
        return self._bond.keeper.paused() if self._is_open and self._bond is not None else nullcontext()

    def close(self) -> None:
        """Run an update that waits for its turn, take the hooks away and leave; the script may go on without turns.
        May be called again."""
        if self._bond is not None and self._detach():
            self._bond.keeper.close()
            self._write(self._write_report)
        if self._is_digest_due:
            self._is_digest_due = False
            self._write(lambda: write_digest(os.environ[DIGESTS], self._models, self.statistics.num_turns))

    def abandon(self) -> None:
        """Leave at once, without the update: after an error its messages may never come."""
        self._is_digest_due = False
        if self._bond is not None and self._detach():
            self._bond.keeper.abandon()

    def _write(self, write: Callable[[], object]) -> None:
        """Write what a command has asked for; a full disk is no reason for the job to fail."""
        if self.is_inherited:
            return
        try:
            write()
        except OSError as error:
            _log.warning("job %r cannot tell what it has trained: %s", self.job, error)

    def _detach(self) -> bool:
        was_open, self._is_open = self._is_open, False
        if was_open and self._bond is not None:
            _open_attachments.discard(self)
            atexit.unregister(self._close_at_exit)
            self._bond.undo()
        return was_open

    def _close_at_exit(self) -> None:
        if self.is_inherited:
            return
        if hasattr(sys, "last_value"):  # an exception ends the script
            self.abandon()
        else:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


_open_attachments: WeakSet[Attachment] = WeakSet()  # of this process


def attach(
    model: Any,
    optimizer: Any = None,
    *,
    job: str | None = None,
    path: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    device: str | None = None,
    release: str = ReleasePoint.EVENT,
    defer: bool = False,
    rest_limit_s: float = REST_LIMIT_S,
) -> Attachment:
    """Let this worker compute in turns with the other jobs on its device; call it in every worker of the job.

    `model` is a torch module, a `DistributedDataParallel` model or a DeepSpeed engine (which has its own optimizer),
    `optimizer` a torch optimizer, accelerate's or Lightning's around one, or what `hvd.DistributedOptimizer` made. A
    tuple of models and one of optimizers make one job of a GAN, or of parts that the script calls one by one. Attach
    when all are on their device and have their first parameters and state (after Horovod's broadcasts).

    Arguments come before the environment, except that CROSSOVER_JOB comes before `job`: whoever starts the script names
    it, so that one script can be several jobs. `settings` let this process start the host's arbiter if there is none;
    with `path` alone it joins the one that serves it. `device` names the device among those of the host (default: a
    GPU's identity, or the worker's local rank on CPUs). `release="launch"` gives a turn back when its work is launched
    rather than done.

    The update begins a turn, inside `optimizer.step()`, and the next forward and backward go on with it. A turn that
    rests longer than `rest_limit_s` seconds in between is interrupted; NCCL's never are. With `defer=True` the update
    waits for the next forward instead, so that what lies between the two is outside the turn: see
    `crossover.integrations.deferring` for what such a script must not do.

    Where the machine allows no arbiter (a full disk), or the seat is lost later, the job goes on without turns, after
    one warning. A forked child computes out of turn, and may attach a job of another name.
    Raises `Refused` (a ValueError) with reason and remedy for what cannot take turns, and `ArbiterAbsent`; `step()`
    raises `Refused` when it has gradients and no forward of a model was seen before it.
    """
    models, optimizers = _as_tuple(model), _as_tuple(optimizer)
    settings = settings if settings is not None else _settings_of_environment()
    if settings is None and path is None and SOCKET not in os.environ:
        _say_alone()
        return Attachment(job or os.environ.get(JOB, ""), models=models)
    name = _job_name(job, settings)
    _check_first(name)
    inner = tuple(map(unwrapped, optimizers))
    integration = _integration_of(models, inner)
    team = integration.team(models, inner)
    _check_team(models, settings, team)
    manner = Manner(
        release=_release(release),
        defer=defer,
        rest_limit_s=None if team.strict else _rest_limit_s(rest_limit_s),
        is_sole=team.agree is None,
    )
    team = team if device is None else replace(team, device=device)
    turns = _seat(path if path is not None else default_path(), name, settings, team)
    bond = _bound(integration, models, inner, turns, manner)
    attachment = Attachment(name, bond, models, _reporter(models, inner, team.world))
    for wrapper in optimizers:
        show_new_step(wrapper)
    _open_attachments.add(attachment)
    return attachment


def _seat(path: str | os.PathLike[str], job: str, settings: Settings | None, team: Team) -> Participant:
    """This worker's seat among those of its job."""
    return Participant(
        path,
        job,
        team.device,
        settings=settings,
        agree=team.agree,
        num_local=team.num_local,
        keeps_going=True,
    )


def _bound(
    integration: Integration, models: tuple[Any, ...], optimizers: tuple[Any, ...], turns: Participant, manner: Manner
) -> Bond:
    """The models bound to turns; a model that cannot be gives its seat back."""
    try:
        return integration.bind(models, optimizers, turns, manner)
    except BaseException:
        turns.leave()
        raise


def _reporter(models: tuple[Any, ...], optimizers: tuple[Any, ...], world: int) -> Callable[[], None]:
    """What writes this worker's report where `crossover run --profile` asks for one; hooks are set here and now."""
    folder = os.environ.get(WORKER_REPORTS, "")
    if not os.path.isdir(folder):  # a launcher may hand the variable on to hosts that have no such folder
        return lambda: None
    from crossover.integrations.layer_clock import LayerClock

    clock = LayerClock(models, world)

    def write() -> None:
        clock.remove()
        write_report(folder, clock.report(optimizers))

    return write


def _as_tuple(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def _check_team(models: tuple[Any, ...], settings: Settings | None, team: Team) -> None:
    """Refuse settings that its messages do not allow; the job's first rank warns of too many threads."""
    from crossover.integrations.workers import device_of, thread_warning

    if not rank_of_environment() and (warning := thread_warning(device_of(models[0]), team.num_local)):
        print(f"crossover: {warning}", file=sys.stderr, flush=True)
    if settings is not None and settings.lead_rounds and team.strict:
        raise Refused(f"lead_rounds={settings.lead_rounds} lets hosts differ in their order; {team.strict}: use 0")


def _check_first(job: str) -> None:
    """A process has one seat per job: a second `attach` of the same job would wait for the first one's turn. What a
    forked child has inherited is closed: its hooks may be on the same model."""
    for inherited in [attachment for attachment in _open_attachments if attachment.is_inherited]:
        inherited.close()
    if any(attachment.job == job and attachment.takes_turns for attachment in _open_attachments):
        raise Refused(
            f"job {job!r} is attached in this process already: attach all its models in one call, "
            "attach((generator, discriminator), (optimizer_g, optimizer_d)), or close the first attachment"
        )


def _settings_of_environment() -> Settings | None:
    given = os.environ.get(SETTINGS)
    return Settings.from_json(given) if given else None


def _job_name(given: str | None, settings: Settings | None) -> str:
    """The starter's name for the job, so that one script can be several jobs; else the script's own."""
    name = os.environ.get(JOB) or given
    if name is None:
        raise Refused(f"this job has no name: give attach(…, job=…), or set {JOB}")
    if settings is not None and name not in settings.jobs:
        raise Refused(f"job {name!r} is not among the settings' jobs {settings.jobs}: use one of these, or add it")
    return name


def _release(given: str) -> ReleasePoint:
    try:
        return ReleasePoint(given)
    except ValueError as error:
        raise Refused(f"release={given!r}: use one of {[str(known) for known in ReleasePoint]}") from error


def _rest_limit_s(given: float) -> float:
    if not 0 < given < inf:
        raise Refused(f"rest_limit_s={given}: use a positive number of seconds")
    return given


def _integration_of(models: tuple[Any, ...], optimizers: tuple[Any, ...]) -> Integration:
    """The first that knows these objects; one whose framework was never imported cannot."""
    for framework, module in INTEGRATIONS.items():
        if models and framework in sys.modules:
            integration = cast(Integration, importlib.import_module(module))
            if integration.claims(models, optimizers):
                return integration
    raise Refused(
        f"cannot attach {', '.join(type(one).__name__ for one in (*models, *optimizers)) or 'nothing'}: give a torch "
        "module and a torch optimizer (or a tuple of each), or a DeepSpeed engine"
    )


@cache
def _say_alone() -> None:
    """Once per process, and by a job's first rank only."""
    if rank_of_environment():
        return
    print(
        "crossover: this script runs alone: `crossover run` starts jobs that share their devices",
        file=sys.stderr,
        flush=True,
    )
