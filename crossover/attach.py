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
import os
import sys
from functools import cache
from types import TracebackType
from typing import Any, Self, cast

from crossover.client import Participant
from crossover.errors import Refused
from crossover.integrations import Bond, Integration, Manner, Release
from crossover.keeper import TurnSpan, TurnStatistics
from crossover.process import default_path
from crossover.settings import Settings

JOB, SOCKET, SETTINGS = "CROSSOVER_JOB", "CROSSOVER_SOCKET", "CROSSOVER_SETTINGS"
INTEGRATIONS = {  # the framework that must have been imported → who speaks to it; the most particular first
    "deepspeed": "crossover.integrations.deepspeed",
    "horovod.torch": "crossover.integrations.horovod",
    "torch.distributed": "crossover.integrations.ddp",
    "torch": "crossover.integrations.plain",
}


class Attachment:
    """An attached job; a context manager, else it is closed at exit. Alone, it does nothing and counts nothing."""

    def __init__(self, job: str, bond: Bond | None = None) -> None:
        self.job = job
        self._bond = bond
        self._is_open = bond is not None
        self._owner_pid = os.getpid()
        if bond is not None:
            atexit.register(self._close_at_exit)

    @property
    def takes_turns(self) -> bool:
        """Whether the job shares its device now: it was given something to join, and is not closed."""
        return self._is_open

    @property
    def statistics(self) -> TurnStatistics:
        """Turns, and seconds waited for and held, of this worker."""
        return TurnStatistics() if self._bond is None else self._bond.keeper.statistics

    @property
    def spans(self) -> tuple[TurnSpan, ...]:
        """The latest turns one by one, oldest first."""
        return () if self._bond is None else self._bond.keeper.spans

    def close(self) -> None:
        """Run an update that waits for its turn, take the hooks away and leave; the script may go on without turns.
        May be called again."""
        if self._bond is not None and self._detach():
            self._bond.keeper.close()

    def abandon(self) -> None:
        """Leave at once, without the update: after an error its messages may never come."""
        if self._bond is not None and self._detach():
            self._bond.keeper.abandon()

    def _detach(self) -> bool:
        was_open, self._is_open = self._is_open, False
        if was_open and self._bond is not None:
            atexit.unregister(self._close_at_exit)
            self._bond.undo()
        return was_open

    def _close_at_exit(self) -> None:
        if os.getpid() != self._owner_pid:  # a forked child has a copy of this, but no turns
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


def attach(
    model: Any,
    optimizer: Any = None,
    *,
    job: str | None = None,
    path: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    device: str | None = None,
    release: str = Release.EVENT,
    defer: bool = True,
) -> Attachment:
    """Let this worker compute in turns with the other jobs on its device; call it in every worker of the job.

    `model` is a torch module, a `DistributedDataParallel` model or a DeepSpeed engine (which has its own optimizer),
    `optimizer` a torch optimizer or what `hvd.DistributedOptimizer` made; attach when both are on their device and have
    their first parameters and state (after Horovod's broadcasts). Arguments come before the environment, except that a
    `job` which the settings do not have gives way to CROSSOVER_JOB. `settings` let this process start the host's
    arbiter if there is none; with `path` alone it joins the one that serves it. `device` names the device among those
    of the host (default: a GPU's identity, or the worker's local rank on CPUs). `release="launch"` gives a turn back
    when its work is launched rather than done. `defer=False` runs every update when it is called, as a lease of its
    own, for scripts that read parameters behind torch's back.

    Raises `Refused` with reason and remedy for what cannot take turns, and `ArbiterAbsent`.
    """
    settings = settings if settings is not None else _settings_of_environment()
    if settings is None and path is None and SOCKET not in os.environ:
        _say_alone()
        return Attachment(job or os.environ.get(JOB, ""))
    name = _job_name(job, settings)
    manner = Manner(release=_release(release), defer=defer)
    integration = _integration_of(model, optimizer)
    team = integration.team(model, optimizer)
    if settings is not None and settings.lead_rounds and team.strict:
        raise Refused(f"lead_rounds={settings.lead_rounds} lets hosts differ in their order; {team.strict}: use 0")
    turns = Participant(
        path if path is not None else default_path(),
        name,
        device if device is not None else team.device,
        settings=settings,
        agree=team.agree,
    )
    try:
        return Attachment(name, integration.bind(model, optimizer, turns, manner))
    except BaseException:
        turns.leave()
        raise


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


def _release(given: str) -> Release:
    try:
        return Release(given)
    except ValueError as error:
        raise Refused(f"release={given!r}: use one of {[str(known) for known in Release]}") from error


def _integration_of(model: Any, optimizer: Any) -> Integration:
    """The first that knows these objects; one whose framework was never imported cannot."""
    for framework, module in INTEGRATIONS.items():
        if framework in sys.modules:
            integration = cast(Integration, importlib.import_module(module))
            if integration.claims(model, optimizer):
                return integration
    raise Refused(
        f"cannot attach {type(model).__name__} with {type(optimizer).__name__}: give a torch module and a torch "
        "optimizer, or a DeepSpeed engine"
    )


@cache
def _say_alone() -> None:
    print(
        "crossover: this script runs alone: `crossover run` starts jobs that share their devices",
        file=sys.stderr,
        flush=True,
    )
