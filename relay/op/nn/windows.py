"""Sliding windows in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc.relay.op.common import Array

__all__ = ["window_view"]


def window_view(x: Array, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Array:
    """A view (N, C, windows..., kernel...) of (N, C, spatial...): every window of `kernel` taps."""
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    rank = len(reach)
    axes = tuple(range(2, 2 + rank))
    windows = np.lib.stride_tricks.sliding_window_view(x, tuple(reach), axes)  # type: ignore[call-overload]
    picked = (
        slice(None),
        slice(None),
        *[slice(None, None, s) for s in strides],
        *[slice(None, None, d) for d in dilation],
    )
    return windows[picked]
