"""Scripts and modules that do not import torch again, since that costs more than most of them do.

    python -IS preloaded.py SOCKET SCRIPT ARGUMENT…
    python -IS preloaded.py SOCKET -m MODULE ARGUMENT…
    python -IS preloaded.py SOCKET -u -c CODE

are started as the same words behind `python` are, by a test, a launcher or `crossover run`. A process that has imported
torch forks one with this folder, environment and streams, which does it; this one ends as that ends.
"""

import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LONGEST_REQUEST = 1 << 18


@contextmanager
def serving(path: str) -> Iterator[list[str]]:
    """The words in front of a script's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        command = [sys.executable, __file__, str(listener.fileno())]
        environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(__file__))}
        server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    with server:  # it ends with its input
        yield [sys.executable, "-IS", __file__, path]


def serve(listener: socket.socket) -> bool:
    """Returns True in each process that has a script to run, and else when the input ends."""
    from harness.garbage import lasting

    with lasting():
        import seaborn  # noqa: F401  for the reports
        import sklearn.datasets  # noqa: F401  for the examples
        import torch

        import crossover  # noqa: F401  for all

        parameter = torch.nn.Parameter(torch.zeros(1))
        parameter.grad = torch.zeros_like(parameter)
        torch.optim.SGD([parameter]).step()  # the first step imports as much again
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end this one
    running: dict[int, tuple[int, socket.socket]] = {}  # each process and who waits for it, by what tells its end
    while True:
        ready = select.select([0, listener.fileno(), *running], [], [])[0]
        for end in running.keys() & set(ready):
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
    """Take over who asks: its folder, environment, words and streams."""
    request, streams, _, _ = socket.recv_fds(asking, LONGEST_REQUEST, 3)
    for own, stream in enumerate(streams):
        os.dup2(stream, own)
        os.close(stream)
    folder, environment, sys.argv = json.loads(request)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    first = folder if sys.argv[0].startswith("-") else os.path.dirname(sys.argv[0])
    sys.path[:2] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]


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
