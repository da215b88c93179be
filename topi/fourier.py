"""Discrete Fourier transforms of rows by small-radix butterflies (Cooley and Tukey; Stockham's self-sorting order).

A pass with radix p splits every transform of length m into p of length m / p: with the data as [l1, p, m / p], where l1
is the product of the radices before, butterflies along the middle axis are multiplied by roots of unity (twiddle
factors) and stored as [p, l1, m / p], so that the result comes out in order. Several rows go through the passes side by
side, one in each lane of a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, PrimExpr, Stmt, as_int, ir_builder
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.topi.utils import ceil_div

__all__ = ["dft", "dft_roots", "largest_factor"]

_SCRATCH = 1 << 18
"""The most bytes of the rows in flight: about a second-level cache."""

_PARALLEL_WORK = 1 << 16
"""The least elements of all rows for which groups of rows run in parallel."""

Complex = tuple[PrimExpr, PrimExpr]
Roots = np.ndarray[Any, np.dtype[np.float64]]


def _radices(length: int) -> list[int]:
    """Factors of a length: fours, a two in front, then odd primes."""
    factors: list[int] = []
    while length % 4 == 0:
        factors.append(4)
        length //= 4
    if length % 2 == 0:
        factors.insert(0, 2)
        length //= 2
    factor = 3
    while factor * factor <= length:
        while length % factor == 0:
            factors.append(factor)
            length //= factor
        factor += 2
    return [*factors, length] if length > 1 else factors


def largest_factor(length: int) -> int:
    """The largest radix of a transform; the time for each element is proportional to the sum of the radices."""
    return max(_radices(length), default=1)


def dft_roots(length: int) -> Roots:
    """The table that `dft` reads: cos(2 pi k / length) for all k, then the sines; exact where they are zero."""
    k = np.arange(length)
    angle = 2 * np.pi * k / length
    table = np.stack([np.cos(angle), np.sin(angle)])
    table[0, np.isin(4 * k, (length, 3 * length))] = 0
    table[1, np.isin(4 * k, (0, 2 * length))] = 0
    return table


def dft(x: Tensor, roots: Tensor, length: int, inverse: bool, onesided: bool) -> Tensor:
    """Transforms of the rows of x [rows, n, 1 or 2], real and imaginary parts last; `roots` [2, length] is `dft_roots`.

    Forwards, rows are cut or filled with zeros to `length`; the result is [rows, length, 2], or with `onesided` its
    first length // 2 + 1 bins. Inverse, the rows are spectra, with `onesided` the first bins of one whose others are
    the conjugates; the result is [rows, length, 2], or with `onesided` real, [rows, length, 1], over length.
    """
    rows, _, _ = x.shape
    bins = length // 2 + 1 if onesided and not inverse else length
    parts = 1 if onesided and inverse else 2

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        _Transform(ib, ib.buffer(ins[0]), ib.buffer(ins[1]), ib.buffer(outs[0]), length, inverse, onesided).emit()
        return ib.get()

    return te.extern((rows, bins, parts), [x, roots], fill, name="dft", dtype=x.dtype, tag="default")


class _Transform:
    """The loops of one transform of all rows."""

    def __init__(
        self, ib: IRBuilder, x: BufferView, roots: BufferView, y: BufferView, length: int, inverse: bool, onesided: bool
    ) -> None:
        self.ib, self.x, self.roots, self.y = ib, x, roots, y
        self.length, self.inverse, self.onesided = length, inverse, onesided
        self.dtype = x.buffer.dtype
        self.rows = x.buffer.shape[0]
        self.sign = 1 if inverse else -1
        count = as_int(self.rows)
        most = _SCRATCH // (4 * self.dtype.nbytes * max(length, 1))
        widest = min(64 // self.dtype.nbytes, most, 8 if count is None else count)
        self.lanes = 1 << (max(widest, 1).bit_length() - 1)

    def emit(self) -> None:
        groups = ceil_div(self.rows, self.lanes)
        count = as_int(self.rows)
        kind = "parallel" if count is None or count * self.length >= _PARALLEL_WORK else "serial"
        with self.ib.for_range(0, groups, "group", kind, independent=True) as group:
            here, there = ([self._scratch(f"{name}{part}") for part in ("re", "im")] for name in ("from_", "to_"))
            self._load(group, here)
            done = 1
            for radix in _radices(self.length):
                self._pass(here, there, radix, done)
                here, there = there, here
                done *= radix
            self._store(group, here)

    def _scratch(self, name: str) -> BufferView:
        return self.ib.allocate(str(self.dtype), self.length * self.lanes, name, scope="global")

    def _const(self, value: float) -> PrimExpr:
        return te.const(value, self.dtype)

    # rows in and out

    def _load(self, group: Any, into: Sequence[BufferView]) -> None:
        """Load the rows of a group; missing rows repeat the last one."""
        _, available, parts = self.x.buffer.shape
        extent = as_int(available)
        assert extent is not None
        known = min(extent, self.length // 2 + 1 if self.inverse and self.onesided else self.length)
        with self.ib.for_range(0, self.lanes, "lane") as lane:
            row = self.ib.let("row", te.minimum(group * self.lanes + lane, self.rows - 1))
            with self.ib.for_range(0, known, "j") as j:
                into[0][j * self.lanes + lane] = self.x[row, j, 0]
                into[1][j * self.lanes + lane] = self.x[row, j, 1] if as_int(parts) == 2 else self._const(0)
            with self.ib.for_range(known, self.length, "j") as j:
                mirrored = self.length - j
                for part, view in enumerate(into):
                    value = self._const(0)
                    if self.inverse and self.onesided:
                        there = self.x[row, te.minimum(mirrored, known - 1), part]
                        value = te.select(mirrored < known, -there if part else there, value)
                    view[j * self.lanes + lane] = value

    def _store(self, group: Any, views: Sequence[BufferView]) -> None:
        _, bins, parts = self.y.buffer.shape
        real = not self.inverse and as_int(self.x.buffer.shape[2]) == 1
        scale = self._const(1 / self.length) if self.inverse else None
        with self.ib.for_range(0, self.lanes, "lane") as lane:
            row = self.ib.let("row", group * self.lanes + lane)
            with self.ib.if_scope(row < self.rows), self.ib.for_range(0, bins, "j") as j:
                for part in range(as_int(parts) or 0):
                    value = views[part][j * self.lanes + lane]
                    if real:
                        value = self._of_real(views, part, j, lane)
                    self.y[row, j, part] = value if scale is None else value * scale

    def _of_real(self, views: Sequence[BufferView], part: int, j: Any, lane: Any) -> PrimExpr:
        """A bin of a real signal: the upper half are conjugates of the lower half, and two bins are real."""
        upper = j * 2 > self.length
        value = views[part][te.select(upper, self.length - j, j) * self.lanes + lane]
        if part == 0:
            return value
        is_real = te.any(j == 0, j * 2 == self.length)
        return te.select(is_real, self._const(0), te.select(upper, -value, value))

    # passes

    def _pass(self, source: Sequence[BufferView], target: Sequence[BufferView], radix: int, done: int) -> None:
        """Butterflies of `radix`, after passes whose radices multiply to `done`."""
        rest = self.length // (done * radix)
        butterfly = _BUTTERFLIES.get(radix)
        ib = self.ib
        with ib.for_range(0, done, "k") as k, ib.for_range(0, rest, "i") as i:

            def place(j: Any) -> Any:
                return (k * radix + j) * rest + i

            def rotated(value: Complex, j: Any) -> Complex:
                """The value times exp(sign 2 pi i j i done / length)."""
                if rest == 1:
                    return value
                angle = j * i * done
                cosine, sine = self.roots[0, angle], self._const(self.sign) * self.roots[1, angle]
                return value[0] * cosine - value[1] * sine, value[0] * sine + value[1] * cosine

            def put(j: Any, lane: Any, value: Complex) -> None:
                for view, part in zip(target, value, strict=True):
                    view[((j * done + k) * rest + i) * self.lanes + lane] = part

            if butterfly is None:
                self._prime(source, radix, place, rotated, put)
                return
            with ib.for_range(0, self.lanes, "lane", kind="vectorized") as lane:
                inputs: list[Complex] = []
                for j in range(radix):
                    at = place(j) * self.lanes + lane
                    inputs.append((ib.let(f"re{j}", source[0][at]), ib.let(f"im{j}", source[1][at])))
                for j, value in enumerate(butterfly(self, inputs)):
                    put(j, lane, value if j == 0 else rotated(value, j))

    def _prime(
        self,
        source: Sequence[BufferView],
        radix: int,
        place: Callable[[Any], Any],
        rotated: Callable[[Complex, Any], Complex],
        put: Callable[[Any, Any, Complex], None],
    ) -> None:
        """A butterfly of a large prime radix: a sum over all inputs for each output."""
        ib, lanes, step = self.ib, self.lanes, self.length // radix
        with ib.for_range(0, radix, "u") as u:
            sums = [ib.allocate(str(self.dtype), lanes, f"sum_{part}", scope="local") for part in ("re", "im")]
            with ib.for_range(0, lanes, "lane", kind="vectorized") as lane:
                for part, view in zip(sums, source, strict=True):
                    part[lane] = view[place(0) * lanes + lane]
            with ib.for_range(1, radix, "b") as b, ib.for_range(0, lanes, "lane", kind="vectorized") as lane:
                angle = u * b % radix * step
                cosine, sine = self.roots[0, angle], self._const(self.sign) * self.roots[1, angle]
                real, imaginary = (view[place(b) * lanes + lane] for view in source)
                sums[0][lane] = sums[0][lane] + real * cosine - imaginary * sine
                sums[1][lane] = sums[1][lane] + real * sine + imaginary * cosine
            with ib.for_range(0, lanes, "lane", kind="vectorized") as lane:
                put(u, lane, rotated((sums[0][lane], sums[1][lane]), u))

    # butterflies of few inputs; values that are reused are bound by let

    def _let(self, value: Complex) -> Complex:
        return self.ib.let("re", value[0]), self.ib.let("im", value[1])

    def _sum(self, a: Complex, b: Complex) -> Complex:
        return self._let((a[0] + b[0], a[1] + b[1]))

    def _difference(self, a: Complex, b: Complex) -> Complex:
        return self._let((a[0] - b[0], a[1] - b[1]))

    def _quarter_rotation(self, a: Complex) -> Complex:
        """sign * i * a."""
        return (-a[1], a[0]) if self.inverse else (a[1], -a[0])

    def _weighted(self, weights: Sequence[float], values: Sequence[Complex]) -> Complex:
        parts: list[PrimExpr] = []
        for part in range(2):
            terms = [self._const(w) * v[part] for w, v in zip(weights, values, strict=True)]
            total = terms[0]
            for term in terms[1:]:
                total = total + term
            parts.append(total)
        return parts[0], parts[1]

    def two(self, x: Sequence[Complex]) -> list[Complex]:
        return [self._sum(x[0], x[1]), self._difference(x[0], x[1])]

    def four(self, x: Sequence[Complex]) -> list[Complex]:
        even, odd = self.two([x[0], x[2]]), self.two([x[1], x[3]])
        rotated = self._quarter_rotation(odd[1])
        return [self._sum(even[0], odd[0]), self._sum(even[1], rotated),
                self._difference(even[0], odd[0]), self._difference(even[1], rotated)]  # fmt: skip

    def odd(self, x: Sequence[Complex]) -> list[Complex]:
        """Inputs j and p - j have conjugate roots: sums are multiplied by cosines, differences by sines."""
        radix, half = len(x), len(x) // 2
        sums = [self._sum(x[j], x[radix - j]) for j in range(1, half + 1)]
        differences = [self._difference(x[j], x[radix - j]) for j in range(1, half + 1)]
        first = x[0]
        for value in sums:
            first = (first[0] + value[0], first[1] + value[1])
        result: list[Complex] = [self._let(first)] * radix
        for u in range(1, half + 1):
            angles = [2 * math.pi * (u * j % radix) / radix for j in range(1, half + 1)]
            even = self._let(self._weighted([1.0, *map(math.cos, angles)], [x[0], *sums]))
            rotated = self._let(self._quarter_rotation(self._weighted(list(map(math.sin, angles)), differences)))
            result[u], result[radix - u] = self._sum(even, rotated), self._difference(even, rotated)
        return result


_BUTTERFLIES: dict[int, Callable[[_Transform, Sequence[Complex]], list[Complex]]] = {
    2: _Transform.two, 3: _Transform.odd, 4: _Transform.four, 5: _Transform.odd, 7: _Transform.odd,
}  # fmt: skip
