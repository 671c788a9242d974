from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from patience import patience_s

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = ["suites", "harness", "baselines", "crossover", "fabric", "models", "results", "analysis"]
TARGETS = ["setup", "test", "check", "bench-%", "report", "figures", "regress", "profile", "doctor", "clean"]


@pytest.fixture(scope="module", autouse=True)
def scripts_importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield


@pytest.fixture
def horovod_wheel() -> ModuleType:
    import horovod_wheel

    return horovod_wheel


@pytest.fixture
def deepspeed_wheel() -> ModuleType:
    import deepspeed_wheel

    return deepspeed_wheel


@pytest.fixture
def wheels() -> ModuleType:
    import wheels

    return wheels


@pytest.fixture
def steps() -> ModuleType:
    import steps

    return steps


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """scripts/setup.py, pointed at an empty checkout."""
    import setup

    venv = tmp_path / ".venv"
    places = {"ROOT": tmp_path, "VENV": venv, "UNFINISHED": venv / ".unfinished", "SCRATCH": venv / ".setup"}
    for name, place in places.items():
        monkeypatch.setattr(setup, name, place)
    return setup


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=patience_s(90), check=False
    )


class TestProject:
    def test_every_dependency_is_pinned_to_a_version_that_it_allows(self) -> None:
        pinned = {canonicalize_name(name): version for name, version in pins().items()}
        extras = PROJECT["project"]["optional-dependencies"]
        for text in extras["bench"] + extras["dev"]:
            wanted = Requirement(text)
            assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), text

    def test_torch_is_pinned_without_naming_a_build(self) -> None:
        assert re.fullmatch(r"\d+\.\d+\.\d+", pins()["torch"])

    def test_crossover_alone_is_installed_and_every_package_is_typed_and_under_the_import_law(self) -> None:
        assert PROJECT["tool"]["setuptools"]["packages"]["find"]["include"] == ["crossover*"]
        assert PROJECT["tool"]["mypy"]["packages"] == PACKAGES
        assert PROJECT["tool"]["importlinter"]["root_packages"] == PACKAGES


class TestMakefile:
    @pytest.mark.parametrize("target", TARGETS)
    def test_help_lists_every_target(self, target: str) -> None:
        assert f"make {target} " in make().stdout

    @pytest.mark.parametrize("target", ["test", "check", "doctor", "bench-quick", "report", "figures", "regress"])
    def test_a_target_sets_up_first(self, target: str) -> None:
        planned = make("-n", target, "INPUTS=pyproject.toml").stdout  # other inputs: a stamp that does not exist
        assert planned.startswith("python3 scripts/setup.py --torch pinned --stamp .venv/.ready-pinned-")
        assert len(planned.splitlines()) > 1

    def test_a_suite_runs_by_its_name_with_the_arguments_given(self) -> None:
        assert make("-n", "bench-anything", "ARGS=--smoke").stdout.endswith("crossover-bench run anything --smoke\n")

    def test_the_choice_of_torch_reaches_set_up(self) -> None:
        assert "--torch system --stamp .venv/.ready-system-" in make("-n", "setup", "TORCH=system").stdout


class TestHorovodWheel:
    def test_the_cache_tells_torch_and_python_and_options_apart(self, horovod_wheel: ModuleType) -> None:
        keys = [("2.13.0+cpu", "cp311"), ("2.13.0", "cp311"), ("2.13.0", "cp312")]
        paths = {horovod_wheel.cached_wheel(Path("c"), *key, horovod_wheel.OPTIONS) for key in keys}
        paths.add(horovod_wheel.cached_wheel(Path("c"), *keys[0], {**horovod_wheel.OPTIONS, "HOROVOD_WITH_MPI": "1"}))
        assert len(paths) == 4
        assert all(path.name.startswith("horovod-0.28.1-cp31") for path in paths)

    def test_the_users_build_switches_replace_ours(self, horovod_wheel: ModuleType) -> None:
        asked = {"HOROVOD_WITH_MPI": "1", "HOROVOD_FUSION_THRESHOLD": "0", "PATH": "/bin"}
        options = horovod_wheel.build_options(asked)
        assert options["HOROVOD_WITH_MPI"] == "1"
        assert "HOROVOD_WITHOUT_MPI" not in options
        assert "HOROVOD_FUSION_THRESHOLD" not in options, "a runtime setting must not ask for another wheel"

    def test_edits_are_applied(self, horovod_wheel: ModuleType, tmp_path: Path) -> None:
        write_source(tmp_path, "set(CMAKE_CXX_STANDARD 14)", "config = 'RelWithDebInfo'")
        horovod_wheel.patch(tmp_path)
        assert "STANDARD 17" in (tmp_path / "horovod/torch/CMakeLists.txt").read_text(encoding="utf-8")
        assert "'Release'" in (tmp_path / "setup.py").read_text(encoding="utf-8")

    def test_an_unknown_source_is_refused(self, horovod_wheel: ModuleType, tmp_path: Path) -> None:
        write_source(tmp_path, "set(CMAKE_CXX_STANDARD 20)", "")
        with pytest.raises(ValueError, match="these edits are for Horovod"):
            horovod_wheel.patch(tmp_path)

    def test_a_wheel_is_kept_whole_and_alone(self, wheels: ModuleType, tmp_path: Path) -> None:
        built, kept = tmp_path / "built.whl", tmp_path / "cache" / "wheels" / "kept.whl"
        built.write_bytes(b"wheel")
        wheels.keep(built, kept)
        assert [(path.name, path.read_bytes()) for path in kept.parent.iterdir()] == [("kept.whl", b"wheel")]

    def test_missing_tools_are_named(
        self, horovod_wheel: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert horovod_wheel.missing_tools() == ["a C++ compiler (g++)", "cmake", "make"]


class TestDeepSpeedWheel:
    def test_its_version_is_the_pinned_one(self, deepspeed_wheel: ModuleType) -> None:
        assert pins()["deepspeed"] == deepspeed_wheel.VERSION

    def test_the_cache_tells_torch_and_python_and_options_apart(self, deepspeed_wheel: ModuleType) -> None:
        ours, asked = ({}, {"DS_BUILD_FUSED_ADAM": "1", "PATH": "/bin"})
        keys = [
            ("2.13.0", "cp311", ours),
            ("2.13.0", "cp312", ours),
            ("2.14.0", "cp311", ours),
            ("2.13.0", "cp311", asked),
        ]
        paths = {
            deepspeed_wheel.cached_wheel(Path("c"), torch, python, deepspeed_wheel.build_options(environment))
            for torch, python, environment in keys
        }
        assert len(paths) == 4
        assert all(path.name.startswith("deepspeed-0.19.8-cp31") for path in paths)

    def test_only_one_package_provides_cpuinfo(self) -> None:
        assert [name for name in pins() if name.startswith("py-cpuinfo")] == ["py-cpuinfo"]


def write_source(folder: Path, cmake: str, script: str) -> None:
    (folder / "horovod" / "torch").mkdir(parents=True)
    for name, text in (("CMakeLists.txt", cmake), ("horovod/torch/CMakeLists.txt", cmake), ("setup.py", script)):
        (folder / name).write_text(text, encoding="utf-8")


class TestSteps:
    def test_a_failing_step_shows_the_end_of_its_output(self, steps: ModuleType, tmp_path: Path) -> None:
        script = "print('first'); print('no network' * 3); raise SystemExit(4)"
        with pytest.raises(steps.SetupError, match=r"(?s)'download' failed with exit code 4.*no network"):
            steps.run("download", [sys.executable, "-c", script], tmp_path)

    def test_a_step_is_ended_with_its_children(self, steps: ModuleType, tmp_path: Path) -> None:
        step = steps.begin("sleep", ["sh", "-c", "sleep 60 & echo $!; wait"], tmp_path)
        while not (child := step.log.read_text(encoding="utf-8").strip()):
            assert step.process.poll() is None
        steps.end(step)
        assert step.process.returncode == 128 + 9  # as a shell tells SIGKILL
        while is_running(int(child)):
            time.sleep(0.01)

    def test_a_step_ends_with_a_set_up_that_is_killed(self, tmp_path: Path) -> None:
        script = """if True:
            import pathlib, sys
            sys.path.insert(0, sys.argv[1])
            import steps
            steps.finish(steps.begin("sleep", ["sh", "-c", "sleep 60 & echo $!; wait"], pathlib.Path(sys.argv[2])))
        """
        command = [sys.executable, "-c", script, str(ROOT / "scripts"), str(tmp_path)]
        log = tmp_path / "sleep.log"
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as set_up:
            while not (log.exists() and (child := log.read_text(encoding="utf-8").strip())):
                assert set_up.poll() is None
            set_up.kill()
        while is_running(int(child)):
            time.sleep(0.01)


def is_running(process: int) -> bool:
    """Whether a process lives; one that is dead may still wait for its new parent to collect it."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class TestEnvironment:
    def test_an_interrupted_environment_is_made_anew(self, environment: ModuleType) -> None:
        environment.VENV.mkdir()
        environment.UNFINISHED.touch()
        environment.clear_away(use_system_torch=False)
        assert not environment.VENV.exists()

    @pytest.mark.parametrize(("was", "wanted", "kept"), [("true", True, True), ("false", True, False)])
    def test_an_environment_of_the_other_kind_is_made_anew(
        self, environment: ModuleType, was: str, wanted: bool, kept: bool
    ) -> None:
        environment.VENV.mkdir()
        settings = f"include-system-site-packages = {was}\n"
        (environment.VENV / "pyvenv.cfg").write_text(settings, encoding="utf-8")
        (environment.VENV / ".ready-old").touch()
        environment.clear_away(wanted)
        assert environment.VENV.exists() is kept
        assert not list(environment.VENV.glob(".ready*"))

    @pytest.mark.parametrize("version", ["", "2.7.1+cu121"])
    def test_a_system_without_a_fit_torch_is_refused_with_the_remedy(
        self, environment: ModuleType, version: str
    ) -> None:
        with pytest.raises(environment.SetupError, match="TORCH=pinned"):
            environment.check_system_torch(environment.Torch(version, False, "cp311"))

    def test_a_gpu_build_without_a_gpu_is_told(self, environment: ModuleType) -> None:
        gpu, cpu = environment.Torch("2.13.0", True, "cp311"), environment.Torch("2.13.0+cpu", False, "cp311")
        assert "PIP_EXTRA_INDEX_URL" in environment.build_of(gpu, has_gpu=False)
        assert environment.build_of(gpu, has_gpu=True) == "torch 2.13.0, a GPU build"
        assert environment.build_of(cpu, has_gpu=False) == "torch 2.13.0+cpu, a CPU build"

    def test_an_old_python_is_refused_with_the_remedy(
        self, environment: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(environment, "OLDEST_PYTHON", (99, 0))
        with pytest.raises(environment.SetupError, match=r"make setup PYTHON="):
            environment.check_machine()

    def test_a_second_set_up_cannot_take_the_lock(self, environment: ModuleType) -> None:
        with (
            environment.one_at_a_time(),
            open(environment.__file__, "rb") as script,
            pytest.raises(BlockingIOError),
        ):
            fcntl.flock(script, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @pytest.mark.parametrize("name", ["Horovod", "DeepSpeed"])
    def test_without_a_compiler_a_wheel_is_left_out_with_one_line(
        self,
        environment: ModuleType,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        name: str,
    ) -> None:
        for script in environment.COMPILED.values():
            monkeypatch.setattr(script, "missing_tools", lambda: ["cmake"])
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        torch = environment.Torch("2.13.0+cpu", False, "cp311")
        assert environment.begin_wheels(torch) == {}
        environment.install_wheel(name, torch, None)
        said = capsys.readouterr().out.strip()
        assert said.count("\n") == 0
        assert f"{name} is left out" in said
        assert "cmake missing: install, then run 'make clean setup'" in said

    @pytest.mark.parametrize(("noted", "expected"), [("deepspeed.whl", True), ("older.whl", False), ("", False)])
    def test_a_wheel_that_is_installed_is_not_installed_again(
        self, environment: ModuleType, tmp_path: Path, noted: str, expected: bool
    ) -> None:
        metadata = environment.VENV / "lib" / "python3.11" / "site-packages" / "deepspeed-0.19.8.dist-info"
        metadata.mkdir(parents=True)
        if noted:
            (metadata / "direct_url.json").write_text(
                json.dumps({"url": (tmp_path / noted).as_uri()}), encoding="utf-8"
            )
        assert environment.is_installed_from(tmp_path / "deepspeed.whl", "deepspeed") is expected
