"""Start an arbiter as a process of its own that ends with the process that started it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from crossover.errors import Refused
from crossover.policies import Sharing
from crossover.settings import Settings

_STOP_LIMIT_S = 2.0


@dataclass(slots=True)
class ArbiterProcess:
    """A running arbiter; a context manager that stops it."""

    path: Path
    _process: subprocess.Popen[str] = field(repr=False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process still lives."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it and remove its socket; participants get `ArbiterLost`. May be called again."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()


def start(
    path: str | os.PathLike[str],
    jobs: Sequence[str] = ("a", "b"),
    sharing: Sharing = Sharing.CROSSOVER,
    **others: Any,
) -> ArbiterProcess:
    """Start an arbiter at socket `path` and return when it accepts participants.

    It watches this process and ends with it, whatever kills it. Arguments are those of `crossover.settings.Settings`.
    Raises `Refused` for settings that do not fit, and with the arbiter's own reason when it cannot start.
    """
    settings = Settings(jobs=tuple(jobs), sharing=sharing, **others)
    options = [f"--parent={os.getpid()}", "--", os.fspath(path), settings.to_json()]
    command = [sys.executable, "-P", "-m", "crossover.arbiter", *options]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=_environment_with_this_package()
    )
    assert process.stdout is not None
    with process.stdout as announcements:
        first_line = announcements.readline().strip()
    if first_line != "ready":
        code = process.wait()
        raise Refused(f"the arbiter at {os.fspath(path)} did not start: {first_line or f'it ended with code {code}'}")
    return ArbiterProcess(Path(path), process)


def _environment_with_this_package() -> dict[str, str]:
    here = str(Path(__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([here, inherited] if inherited else [here])}
