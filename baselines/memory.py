"""Fresh memory for what compressors need for a moment.

A kernel fills a new page with zeros when it is touched first. In pages of 4 KiB that costs several times what writing
the tensor costs: for 25.5 million float32 elements `torch.zeros` took 5.5 copies of the tensor, and huge pages 1.4
(decision 42). numpy asks the kernel for huge pages where it offers them on request; torch does not.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_TYPES = {torch.float32: np.float32, torch.uint8: np.uint8, torch.int8: np.int8, torch.int64: np.int64}


def blank(numel: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """A tensor [numel] of float32, uint8, int8 or int64 whose elements are whatever was there."""
    if torch.device(device).type != "cpu" or not numel:  # numpy's empty arrays have strides that no view takes
        return torch.empty(numel, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(numel, _TYPES[dtype]))


def zeros(numel: int, device: torch.device | str = "cpu") -> Tensor:
    """A tensor [numel] of float32 zeros."""
    return blank(numel, torch.float32, device).zero_()
