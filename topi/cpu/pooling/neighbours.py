"""Sharing of partial reductions between adjacent windows: their common elements are reduced once."""

from __future__ import annotations

from typing import Any

from relayc import te
from relayc.te.tir import PrimExpr, Reduce, as_dim
from relayc.te.tir.substitute import substitute
from relayc.topi.groups import extent_of

__all__ = ["combined", "levels_of", "reduce_groups"]


def combined(size: int, stride: int, levels: int) -> float:
    """Return the combine operations per window, for many windows of `size` elements, `stride` apart.

    Groups of 2 ** levels windows share the reduction of their common elements, halves of a group that of theirs, and so
    on: each level adds `stride` operations per window.
    """
    return levels * stride + (_common(size, stride, levels) - 1) / 2**levels


def levels_of(size: int, stride: int, most: int) -> int:
    """Return the levels, up to `most`, with the fewest combine operations; 0 if windows overlap too little."""
    possible = [n for n in range(most + 1) if _common(size, stride, n) > 0]
    return min(possible, key=lambda n: (combined(size, stride, n), n))


def _common(size: int, stride: int, levels: int) -> int:
    """Return the elements common to 2 ** levels adjacent windows; negative where there are none."""
    return size - (2**levels - 1) * stride


def reduce_groups(s: te.Schedule, tensor: te.Tensor, at: int, stride: int, levels: int) -> list[te.Tensor]:
    """Let `tensor`, which reduces windows `stride` apart along dimension `at`, share reductions of common elements.

    The one reduction axis runs along `at`, without gaps. What 2 ** levels adjacent windows share is reduced first, then
    what each half of them has besides. Returns the stages, `tensor` last. Tiles of 2 ** levels should be unrolled, so
    that it is static which half an element belongs to.
    """
    op = s[tensor].op
    assert isinstance(op, te.ComputeOp)
    (whole,), (tap,) = op.body, op.reduce_axis
    size, shape = extent_of(tap), [extent_of(axis) for axis in op.axis]
    assert isinstance(whole, Reduce) and isinstance(size, int)

    def reduced(level: int, larger: te.Tensor | None) -> te.Tensor:
        """Reduce what 2 ** level windows share beyond what twice as many share, which is in `larger`."""
        group, common = 2**level, _common(size, stride, level)
        taps = te.reduce_axis((0, common if larger is None else group * stride), name=tap.var.name)

        def element(*i: Any) -> PrimExpr:
            begin = (i[at] * group + group - 1) * stride  # where the last window does
            if larger is not None:  # the second half has its own at the end
                begin = begin + i[at] % 2 * (common - group * stride)
            values = {axis.var: v for axis, v in zip(op.axis, i, strict=True)}
            values |= {op.axis[at].var: te.const(0), tap.var: begin + taps}
            source = tuple([substitute(e, values) for e in whole.source])
            init = () if larger is None else (larger(*i[:at], i[at] // 2, *i[at + 1 :]),)
            return whole.replace(source=source, axis=(taps,), init=init)

        if not level:
            return te.compute(shape, element, name=op.name, tag=op.tag, attrs=op.attrs)
        extents = [*shape[:at], as_dim(-(-shape[at] // group)), *shape[at + 1 :]]
        return te.compute(extents, element, name=f"{op.name}_{group}", attrs=op.attrs)

    stages = [reduced(levels, None)]
    for level in reversed(range(levels)):
        stages.append(reduced(level, stages[-1]))
    s.recompute(op.output(0), stages[-1])
    return [s.current(stage) for stage in (*stages[:-1], tensor)]
