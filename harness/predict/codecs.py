"""Compression in replay, charged as time on the virtual device.

Tensors are S times smaller there, so compressing them really costs S times less than it would. What it would cost
comes from the profile of codecs that goes with the layers' device (`models/codec_profile.py`): S times the message's
elements times seconds per element, stage by stage. In that time the device computes nothing else; the small tensor's
own work is done meanwhile, so it does not count twice, unless it takes longer than what is charged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, log2
from typing import Any

from torch import Tensor

from baselines.api import Aggregate, Compressor, Context, Merge, Payload, Reduction, StartsDense, State, layers_of
from baselines.strategy import Strategy
from harness.predict.costs import LinkCosts
from harness.trial import Job
from models.codec_profile import CodecProfile, StageTimes, codecs_of, load_codecs
from models.device import VirtualDevice
from models.layer_profile import load_profile
from models.networks import find_network
from models.workload import Device
from results.facts import ChargeFacts

NOT_CHARGED = "not charged:"
UNCHARGED = frozenset({"warmup_steps", "steps", "seed", "inner"})  # fields that no time depends on


@cache
def profile_for(network: str, profile: str) -> CodecProfile:
    """The times of codecs that go with a replayed network's layer times. Raises: WorkloadError."""
    return load_codecs(codecs_of(load_profile(profile or find_network(network).profile).device))


def codec_text(compression: Compressor) -> str:
    """The compressors inside out with all settings, defaults too: the key in a profile of codecs. A warm-up is not in
    it: no time depends on one that is over."""
    layers = [layer for layer in layers_of(compression) if not (layer.card.wraps and isinstance(layer, StartsDense))]
    return "+".join(map(_named, reversed(layers)))


def _named(compression: Any) -> str:
    fields = (f.name for f in dataclasses.fields(compression) if f.init and f.name not in UNCHARGED)
    inner = ", ".join(f"{name}={getattr(compression, name)!r}" for name in fields)
    return f"{compression.card.name}({inner})" if inner else str(compression.card.name)


def dense_steps(compression: Compressor) -> int:
    """How many first steps are sent as they are."""
    return max((layer.dense_steps for layer in layers_of(compression) if isinstance(layer, StartsDense)), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What a compressor's work costs on the device that is replayed: `times` are seconds per element of the *real*
    tensor, which is `size_scale` times larger than the one at hand; nothing in the first `dense_steps`."""

    times: StageTimes
    size_scale: int
    dense_steps: int
    method: str
    device: str

    @property
    def note(self) -> str:
        """The charge in a sentence."""
        return self.facts.text

    @property
    def facts(self) -> ChargeFacts:
        """For a record."""
        times = self.times
        return ChargeFacts(
            method=self.method,
            stages_s=tuple(times.stages_s),
            merge_s=times.merge_s,
            device=self.device,
            num_ranks=times.world,
        )

    def stage_s(self, stage: int, numel: int) -> float:
        """Seconds of one stage of a message of `numel` elements as it is at hand."""
        stages_s = self.times.stages_s
        return stages_s[stage] * numel * self.size_scale if stage < len(stages_s) else 0.0

    def merge_s(self, numel: int) -> float:
        """Seconds of merging two payloads of such a message."""
        return self.times.merge_s * numel * self.size_scale

    @property
    def before_s_per_byte(self) -> float:
        """Until the message is on its way, by bytes of the float32 tensor at hand."""
        return self.times.stages_s[0] * self.size_scale / 4

    @property
    def after_s_per_byte(self) -> float:
        """All that follows; a rank merges as often as there are rounds in a tree."""
        merges = ceil(log2(max(1, self.times.world))) * self.times.merge_s
        return (sum(self.times.stages_s[1:]) + merges) * self.size_scale / 4


def charge_of(job: Job, world: int) -> Charge | str:
    """What is charged for `job` among `world` ranks, or why nothing is. Raises: WorkloadError for a broken profile."""
    if job.workload.device is not Device.REPLAY:
        return "compression is computed, not charged"
    if job.system != "ours":
        return f"{NOT_CHARGED} a system that is not ours compresses tensors as small as they are here"
    strategy = job.resolve()
    if not strategy.compression.lossy:
        return "nothing is compressed"
    spec = job.workload
    return charge_for(strategy, profile_for(spec.network, spec.profile), spec.size_scale, world)


def charge_for(strategy: Strategy, profile: CodecProfile, size_scale: int, world: int) -> Charge | str:
    """The charge by this profile, or the reason why there is none."""
    method = codec_text(strategy.compression)
    times = profile.stages(method, strategy.num_workers(world))
    if times is None:
        recorder = "harness.predict.codec_recording"
        return f"{NOT_CHARGED} no time of {method} is in the profile of codecs; record it with {recorder}"
    return Charge(
        times=times,
        size_scale=size_scale,
        dense_steps=dense_steps(strategy.compression),
        method=method,
        device=profile.device,
    )


def with_charge(costs: LinkCosts, job: Job, world: int) -> LinkCosts:
    """The same costs, with what the predictor has to charge for the job's compression."""
    charge = charge_of(job, world)
    if isinstance(charge, str):
        return costs
    charged = (charge.before_s_per_byte, charge.after_s_per_byte)
    return replace(costs, engine=replace(costs.engine, device_codec_s_per_byte=charged))


@dataclass(frozen=True, slots=True)
class Charged:
    """A compressor whose every stage takes the device for as long as the real tensor's would."""

    inner: Compressor
    charge: Charge
    device: VirtualDevice

    @property
    def lossy(self) -> bool:
        """The inner compressor's."""
        return self.inner.lossy

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """As `inner` does."""
        run = self.inner.reduce(grad, states, ctx)
        # A dense step really sends everything and compresses nothing.
        if ctx.step < self.charge.dense_steps:
            return (yield from run)
        numel, stage = ctx.message.numel, 0
        with self._busy(self.charge.stage_s(stage, numel)):
            aggregate = next(run)
        while True:
            answer = yield self._with_merge(aggregate, numel)
            stage += 1
            with self._busy(self.charge.stage_s(stage, numel)):
                try:
                    aggregate = run.send(answer)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]

    def _with_merge(self, aggregate: Aggregate, numel: int) -> Aggregate:
        merge = aggregate.merge
        return aggregate if merge is None else replace(aggregate, merge=self._timed(merge, numel))

    def _timed(self, merge: Merge, numel: int) -> Merge:
        def charged(own: Payload, arrived: Payload) -> Payload:
            with self._busy(self.charge.merge_s(numel)):
                return merge(own, arrived)

        return charged

    def _busy(self, seconds: float) -> AbstractContextManager[None]:
        return self.device.interrupt(seconds) if seconds else nullcontext()
