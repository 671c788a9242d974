"""Local steps: ranks step alone, and every n-th step the differences of their weights travel in place of gradients.

Papers: Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019; Sattler et al., Sparse Binary Compression,
IJCNN 2019 (communication delay). With w the weights after the last exchange and w_i a rank's own after n local steps,

    Δ_i = w − w_i;    w ← w − mean over ranks of Δ_i

which without compression is the mean of the ranks' weights. A compressor and its residual see Δ_i/P where they would
see g_i/P. Optimizers keep their state, each rank its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from harness.engine.checkpoint import Saved


class LocalSteps:
    """One rank's weights since the last exchange. `parameters` are changed in place."""

    def __init__(self, parameters: Mapping[str, Tensor], period: int) -> None:
        self._parameters, self._period, self.num_since = parameters, period, 0
        self._common = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    def count(self) -> bool:
        """A local step was taken; whether the weights are to be exchanged now."""
        self.num_since += 1
        return self.num_since >= self._period

    def offer(self) -> None:
        """Put Δ of each parameter where its gradient would be."""
        for name, parameter in self._parameters.items():
            parameter.grad = self._common[name] - parameter.detach()

    @torch.no_grad()
    def adopt(self) -> None:
        """Take the mean of Δ, which stands where the gradient would be: all ranks' weights are then the same."""
        for name, parameter in self._parameters.items():
            assert parameter.grad is not None, "offer() comes before adopt()"
            # All ranks subtract the same mean from the same weights, so they agree bit for bit and drift cannot build
            # up.
            self._common[name].sub_(parameter.grad)
            parameter.copy_(self._common[name])
            # The next local step must not start from differences.
            parameter.grad = None
        self.num_since = 0

    def state_dict(self) -> Saved:
        """The common weights and how many steps were taken since, for a checkpoint."""
        return {"common": {n: own.clone() for n, own in self._common.items()}, "num_since": self.num_since}

    def load_state_dict(self, saved: Saved) -> None:
        """Go on from what `state_dict` gave."""
        self.num_since = saved["num_since"]
        for name, own in self._common.items():
            own.copy_(saved["common"][name])
