"""What a message costs on a link, as the virtual clock takes it.

Alone, a primitive of n bytes takes α + β·n seconds. Two parts of that are link time, which messages in flight share:
β·n, and the share `occupied` of α (interrupts and copies that a host does for one message at a time). The rest of α is
waiting, which messages in flight do side by side; of it the share `overlap` is spread over the message, so that another
one's bytes fill it, and what is left comes first. Before each primitive there is a further gap, in which it takes no
link: what a machine needs to hand a message over and to hear of its end. It is `gap_s` for a primitive of at most a
millisecond, and longer by `gap_per_doubling_s` for each time that it takes twice as long: a processor without work
sleeps the deeper the longer it sleeps. Sums that queue up in the link (`queues`) have none, and follow each other
there; those that lanes hand over one by one have theirs while the ones before them are carried.

Around the primitives the engine's one thread works `message_s + message_s_per_byte · n` on every message, and
`wake_s` goes by between a gradient's readiness and that thread's work, and between a landing and the loop's going on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite, log2

from fabric.collectives import Collective, load_of
from harness.trial import TrialError

RING_STEPS = "AllReduce"
SHORT_S = 1e-3  # up to here a gap does not depend on how long a primitive takes
DEEPEST = 16  # times as long, and no sleep is deeper


class PredictError(TrialError):
    """A prediction that cannot be made; the message names the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A primitive alone: α + β · bytes of its tensor on a rank, in seconds."""

    alpha_s: float
    beta_s_per_byte: float

    def __post_init__(self) -> None:
        if not (0 <= self.alpha_s < inf and 0 <= self.beta_s_per_byte < inf):
            raise PredictError(
                f"α is {self.alpha_s} s and β {self.beta_s_per_byte} s per byte; both must be finite and 0 or more"
            )

    def seconds(self, num_bytes: float) -> float:
        """Alone on the link."""
        return self.alpha_s + self.beta_s_per_byte * num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCosts:
    """What the engine's thread and the optimizer do on a rank, in seconds: `message_s` and `message_s_per_byte` for a
    message, `by_lane_s` more for one that does not queue up in the library, `wake_s` for a wake-up; a step's update is
    `update_s + update_s_per_tensor · tensors + update_s_per_byte · bytes`, and `eager_s` stands for the first where a
    layer is updated by itself; `loop_s` is what a step takes beside layers, messages and update.
    `device_codec_s_per_byte` is what is charged for compression before and after the way, in which the device computes
    nothing else (`harness/predict/codecs.py`)."""

    message_s: float = 0.0
    message_s_per_byte: float = 0.0
    wake_s: float = 0.0
    by_lane_s: float = 0.0
    update_s: float = 0.0
    update_s_per_tensor: float = 0.0
    update_s_per_byte: float = 0.0
    eager_s: float = 0.0
    loop_s: float = 0.0
    codec_s_per_byte: Mapping[str, float] = field(default_factory=dict)
    device_codec_s_per_byte: tuple[float, float] = (0.0, 0.0)

    def on_message_s(self, num_bytes: float, *, queues: bool = False) -> float:
        """The engine's thread for one message, there and back; `queues`: in the library."""
        return self.message_s + self.message_s_per_byte * num_bytes + (0.0 if queues else self.by_lane_s)

    def without_messages(self) -> EngineCosts:
        """Updates and the loop alone."""
        return replace(self, message_s=0.0, message_s_per_byte=0.0, wake_s=0.0, by_lane_s=0.0)

    def whole_update_s(self, num_tensors: int, num_bytes: float) -> float:
        """One optimizer step over the whole model."""
        return self.update_s + self.update_s_per_tensor * num_tensors + self.update_s_per_byte * num_bytes

    def eager_update_s(self, num_tensors: int, num_bytes: float) -> float:
        """One optimizer step over a layer alone."""
        return self.eager_s + self.update_s_per_tensor * num_tensors + self.update_s_per_byte * num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCosts:
    """All costs among `world` ranks. `primitives` holds what is known by the primitive's class name; others follow from
    the all-reduce as `ring_theory` has them. Gaps come before each of them and are in none of their costs.
    `residual` is the largest relative error over the micro-benchmarks. Tensors are `size_scale` times smaller than what
    they stand for; rounds of control are not, and cost so much less per byte. `queues`: the link takes plain sums in a
    known order before those ahead of them are carried."""

    world: int
    primitives: Mapping[str, Cost]
    occupied: float = 0.0
    overlap: float = 1.0
    gap_s: float = 0.0
    gap_per_doubling_s: float = 0.0
    engine: EngineCosts = field(default_factory=EngineCosts)
    residual: float = 0.0
    source: str = "given"
    size_scale: int = 1
    queues: bool = False

    def __post_init__(self) -> None:
        if self.world < 1:
            raise PredictError(f"world is {self.world}; there is at least 1 worker")
        if RING_STEPS not in self.primitives:
            raise PredictError(
                f"costs of {', '.join(self.primitives) or 'nothing'}; those of {RING_STEPS} must be there"
            )
        for name in ("occupied", "overlap"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise PredictError(f"{name} is {value}; it is a share from 0 to 1")
        for name in ("gap_s", "gap_per_doubling_s"):
            value = getattr(self, name)
            if not 0 <= value < inf:
                raise PredictError(f"{name} is {value} s; it must be finite and 0 or more")

    def of(self, primitive: str) -> Cost:
        """The cost of a primitive by its class name; nothing among one worker. Raises: PredictError."""
        if self.world == 1:
            return Cost(0.0, 0.0)
        if primitive in self.primitives:
            return self.primitives[primitive]
        hop = hop_of(self.primitives[RING_STEPS], self.world)
        return ring_theory(primitive, self.world, hop)

    def phases(self, alpha_s: float, bytes_s: float, gap_s: float = 0.0) -> tuple[float, float, float]:
        """(waiting first, waiting spread over the message, link time) of a message that takes α and β·n behind its
        gaps."""
        waiting_s = alpha_s * (1 - self.occupied)
        return gap_s + waiting_s * (1 - self.overlap), waiting_s * self.overlap, alpha_s * self.occupied + bytes_s

    def gap_before_s(self, link_s: float) -> float:
        """The gap before a primitive that takes `link_s` alone on the link."""
        return self.gap_s + self.gap_per_doubling_s * log2(min(max(link_s / SHORT_S, 1.0), DEEPEST))

    def queued_up(self) -> LinkCosts:
        """What is left where messages queue up in the link: neither gaps nor lanes."""
        return replace(self, gap_s=0.0, gap_per_doubling_s=0.0, engine=replace(self.engine, by_lane_s=0.0))

    def one_of_many(self, depth: int) -> Cost:
        """An all-reduce among `depth` in flight, as a strategy that plans measures its link: they wait side by side."""
        alone = self.of(RING_STEPS)
        waiting_s = alone.alpha_s * (1 - self.occupied) + self.gap_before_s(alone.alpha_s)
        held_s = alone.alpha_s * self.occupied + self.engine.by_lane_s
        return Cost(held_s + waiting_s / depth, alone.beta_s_per_byte)

    def message_s(self, num_bytes: float) -> float:
        """A message alone by all-reduce, gap and engine included."""
        link_s = self.of(RING_STEPS).seconds(num_bytes)
        return self.gap_before_s(link_s) + link_s + self.engine.on_message_s(num_bytes)

    @property
    def alpha_s(self) -> float:
        """Start-up of an all-reduced message, gap and engine included."""
        return self.message_s(0)

    @property
    def beta_s_per_byte(self) -> float:
        """Seconds a byte of an all-reduced message, engine included."""
        return self.of(RING_STEPS).beta_s_per_byte + self.engine.message_s_per_byte


def hop_of(ring: Cost, world: int) -> Cost:
    """One neighbour step, from an all-reduce of 2(P−1) steps that carries 2(P−1)/P of its bytes."""
    steps = 2 * (world - 1)
    return Cost(ring.alpha_s / steps, ring.beta_s_per_byte * world / steps)


def ring_theory(primitive: str, world: int, hop: Cost) -> Cost:
    """A primitive among `world` ranks from one neighbour step's α and β, by the table of collectives.

    Raises: PredictError for one that is not known.
    """
    if world < 1:
        raise PredictError(f"world is {world}; there is at least 1 worker")
    try:
        load = load_of(Collective(primitive), world)
    except ValueError:
        raise PredictError(f"what {primitive} costs is not known; known: {', '.join(Collective)}") from None
    return Cost(load.num_rounds * hop.alpha_s, load.link_bytes * hop.beta_s_per_byte)


def given_costs(world: int, *, alpha_s: float, beta_s_per_byte: float, engine: EngineCosts | None = None) -> LinkCosts:
    """Costs from one neighbour step's α and one link's seconds per byte, as asked for and not measured."""
    if not (isfinite(alpha_s) and isfinite(beta_s_per_byte)):
        raise PredictError(f"α is {alpha_s} s and β {beta_s_per_byte} s per byte; both must be finite")
    ring = ring_theory(RING_STEPS, world, Cost(alpha_s, beta_s_per_byte))
    return LinkCosts(
        world=world,
        primitives={RING_STEPS: ring},
        engine=engine or EngineCosts(),
        source=f"α {alpha_s:g} s per ring step, β {beta_s_per_byte:g} s per byte, as given",
    )


def serialised(costs: LinkCosts) -> LinkCosts:
    """The same with all of α as link time, as on the paced fabric."""
    return replace(costs, occupied=1.0)
