"""The virtual device: waits end no earlier than asked, the server answers, cleans up and survives bad clients."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience_s

from models.device import REQUEST, DeviceError, VirtualDevice


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    path = tmp_path / "private" / "device"
    with start(path) as process:
        yield path, process
        process.terminate()
    assert not path.exists()


def start(path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "models.device_server", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


DEAF = """
import signal, sys, threading, time
from pathlib import Path
from models.device_server import serve

def end_me():
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

sys.exit(serve(Path(sys.argv[1]), on_ready=lambda: threading.Thread(target=end_me, daemon=True).start()))
"""


def test_a_signal_that_does_not_interrupt_the_wait_ends_the_server_too(tmp_path: Path) -> None:
    # Another thread takes it, so that `select` sleeps on, as it does when the signal comes just before it.
    with subprocess.Popen([sys.executable, "-c", DEAF, str(tmp_path / "private" / "device")]) as process:
        try:
            assert process.wait(patience_s(10)) == signal.SIGTERM
        finally:
            process.kill()


def test_a_local_device_takes_its_time() -> None:
    device = VirtualDevice.local()
    began_s = time.monotonic()
    for _ in range(5):
        device.run(0.002)
    assert time.monotonic() - began_s >= 0.01


def test_work_meanwhile_is_part_of_the_time() -> None:
    device = VirtualDevice.local()
    began_s = time.monotonic()
    with device.take(0.03):
        time.sleep(0.02)
    first_s = time.monotonic() - began_s
    assert first_s >= 0.03


def test_work_after_a_late_wake_up_starts_where_the_last_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]

    def late_sleep(seconds: float) -> None:
        clock[0] += seconds + 0.004

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", late_sleep)
    device = VirtualDevice.local(slack_s=0.001)
    for _ in range(10):
        device.run(0.010)
    assert clock[0] - 100.0 == pytest.approx(0.104)  # one overshoot, not ten
    clock[0] += 0.5  # a real pause: the next piece starts afresh
    device.run(0.010)
    assert clock[0] - 100.0 == pytest.approx(0.104 + 0.5 + 0.014)


def test_threads_of_one_process_queue_up() -> None:
    device = VirtualDevice.local()
    began_s = time.monotonic()
    threads = [threading.Thread(target=device.run, args=(0.01,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began_s >= 0.03


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_impossible_times_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be finite and not negative"):
        VirtualDevice.local().run(seconds)


def test_two_clients_share_the_device(served: tuple[Path, object]) -> None:
    path, _ = served
    began_s = time.monotonic()

    def work() -> None:
        with VirtualDevice.connect(path, slack_s=0.0) as device:  # nothing is made up for, so the sum is a law
            for _ in range(10):
                device.run(0.003)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began_s >= 0.06


def test_only_the_user_can_reach_the_socket(served: tuple[Path, object]) -> None:
    path, _ = served
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def ask(path: Path, *packets: bytes) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    client.sendall(b"".join(packets))
    return client


LATER = REQUEST.pack(0, 0.005, False)
NONSENSE = [b"x", REQUEST.pack(0, float("nan"), False), REQUEST.pack(0, -1.0, True), REQUEST.pack(0, 3.0, False)]


@pytest.mark.parametrize(
    ("packets", "leaves"),
    [
        *[pytest.param([packet], True, id=repr(packet)) for packet in NONSENSE],
        # All of it is served at one moment, while the other client has work.
        pytest.param([LATER, *(REQUEST.pack(0, 1e-9, False) for _ in range(999))], True, id="many answers of one flow"),
        pytest.param([REQUEST.pack(flow, 0.005, False) for flow in range(999)], True, id="many answers of many flows"),
        pytest.param([LATER, *(REQUEST.pack(0, 1e-9, False) for _ in range(999))], False, id="answers never read"),
    ],
)
def test_a_client_that_leaves_or_stops_costs_its_own_work_alone(
    packets: list[bytes], leaves: bool, served: tuple[Path, "subprocess.Popen[str]"]
) -> None:
    path, process = served
    with VirtualDevice.connect(path) as device:
        client = ask(path, *packets)
        if leaves:
            client.close()
        device.run(0.02)  # raises where the server has ended
        client.close()
    assert process.poll() is None


def test_a_dead_server_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "private" / "device"
    with pytest.raises(DeviceError, match=r"no shared device at .*; start one with"):
        VirtualDevice.connect(path)
    process = start(path)
    device = VirtualDevice.connect(path)
    process.kill()
    process.communicate()
    with device, pytest.raises(DeviceError, match="has ended; run the trial again"):
        device.run(0.001)


def test_a_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    command = [sys.executable, "-m", "models.device_server", str(tmp_path / "device")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "must be yours with mode 700" in result.stderr


def test_the_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    path = tmp_path / "private" / "device"
    code = (
        "import os, subprocess, sys\n"
        "command = [sys.executable, '-m', 'models.device_server', sys.argv[1], '--parent', str(os.getpid())]\n"
        "server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)\n"
        "server.stdout.readline(); print(server.pid, flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    assert path.exists()
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    deadline_s = time.monotonic() + patience_s(10)
    while path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not path.exists()
    assert not _runs(server)


def _runs(process: int) -> bool:
    deadline_s = time.monotonic() + patience_s(10)
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    return True
