from __future__ import annotations

import builtins
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from harness import doctor
from harness.doctor import Finding, control_group_room, diagnose, first_line, judged


def only(check: doctor.Check) -> Finding:
    (finding,) = check()
    return finding


def by_name(check: doctor.Check) -> dict[str, Finding]:
    return {finding.name: finding for finding in check()}


@pytest.fixture
def nothing_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_diagnosis_covers_every_subject_and_each_missing_thing_has_a_remedy() -> None:
    findings = diagnose()
    names = {finding.name for finding in findings}
    wanted = {"python", "torch", "gpu", "horovod", "deepspeed", "mpi", "g++", "cmake", "idle cores", "memory"}
    assert wanted | {"cache folder"} <= names
    assert len(findings) > len(wanted) + 1, "the fabric's own findings are missing"
    assert len(names) == len(findings)
    assert all(finding.detail for finding in findings)
    assert all(finding.remedy for finding in findings if not finding.ok)


def test_a_remedy_is_shown_only_when_something_is_amiss() -> None:
    assert judged("thing", True, "there", "buy it").remedy == ""
    assert judged("thing", False, "absent", "buy it").remedy == "buy it"


def test_this_interpreter_and_torch_are_good_enough() -> None:
    assert only(doctor.check_python).ok
    assert by_name(doctor.check_torch)["torch"].ok


@pytest.mark.parametrize("error", [ImportError("No module named 'torch'"), OSError("libtorch_cpu.so: cannot open")])
def test_a_torch_that_cannot_be_imported_is_a_finding(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def refuse(name: str, *others: Any, **named: Any) -> Any:
        if name == "torch":
            raise error
        return load(name, *others, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    finding = only(doctor.check_torch)
    assert (finding.ok, finding.detail) == (False, f"not importable: {error}")
    assert "TORCH=pinned" in finding.remedy


def test_absent_gpu_is_told_with_what_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    gpu = by_name(doctor.check_torch)["gpu"]
    assert (gpu.ok, gpu.detail) == (False, "no CUDA device")
    assert "replay" in gpu.remedy


def test_each_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: f"card {index}")
    gpu = by_name(doctor.check_torch)["gpu"]
    assert (gpu.ok, gpu.detail, gpu.remedy) == (True, "card 0, card 1", "")


@pytest.mark.usefixtures("nothing_on_the_path")
@pytest.mark.parametrize("check", [doctor.check_mpi, doctor.check_compiler])
def test_absent_programs_are_found_missing_with_their_package(check: doctor.Check) -> None:
    for finding in check():
        assert not finding.ok
        assert "path" in finding.detail
        assert "apt-get install" in finding.remedy


def test_horovod_that_cannot_be_imported_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError(f"no {name} here")

    monkeypatch.setattr(importlib, "import_module", refuse)
    horovod = only(doctor.check_horovod)
    assert not horovod.ok
    assert "no horovod.torch here" in horovod.detail
    assert "make clean setup" in horovod.remedy


def test_horovod_without_gloo_is_not_good_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    built: dict[str, Callable[[], bool]] = {f"{name}_built": lambda: False for name in ("gloo", "mpi", "nccl")}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.28.1")
    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(**built))
    horovod = only(doctor.check_horovod)
    assert (horovod.ok, horovod.detail) == (False, "0.28.1 with no transport")


@pytest.mark.horovod
def test_the_horovod_that_set_up_compiles_has_gloo() -> None:
    assert only(doctor.check_horovod).ok


@pytest.mark.parametrize(
    ("file", "said"),
    [("deepspeed_shm_comm_op.so", "CPU extension compiled"), ("engine.py", "CPU extension compiles at its first use")],
)
def test_deepspeed_is_looked_up_without_importing_it(monkeypatch: pytest.MonkeyPatch, file: str, said: str) -> None:
    package = SimpleNamespace(version="0.19.8", files=[Path("deepspeed") / file])
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: package)
    # None makes any import of it fail, whether or not an earlier test imported it.
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    assert only(doctor.check_deepspeed) == Finding("deepspeed", True, f"0.19.8, {said}")


def test_absent_deepspeed_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> SimpleNamespace:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    assert not only(doctor.check_deepspeed).ok


@pytest.mark.parametrize(("busy_percent", "ok"), [(0.0, True), (20.0, True), (90.0, False)])
def test_a_busy_machine_is_told_to_be_busy(monkeypatch: pytest.MonkeyPatch, busy_percent: float, ok: bool) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    monkeypatch.setattr(psutil, "cpu_percent", lambda window_s: busy_percent)
    assert only(doctor.check_cores).ok is ok


def test_a_control_group_limits_the_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n", encoding="ascii")
    (tmp_path / "memory.current").write_text("400\n", encoding="ascii")
    assert control_group_room(tmp_path) == 600


@pytest.mark.parametrize("limit", ["max", None])
def test_no_control_group_limit_is_no_limit(tmp_path: Path, limit: str | None) -> None:
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit, encoding="ascii")
        (tmp_path / "memory.current").write_text("400", encoding="ascii")
    assert control_group_room(tmp_path) == float("inf")


def test_a_cache_folder_is_made_and_left_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    assert only(doctor.check_cache).ok
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_cache_folder_that_is_a_file_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    finding = only(doctor.check_cache)
    assert not finding.ok
    assert "XDG_CACHE_HOME" in finding.remedy


def test_a_program_that_does_not_start_is_told(tmp_path: Path) -> None:
    assert "does not answer" in first_line([os.fspath(tmp_path / "absent"), "--version"])
    assert first_line([sys.executable, "--version"]).startswith("Python 3")
    hydra = "print('HYDRA build details:'); print('    Version:          4.3.2'); print('    Release Date: 2025')"
    assert first_line([sys.executable, "-c", hydra]) == "Version: 4.3.2"
    assert first_line([sys.executable, "-c", "print('no number')"]) == "no number"
