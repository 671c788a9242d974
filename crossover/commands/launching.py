"""Jobs as processes: what `NAME="COMMAND ARGS"` means, and a command started under a supervisor."""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from crossover.errors import Refused
from crossover.protocol import check_job
from crossover.settings import Settings
from crossover.supervisor import KILLED, supervised

_ROOM_BYTES = 1 << 18  # of a disk on which results are to be written: the layers of a large network


@dataclass(frozen=True, slots=True)
class JobCommand:
    """A job's name, and the words of its command; no shell ever sees them."""

    name: str
    words: tuple[str, ...]


def parse_job(text: str) -> JobCommand:
    """The job in `NAME=COMMAND ARGS`, split as a shell would; `Refused` for what cannot be started."""
    name, equals, line = text.partition("=")
    if not equals:
        raise Refused(f'{text!r} is no job: write NAME="COMMAND ARGS", such as resnet="torchrun train.py"')
    try:
        words = tuple(shlex.split(line))
    except ValueError as error:
        raise Refused(f"the command of job {name!r} cannot be split ({error}): mend its quotes") from error
    if not words:
        raise Refused(f'job {name!r} has no command: write {name}="COMMAND ARGS"')
    if shutil.which(words[0]) is None:
        remedy = "begin it with `env`" if "=" in words[0] else "correct it, or give its whole path"
        raise Refused(f"job {name!r}: no program {words[0]!r} to start: {remedy}")
    return JobCommand(check_job(name), words)


def job_environment(job: str, settings: Settings, socket_path: str | None) -> dict[str, str]:
    """What a script that attaches finds: the job's name, the settings and, where one was asked for, the socket.

    Launchers hand it on to their ranks. Without a path each host uses its own `crossover.process.default_path`.
    """
    ours = {"CROSSOVER_JOB": job, "CROSSOVER_SETTINGS": settings.to_json()}
    if socket_path is not None:
        ours["CROSSOVER_SOCKET"] = socket_path
    # a job's lines should come as they are written, though it writes to a pipe; its own setting wins
    return {"PYTHONUNBUFFERED": "1", **os.environ, **ours}


def check_room(folder: Path, remedy: str) -> None:
    """Make the folder, and prove that it takes results before jobs have run for them. Raises `Refused`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:
            file.write(bytes(_ROOM_BYTES))
            file.flush()
    except OSError as error:
        raise Refused(f"results cannot be written to {folder} ({error.strerror}): {remedy}") from error


class SupervisedJob:
    """A command that runs with all it starts until it ends, is ended, or this process is gone.

    Raises `Refused` where the machine has no process or descriptor left for it.
    """

    def __init__(self, command: JobCommand, environment: Mapping[str, str]) -> None:
        self.command = command
        try:
            self._process = subprocess.Popen(
                [*supervised("--control"), *command.words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                process_group=0,  # Ctrl-C reaches the job through its supervisor alone
            )
            self.pid_fd = os.pidfd_open(self._process.pid)
        except OSError as error:
            raise Refused(
                f"job {command.name!r} cannot be started ({error.strerror}): raise `ulimit -n` or `ulimit -u`"
            ) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # its end tells the supervisor that this process is gone, however it went
        self._pipe = self._process.stdin
        self.output = self._process.stdout

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """The signal for the job's process group; SIGKILL is for all that the job has started."""
        if self._pipe.closed:
            return
        if number is signal.SIGKILL:
            self._pipe.close()
        else:
            try:
                os.write(self._pipe.fileno(), bytes([number]))
            except BrokenPipeError:  # it has just ended
                self._pipe.close()
        self._wake()

    def _wake(self) -> None:
        """A supervisor that was stopped must run to end its job."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)

    def reap(self) -> int:
        """The exit code, once `pid_fd` is readable; a job ended by signal n gives 128 + n."""
        code = self._process.wait()
        return code if code >= 0 else KILLED - code

    @property
    def was_killed(self) -> bool:
        """Whether the supervisor itself was killed, and could not end what its job has left."""
        return (self._process.returncode or 0) < 0

    def close(self) -> None:
        """Kill it with all it has started, if it still runs, and free what this process holds."""
        if not self._pipe.closed:
            self._pipe.close()
        self._wake()
        self._process.wait()
        self.output.close()
        os.close(self.pid_fd)


def told_end(code: int) -> str:
    """An exit code in words: `ok`, `exit 3`, `SIGKILL`."""
    if code == 0:
        return "ok"
    names = {int(number): number.name for number in signal.Signals}
    return names.get(code - KILLED, f"exit {code}")


def check_names(commands: Sequence[JobCommand]) -> tuple[str, ...]:
    """The jobs' names in turn order; `Refused` for two alike."""
    names = tuple(command.name for command in commands)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Refused(f"jobs {twice} are named twice: give every job a name of its own")
    return names
