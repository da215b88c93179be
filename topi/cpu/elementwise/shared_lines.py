"""Lines of a computed stage that serve several elements of a line of the output: each is computed once, in a buffer."""

from __future__ import annotations

from relayc import te
from relayc.te.ir import post_order
from relayc.te.tir import Binary, ProducerLoad, as_int
from relayc.topi.groups import extent_of, is_injective
from relayc.topi.registry import operations_behind
from relayc.topi.utils import same_dim

__all__ = ["shared_line"]

_MOST_LINE_BYTES = 1 << 14
"""Most bytes of a buffered line: at most half of L1."""
_LEAST_OPERATIONS = 2
"""Fewest arithmetic operations per element that make a line worth buffering."""


def shared_line(out: te.Tensor) -> te.Tensor | None:
    """Return the computed tensor of which each line of `out` reads the same line at other indices; None if not unique.

    Lines of dynamic length are assumed to be short, and injective stages that `out` reads to be inlined.
    """
    found: list[te.Tensor] = []
    if isinstance(out.op, te.ComputeOp) and is_injective(out.op) and out.ndim > 1:
        _collect(out.op, found, set())
    line = found[0] if found and all(t is found[0] for t in found) else None
    if line is None or same_dim(line.shape[-1], 1) or not _is_worth_buffering(line):
        return None
    length = line.shape[-1]
    return line if not isinstance(length, int) or length * line.dtype.nbytes <= _MOST_LINE_BYTES else None


def _collect(
    op: te.ComputeOp, found: list[te.Tensor], seen: set[tuple[te.Operation, bool]], moved: bool = False
) -> None:
    """Collect computed tensors that `op` reads in its own line, directly or through data movement within lines.

    Stages read at the element's own index are looked through, each once, unless `op` is read at others (`moved`).
    """
    if (op, moved) in seen:
        return
    seen.add((op, moved))
    for load in [e for e in post_order(op.body) if isinstance(e, ProducerLoad)]:
        producer, index = load.producer.op, load.indices
        if not isinstance(producer, te.ComputeOp) or not is_injective(producer) or len(index) != len(op.axis):
            continue
        places = zip(index, op.axis, strict=True)
        same = [i is axis.var or (extent_of(axis) == 1 and as_int(i) == 0) for i, axis in places]
        if not all(same[:-1]):
            continue
        elsewhere = moved or not same[-1]
        if elsewhere and _computes(producer):
            found.append(load.producer)
        else:
            _collect(producer, found, seen, elsewhere)


def _computes(op: te.ComputeOp) -> int:
    """Return the floating-point operations per element, without index arithmetic."""
    return sum(isinstance(e, Binary) and e.dtype.is_float for e in post_order(op.body))


def _is_worth_buffering(line: te.Tensor) -> bool:
    """True if an element takes enough arithmetic to be worth buffering."""
    behind = [op for op in operations_behind([line]) if isinstance(op, te.ComputeOp) and is_injective(op)]
    return sum(_computes(op) for op in behind if op.output(0).ndim == line.ndim) >= _LEAST_OPERATIONS
