"""Whether jobs that share a device fit into its memory.

Needed is Σ(parameters + gradients + optimizer) + max(activations) where jobs compute in turns, since activations live
from forward to backward of one turn; where they compute at once, all activations count. PyTorch's allocator keeps what
it has freed for its own process, so the maximum is only reached by jobs that give it back: memory that suffices only
then is WARNed about.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from crossover.planning.profiles import JobProfile
from crossover.planning.verdicts import Reason, Verdict
from crossover.policies import Sharing


@dataclass(frozen=True, slots=True)
class Memory:
    """One device's memory in bytes: needed when activations are given back between turns, needed when every process
    keeps them, and there (None: not asked). `unknown` are jobs whose profile does not say."""

    needed_bytes: int
    kept_bytes: int
    device_bytes: int | None
    unknown: tuple[str, ...]


def memory_of(profiles: Sequence[JobProfile], sharing: Sharing, device_bytes: int | None = None) -> Memory:
    """What the jobs need of one device's memory together."""
    state = sum(profile.state_bytes for profile in profiles)
    activations = [profile.activations_bytes for profile in profiles]
    in_turns = not sharing.computes_at_once
    unknown = tuple(profile.name for profile in profiles if not (profile.state_bytes and profile.activations_bytes))
    return Memory(
        state + (max(activations) if in_turns else sum(activations)), state + sum(activations), device_bytes, unknown
    )


def memory_reasons(memory: Memory) -> tuple[Reason, ...]:
    """What speaks against it."""
    if memory.device_bytes is None:
        return ()
    there = gigabytes(memory.device_bytes)
    if memory.needed_bytes > memory.device_bytes:
        return (
            Reason(
                Verdict.REFUSE,
                f"needs {gigabytes(memory.needed_bytes)} of the device's {there}: use smaller batches, or fewer jobs",
            ),
        )
    reasons = []
    if memory.kept_bytes > memory.device_bytes:
        reasons.append(
            Reason(
                Verdict.WARN,
                f"fits only if jobs give activations back between turns ({gigabytes(memory.kept_bytes)} of {there} "
                "otherwise): PyTorch's allocator keeps them unless torch.cuda.empty_cache() is called",
            )
        )
    if memory.unknown:
        reasons.append(
            Reason(Verdict.WARN, f"memory of {', '.join(memory.unknown)} is not (fully) known, so it may not fit")
        )
    return tuple(reasons)


def gigabytes(num_bytes: int) -> str:
    """In GiB, as device memory is sold."""
    return f"{num_bytes / 2**30:.1f} GiB"
