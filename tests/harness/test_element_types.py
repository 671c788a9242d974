"""Every plug-in trains the element types that its card says, and any other is refused before the first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from baselines.api import IN_FLOAT32, NUMBERS, REALS, Slot
from baselines.catalogue import plugins
from baselines.strategy import parse_strategy
from fabric.api import FabricKind, FabricSpec, Host
from harness.asynchrony.cluster import VirtualCluster
from harness.asynchrony.processes import run_on_host
from harness.asynchrony.trial import run_virtual
from harness.engine.engine import Engine
from harness.engine.layout import GradientError, fitting_parameters
from harness.lab.rank import Place, Signals, run_rank
from harness.lockstep.collectives import Room
from harness.lockstep.ranks import Lockstep, replicas
from harness.lockstep.trial import run_lockstep
from harness.trace import Recorder
from harness.trial import Job, Trial
from models.workload import WorkloadSpec

NUM_STEPS = 3
BESIDE = {
    "dgc": "sgd(momentum=0.0)+", "signum": "sgd(momentum=0.0)+", "gtopk": "tree+", "onebit-adam": "frozen-adam+",
    "error-feedback": "topk+", "double-squeeze": "onebit+", "warm-up": "topk+", "linear-scaling": "sgd+",
    "bayesian": "tensor-fusion+",
}  # fmt: skip
DTYPES = sorted(NUMBERS, key=str)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def layer(dtype: torch.dtype) -> nn.Linear:
    """The same numbers in every type; imaginary parts where it has them."""
    own, dice = nn.Linear(5, 4, dtype=dtype), torch.Generator().manual_seed(3)
    for parameter in own.parameters():
        parameter.data = in_type(torch.randn(parameter.shape, dtype=torch.complex128, generator=dice), dtype)
    return own


def in_type(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) if dtype.is_complex else values.real.to(dtype)


def loss_at(step: int) -> Callable[[int, nn.Module], Tensor]:
    def loss(rank: int, model: nn.Module) -> Tensor:
        dice, dtype = torch.Generator().manual_seed(10 * step + rank), next(model.parameters()).dtype
        inputs = in_type(torch.randn(6, 5, dtype=torch.complex128, generator=dice), dtype)
        return model(inputs).abs().square().mean()

    return loss


def averaged(text: str, dtype: torch.dtype) -> list[Tensor]:
    """Weights of plain averaging over two ranks."""
    models = replicas(layer(dtype), 2)
    optimizer = parse_strategy(text).optimizer.build(models[0].named_parameters())
    for step in range(NUM_STEPS):
        models[1].load_state_dict(models[0].state_dict())
        models[1].zero_grad()
        for rank, model in enumerate(models):
            loss_at(step)(rank, model).backward()
        for own, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert own.grad is not None
            assert other.grad is not None
            own.grad = (own.grad + other.grad) / 2
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in models[0].parameters()]


@pytest.mark.parametrize("dtype", DTYPES, ids=short)
@pytest.mark.parametrize("kind", plugins().values(), ids=plugins().keys())
def test_a_plugin_trains_what_it_takes_and_refuses_the_rest(kind: type[Any], dtype: torch.dtype) -> None:
    """What is lossless to 64 units of rounding of the same rule in the widest type."""
    name = kind.card.name
    text = BESIDE.get(name, "") + name
    strategy, model = parse_strategy(text), layer(dtype)
    if any(dtype not in taken for taken in strategy.takes.values()):
        with pytest.raises(GradientError, match=f"the parameter (weight|bias) is {short(dtype)}, and [a-z0-9-]+ takes"):
            Lockstep(replicas(model, 2), strategy)
        return
    assert dtype in kind.card.dtypes
    ranks = Lockstep(replicas(model, 2), strategy)
    for step in range(NUM_STEPS):
        ranks.step(loss_at(step))
    first, second = ([p.detach() for p in model.parameters()] for model in ranks.models)
    assert not torch.equal(first[1], layer(dtype).bias)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    for own, other, exact in zip(first, second, averaged(text, wide), strict=True):
        assert own.dtype == dtype
        assert torch.equal(own, other)
        assert bool(own.isfinite().all())
        if not strategy.compression.lossy:
            assert float((own.to(wide) - exact).abs().max()) <= 64 * torch.finfo(dtype).eps * float(exact.abs().max())


def test_what_compressors_and_others_take_by_default() -> None:
    takes = {name: kind.card.dtypes for name, kind in plugins().items()}
    lossy = {name: takes[name] for name, kind in plugins().items() if kind.card.slot is Slot.COMPRESSION}
    assert {name for name, taken in lossy.items() if taken != IN_FLOAT32} == {"uncompressed"}
    assert takes["lamb"] == takes["ring"] == REALS  # squares of complex numbers are no squares of lengths
    assert torch.float16 not in takes["adam"]  # its ε is 0 there, and a step without a gradient divides by it


OWN = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embed = nn.Embedding(4, shape.num_classes, sparse=SPARSE)
        self.filter = nn.Parameter(torch.ones(shape.num_classes, dtype=torch.float32))
        self.counts = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    def forward(self, images):
        self.seen += 1
        rows = self.embed(torch.zeros(len(images), dtype=torch.int64)) + images.mean((1, 2, 3))[:, None]
        return (rows * self.filter).abs().float()

def build(shape, dropout):
    return Own(shape)
"""
FITS = OWN.replace("SPARSE", "False")
FAULTY = {
    "complex64": FITS.replace("dtype=torch.float32", "dtype=torch.complex64"),
    "float64": FITS.replace("dtype=torch.float32", "dtype=torch.float64"),
    "sparse": OWN.replace("SPARSE", "True"),
}
CLUSTER = VirtualCluster(num_workers=2, compute_s=1.0)
HERE = Place(job=0, rank=0, host=Host(index=0, name="localhost", address="127.0.0.1", interface="lo"), slot=0)
GO = Signals(lambda: None)
PATHS: dict[str, tuple[Callable[[Trial], object], dict[str, Any]]] = {
    "lockstep": (lambda trial: list(run_lockstep(trial, HERE, GO)), {}),
    "processes": (lambda trial: run_rank(trial, HERE, GO), {"kind": FabricKind.NATIVE}),
    "workers on a virtual clock": (lambda trial: list(run_virtual(trial, GO)), {"cluster": CLUSTER}),
    "workers on hosts": (lambda trial: run_on_host(trial, HERE, GO), {"cluster": CLUSTER, "kind": FabricKind.NATIVE}),
}


def asked(
    network: Path, text: str, *, kind: FabricKind = FabricKind.LOCKSTEP, system: str = "ours", **more: Any
) -> Trial:
    workload = WorkloadSpec(network=f"{network}:build", data="synthetic", batch_size=2)
    job = Job(name="job", workload=workload, strategy=text, optimizer="sgd(momentum=0.0)", system=system)
    fabric = FabricSpec(kind=kind, num_hosts=2, rate_bps=None)
    return Trial(suite="t", cell="t", jobs=(job,), fabric=fabric, num_steps=1, num_warmup=1, **more)


@pytest.mark.parametrize("fault", FAULTY)
@pytest.mark.parametrize("path", PATHS)
def test_every_path_refuses_before_the_first_step(path: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FAULTY[fault])
    run, settings = PATHS[path]
    text = "unfused" if "cluster" in settings else "unfused+topk(density=1.0)"
    message = {
        "sparse": r"the gradient of embed\.weight is sparse.*sparse=False",
        "complex64": "the parameter filter is complex64, and (topk|a push to servers) takes .*view_as_real",
        "float64": r"the parameter filter is float64, and (topk|a push to servers) takes .*call model\.float\(\)",
    }[fault]
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with pytest.raises(GradientError, match=message):
            run(asked(tmp_path / "own.py", text, **settings))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("text", ["unfused+half+local-steps(n=2)", "unfused+topk+at-pre-hook", "slices+half+p3"])
def test_other_ways_of_stepping_refuse_alike(text: str) -> None:
    strategy, model = parse_strategy(text), layer(torch.complex64)
    for begin in (
        lambda: Lockstep(replicas(model, 2), strategy),
        lambda: Engine(model, strategy, Room(1).seat(0), recorder=Recorder()),
    ):
        with pytest.raises(GradientError, match=r"complex64, and (half|topk) takes"):
            begin()


def test_a_system_that_halves_gradients_refuses_complex_ones(tmp_path: Path) -> None:
    """torch's own hook would drop the imaginary part."""
    (tmp_path / "own.py").write_text(FAULTY["complex64"])
    trial = asked(tmp_path / "own.py", "unfused", kind=FabricKind.NATIVE, system="torch-ddp(hook='fp16')")
    with pytest.raises(GradientError, match="filter is complex64, and torch-ddp"):
        run_rank(trial, HERE, GO)


def test_sparse_gradients_of_a_function_are_refused_when_they_come() -> None:
    weights = nn.ParameterDict({"table": nn.Parameter(torch.ones(4, 3))})

    def loss(rank: int, model: nn.Module) -> Tensor:
        return functional.embedding(torch.tensor([rank]), model.get_parameter("table"), sparse=True).sum()

    with pytest.raises(GradientError, match="gradient of table is sparse"):
        Lockstep(replicas(weights, 2), parse_strategy("unfused+sgd(momentum=0.0)")).step(loss)
    engine = Engine(weights, parse_strategy("unfused"), Room(1).seat(0), recorder=Recorder())
    with pytest.raises(GradientError, match="gradient of table is sparse"):
        loss(0, weights).backward()
    engine.close()


def test_whole_numbers_that_are_not_trained_are_no_concern(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FITS)
    (first, _) = run_lockstep(asked(tmp_path / "own.py", "unfused+topk(density=1.0)"), HERE, GO)
    assert len(first.losses) == 2


def test_a_frozen_part_may_be_of_any_type() -> None:
    model = nn.ModuleList([layer(torch.complex64).requires_grad_(False), nn.Embedding(3, 2, sparse=True)])
    model[1].requires_grad_(False)
    assert fitting_parameters(model, parse_strategy("unfused+topk").takes) == {}
