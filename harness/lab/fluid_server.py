"""A fluid server in a process of its own: what all jobs of a host share, be it a replayed device or a paced link."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from crossover.arbiter.scheduling import short_slices
from models.device import DeviceError
from models.device_server import serve
from models.fluid import FluidDevice


@contextlib.contextmanager
def shared_fluid(path: Path, fluid: FluidDevice) -> Iterator[str]:
    """Serve `fluid` at the socket `path` in a forked process until the context, or this process, ends.

    Raises: DeviceError if it does not start.
    """
    read_end, write_end = os.pipe()
    # Forked, not started: the lab has imported what the server needs, and a fresh interpreter takes seconds.
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read_end)
            with short_slices():
                serve(path, on_ready=lambda: os.close(write_end), fluid=fluid)
            code = 0
        except DeviceError as error:
            os.write(write_end, str(error).encode())
        finally:
            # Past the lab's own `finally` blocks, which are the parent's to run.
            os._exit(code)
    os.close(write_end)
    try:
        with open(read_end, "rb") as stream:
            reason = stream.read().decode()  # nothing before its end: ready, or dead
        if reason or not path.exists():
            raise DeviceError(reason or f"the shared server at {path} did not start; is the folder writable?")
        yield str(path)
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
