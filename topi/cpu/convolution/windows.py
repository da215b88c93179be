"""The inputs of convolutions on CPUs: padded images, and their windows as rows of a matrix (im2col)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.common import parallel, parallel_outer
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, is_static
from relayc.topi.registry import operations_behind

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["feeding_pads", "feeding_windows", "schedule_pad", "schedule_windows", "vectorize_windows"]


def feeding_pads(outs: list[te.Tensor], anchor: te.Operation) -> list[te.Operation]:
    """The pad stages that feed the anchor, or its windows, directly."""
    feeding = {id(t.op) for reader in (anchor, *feeding_windows(anchor)) for t in reader.input_tensors}
    return [op for op in operations_behind(outs) if op.tag == "pad" and id(op) in feeding]


def schedule_pad(s: te.Schedule, pad: te.Operation, target: Target) -> None:
    """Schedule the padded copy: lines in parallel, channels vectorised; with few channels lines of a known length are
    vectorised as one."""
    result, lanes = pad.output(0), vector_lanes(target)
    *lines, w, c = s[result].op.axis
    work = constant_size(result.shape) * 4.0
    if isinstance(c.extent, int) and c.extent >= lanes:
        _, c_inner = s[result].split(c, factor=lanes)
        s[result].vectorize(c_inner)
        parallel_outer(s, result, [*lines, w], work, target)
    else:
        line = s[result].fuse(*lines) if len(lines) > 1 else w
        if line is not w and is_static([w.extent, c.extent]) and constant_size([w.extent, c.extent]) >= lanes:
            w, within = s[result].split(s[result].fuse(w, c), factor=lanes, tail="shift")
            s[result].vectorize(within)
        parallel(s, result, line, work, lanes)
        for axis in dict.fromkeys((line, w)):
            s[result].pragma(axis, "loop_partition_hint")


def feeding_windows(anchor: te.Operation) -> list[te.Operation]:
    """The stage that copies the windows of a convolution into the rows of a matrix, if there is one."""
    return [t.op for t in anchor.input_tensors if t.op.tag == "windows"]


def vectorize_windows(s: te.Schedule, windows: te.Operation, target: Target) -> te.IterVar:
    """Copy contiguous elements, the taps along a line, by vectors; returns the loop over windows."""
    row, k = s[windows].op.axis
    taps = s[windows].split(k, factor=windows.attrs["run"])[1]
    vectorize_elements(s, windows.output(0), taps, windows.attrs["run"], vector_lanes(target))
    return row


def schedule_windows(s: te.Schedule, windows: te.Operation, target: Target) -> None:
    """Copy all windows before anything else, in parallel."""
    rows = windows.output(0)
    parallel(s, rows, vectorize_windows(s, windows, target), 4.0 * constant_size(rows.shape), vector_lanes(target))
