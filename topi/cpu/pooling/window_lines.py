"""Separable windows: reduced across lines first, then along them, so that adjacent windows share the first step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te.arith import Analyzer
from relayc.te.tir import Dim, IterVar, PrimExpr, Reduce, as_dim, as_int
from relayc.te.tir.substitute import substitute
from relayc.topi.cpu.accesses import reads
from relayc.topi.groups import extent_of, is_static, iterations

__all__ = ["WindowLines", "combined", "reduce_groups"]

_MOST_LEVELS = 2
"""Most levels of sharing between columns: tiles of more than four columns exceed the vector registers."""
_SAVED = 0.75
"""Sharing must reduce the combine operations to this fraction."""


@dataclass(frozen=True, slots=True)
class WindowLines:
    """Windows of `size` columns, `stride` apart, along axis number `along` of `anchor`, whose body is `whole`.

    `taps` are the axes that are reduced across lines. Columns that no window reads are skipped: `unit` is the distance
    of the others, in which `stride` and `dilation` are counted.
    """

    anchor: te.ComputeOp
    along: int
    whole: Reduce
    taps: tuple[IterVar, ...]
    size: int
    stride: int
    dilation: int
    unit: int

    @staticmethod
    def of(anchor: te.Operation) -> WindowLines | None:
        """Match windows of several lines and columns, where stride divides dilation or the reverse; else None."""
        assert isinstance(anchor, te.ComputeOp)
        *across, along = anchor.reduce_axis
        size = extent_of(along)
        several = across and iterations(across) > 1
        if not several or not isinstance(size, int) or size == 1 or "dilation" not in anchor.attrs:
            return None
        stride, dilation = anchor.attrs["strides"][-1], anchor.attrs["dilation"][-1]
        unit = math.gcd(stride, dilation)
        if unit not in (stride, dilation):
            return None
        (whole,) = anchor.body
        assert isinstance(whole, Reduce)
        taps = tuple([te.reduce_axis((0, extent_of(k)), name=k.var.name) for k in across])
        along = int(anchor.attrs["axes"][-1])
        return WindowLines(anchor, along, whole, taps, size, stride // unit, dilation // unit, unit)

    def levels(self, cores: int) -> tuple[int, int] | None:
        """By how many levels windows of a tile share reductions, across lines and along them; None if little is saved.

        That is less than a quarter of the combine operations of a direct reduction. Windows with gaps share nothing:
        dilated ones seldom overlap within a tile of a few columns. Across lines only pairs share, in images of static
        size with a pair of lines for each of the `cores`.
        """
        if not self.dilation == self.unit == 1:
            return None
        strides, axes, levels = self.anchor.attrs["strides"], self.anchor.attrs["axes"], (0, 0)
        across, lines = iterations(self.taps), iterations(self.anchor.axis[: self.along])
        if is_static([extent_of(self.anchor.axis[n]) for n in axes]):
            pairs = len(self.taps) == 1 and self.anchor.attrs["dilation"][0] == 1 and lines >= 2 * cores
            levels = (
                _levels_of(across, strides[0], 1) if pairs else 0, _levels_of(self.size, self.stride, _MOST_LEVELS)
            )  # fmt: skip
        return levels if self.combined(levels) <= _SAVED * (across * self.size - 1) else None

    def combined(self, levels: tuple[int, int]) -> float:
        """Return the combine operations per window, in tiles of a few columns.

        Columns where adjacent tiles meet are reduced twice.
        """
        down, along = levels
        across, columns = iterations(self.taps), max(2**along, 2)
        lines = combined(across, self.anchor.attrs["strides"][0], down) if down else across - 1
        read = ((columns - 1) * self.stride + self._reach) / columns
        return read * lines + combined(self.size, self.stride, along)

    @property
    def read(self) -> Dim:
        """Number of columns that the windows of a line read."""
        return as_dim((extent_of(self.anchor.axis[self.along]) - 1) * self.stride + self._reach)

    @property
    def _reach(self) -> int:
        """Number of columns from the first tap of a window to its last, inclusive."""
        return (self.size - 1) * self.dilation + 1

    def by_columns(self, s: te.Schedule) -> te.Tensor:
        """Let the anchor read columns reduced across lines, which are returned, with the anchor's dimensions."""
        shape = [extent_of(axis) for axis in self.anchor.axis]
        shape[self.along] = self.read
        lines = te.compute(shape, lambda *i: self._across(i), name=f"{self.anchor.name}_lines", attrs=self.anchor.attrs)
        return self._along(s, lines, lines)[0]

    def share(self, s: te.Schedule, levels: tuple[int, int]) -> tuple[te.Tensor, ...]:
        """Let the anchor read columns reduced across lines, by stages shared between windows, which are returned."""
        (across, along), strides = levels, self.anchor.attrs["strides"]
        lines = self.by_columns(s)
        stages = reduce_groups(s, lines, self.anchor.attrs["axes"][0], strides[0], across) if across else [lines]
        if along:
            stages += reduce_groups(s, self.anchor.output(0), self.along, self.stride, along)[:-1]
        return tuple([s.current(stage) for stage in stages])

    def by_vectors(self, s: te.Schedule, most: int) -> tuple[te.Tensor, ...]:
        """Let the anchor read reductions across lines, which are returned, in vectors of up to `most` elements.

        The first vector ends with the border, so that others are aligned with the line: they are whole cache lines
        then, if lines of the image are. For strided windows the elements of each phase are made contiguous, as adjacent
        windows read them; that tensor is returned, too. Lines of dynamic length are not cut into vectors.
        """
        read = self.read
        if not isinstance(read, int):
            return (self.by_columns(s),)
        vector = min(read, most)
        lead = 0 if vector == read or self.unit > 1 else -self._border() % vector
        extent, phases = read + lead, self.stride if vector % self.stride == 0 else 1
        groups, each = -(-extent // vector), vector // phases
        widths = [as_dim(tensor.shape[-1]) for tensor, _ in reads(self.anchor)]
        end = (read - 1) * self.unit - self._border()
        is_bordered = all(isinstance(d, int) and end >= d for d in widths)  # so it is tested for

        def vectors(*i: Any) -> PrimExpr:
            place = i[-2] * vector + i[-1]
            return self._across((*i[:-2], place - lead), None if is_bordered else place < extent)

        outer, name = [extent_of(axis) for axis in self.anchor.axis[:-1]], self.anchor.name
        lines = te.compute((*outer, groups, vector), vectors, name=f"{name}_lines", attrs=self.anchor.attrs)
        if phases == 1:
            element = lambda *i: lines(*i[:-1], (i[-1] + lead) // vector, (i[-1] + lead) % vector)  # noqa: E731
            return self._along(s, element, lines)
        shape = (*outer, phases, groups, each)
        apart = te.compute(shape, lambda *i: lines(*i[:-3], i[-2], i[-1] * phases + i[-3]), name=f"{name}_parts")

        def element_of_phase(*i: Any) -> PrimExpr:
            place, phase = (i[-1] + lead) // phases, (i[-1] + lead) % phases
            return apart(*i[:-1], phase, place // each, place % each)

        return self._along(s, element_of_phase, lines, apart)

    def _border(self) -> int:
        """Return the padding in front of a line, in elements; 0 where that isn't static."""
        zeros = {axis.var: te.const(0) for axis in (self.anchor.axis[-1], self.anchor.reduce_axis[-1])}
        begins = {as_int(Analyzer().simplify(substitute(index[-1], zeros))) for _, index in reads(self.anchor)}
        begin = begins.pop() if len(begins) == 1 else None
        return 0 if begin is None else -begin

    def _across(self, i: Sequence[Any], inside: PrimExpr | None = None) -> PrimExpr:
        """Reduce all lines of a window at index `i`, whose column is counted from the first window; `inside` masks."""
        *across, along = self.anchor.reduce_axis
        at = {axis.var: v for axis, v in zip(self.anchor.axis, i, strict=True)}
        at |= {k.var: tap.var for k, tap in zip(across, self.taps, strict=True)}
        column, place = self.anchor.axis[self.along].var, i[self.along]
        at |= {column: place, along.var: te.const(0)} if self.dilation > 1 else {column: te.const(0), along.var: place}
        source = [substitute(e, at) for e in self.whole.source]
        if inside is not None:
            terms = zip(source, self.whole.combiner.identity, strict=True)
            source = [te.if_then_else(inside, e, identity) for e, identity in terms]
        return self.whole.replace(source=tuple(source), axis=self.taps)

    def _along(self, s: te.Schedule, element: Callable[..., PrimExpr], *tensors: te.Tensor) -> tuple[te.Tensor, ...]:
        """Let the anchor reduce `element` along lines; returns the current versions of `tensors` in the schedule."""
        anchor, at, k = self.anchor, self.along, te.reduce_axis((0, self.size), name="k")

        def window(*i: Any) -> PrimExpr:
            place = i[at] * self.stride + k * self.dilation
            return self.whole.replace(source=(element(*i[:at], place, *i[at + 1 :]),), axis=(k,))

        shape = [extent_of(axis) for axis in anchor.axis]
        s.recompute(anchor.output(0), te.compute(shape, window, name=anchor.name, tag=anchor.tag, attrs=anchor.attrs))
        return tuple([s.current(t) for t in tensors])


def combined(size: int, stride: int, levels: int) -> float:
    """Return the combine operations per window, for many windows of `size` elements, `stride` apart.

    Groups of 2 ** levels windows share the reduction of their common elements, halves of a group that of theirs, and so
    on: each level adds `stride` operations per window.
    """
    return levels * stride + (_common(size, stride, levels) - 1) / 2**levels


def _levels_of(size: int, stride: int, most: int) -> int:
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
