"""torch's and Horovod's own compression, run as themselves in real processes, and what of it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lab_tasks import NUM_WARMUP, digest, done, spec_of, task
from micro_batch_ranks import NUM_INPUTS, run_rank, told_by_ranks
from patience import patience_s
from torch import Tensor, nn

from baselines.text import TextError
from harness.checks.trial import check
from harness.lab.labs import Labs
from harness.precision import Precision
from harness.systems import system_of
from harness.systems.api import HasPrecisions, Warms
from harness.trial import TrialError

NUM_STEPS = 12
PAIR = spec_of("native")
POWERSGD = "torch-ddp(hook='powersgd', powersgd_rank=2)"


@pytest.fixture(scope="module")
def exact(labs: Labs) -> str:
    return digest(labs.ask(task(PAIR, system="torch-ddp", num_steps=NUM_STEPS, timeout_s=patience_s(100.0))))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "system",
    [
        "torch-ddp(hook='fp16')",
        POWERSGD,
        pytest.param("horovod(cycle_s=0.005, fp16=True)", marks=pytest.mark.horovod),
    ],
)
def test_a_hook_keeps_ranks_equal_and_changes_what_is_learnt(labs: Labs, exact: str, system: str) -> None:
    answer = labs.ask(task(PAIR, system=system, num_steps=NUM_STEPS, timeout_s=patience_s(100.0)))
    assert digest(answer) != exact
    losses = done(answer)[0].losses
    assert sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.timeout(120)
def test_powersgd_sends_everything_until_it_starts(labs: Labs, exact: str) -> None:
    """With `start_iter` behind the last step it is plain DDP in one bucket: two summands have one order."""
    system = f"torch-ddp(hook='powersgd', start_iter={NUM_STEPS + 1})"
    assert digest(labs.ask(task(PAIR, system=system, num_steps=NUM_STEPS, timeout_s=patience_s(100.0)))) == exact


def test_powersgd_has_a_warm_up_of_its_own() -> None:
    found = system_of("torch-ddp(hook='powersgd', start_iter=5)")
    assert isinstance(found, Warms)
    assert found.num_warmup == 6
    asked = task(PAIR, system=POWERSGD).trial
    assert asked is not None
    with pytest.raises(TrialError, match=f"needs 3 steps before .*num_warmup is {NUM_WARMUP}"):
        check(asked)
    plain = system_of("torch-ddp(hook='fp16')")
    assert isinstance(plain, Warms)
    assert plain.num_warmup == 0


def test_powersgd_does_not_go_with_a_scaled_loss() -> None:
    found, plain = system_of(POWERSGD), system_of("torch-ddp(hook='fp16')")
    assert isinstance(found, HasPrecisions)
    assert isinstance(plain, HasPrecisions)
    assert plain.precisions - found.precisions == {Precision.FLOAT16}


def test_the_bfloat16_hook_says_what_it_needs() -> None:
    reason = system_of("torch-ddp(hook='bf16')").why_unavailable()
    if torch.version.cuda is None:
        assert reason is not None
        assert "needs CUDA and NCCL; use hook='fp16'" in reason
    else:
        assert reason is None or "CUDA" in reason


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torch-ddp(hook='fp8')", "hook is 'fp8'; use one of fp16, bf16, powersgd, or none"),
        ("torch-ddp(hook='powersgd', bucket_mb=1)", r"bucket_mb is 1\.0 with powersgd, which takes one"),
        ("torch-ddp(hook='powersgd', powersgd_rank=0)", "powersgd_rank is 0"),
        ("torch-ddp(hook='powersgd', start_iter=1)", "start_iter 1; use 1 or more and 2 or more"),
        ("torch-ddp(fp16=True)", "has no parameter 'fp16'; it has: bucket_mb, hook"),
    ],
)
def test_wrong_settings_are_named(text: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        system_of(text)


class UsesSome(nn.Module):
    """Of three layers, a batch uses the first one and, on some ranks of some steps, the second."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.always, self.sometimes, self.never = (nn.Linear(NUM_INPUTS, NUM_INPUTS) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.always(inputs)
        return self.sometimes(outputs) if inputs[0, 0] > 0 else outputs


def test_ddp_trains_networks_that_use_some_of_their_parameters(tmp_path: Path) -> None:
    """Bit for bit as our engine does, where a gradient that is missing counts as zero."""
    found = "torch-ddp(find_unused_parameters=True)"
    asked = [{"system": system, "network": UsesSome, "accumulate": k} for k in (1, 3) for system in ("ours", found)]
    first, second = ([told["weights"] for told in rank] for rank in told_by_ranks(run_rank, asked, tmp_path))
    assert first == second
    assert first[0] == first[1]
    assert first[2] == first[3]
    weights = torch.tensor(first[1]).chunk(3)
    before = torch.cat([parameter.detach().flatten() for parameter in UsesSome().parameters()]).chunk(3)
    assert [torch.equal(*pair) for pair in zip(weights, before, strict=True)] == [False, False, True]
