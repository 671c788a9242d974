"""Mixed-precision training: layers compute in 16 bits, parameters stay float32 masters.

Paper: Micikevicius et al., Mixed Precision Training, ICLR 2018. Not verified against the paper's text; the numbers of
the loss scale are those of torch's `GradScaler`.

    forward and loss   under autocast to float16 or bfloat16 (`InPrecision`)
    backward           of loss · S
    to be sent         gradient / (S · workers): the multiplication that averages also unscales (`flatten_gradients`)
    update             of the float32 parameters, left out on *all* ranks if any gradient of any rank was not finite

S is 2^16 at first, halves where a step overflowed, and doubles after 2,000 steps that did not. bfloat16 has float32's
range and needs no S.

Gradients are unscaled before they are compressed: a residual of error feedback outlives S, and would else be added to
gradients in another unit. A skipped step leaves a compressor's states as they were before it, on every rank, since
what was sent in it is applied nowhere (`Guard`).

Differs from the paper: autocast casts weights where they are used, and no 16-bit copy of the model is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor, nn

from baselines.api import State
from models.workload import Batch, Evaluation, Workload, WorkloadSpec

FIRST_SCALE = 2.0**16
GROWTH, BACKOFF = 2.0, 0.5
GROWTH_INTERVAL = 2_000  # clean steps
SMALLEST_SCALE = 2.0**-24  # the smallest float16 above 0; a step that overflows with it never will not


class Precision(StrEnum):
    """What layers compute in. FLOAT32 leaves it to the workload."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def dtype(self) -> torch.dtype:
        """torch's type of the layers' activations."""
        return DTYPES[self]

    @property
    def scales_loss(self) -> bool:
        """Whether gradients would underflow: float16 has 5 bits of exponent."""
        return self is Precision.FLOAT16


DTYPES = {
    Precision.FLOAT32: torch.float32,
    Precision.FLOAT16: torch.float16,
    Precision.BFLOAT16: torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class InPrecision:
    """A workload whose layers and loss compute in another precision, evaluation included.

    The loss is float32, and so are gradients. Call backward outside: torch has it follow what forward did.
    """

    workload: Workload
    precision: Precision

    @property
    def spec(self) -> WorkloadSpec:
        """The inner workload's."""
        return self.workload.spec

    def build_model(self, seed: int) -> nn.Module:
        """The inner workload's model: parameters stay float32."""
        return self.workload.build_model(seed)

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        """The inner workload's."""
        return self.workload.batches(rank, world, seed)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The inner workload's loss [], under autocast."""
        with self._autocast():
            return self.workload.loss(model, batch)

    def evaluate(self, model: nn.Module) -> Evaluation | None:
        """The inner workload's evaluation, under autocast."""
        with self._autocast():
            return self.workload.evaluate(model)

    def memory_bytes(self) -> int:
        """The inner workload's estimate, which is for float32."""
        return self.workload.memory_bytes()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.spec.device.value, self.precision.dtype)


def in_precision(workload: Workload, precision: Precision) -> Workload:
    """`workload` as it computes in `precision`."""
    return workload if precision is Precision.FLOAT32 else InPrecision(workload, precision)


@dataclass(frozen=True, slots=True)
class LossScale:
    """S, how many steps in a row were clean since it last changed, and how many were skipped in all."""

    scale: float = FIRST_SCALE
    num_clean: int = 0
    num_skipped: int = 0

    def after(self, *, overflow: bool) -> LossScale:
        """S of the step to come."""
        if overflow:
            return LossScale(max(self.scale * BACKOFF, SMALLEST_SCALE), 0, self.num_skipped + 1)
        if self.num_clean + 1 == GROWTH_INTERVAL:
            return LossScale(self.scale * GROWTH, 0, self.num_skipped)
        return LossScale(self.scale, self.num_clean + 1, self.num_skipped)


@dataclass(slots=True)
class Guard:
    """One rank's watch over a step of scaled gradients, and the way back from one that overflowed.

    Without loss in compression a sum carries any rank's infinity or NaN to every rank, in whatever order it is taken:
    ranks look at what came back and agree without talking. A lossy compressor may swallow one, or not survive it, so
    what goes out is looked at too, replaced by zeros where it is not finite, and ranks have to agree
    (`must_agree`): the step is skipped if one of them says so.

    A look is one read of the numbers: their sum, which is finite if all of them are (and which float32's range holds
    for any gradient that is of use).
    """

    states: Mapping[str, State]
    lossy: bool
    _sums: list[Tensor] = field(default_factory=list)
    _before: dict[str, State] = field(default_factory=dict)

    @property
    def must_agree(self) -> bool:
        """Whether ranks may see different things, so that they have to vote."""
        return self.lossy

    def begin(self) -> None:
        """Before a step's first message: remember the compressor's states."""
        self._sums.clear()
        for name, state in self.states.items():
            self._before[name] = _copied(state, self._before.get(name, {}))

    def outgoing(self, flat: Tensor) -> None:
        """Look at an unscaled message before its compressor, which sees no number that is not finite."""
        if not self.lossy:
            return
        self._sums.append(flat.sum())
        if flat.is_cuda:  # without waiting for the device
            flat.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        elif not bool(self._sums[-1].isfinite()):
            flat.zero_()

    def incoming(self, value: Tensor) -> None:
        """Look at what a message brought back."""
        self._sums.append(value.sum())

    def overflowed(self) -> bool:
        """Whether this rank saw anything in this step that was not finite. Waits for the device."""
        return bool(self._sums) and not bool(torch.stack(self._sums).isfinite().all())

    def undo(self) -> None:
        """Put the compressor's states back."""
        for name, state in self.states.items():
            before = self._before.get(name, {})
            # The skipped step may have made tensors of its own, which a fresh state would not have.
            for key in state.keys() - before.keys():
                del state[key]
            state.update(_copied(before, state))


def _copied(state: State, into: State) -> State:
    """A copy of `state`, in the memory of `into` where that fits."""
    copied = {}
    for key, tensor in state.items():
        target = into.get(key)
        fits = target is not None and target.shape == tensor.shape and target.dtype == tensor.dtype
        copied[key] = target.copy_(tensor) if target is not None and fits else tensor.clone()
    return copied
