"""Products with weights stored in 8 or 16 bits: converted panel by panel, or multiplied as 2-way dot products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.common import parallel
from relayc.topi.cpu.elements import vectorize_elements
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.groups import constant_size, extent_of

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["paired_data", "schedule_pairs", "widened_weights"]


def paired_data(anchor: te.Operation) -> list[te.Operation]:
    """The stage that interleaves the product's data in pairs, if there is one."""
    return [t.op for t in anchor.input_tensors if t.op.tag == "int16_pairs"]


def schedule_pairs(s: te.Schedule, pairs: te.Operation, target: Target) -> None:
    """Vectorise the contiguous axis; threads share the lines."""
    result, lanes = pairs.output(0), vector_lanes(target)
    *lines, last = s[result].op.axis
    parallel(s, result, s[result].fuse(*lines), constant_size(result.shape) * 4.0, lanes)
    vectorize_elements(s, result, last, extent_of(last), lanes)


def widened_weights(anchor: te.Operation) -> list[te.Operation]:
    """The stage that converts the product's weights to the computed type, if there is one."""
    return [t.op for t in anchor.input_tensors if t.op.tag == "widened_weights"]
