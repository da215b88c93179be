"""Depthwise convolutions on CPUs: channels last, vectors of channels. Weights are (..., C, 1) or (..., 1, C)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import te
from topi.cpu.common import local_accumulator
from topi.cpu.injective import functions_behind
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
    functions, columns = functions_behind(outs[0], anchor), target.vector_registers // 2
    if functions:  # have numbers of their own to keep in registers: those of exp are few
        columns = columns - 1 if functions <= _OF_FEW_NUMBERS else columns // 2
    tile_windows(s, outs[0], accumulator, columns, target, _UNROLLED, divide=not functions)
    return s


_OF_FEW_NUMBERS = {"exp", "sigmoid"}
"""Functions that go with tiles of seven columns in 16 registers, with eight they take a third longer. The error
function goes with four, with five to eight it takes a quarter longer."""


_UNROLLED = 16
"""Taps that are unrolled, at most: all of 5 x 5 would be a tenth faster, and take over twice as long to compile."""
