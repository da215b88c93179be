"""Which elements of shared memory the threads of a block touch, and whether two accesses may meet.

An access is described by the bytes that all threads of the block together touch when they run it once, as a function
of what is the same for all of them: loops around it that every thread runs alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from relayc.te.arith import Analyzer, Interval
from relayc.te.arith.linear import Linear
from relayc.te.ir.visitor import collect
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import FloorMod, IntImm, PrimExpr, Ramp, Range, Var
from relayc.te.tir.substitute import substitute

__all__ = ["Access", "AccessTests"]

_MOST_SLOTS = 16


@dataclass(frozen=True, eq=False)
class Access:
    """One access of a block's threads to shared memory.

    `first` is the first byte from the buffer's pointer on and `nbytes` the count; `first` None: all there is. `inner`
    holds the ranges of variables that differ among the threads or runs that the access stands for: thread axes, loops
    that are over. `explicit`: barriers for this buffer stand in the program already.
    """

    buffer: Buffer
    first: PrimExpr | None
    nbytes: int
    writes: bool
    inner: Mapping[Var, Range] = field(default_factory=dict)
    explicit: bool = False
    origin: Access | None = None
    shifted_in: Mapping[Var, Range] = field(default_factory=dict)
    """the loop, and its range, in an earlier iteration of which `origin` was this access"""

    @staticmethod
    def of(buffer: Buffer, index: PrimExpr | None, writes: bool, inner: Mapping[Var, Range], explicit: bool) -> Access:
        """An access at an element index (a vector of them too); None: somewhere in the buffer, so to all of it."""
        size = buffer.dtype.element.nbytes
        lanes = 1
        if isinstance(index, Ramp):
            stride = ops.as_int(index.stride)
            lanes = (index.lanes - 1) * stride + 1 if stride is not None and stride > 0 else 0
            index = index.base
        if index is None or index.dtype.lanes > 1 or lanes == 0:
            index, lanes = ops.const(0), ops.as_int(ops.product(buffer.shape)) or 0
            if lanes == 0:
                return Access(buffer, None, 0, writes, inner, explicit)
        start = ops.mul(ops.add(index, ops.cast(index.dtype, buffer.elem_offset)), size)
        return Access(buffer, start, lanes * size * buffer.dtype.lanes, writes, inner, explicit)

    def of_size(self, nbytes: int) -> Access:
        """The access to `nbytes` bytes from the same place on."""
        return self if self.first is None else replace(self, nbytes=nbytes)

    def depends_on(self, var: Var) -> bool:
        """Does the place depend on a variable that is the same for all threads?"""
        if var in self.shifted_in:
            return True
        return self.first is not None and var not in self.inner and any(v is var for v in collect(self.first, Var))

    def before(self, var: Var, within: Range) -> Access:
        """The access in the previous iteration of a loop over `within`."""
        return self._shifted({var: ops.sub(var, 1)}, {}, var, within)

    def long_before(self, var: Var, within: Range) -> Access:
        """The access in all earlier iterations of a loop over `within`."""
        past = Var(var.name + ".past", var.dtype)
        trips = ops.sub(var, within.min)
        return self._shifted({var: past}, {past: Range(within.min, trips)}, var, within)

    def _shifted(
        self, values: Mapping[Var, PrimExpr], past: Mapping[Var, Range], var: Var, within: Range
    ) -> Access:
        origin = self.origin or self
        if origin.first is None:
            return self
        return replace(origin, first=substitute(origin.first, values), inner={**origin.inner, **past}, origin=origin,
                       shifted_in={var: within})  # fmt: skip

    @property
    def everywhere(self) -> Access:
        """The access in all iterations of the loop that it has been shifted in."""
        return self if self.origin is None else replace(self.origin, inner={**self.origin.inner, **self.shifted_in})

    def over(self, var: Var, within: Range) -> Access:
        """The access in all iterations of a loop that has ended."""
        origin = self.origin or self
        return replace(origin, inner={**origin.inner, var: within})


class AccessTests:
    """Decides whether accesses may touch the same byte from different threads. Answers are cached."""

    def __init__(self, threads: Mapping[Var, int]) -> None:
        parallel = [var for var, extent in threads.items() if extent > 1]
        self.threads = {var: number for number, var in enumerate(parallel)}
        self.analyzer = Analyzer()
        self.ranges: dict[Var, Range] = {}
        self._known: dict[tuple[Access, Access], bool] = {}
        self._numbers: dict[int, tuple[Access, tuple[list[tuple[int, int, int]], Linear] | None]] = {}

    def bind(self, var: Var, within: Range) -> None:
        """Declare the range of a variable: a thread axis or a loop."""
        self.ranges[var] = within
        self.analyzer.bind(var, within)

    def bounds(self, low: PrimExpr, extent: PrimExpr) -> Range | None:
        """A range with constant ends that contains `extent` integers from `low` on, in all threads; None: not known."""
        first, last = self.analyzer.const_bounds(low)[0], self.analyzer.const_upper(ops.add(low, extent))
        if last is None or not isinstance(first, int):
            return None
        return Range(ops.const(first), ops.const(max(last - first, 1)))

    def conflict(self, earlier: Access, later: Access) -> bool:
        """May different threads meet in a byte, one of them writing?"""
        if earlier.buffer.data is not later.buffer.data or not (earlier.writes or later.writes):
            return False
        if earlier.buffer is later.buffer:
            if earlier.explicit and later.explicit:
                return False
        elif self._separate(earlier.buffer, later.buffer):
            return False
        known = self._known.get((earlier, later))
        if known is None:
            known = self._known[earlier, later] = not (
                self._apart(earlier, later) or self._same_thread(earlier, later) or self._interleaved(earlier, later)
            )
        return known

    # -- different bytes

    def _separate(self, a: Buffer, b: Buffer) -> bool:
        """Are two views of one memory disjoint?"""
        places: list[tuple[int, int]] = []
        for buffer in (a, b):
            start, count = ops.as_int(buffer.elem_offset), ops.as_int(ops.product(buffer.shape))
            if start is None or count is None:
                return False
            size = buffer.dtype.element.nbytes
            places.append((start * size, (start + count * buffer.dtype.lanes) * size))
        (low_a, high_a), (low_b, high_b) = places
        return high_a <= low_b or high_b <= low_a

    def _apart(self, a: Access, b: Access) -> bool:
        """Are the bytes of one, over all threads, known to lie before those of the other?"""
        if a.first is None or b.first is None:
            return False
        return all(self._apart_at(a, b, values) for values in self._cases(a, b))

    def _cases(self, a: Access, b: Access) -> Iterable[Mapping[Var, PrimExpr]]:
        """The slots of ring buffers, one by one: k = m * q + r for r < m, where indices depend on k % m."""
        assert a.first is not None and b.first is not None
        inner = a.inner.keys() | b.inner.keys()
        modulus, rotating = 1, set[Var]()
        for node in (*collect(a.first, FloorMod), *collect(b.first, FloorMod)):
            outer = {v for v in collect(node.a, Var) if v not in inner}
            if outer and isinstance(node.b, IntImm) and 0 < node.b.value <= _MOST_SLOTS:
                modulus, rotating = math.lcm(modulus, node.b.value), rotating | outer
        if len(rotating) != 1 or modulus > _MOST_SLOTS:
            return [{}]
        (var,) = rotating
        quotient = Var(var.name + ".turn", var.dtype)
        return [{var: ops.add(ops.mul(quotient, modulus), r)} for r in range(modulus)]

    def _apart_at(self, a: Access, b: Access, values: Mapping[Var, PrimExpr]) -> bool:
        first, second = self._bytes(a, values), self._bytes(b, values)
        return self._before(first, second) or self._before(second, first)

    def _bytes(self, access: Access, values: Mapping[Var, PrimExpr]) -> Interval:
        assert access.first is not None
        start = substitute(access.first, values) if values else access.first
        within = self.analyzer.int_set(start, access.inner)
        return Interval(within.min, None if within.max is None else ops.add(within.max, access.nbytes - 1))

    def _before(self, a: Interval, b: Interval) -> bool:
        return a.max is not None and b.min is not None and self.analyzer.can_prove_less(a.max, b.min)

    def _interleaved(self, a: Access, b: Access) -> bool:
        """Are both sums of digits times strides that are disjoint for all values of the digits?

        Digits are the terms that differ among threads, each between constants: such as (t % 4) * 2 and (t % 4) * 2 + 8.
        """
        one, other = self._digits(a), self._digits(b)
        if one is None or other is None or one[1].terms != other[1].terms:
            return False
        spans: dict[int, tuple[int, int]] = {}
        for sign, (digits, _) in ((1, one), (-1, other)):
            for stride, low, high in digits:
                least, most = spans.get(stride, (0, 0))
                spans[stride] = least + (low if sign > 0 else -high), most + (high if sign > 0 else -low)
        distance = one[1].const - other[1].const
        return not _reaches(sorted(spans.items(), reverse=True), 1 - a.nbytes - distance, b.nbytes - 1 - distance)

    def _digits(self, access: Access) -> tuple[list[tuple[int, int, int]], Linear] | None:
        """(stride, least, greatest) of the terms that differ among threads, and the rest; None without bounds."""
        found = self._numbers.get(id(access)) if access.first is not None else (access, None)
        if found is None:
            assert access.first is not None
            found = self._numbers[id(access)] = access, self._split_digits(access, self.analyzer.linear(access.first))
        return found[1]

    def _split_digits(self, access: Access, form: Linear) -> tuple[list[tuple[int, int, int]], Linear] | None:
        digits: list[tuple[int, int, int]] = []
        rest = form
        for atom, stride in form.terms.items():
            if not any(var in access.inner for var in atom.vars):
                continue
            if atom.expr is None:
                return None
            within = self.analyzer.int_set(atom.expr, access.inner)
            low, high = (None if end is None else ops.as_int(end) for end in (within.min, within.max))
            if low is None or high is None:
                return None
            digits.append((abs(stride), low, high) if stride > 0 else (-stride, -high, -low))
            rest = rest.without(atom)
        return digits, rest

    # -- the same thread

    def _same_thread(self, a: Access, b: Access) -> bool:
        """Does every thread touch bytes of its own only, the same ones in both accesses?

        Both must be the same sum of axes times strides, in which each stride exceeds all that smaller terms add up to:
        then a byte tells the value of every axis, and so its thread.
        """
        a = a.everywhere
        if a.first is None or b.first is None:
            return False
        known = set(collect(a.first, Var))
        differing = {v: self.ranges[v] for v in collect(b.first, Var) if v in self.ranges and v not in known}
        one, other = self._terms(a), self._terms(replace(b, inner={**a.inner, **differing, **b.inner}))
        if one is None or other is None or one != other:
            return False
        terms, _ = one
        told = {axis for _, _, axis in terms}
        if not all(axis in told or self._is_one(var, a, b) for var, axis in self.threads.items()):
            return False
        span = 1
        for stride, extent, _ in terms:
            if stride < span:
                return False
            span += stride * (extent - 1)
        return True

    def _is_one(self, thread: Var, a: Access, b: Access) -> bool:
        """Do both accesses happen at the same, single position of a thread axis?"""
        first, second = a.inner.get(thread), b.inner.get(thread)
        if first is None or second is None or ops.as_int(first.extent) != 1 or ops.as_int(second.extent) != 1:
            return False
        return ops.as_int(first.min) == ops.as_int(second.min)

    def _terms(self, access: Access) -> tuple[list[tuple[int, int, int]], object] | None:
        """(stride, extent, number of the thread axis) of all axes, small strides first, and the rest of the sum.

        All loops have the number -1.
        """
        if access.first is None:
            return None
        form = self.analyzer.linear(access.first)
        terms = [(1, access.nbytes, -1)]
        rest = form
        for atom, stride in form.terms.items():
            var = atom.expr
            if not (isinstance(var, Var) and var in access.inner):
                if not self._is_common(atom.expr, access):
                    return None
                continue
            extent, low = ops.as_int(access.inner[var].extent), ops.as_int(access.inner[var].min)
            if extent is None or stride < 0 or low is None:
                return None
            rest = rest.without(atom).shifted(low * stride)
            if extent > 1:
                terms.append((stride, extent, self.threads.get(var, -1)))
        return sorted(terms), rest.key

    def _is_common(self, expr: PrimExpr | None, access: Access) -> bool:
        """Is a term the same for all threads and runs that the access stands for?"""
        return expr is not None and not any(v in access.inner for v in collect(expr, Var))


def _reaches(spans: Sequence[tuple[int, tuple[int, int]]], low: int, high: int) -> bool:
    """Can a sum of strides, each times a value of its span, lie in [low, high]? The largest stride is first."""
    if not spans:
        return low <= 0 <= high
    (stride, (least, most)), rest = spans[0], spans[1:]
    below = sum(size * first for size, (first, _) in rest)
    above = sum(size * last for size, (_, last) in rest)
    first = max(least, -((above - low) // stride))
    last = min(most, (high - below) // stride)
    if last - first > _MOST_SLOTS:
        return True
    return any(_reaches(rest, low - stride * i, high - stride * i) for i in range(first, last + 1))
