"""The worked example of CONTRIBUTING.md, taken from its text: found, legal, tested, and it trains."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from pages import ROOT, block_after
from patience import patience_s
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import baselines.compression
from baselines import catalogue
from baselines.api import Context, How, Message, Reduced, Segment, Slot, UpdatePoint
from baselines.catalogue import plugins
from baselines.strategy import StrategyError, parse_strategy
from baselines.text import TextError
from harness.engine.reduction import reduce_message
from harness.lockstep.collectives import perform
from harness.lockstep.ranks import Lockstep, replicas
from results.record import Status, read_records
from suites.cli import main

pytestmark = pytest.mark.slow

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLE = re.compile(r"<!-- example: (?P<path>\S+) -->")
PACKAGES = ("analysis", "baselines", "crossover", "fabric", "harness", "models", "results", "suites")
CONTRACT = ("compression_laws", "compressor_state", "double_squeeze", "hostile_gradients", "plugins")
NUM_SMALL_STEPS = 2


def example() -> tuple[str, str]:
    """Where the example goes, and its text."""
    found = EXAMPLE.search(TEXT)
    assert found is not None
    return found["path"], block_after(TEXT, found[0])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The example among the plug-ins of this process, found by its presence in one more folder of its slot."""
    path, code = example()
    folder = tmp_path_factory.mktemp("compression")
    (folder / Path(path).name).write_text(code)
    search = baselines.compression.__path__
    search.append(str(folder))
    catalogue._plugins.cache_clear()
    yield
    search.remove(str(folder))
    sys.modules.pop(f"baselines.compression.{Path(path).stem}", None)
    catalogue._plugins.cache_clear()


def small() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@cache
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


def is_legal(text: str) -> bool:
    try:
        parse_strategy(text)
    except StrategyError:
        return False
    return True


def train(text: str, world: int, num_steps: int) -> Lockstep:
    images, labels = digits()
    ranks = Lockstep(replicas(small(), world), parse_strategy(text), seed=1)
    for step in range(num_steps):
        chosen = torch.randint(0, len(images), (world, 32), generator=torch.Generator().manual_seed(step))

        def loss(rank: int, model: nn.Module, chosen: Tensor = chosen) -> Tensor:
            return functional.cross_entropy(model(images[chosen[rank]]), labels[chosen[rank]])

        ranks.step(loss)
    return ranks


def test_the_example_is_one_file_below_100_lines() -> None:
    path, code = example()
    assert path.startswith("baselines/compression/")
    assert len(code.splitlines()) < 100
    assert "Differs from the paper" in code


@pytest.mark.parametrize("command", [["check", "-"], ["format", "--check", "-"]], ids=["check", "format"])
def test_the_example_passes_the_linter(command: list[str]) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not installed beside this Python")
    path, code = example()
    done = subprocess.run(
        [ruff, *command, "--stdin-filename", path], input=code, text=True, capture_output=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("installed")
def test_the_example_is_found_by_its_presence(capsys: pytest.CaptureFixture[str]) -> None:
    kind = plugins()["k-levels"]
    assert kind.card.slot is Slot.COMPRESSION
    for line in block_after(TEXT, "<!-- try: ").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "crossover-bench"
        assert main([*arguments, "--json"]) == 0
        assert "k-levels" in capsys.readouterr().out


@pytest.mark.usefixtures("installed")
def test_its_texts_are_read_and_bad_ones_refused() -> None:
    assert parse_strategy("tensor-fusion+k-levels(levels=4)+error-feedback").compression.how is How.CONCAT
    with pytest.raises(TextError, match="levels is 1; use 2 to 256"):
        parse_strategy("k-levels(levels=1)")
    with pytest.raises(StrategyError, match="cannot be summed"):
        parse_strategy("k-levels+ring")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("numel", [1, 3, 4, 5, 4001])
def test_what_the_example_sends_is_the_gradient_on_average(numel: int) -> None:
    """An element's deviation is at most half a step of (h − l)/15, so the mean of N lies within 5 · ½ · step/√N of it
    but for one draw in a million; and float32 rounding of some ulp of the largest."""
    num_draws = 400
    compressor = plugins()["k-levels"]()
    grad = torch.randn(numel, generator=torch.Generator().manual_seed(numel))
    message = Message(0, (Segment("p", (numel,), 0, numel, 0),))
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(numel)
    for step in range(num_draws):
        context = Context(0, 1, step, message, generator, wants_contribution=True)
        reduced = drive_alone(compressor, grad.clone(), context)
        assert torch.equal(reduced.value, reduced.contributed)
        total += reduced.value
    bound = 2.5 * float(grad.max() - grad.min()) / 15 / num_draws**0.5 + 1e-5 * float(grad.abs().max())
    assert float((total / num_draws - grad).abs().max()) <= bound


def drive_alone(compressor: object, grad: Tensor, context: Context) -> Reduced:
    """One message on one rank."""
    run = reduce_message(compressor, parse_strategy("unfused").exchange, grad, {}, context)  # type: ignore[arg-type]
    answer = None
    while True:
        try:
            (answer,) = perform([run.send(answer).primitive])  # type: ignore[arg-type]
        except StopIteration as end:
            reduced: Reduced = end.value
            return reduced


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("text", ["k-levels", "fixed-buckets+k-levels+error-feedback"])
def test_the_example_trains(text: str) -> None:
    """60 steps of 4 ranks take this network beyond 85 % (plain SGD reaches 93 %); seeds are fixed."""
    images, labels = digits()
    ranks = train(f"{text}+sgd(lr=0.1)", world=4, num_steps=60)
    accuracy = float((ranks.models[0](images).argmax(1) == labels).float().mean())
    assert accuracy > 0.85


@pytest.mark.usefixtures("installed")
def test_its_bytes_are_those_it_predicts() -> None:
    num_steps, compressor = 3, plugins()["k-levels"]()
    ranks = train("k-levels", world=2, num_steps=num_steps)
    predicted = sum(compressor.wire_bytes(segment.numel, ranks.world) for segment in ranks.segments)
    assert ranks.traffic.wire_bytes["gradient"] == num_steps * predicted


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_replicas_stay_identical_in_every_legal_combination(world: int) -> None:
    packings = [name for name, kind in plugins().items() if kind.card.slot is Slot.PACKING]
    compressions = ["k-levels", "k-levels+error-feedback"]
    combinations = itertools.product(packings, compressions, ["all-reduce", "all-gather"], UpdatePoint)
    for parts in (parts for parts in combinations if is_legal("+".join(parts))):
        first, *others = train("+".join(parts), world, NUM_SMALL_STEPS).models
        for other, (name, parameter) in itertools.product(others, first.named_parameters()):
            assert torch.equal(other.get_parameter(name), parameter), f"{parts}: {name}"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project without its records, the example saved where the text says. Caches are copied: compiling
    kernels takes most of a minute."""
    path, code = example()
    root = tmp_path_factory.mktemp("checkout")
    for name in (*PACKAGES, "tests/baselines"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("reference", "archive"))
    for name in ("pyproject.toml", *(str(shared.relative_to(ROOT)) for shared in ROOT.glob("tests/[!t]*.py"))):
        shutil.copy(ROOT / name, root / name)
    (root / path).write_text(code)
    return root


def run_in(checkout: Path, python: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    environment, line = {**os.environ, "PYTHONPATH": str(checkout)}, [*python, "-m", *words]
    return subprocess.run(
        line, cwd=checkout, env=environment, capture_output=True, text=True, timeout=patience_s(150), check=False
    )


@pytest.mark.timeout(180)  # processes of their own: a busy machine makes them late, not wrong
def test_the_contract_tests_find_the_example(checkout: Path, preloaded: list[str]) -> None:
    options = shlex.split("-k k-levels -q -p no:cacheprovider --hypothesis-profile=ci")
    files = (f"tests/baselines/test_{name}.py" for name in CONTRACT)
    done = run_in(checkout, preloaded, "pytest", *files, *options)
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 5


@pytest.mark.timeout(180)
def test_the_example_trains_in_real_processes(checkout: Path, preloaded: list[str]) -> None:
    command = shlex.split("suites run quick --fabric native --only real/resnet20-digits/k-levels --strategy k-levels")
    options = shlex.split("--steps 2 --repeats 1 --any-machine --out records")
    done = run_in(checkout, preloaded, *command, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    (record,) = read_records([checkout / "records"])
    assert record.status is Status.OK
    assert record.jobs[0].wire_bytes["gradient"] < 2 * record.jobs[0].num_parameters  # a byte per element
