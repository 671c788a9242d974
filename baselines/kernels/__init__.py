"""Kernels that compressors share: pure functions of tensors, without state, clocks or networks.

On the CPU they are compiled by numba for one thread (no threading layer, the interpreter lock released), elsewhere
they are vectorised torch operations with the same results. Compiled code is cached beside the source, or in the
user's cache folder where that is read-only.
"""

from __future__ import annotations


def warm_up() -> None:
    """Compile every kernel for every type it knows, or load it from the cache.

    To be called once before ranks are forked: they then neither compile nor wait for a lock that another thread held
    at the fork. A new kernel is added here; a test names those that this does not reach.
    """
    from baselines.kernels import feedback, select, sides, sparse

    feedback.warm_up()
    select.warm_up()
    sparse.warm_up()
    sides.warm_up()
    _warm_up_codes()


def _warm_up_codes() -> None:
    """Ten elements through every code and back."""
    import torch

    from baselines.kernels import elias, golomb, levels, signs

    generator = torch.Generator().manual_seed(0)
    values = torch.linspace(-1.0, 1.0, 10)
    bits, means = signs.encode(values, [5, 5])
    signs.add_decoded(values, bits, means, [5, 5])
    for width in (2, 4, 8):
        for norm in ("l2", "max"):
            codes, norms = levels.encode(values, width, 5, generator, norm)
            levels.add_decoded(values, codes, norms, width, 5)
    for signed in (torch.tensor([0, 1, -2] * 4), torch.tensor([0] * 999 + [1])):  # Elias codes dense ones otherwise
        levels_of_sign = signed.to(torch.int8)
        elias.decode(elias.encode(levels_of_sign), signed.numel())
    positions = torch.tensor([1, 4, 9])
    golomb.decode(golomb.encode(positions, 10, 2), 3, 2)
