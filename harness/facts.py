"""A job as values for its record: its plug-ins with all parameters, what its code needs, what compressing it costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from baselines.api import UNIT, CountsBits, How, RampsUp, SizedByShape, UpdatePoint, layers_of
from baselines.catalogue import plugin
from baselines.strategy import DEFAULTS, LOCAL_STEPS, Strategy
from baselines.text import given_texts, read_call, settable_fields, split_parts
from harness.predict.codecs import Charge, charge_of, dense_steps
from harness.predict.layers import layers_of_workload
from harness.predict.shares import sent_share
from harness.systems import system_of
from harness.systems.api import Compresses
from harness.trial import Job
from models.workload import Device, WorkloadSpec
from results.facts import ChargeFacts, CodeFacts, Combine, ParameterFacts, PluginFacts, Role, Unit
from results.record import JobResult

BITS_PER_BYTE = 8
DENSE_BITS = 32.0
LOCAL, OURS = "local", "ours"
UPDATE, SYSTEM, SCHEDULE, PLANNER = "update", "system", "schedule", "planner"


def asked_of(job: Job, num_steps: int, world: int, tensor_sizes: Sequence[int] = ()) -> JobResult:
    """What a record says of `job` before it ran. `tensor_sizes`, the elements of each parameter, come from the profile
    in replay. Raises: TextError, CatalogueError, WorkloadError.
    """
    replayed = job.workload.device is Device.REPLAY
    return JobResult(
        name=job.name,
        workload=job.workload.label,
        system=job.system.partition("(")[0],
        strategy=job.label,
        device=job.workload.device.value,
        batch_size=job.workload.batch_size,
        accumulate=job.accumulate,
        precision=job.precision.value,
        num_steps=num_steps,
        plugins=plugins_of(job),
        role=role_of(job),
        code=code_of(job, real_sizes(job.workload) if replayed else tensor_sizes, world),
        charge=charge_facts(job, world),
    )


def real_sizes(spec: WorkloadSpec) -> tuple[int, ...]:
    """The elements of each parameter of a replayed network as it really is. Raises: WorkloadError."""
    return tuple(segment.numel for segment in layers_of_workload(replace(spec, size_scale=1)).segments)


def plugins_of(job: Job) -> tuple[PluginFacts, ...]:
    """The plug-ins of the job's strategy in the order of its text, then those that fill a slot by default.

    Of another system: that one alone; of a pipelined job its schedule first; of a split one its planner.

    Raises: TextError, CatalogueError.
    """
    if job.pipelining is not None:
        schedule = _facts(job.pipelining.schedule, SCHEDULE, job.pipelining.resolve())
        own = () if job.system == OURS else (_facts(job.system, SYSTEM, system_of(job.system)),)
        return (schedule, *own)
    if job.splitting is not None:
        return (_facts(job.splitting.planner, PLANNER, job.splitting.resolve()),)
    if job.system != OURS:
        return (_facts(job.system, SYSTEM, system_of(job.system)),)
    strategy = job.resolve()
    written = [_part(text, strategy) for text in split_parts(job.strategy)]
    taken = {own.slot for own in written}
    held = ((slot.value, getattr(strategy, slot.value)) for slot in DEFAULTS if slot.value not in taken)
    return (*written, *(_facts(own.card.name, slot, own, written=False) for slot, own in held))


def _part(text: str, strategy: Strategy) -> PluginFacts:
    name, _ = read_call(text)
    if name in set(UpdatePoint):
        return PluginFacts(name=name, slot=UPDATE)
    if name == LOCAL_STEPS:
        steps = ParameterFacts(name="n", value=strategy.local_steps, given=str(strategy.local_steps))
        return PluginFacts(name=name, slot=UPDATE, parameters=(steps,))
    slot = plugin(name).card.slot.value
    layers = layers_of(getattr(strategy, slot))
    return _facts(text, slot, next(layer for layer in layers if layer.card.name == name))


def _facts(text: str, slot: str, made: Any, *, written: bool = True) -> PluginFacts:
    """The plug-in `made` from this text; its parameters in the order of the text, defaults behind."""
    name, given = text.partition("(")[0], given_texts(text)
    fields = {field.name: field for field in dataclasses.fields(made)}
    order = (*given, *(own for own in settable_fields(type(made)) if own not in given))
    parameters = (
        ParameterFacts(
            name=own,
            value=_plain(getattr(made, own)),
            given=given.get(own),
            unit=Unit(fields[own].metadata[UNIT]) if UNIT in fields[own].metadata else None,
        )
        for own in order
    )
    return PluginFacts(name=name, slot=slot, parameters=tuple(parameters), written=written)


def _plain(value: Any) -> bool | int | float | str | None:
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def role_of(job: Job) -> Role:
    """What its suite says that the job is for; one that does not communicate is the ideal line, whatever it says."""
    return Role.IDEAL if job.system.partition("(")[0] == LOCAL else job.role


def code_of(job: Job, tensor_sizes: Sequence[int], world: int) -> CodeFacts:
    """The code in which the job's gradients travel; `tensor_sizes` are the elements of each parameter.

    Bits that the compressor does not state come from its `wire_bytes`: tensor by tensor where it codes tensors, else of
    the model as one message. Of another system nobody knows.
    """
    if job.system != OURS:
        return CodeFacts(bits_per_element=DENSE_BITS if job.system.partition("(")[0] == LOCAL else None)
    strategy = job.resolve()
    compression = strategy.compression
    inner, num_dense = layers_of(compression)[-1], dense_steps(compression)
    ramps = [own.ramp_steps for own in layers_of(compression) if isinstance(own, RampsUp)]
    return CodeFacts(
        bits_per_element=_bits(inner, tensor_sizes, world),
        combine=Combine(compression.how.value),
        lossy=compression.lossy,
        dense_steps=num_dense,
        ramp_steps=max(ramps, default=0),
        sent_share=sent_share(strategy, compression.how, world),
        dense_share=sent_share(strategy, How.SUM, world) if num_dense else None,
    )


def _bits(compression: Any, tensor_sizes: Sequence[int], world: int) -> float | None:
    if isinstance(compression, CountsBits):
        return compression.code_bits
    sizes = [size for size in tensor_sizes if size]
    if not sizes:
        return None
    if isinstance(compression, SizedByShape):
        return None  # shapes are not known here, and a guess by size alone would be wrong
    # A code with a scale per tensor costs more in a network of many small tensors, so tensors are counted one by one.
    pieces = sizes if compression.scope.value == "tensor" else [sum(sizes)]
    return BITS_PER_BYTE * math.fsum(compression.wire_bytes(size, world) for size in pieces) / sum(sizes)


def compresses(job: Job) -> bool:
    """Whether less than float32 travels, as far as the job's plug-ins or its system say."""
    if job.system == OURS:
        return job.resolve().compression.lossy
    system = system_of(job.system)
    return isinstance(system, Compresses) and system.compresses


def charge_facts(job: Job, world: int) -> ChargeFacts | None:
    """What compressing costs in replay, or the reason why nothing is charged; None where nothing is replayed.

    Raises: WorkloadError for a broken profile.
    """
    if job.workload.device is not Device.REPLAY:
        return None
    if not compresses(job):
        return None
    charge = charge_of(job, world)
    return charge.facts if isinstance(charge, Charge) else ChargeFacts(reason=charge)
