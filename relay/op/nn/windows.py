"""Sliding windows in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc.relay.op.common import Array

__all__ = ["window_view"]


def window_view(x: Array, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Array:
    """A view (N, C, windows..., kernel...) of (N, C, spatial...): every window of `kernel` taps, none where those reach
    beyond x."""
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    rank = len(reach)
    axes = tuple(range(2, 2 + rank))
    missing = [max(r - size, 0) for r, size in zip(reach, x.shape[2:], strict=True)]
    if any(missing):
        x = np.pad(x, [(0, 0), (0, 0), *[(0, m) for m in missing]])
    windows = np.lib.stride_tricks.sliding_window_view(x, tuple(reach), axes)  # type: ignore[call-overload]
    picked = (
        slice(None),
        slice(None),
        *[slice(None, 0 if m else None, s) for m, s in zip(missing, strides, strict=True)],
        *[slice(None, None, d) for d in dilation],
    )
    return windows[picked]
