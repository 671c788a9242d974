"""One replica of one stage: its weights in every version that is still wanted, its activations, its optimizer.

Weights of a version are copies, so an update leaves those of passes under way as they were. Where a backward is to use
other weights than its forward (PipeMare, PipeDream without stashing), the forward runs on a copy of its own, whose
values are exchanged in between: the saved activations stay, and every product with a weight takes the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch.optim import Optimizer

from baselines.api import Parameters
from baselines.parallelism.api import Backward, CorrectsDelay, Forward, PipelineSchedule, Recompute, Update
from baselines.parallelism.programs import Instruction
from harness.parallel.stages import MicroBatch, StageModule

Weights = dict[str, Tensor]
MakeOptimizer = Callable[[Parameters], Optimizer]


@dataclass(slots=True)
class _InFlight:
    """A micro-batch between its forward and its backward."""

    entry: Tensor
    output: Tensor | None
    weights: Weights
    version: int


class StageWorker:
    """Runs the passes of one stage, on the samples that it is given. `shapes` are what each stage hands on."""

    def __init__(
        self,
        stage: StageModule,
        instructions: Sequence[Instruction],
        schedule: PipelineSchedule,
        make_optimizer: MakeOptimizer,
        *,
        shapes: tuple[tuple[int, ...], ...],
        seed: int,
    ) -> None:
        self.stage = stage
        self.shapes = shapes
        self.num_stages = len(shapes)
        self.losses: dict[int, float] = {}
        self.most_stale = 0  # updates between a forward and its own gradient's turn to be applied
        self._seed = seed
        self._newest = 0
        self._first_step = 0  # of a synchronous schedule, whose versions count from 0 in every step
        self._passes = 0
        self._parameters: Weights = dict(stage.module.named_parameters())
        self._optimizer = make_optimizer((stage.names[own], value) for own, value in self._parameters.items())
        self._optimizer.register_step_pre_hook(self._scale_rates)
        self._rate_scale, self._rates = 1.0, list[float]()
        # A flush leaves no pass under way when weights are updated, so that nobody needs the old ones.
        self._kept: Callable[[Weights], Weights] = _copy if not schedule.synchronous else _same
        self._versions: dict[int, Weights] = {0: self._kept(self._parameters)}
        self._in_flight: dict[int, _InFlight] = {}
        self._corrects = schedule if isinstance(schedule, CorrectsDelay) else None
        self._drift: Weights = {}
        self._wanted = _last_uses(instructions, stage.stage)
        self._exchanged = _exchanged(instructions, stage.stage, always=self._correction(0) is not None)

    def forward(self, action: Forward, x: Tensor, targets: MicroBatch | None) -> Tensor:
        """The stage's output [samples, …] for x [samples, …]; on the last stage, with `targets`, the loss []."""
        return self._run(action, x, targets, {})

    def _run(
        self, action: Forward | Recompute, x: Tensor, targets: MicroBatch | None, buffers: Mapping[str, Tensor]
    ) -> Tensor:
        kept = isinstance(action, Recompute) or action.keep
        weights = self._versions[action.version]
        if action.micro_batch in self._exchanged:
            # A copy of its own, since its values will be replaced before backward and others still use this version.
            weights = _copy(weights)
        # Tokens are whole numbers and have no gradient.
        entry = x.detach().requires_grad_(x.is_floating_point())
        with torch.set_grad_enabled(kept), self._reproducible(action):
            output: Tensor
            if weights is self._parameters and not buffers:
                output = self.stage.module(entry)
            else:
                output = functional_call(self.stage.module, {**buffers, **weights}, (entry,))
            if targets is not None:
                output = self.stage.loss(output, targets)
                self.losses[action.micro_batch] = float(output.detach())
        self._in_flight[action.micro_batch] = _InFlight(entry, output if kept else None, weights, action.version)
        return output.detach()

    def recompute(self, action: Recompute, targets: MicroBatch | None) -> None:
        """Forward again from the input that stayed; buffers (running statistics) stay as the first one left them."""
        buffers = {name: buffer.clone() for name, buffer in self.stage.module.named_buffers()}
        self._run(action, self._in_flight[action.micro_batch].entry, targets, buffers)

    def backward(self, action: Backward, gradient: Tensor | None) -> Tensor | None:
        """The gradient of the stage's input, None for tokens. Adds to the parameters' gradients."""
        held = self._in_flight.pop(action.micro_batch)
        assert held.output is not None
        self.most_stale = max(self.most_stale, self._newest - held.version)
        if action.micro_batch in self._exchanged:
            self._exchange(held.weights, action.version)
        wanted = list(held.weights.values())
        if held.entry.requires_grad:
            wanted.append(held.entry)
        gradients = torch.autograd.grad(held.output, wanted, gradient)
        self._add(held.weights, gradients[: len(held.weights)])
        self._passes += 1
        self._forget()
        return gradients[-1] if held.entry.requires_grad else None

    def _add(self, names: Iterable[str], gradients: Sequence[Tensor]) -> None:
        """Add to the parameters' gradients, to new tensors: autograd may have given one tensor to two parameters."""
        parameters = [self._parameters[name] for name in names]
        sums = [parameter.grad for parameter in parameters if parameter.grad is not None]
        # All have one after the first backward, and none has one before it.
        added = torch._foreach_add(sums, list(gradients)) if sums else gradients
        for parameter, value in zip(parameters, added, strict=True):
            parameter.grad = value

    def gradients(self) -> Mapping[str, Tensor]:
        """Sums over the micro-batches since the last update, by the network's names; other ranks' may be added."""
        found = {}
        for own, parameter in self._parameters.items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            found[self.stage.names[own]] = parameter.grad
        return found

    def update(self, action: Update) -> None:
        """An optimizer step; its weights become the newest version."""
        step = self._first_step + action.version - 1
        before = _copy(self._parameters) if self._correction(0) else {}
        if self._corrects is not None:
            self._rate_scale = self._corrects.learning_rate_scale(self.stage.stage, self.num_stages, step)
        self._optimizer.step()
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        self._newest = action.version
        self._versions[action.version] = self._kept(self._parameters)
        self._follow_drift(before)
        self._forget()

    def _scale_rates(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """For one step, behind what the optimizer's own rule makes of its rates."""
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] *= self._rate_scale

    def next_step(self) -> None:
        """A synchronous schedule begins again: versions count from 0."""
        self._first_step += self._newest
        self._versions = {0: self._versions[self._newest]}
        self._newest = 0
        self._passes = 0

    def parameters(self) -> dict[str, Tensor]:
        """Copies of the newest weights, by the network's names."""
        return {self.stage.names[own]: value.detach().clone() for own, value in self._parameters.items()}

    @property
    def num_versions(self) -> int:
        """Versions of the weights that exist now, the newest one included."""
        return len(self._versions)

    @property
    def num_in_flight(self) -> int:
        """Micro-batches whose activations are held."""
        return sum(held.output is not None for held in self._in_flight.values())

    def _correction(self, step: int) -> tuple[float, float] | None:
        return self._corrects.discrepancy(self.stage.stage, self.num_stages, step) if self._corrects else None

    def _follow_drift(self, before: Weights) -> None:
        correction = self._correction(0)
        if correction is None:
            return
        _, decay = correction
        for name, parameter in self._parameters.items():
            moved = (1 - decay) * (parameter.detach() - before[name].detach())
            self._drift[name] = moved + decay * self._drift[name] if name in self._drift else moved

    def _exchange(self, weights: Weights, version: int) -> None:
        """Put the weights that backward is to use where forward's were."""
        correction = self._correction(version)
        for name, weight in weights.items():
            value = self._versions[version][name].detach()
            if correction is not None and name in self._drift:
                value = value - correction[0] * self._drift[name]
            # Past autograd's version counter, which would refuse a saved tensor that was changed.
            weight.data.copy_(value)

    def _forget(self) -> None:
        """Drop versions that no pass wants any more."""
        for old in [old for old in self._versions if old < self._newest]:
            if self._wanted.get(old, -1) < self._passes:
                del self._versions[old]

    @contextmanager
    def _reproducible(self, action: Forward | Recompute) -> Iterator[None]:
        """Dropout draws alike in a forward and in its repetition, and by stage and micro-batch alone."""
        place = (self._first_step << 24) + (action.micro_batch << 8) + self.stage.stage
        # torch.manual_seed would note the whole call stack for a GPU that may come, in every pass.
        state = torch.default_generator.get_state()
        torch.default_generator.manual_seed((self._seed << 40) + place)
        try:
            yield
        finally:
            torch.default_generator.set_state(state)


def _copy(parameters: Mapping[str, Tensor]) -> Weights:
    return {name: value.detach().clone().requires_grad_() for name, value in parameters.items()}


def _same(parameters: Weights) -> Weights:
    return parameters


def _last_uses(instructions: Sequence[Instruction], stage: int) -> dict[int, int]:
    """Of each version: how many backwards of the stage come before its last use."""
    uses: dict[int, int] = {}
    num_backwards = 0
    for step in instructions:
        if isinstance(step, Forward | Recompute | Backward) and step.stage == stage:
            uses[step.version] = num_backwards
            num_backwards += isinstance(step, Backward)
    return uses


def _exchanged(instructions: Sequence[Instruction], stage: int, *, always: bool) -> frozenset[int]:
    """Micro-batches whose backward uses other weights than their forward."""
    forward, backward = (
        {step.micro_batch: step.version for step in instructions if isinstance(step, kind) and step.stage == stage}
        for kind in (Forward, Backward)
    )
    return frozenset(micro for micro, version in forward.items() if always or backward[micro] != version)
