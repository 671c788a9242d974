"""All-reduce times on the default process group, and the α–β model fitted to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
import scipy  # `scipy.optimize` takes half a second and is loaded by whoever fits
import torch
import torch.distributed as dist

from fabric.cluster import FabricSpec
from fabric.collectives import Collective
from fabric.paced import paced_link

# Five sizes spread over three decades: relative errors then weigh start-up and bandwidth alike.
CALIBRATION_BYTES = (4_096, 65_536, 262_144, 1_048_576, 4_194_304)
# A size is repeated until about this many bytes are on their way, so that a clock's grain and uneven starts do not
# matter.
ROW_BYTES = 131_072
LINE_RATE_BYTES = 25_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """All-reduce time = α + β · bytes; `residual` is the largest relative error over the sizes."""

    alpha_s: float
    beta_s_per_byte: float
    residual: float

    def all_reduce_s(self, num_bytes: float) -> float:
        """Seconds of an all-reduce of `num_bytes` per rank, alone on the link."""
        return self.alpha_s + self.beta_s_per_byte * num_bytes


def paced_link_model(spec: FabricSpec) -> LinkModel | None:
    """All-reduce time on a paced fabric, as asked for and not measured; None on the other fabrics."""
    link = paced_link(spec)
    if link is None:
        return None
    alpha_s, million_s = (link.seconds(Collective.ALL_REDUCE, num_bytes) for num_bytes in (0, 1_000_000))
    return LinkModel(alpha_s=alpha_s, beta_s_per_byte=(million_s - alpha_s) / 1_000_000, residual=0.0)


def time_all_reduces(num_bytes: Sequence[int], num_repeats: int) -> tuple[tuple[float, ...], ...]:
    """Seconds an all-reduce of each size, `num_repeats` times, after one that is not counted.

    Small ones are timed in rows: ranks leave a barrier up to milliseconds apart.
    """
    times_s = []
    for size in num_bytes:
        tensor = torch.zeros(max(1, size // 4))
        dist.all_reduce(tensor)
        times_s.append(tuple(_timed_all_reduce(tensor, max(1, ROW_BYTES // size)) for _ in range(num_repeats)))
    return tuple(times_s)


def _timed_all_reduce(tensor: torch.Tensor, count: int) -> float:
    # Ranks leave a barrier at different times: only the first operation of a row sees that.
    dist.barrier()
    start_s = perf_counter()
    for _ in range(count):
        dist.all_reduce(tensor)
    return (perf_counter() - start_s) / count


def slowest_median_s(times_s: Sequence[Sequence[float]]) -> float:
    """Median over repeats of the slowest rank; `times_s` [rank][repeat]."""
    # An all-reduce is over for a job when it is over for its slowest rank, so the maximum comes before the median.
    return float(median(max(repeat) for repeat in zip(*times_s, strict=True)))


def fit_link(times_s: Mapping[int, float], *, relative: bool = True) -> LinkModel:
    """Fit α, β ≥ 0 to times by bytes, by least squares of `relative` errors, which describe every size, or of seconds.

    Plans count seconds. Where times are no straight line (a small message can take as long as one of 64 kB) relative
    errors give a β below what the line needs: half of it among eight hosts on two cores.

    Raises: ValueError with fewer than two sizes.
    """
    if len(times_s) < 2:
        raise ValueError(f"{len(times_s)} size(s) measured; α and β need at least two")
    sizes = np.array(sorted(times_s), dtype=float)
    times = np.array([times_s[int(size)] for size in sizes])
    scale = sizes.max()  # so that both columns are alike in size
    matrix = np.stack([np.ones_like(sizes), sizes / scale], axis=1)
    weights = 1.0 / times if relative else np.ones_like(times)
    found, _ = scipy.optimize.nnls(matrix * weights[:, None], times * weights)
    alpha_s, beta_s_per_byte = found[0], found[1] / scale
    residual = float(np.max(np.abs(matrix @ found / times - 1.0)))
    return LinkModel(alpha_s=float(alpha_s), beta_s_per_byte=float(beta_s_per_byte), residual=residual)


def share_of_line_rate(num_bytes: int, time_s: float, world: int, rate_bps: float) -> float:
    """Bus bandwidth, 2(P−1)/P · bytes / t (nccl-tests' definition), over the line rate."""
    return 2 * (world - 1) / world * num_bytes * 8 / time_s / rate_bps
