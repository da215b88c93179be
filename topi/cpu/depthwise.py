"""Depthwise convolutions on CPUs: channels last, weights (..., C, 1) or (..., 1, C), vectors of channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import local_accumulator
from topi.cpu.windows import tile_windows
from topi.groups import inline_injective
from topi.registry import register_schedule

if TYPE_CHECKING:
    from backend.target import Target

__all__ = ["schedule_depthwise_conv"]


@register_schedule(["depthwise_conv1d_nwc", "depthwise_conv2d_nhwc", "depthwise_conv3d_ndhwc"], "cpu")
def schedule_depthwise_conv(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
    """C[n, y, x, c] = sum over ky, kx of data[n, y*s + ky, x*s + kx, c] * W[ky, kx, c]; of rank 1 and 3 likewise.

    Half of the registers hold results: what the other half reads is shared between them.
    """
    s = te.create_schedule([out.op for out in outs])
    inline_injective(s, outs, keep=[anchor])
    accumulator = local_accumulator(s, anchor, outs[0])
    tile_windows(s, outs[0], accumulator, target.vector_registers // 2, target)
    return s
