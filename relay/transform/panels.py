"""Packs weights into panels, on several threads: see `relay.transform.pack_weights`.

If much data is packed, compiled kernels of `topi.cpu.products.panels` do it, several times as fast as numpy; like all
kernels they are cached. For small models compiling them would not pay. Weights that stay in the model's file are
fetched some rows at a time into the same memory, which stays in the thread's cache, and packed from there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from threading import local
from typing import Any

import numpy as np

from relayc.backend.driver import ModuleBuilder
from relayc.backend.runtime.packed_func import KernelFunc
from relayc.backend.runtime.threads import in_threads
from relayc.backend.target import Target
from relayc.relay.arrays import Arena
from relayc.relay.expr import Constant
from relayc.relay.stored import StoredConstant
from relayc.topi.cpu.products.panels import CHUNK, panels_by_rows, winograd_panels
from relayc.topi.cpu.tiling import vector_lanes
from relayc.topi.nn.winograd import winograd_matrices

__all__ = ["PanelPacker"]

Array = np.ndarray[Any, Any]
_WORTH_COMPILING = 16 << 20
"""Bytes of panels from which on a kernel is compiled; numpy takes some milliseconds for as many."""
_PIECE = 1 << 20
"""Bytes of panels, or of weights, of one job of a thread: its cache holds fetched data until it is packed."""
_FILTERS_AT_ONCE = 4096
_LEAST_LANES = 4


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of a kernel's result: panels of `width`, of filters for Winograd's F(tile, taps) or of plain rows (0,
    0)."""

    width: int
    tile: int = 0
    taps: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class _Source:
    """A weight that stays in the model's file, and a blank array whose views have the layout of the values to pack."""

    constant: StoredConstant
    blank: Array

    def dimension(self, view: Array) -> int | None:
        """The dimension of a view of the blank along which the stored rows go; None if there is none."""
        rows = self.constant.rows
        row_size = self.blank.nbytes // rows
        found = [a for a, form in enumerate(zip(view.shape, view.strides, strict=True)) if form == (rows, row_size)]
        return found[0] if found else None


@dataclass(frozen=True, slots=True)
class _Work:
    """A weight, outputs first, to pack into panels of some `outputs` each.

    `pack` makes panels of outputs, or a part of them along the other dimensions unless it `needs whole` outputs. A
    compiled kernel of the `form` may do it instead for full panels. With a `source`, `weight` is a view of its blank.
    """

    packed: Array
    weight: Array
    outputs: int
    pack: Callable[[Array, Array], None]
    form: _Form | None = None
    chunks: int = 0
    needs_whole: bool = False
    source: _Source | None = None

    def pieces(self) -> Iterator[_Piece]:
        """The work in pieces large enough for a job each."""
        if not self.weight.size:
            return
        dimension = 0 if self.source is None else self.source.dimension(self.weight)
        if dimension is None or (dimension > 0 and self.needs_whole):
            yield _Piece(self, None, 0, 0 if self.source is None else self.source.constant.rows)
            return
        count, least = self.weight.shape[dimension], self.outputs if dimension == 0 else 1
        step = max(_PIECE * count // max(self.weight.nbytes, self.packed.nbytes) // least, 1) * least
        for begin in range(0, count, step):
            yield _Piece(self, dimension, begin, min(begin + step, count))


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of some work between two indices of a dimension of the weight; the rows of its source, if it has one."""

    work: _Work
    dimension: int | None
    begin: int
    end: int

    @property
    def fetched_bytes(self) -> int:
        """Additional bytes of memory needed to fetch values."""
        source = self.work.source
        return 0 if source is None else source.blank.nbytes // source.constant.rows * (self.end - self.begin)

    def pack(self, kernels: Mapping[_Form, KernelFunc], memory: _ThreadMemory) -> None:
        """Pack this piece."""
        work, weight = self.work, self._weight(memory)
        into, kernel, full = self._into(), None if work.form is None else kernels.get(work.form), 0
        if kernel is not None:
            full = len(weight) // work.outputs
            kernel.raw(None, weight.ctypes.data, into.ctypes.data, full, work.chunks)  # it needs no context
        if len(into) > full:
            work.pack(into[full:], weight[full * work.outputs :])

    def _into(self) -> Array:
        if self.dimension is None:
            return self.work.packed
        if self.dimension == 0:
            return self.work.packed[self.begin // self.work.outputs : -(-self.end // self.work.outputs)]
        return self.work.packed[(*[slice(None)] * self.dimension, slice(self.begin, self.end))]

    def _weight(self, memory: _ThreadMemory) -> Array:
        """The values, fetched into `memory` if they stay in a file."""
        whole, source = self.work.weight, self.work.source
        if source is None:
            return whole[self.begin : self.end]
        source.constant.fetch(memory.buffer[: self.fetched_bytes], self.begin, self.end)
        shape = [self.end - self.begin if a == self.dimension else n for a, n in enumerate(whole.shape)]
        return np.ndarray(shape, whole.dtype, memory.buffer.data, strides=whole.strides)


class _ThreadMemory(local):
    """Scratch memory of each thread, reused since fresh memory causes page faults."""

    def __init__(self, nbytes: int) -> None:
        self.buffer = Arena(nbytes).empty((nbytes,), np.dtype(np.uint8))


class PanelPacker:
    """Returns packed weights whose values are there once `run` was called."""

    def __init__(self, worth_compiling: int = _WORTH_COMPILING) -> None:
        self._arena = Arena()
        self._work: list[_Work] = []
        self._worth_compiling = worth_compiling
        self._sources: dict[int, _Source] = {}
        """weights to fetch, by their ids"""

    def values(self, weight: Constant) -> Array:
        """The values of a weight to pack; if it stays in the model's file, an array that stands for them."""
        if not isinstance(weight, StoredConstant) or weight.is_loaded:
            return weight.data
        if id(weight) not in self._sources:
            self._sources[id(weight)] = _Source(weight, weight.blank())
        return self._sources[id(weight)].blank

    def panels(self, weight: Array, width: int, of: Constant | None = None) -> Array:
        """(N, ..., K) to (ceil(N / width), ..., K, width), padded with zeros; values `of` that constant."""
        packed = self._arena.empty((-(-len(weight) // width), *weight.shape[1:], width), weight.dtype)
        chunks, rest = divmod(math.prod(weight.shape[1:]), CHUNK)
        suits = _readable(weight) and rest == 0 and _lanes(width) >= _LEAST_LANES
        form = _Form(width) if suits else None
        self._add(_Work(packed, weight, width, partial(_copy, width), form, chunks), of)
        return packed

    def groups(self, weight: Array, groups: int, width: int, of: Constant | None = None) -> Array:
        """(N, ..., K) to (groups, ..., K, width), the N / groups outputs of each group padded with zeros."""
        outputs = len(weight) // groups
        packed = self._arena.empty((groups, *weight.shape[1:], width), weight.dtype)
        self._add(_Work(packed, weight, outputs, partial(_copy, outputs)), of)
        return packed

    def gathered(self, rows: Array, others: Array, index: Array) -> Array:
        """``concatenate([rows, others])[index]``, of contiguous rows."""
        packed = self._arena.empty((*index.shape, rows.shape[1]), rows.dtype)

        def gather(into: Array, at: Array) -> None:
            np.take(rows, at, 0, into, "clip")
            is_other = at >= len(rows)
            into[is_other] = others[at[is_other] - len(rows)]

        self._add(_Work(packed, index, 1, gather), None)
        return packed

    def winograd_panels(
        self, outputs_first: Array, tile: int, width: int, of: Constant | None = None, dtype: str = "float32"
    ) -> Array:
        """(O, R, R, I) to (O / width, A, A, I, width) with A = tile + R - 1: ``g @ w @ g.T`` of each filter.

        (O, KD, R, R, I), filters of planes, to (O / width, A, A, KD, I, width). The last panel is padded with zeros.
        Computed in float64; panels are of `dtype`.
        """
        outputs, *depth, taps, _, inputs = outputs_first.shape
        size, lanes, pack = tile + taps - 1, _lanes(width), partial(_transform, tile)
        packed = self._arena.empty((-(-outputs // width), size, size, *depth, inputs, width), np.dtype(dtype))
        for plane in np.ndindex(*depth):
            into = packed[:, :, :, *plane]
            filters = outputs_first[:, *plane].transpose(0, 3, 1, 2)  # (O, I, R, R), the order of models
            suits = _readable(filters) and into.flags.c_contiguous and lanes >= _LEAST_LANES and inputs % lanes == 0
            form = _Form(width, tile, taps) if suits else None
            self._add(_Work(into, filters, width, pack, form, inputs // lanes, needs_whole=True), of)
        return packed

    def _add(self, work: _Work, of: Constant | None) -> None:
        self._work.append(replace(work, source=self._sources.get(id(of))))

    def run(self) -> None:
        """Pack all weights, the largest first: threads end together, and copies of fetched weights are small once most
        panels are there."""
        work, self._work, self._sources = sorted(self._work, key=lambda w: -w.packed.nbytes), [], {}
        nbytes: Counter[_Form] = Counter()
        for w in work:
            if w.form is not None:
                nbytes[w.form] += w.packed.nbytes
        kernels = _kernels([form for form, size in nbytes.items() if size >= self._worth_compiling])
        pieces = [piece for w in work for piece in w.pieces()]
        memory = _ThreadMemory(max([piece.fetched_bytes for piece in pieces], default=0))
        in_threads(lambda piece: piece.pack(kernels, memory), pieces, sum([w.packed.nbytes for w in work]))


def _readable(weight: Array) -> bool:
    """Can kernels read it, contiguous and in order?"""
    return weight.dtype == np.float32 and weight.flags.c_contiguous and weight.flags.aligned


def _copy(outputs: int, into: Array, weight: Array) -> None:
    """(N, ..., K) to panels (P, ..., K, width) of some outputs each, padded with zeros."""
    full, left = divmod(len(weight), outputs)
    into[:full, ..., :outputs] = np.moveaxis(weight[: full * outputs].reshape(full, outputs, *weight.shape[1:]), 1, -1)
    into[:full, ..., outputs:] = 0
    if left:
        into[full, ..., :left] = np.moveaxis(weight[full * outputs :], 0, -1)
        into[full, ..., left:] = 0


def _transform(tile: int, into: Array, filters: Array) -> None:
    """Winograd's transform of (O, I, R, R) as products with the Kronecker square of g."""
    g = winograd_matrices(tile, filters.shape[-1]).g
    width, inputs, size = into.shape[-1], filters.shape[1], len(g)
    step = max(1, _FILTERS_AT_ONCE // (inputs * width))
    for begin in range(0, len(into), step):
        some = filters[begin * width : (begin + step) * width]
        products = some.reshape(len(some), inputs, -1).astype(np.float64) @ np.kron(g, g).T
        transformed = products.reshape(len(some), inputs, size, size).transpose(0, 2, 3, 1)
        _copy(width, into[begin : begin + step], transformed)


def _lanes(width: int) -> int:
    """Lanes of this machine's vectors that divide a panel."""
    return math.gcd(vector_lanes(_host()), width)


@lru_cache(maxsize=1)
def _host() -> Target:
    return Target("llvm")


def _kernels(forms: Sequence[_Form]) -> dict[_Form, KernelFunc]:
    """The kernels of these forms for this machine, from the cache if they were compiled before.

    LLVM compiles one while the next one is lowered.
    """
    missing = {_name(form): form for form in forms if form not in _compiled}
    if missing:
        builder = ModuleBuilder(_host())
        for name, form in missing.items():
            if builder.reuse(name, name) is None:
                lanes = _lanes(form.width)
                if form.tile:
                    builder.add(winograd_panels(form.tile, form.taps, form.width, lanes, name), name)
                else:
                    builder.add(panels_by_rows(form.width, lanes, name), name)
        library = builder.finish()
        for name, form in missing.items():
            kernel = library.get_function(name)
            assert isinstance(kernel, KernelFunc)
            _compiled[form] = kernel
    return {form: _compiled[form] for form in forms}


def _name(form: _Form) -> str:
    return f"panels_{form.width}_{form.tile}_{form.taps}_{_lanes(form.width)}"


_compiled: dict[_Form, KernelFunc] = {}
"""The kernels that this process has, by their forms."""
