"""Scripts and modules that do not import torch again, since that costs more than most of them do.

    python -IS preloaded.py SOCKET SCRIPT ARGUMENT…
    python -IS preloaded.py SOCKET -m MODULE ARGUMENT…
    python -IS preloaded.py SOCKET -u -c CODE

are started as the same words behind `python` are, by a test, a launcher or `crossover run`. A process that has imported
torch forks one with this folder, environment, streams and namespaces, which does it; this one ends as that ends, and
that with this one.
"""

import atexit
import ctypes
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

LONGEST_REQUEST = 1 << 18
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# what most tests, labs and commands import
MODULES = (
    "analysis.report", "fabric.simulated.optical", "fabric.simulated.packet", "harness.bench", "harness.lab.process",
    "seaborn", "sklearn.datasets", "suites.catalogue",
)  # fmt: skip
NAMESPACES = "user", "mnt", "net", "pid"  # in the order in which they are entered


@contextmanager
def serving(path: str) -> Iterator[list[str]]:
    """The words in front of a script's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        command = [sys.executable, __file__, str(listener.fileno())]
        environment = {**os.environ, "PYTHONPATH": ROOT}
        server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    with server:  # it ends with its input
        yield [sys.executable, "-IS", __file__, path]


def serve(listener: socket.socket) -> bool:
    """Returns True in each process that has a script to run, and else when the input ends."""
    from harness.garbage import lasting

    with lasting():
        import torch

        for module in MODULES:
            import_module(module)
        parameter = torch.nn.Parameter(torch.zeros(1))
        parameter.grad = torch.zeros_like(parameter)
        torch.optim.SGD([parameter]).step()  # the first step imports as much again
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end this one
    running: dict[int, tuple[int, socket.socket]] = {}  # each process and who waits for it, by what tells its end
    while True:
        waiting = {asking.fileno(): process for process, asking in running.values()}
        events = select.poll()
        for source in (0, listener.fileno(), *running):
            events.register(source, select.POLLIN)
        for source in waiting:
            events.register(source, 0)  # that is, that it hangs up
        ready = {source for source, _ in events.poll()}
        for gone in waiting.keys() & ready:
            os.kill(waiting[gone], signal.SIGKILL)
        for end in running.keys() & ready:
            process, asking = running.pop(end)
            os.close(end)
            with asking, suppress(BrokenPipeError):
                asking.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
        if listener.fileno() in ready:
            asking = listener.accept()[0]
            process = os.fork()
            if not process:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                become(asking)
                return True
            running[os.pidfd_open(process)] = process, asking
        if 0 in ready:
            for process, _ in running.values():
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
            return False


def become(asking: socket.socket) -> None:
    """Take over who asks: its namespaces, folder, environment, words and streams."""
    request, streams, _, _ = socket.recv_fds(asking, LONGEST_REQUEST, 3)
    enter(struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
    for own, stream in enumerate(streams):
        os.dup2(stream, own)
        os.close(stream)
    # Those of this process were made for what it was started with, a file that can seek where this one may be a pipe.
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    folder, environment, sys.argv = json.loads(request)
    os.chdir(folder)
    if os.path.isdir("crossover") and not os.path.samefile(ROOT, folder):
        forget_own()
    os.environ.clear()
    os.environ.update(environment)
    first = folder if sys.argv[0].startswith("-") else os.path.dirname(sys.argv[0])
    sys.path[:2] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]


def enter(process: int) -> None:
    """Go where it is; a process namespace holds children alone, so it takes one of this process."""
    theirs = {name: os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY) for name in NAMESPACES}
    others = [name for name, end in theirs.items() if os.fstat(end).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino]
    for name in others:
        if ctypes.CDLL(None, use_errno=True).setns(theirs[name], 0):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {name} of process {process}")
    for end in theirs.values():
        os.close(end)
    if "pid" in others and (child := os.fork()):
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(code if code >= 0 else 128 - code)


def forget_own() -> None:
    """Import the project anew, from another checkout."""
    own = {entry.name for entry in os.scandir(ROOT) if entry.is_dir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in own]:
        del sys.modules[name]


def ask(path: str) -> int:
    """Have the script run; its exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        socket.send_fds(server, [json.dumps([os.getcwd(), dict(os.environ), sys.argv[2:]]).encode()], [0, 1, 2])
        code = int(server.recv(9) or 1)
    return code if code >= 0 else 128 - code


def run(listener: int) -> None:
    """Serve, and be what was asked for; exits without taking torch down, which costs more than the fork."""
    codes = [1]
    atexit.register(lambda: (sys.stdout.flush(), os._exit(codes[-1])))  # the first one, which is the last to be run
    try:
        if serve(socket.socket(fileno=listener)):
            if sys.argv[0] == "-u":  # a worker of xdist, which flushes by itself
                exec(sys.argv[2], {"__name__": "__main__"})
            elif sys.argv[0] == "-m":
                del sys.argv[0]
                runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(sys.argv[0], run_name="__main__")
        codes.append(0)
    except SystemExit as end:
        codes.append(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


if __name__ == "__main__":
    if sys.argv[1].isdecimal():
        run(int(sys.argv[1]))
    else:
        sys.exit(ask(sys.argv[1]))
