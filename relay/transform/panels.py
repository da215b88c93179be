"""Weights in panels: see `relay.transform.pack_weights`.

The weights of a model are packed together on several threads. Where that moves much, compiled kernels of
`topi.cpu.panels` do it, several times as fast as numpy; like all kernels they are kept in the cache. For small models
they would not pay for being compiled once. Weights that stay in the model's file are fetched some at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from backend.driver import ModuleBuilder
from backend.runtime.packed_func import KernelFunc
from backend.runtime.threads import in_threads
from backend.target import Target
from relay.arrays import ALIGNMENT, Arena, Jobs
from relay.expr import Constant
from relay.stored import StoredConstant
from topi.cpu.panels import CHUNK, panels_by_rows, winograd_panels
from topi.cpu.tiling import vector_lanes
from topi.nn.winograd import winograd_matrices

__all__ = ["PanelPacker"]

Array = np.ndarray[Any, Any]
_WORTH_COMPILING = 16 << 20
"""Bytes in panels that one kernel makes; numpy takes some milliseconds for as many."""
_FETCHED_AT_ONCE = 32 << 20
"""Bytes of weights, at most, that are fetched from the model's file and packed together; a larger one is by itself."""
_FILTERS_AT_ONCE = 4096
_LEAST_LANES = 4


@dataclass(frozen=True, slots=True)
class _Form:
    """What a kernel makes: panels of `width`, of filters for Winograd's F(tile, taps) or of plain rows (0, 0)."""

    width: int
    tile: int = 0
    taps: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class _Source:
    """A weight that stays in the model's file, or rows of it from `row` on, and memory that is theirs in a `round`."""

    constant: StoredConstant
    memory: Array
    round: int
    row: int = 0

    def fetch(self) -> None:
        self.constant.fill(self.memory, self.row)


@dataclass(frozen=True, slots=True)
class _Work:
    """A weight to pack: the panels of `plain`, stored in order, where a kernel can; `by_numpy` does it otherwise."""

    form: _Form
    plain: Array | None
    packed: Array
    chunks: int
    by_numpy: Callable[[Jobs], None]
    source: _Source | None = None
    """the weight, where it has to be fetched first"""


class PanelPacker:
    """Gives packed weights, whose values are there once `run` was called."""

    def __init__(self, worth_compiling: int = _WORTH_COMPILING) -> None:
        self._arena = Arena()
        self._work: list[_Work] = []
        self._worth_compiling = worth_compiling
        self._sources: dict[int, _Source] = {}
        """weights to fetch, by their ids"""
        self._lent, self._taken, self._round = np.empty(0, np.uint8), 0, 0
        """the memory that weights of one round after the other are fetched into, and what of it is taken in this one"""

    def values(self, weight: Constant) -> Array:
        """The values of a weight to pack; where it stays in the model's file, they are not there before `run`."""
        if not isinstance(weight, StoredConstant) or weight.is_loaded:
            return weight.data
        source = self._sources.get(id(weight))
        if source is None:
            memory, number = self._lend(weight.nbytes)
            source = self._sources[id(weight)] = _Source(weight, weight.empty(memory), number)
        return source.memory

    def _lend(self, nbytes: int) -> tuple[Array, int]:
        """Memory, and the round in which it is not somebody else's; a large weight has its own of both."""
        if nbytes > _FETCHED_AT_ONCE:
            self._round, self._taken = self._round + 2, 0
            return np.empty(nbytes, np.uint8), self._round - 1
        if len(self._lent) == 0:
            self._lent = np.empty(_FETCHED_AT_ONCE, np.uint8)
        if self._taken + nbytes > len(self._lent):
            self._round, self._taken = self._round + 1, 0
        begin, self._taken = self._taken, self._taken + -(-nbytes // ALIGNMENT) * ALIGNMENT
        return self._lent[begin : begin + nbytes], self._round

    def panels(self, weight: Array, width: int, of: Constant | None = None) -> Array:
        """(N, ..., K) to (ceil(N / width), ..., K, width), filled up with zeros; values `of` that constant."""
        packed = self._arena.empty((-(-len(weight) // width), *weight.shape[1:], width), weight.dtype)
        self._fill(packed, weight, self._source(of))
        return packed

    def gathered(self, rows: Array, others: Array, index: Array) -> Array:
        """``concatenate([rows, others])[index]``, of rows that lie one after another."""
        packed = self._arena.empty((*index.shape, rows.shape[1]), rows.dtype)

        def gather(into: Array, at: Array) -> None:
            np.take(rows, at, 0, into, "clip")
            behind = at >= len(rows)
            into[behind] = others[at[behind] - len(rows)]

        def add(jobs: Jobs) -> None:
            for part in jobs.pieces(packed):
                jobs.add(lambda into=packed[part], at=index[part]: gather(into, at), packed[part].nbytes)

        self._work.append(_Work(_Form(rows.shape[1]), None, packed, 0, add))
        return packed

    def _fill(self, packed: Array, weight: Array, source: _Source | None = None) -> None:
        """Put (N, ..., K) into panels (ceil(N / width), ..., K, width)."""
        width = packed.shape[-1]
        step = max(_FETCHED_AT_ONCE * len(weight) // max(weight.nbytes, 1) // width, 1) * width
        if source is not None and source.constant.has_rows and weight is source.memory and step < len(weight):
            for row in range(0, len(weight), step):
                rows = weight[row : row + step]
                memory, number = self._lend(rows.nbytes)
                some = _Source(source.constant, memory.view(rows.dtype).reshape(rows.shape), number, row)
                self._fill(packed[row // width : -(-(row + step) // width)], some.memory, some)
            return
        full, left = divmod(len(weight), width)
        steps = math.prod(weight.shape[1:])
        contiguous = packed.flags.c_contiguous and _readable(weight)
        suits = contiguous and steps % CHUNK == 0 and _lanes(width) >= _LEAST_LANES

        def copy_last(jobs: Jobs) -> None:
            if left:
                packed[full, ..., left:] = 0
                jobs.copy(packed[full, ..., :left], np.moveaxis(weight[full * width :], 0, -1))

        def copy(jobs: Jobs) -> None:
            jobs.copy(packed[:full], _split(weight[: full * width], width))

        plain = weight[: full * width] if suits else None
        self._work += [
            _Work(_Form(width), plain, packed[:full], steps // CHUNK, copy, source),
            _Work(_Form(width), None, packed[full:], 0, copy_last, source),
        ]

    def groups(self, weight: Array, groups: int, width: int, of: Constant | None = None) -> Array:
        """(N, ..., K) to (groups, ..., K, width), the N / groups outputs of each group filled up with zeros."""
        outputs = len(weight) // groups
        packed = self._arena.empty((groups, *weight.shape[1:], width), weight.dtype)

        def copy(jobs: Jobs) -> None:
            packed[..., outputs:] = 0
            jobs.copy(packed[..., :outputs], _split(weight, outputs))

        self._work.append(_Work(_Form(width), None, packed, 0, copy, self._source(of)))
        return packed

    def winograd_panels(self, outputs_first: Array, tile: int, width: int, of: Constant | None = None) -> Array:
        """(O, R, R, I) to (O / width, A, A, I, width) with A = tile + R - 1: ``g @ w @ g.T`` of each filter.

        `width` divides O. Computed in float64.
        """
        outputs, taps, _, inputs = outputs_first.shape
        size = tile + taps - 1
        packed = self._arena.empty((outputs // width, size, size, inputs, width), outputs_first.dtype)
        stored = outputs_first.transpose(0, 3, 1, 2)  # (O, I, R, R), as models have them
        lanes = _lanes(width)
        suits = _readable(stored) and lanes >= _LEAST_LANES and inputs % lanes == 0
        step = max(1, _FILTERS_AT_ONCE // (inputs * width))

        def transform(jobs: Jobs) -> None:
            for begin in range(0, len(packed), step):
                into, filters = packed[begin : begin + step], stored[begin * width : (begin + step) * width]
                jobs.add(lambda into=into, filters=filters: _transform(into, filters, tile), into.nbytes)

        form = _Form(width, tile, taps)
        plain = stored if suits else None
        self._work.append(_Work(form, plain, packed, inputs // lanes, transform, self._source(of)))
        return packed

    def _source(self, of: Constant | None) -> _Source | None:
        return self._sources.get(id(of))

    def run(self) -> None:
        """Pack everything asked for."""
        work, self._work, self._sources = self._work, [], {}
        nbytes: dict[_Form, int] = {}
        for w in work:
            if w.plain is not None:
                nbytes[w.form] = nbytes.get(w.form, 0) + w.packed.nbytes
        compiled = {form for form, size in nbytes.items() if size >= self._worth_compiling}
        for part in _rounds(work):
            _pack(part, compiled)


def _rounds(work: list[_Work]) -> Iterator[list[_Work]]:
    """The work round by round; nothing here holds on to what was given."""
    waiting: dict[int, list[_Work]] = {}
    for w in work:
        waiting.setdefault(-1 if w.source is None else w.source.round, []).append(w)
    work.clear()
    for number in sorted(waiting):
        yield waiting.pop(number)


def _pack(work: list[_Work], compiled: Container[_Form]) -> None:
    """Do the work of a round, and let go what it was about."""
    sources = list(dict.fromkeys([w.source for w in work if w.source is not None]))
    in_threads(_Source.fetch, sources, sum([source.memory.nbytes for source in sources]))
    jobs = Jobs()
    for w in work:
        if w.plain is not None and w.form in compiled:
            _add_kernel_jobs(jobs, w, w.plain)
        else:
            w.by_numpy(jobs)
    work.clear()
    jobs.run()


def _readable(weight: Array) -> bool:
    """Can kernels read it, stored in order?"""
    return weight.dtype == np.float32 and weight.flags.c_contiguous and weight.flags.aligned


def _split(weight: Array, width: int) -> Array:
    """A view of (N, ..., K) as (N / width, ..., K, width)."""
    return np.moveaxis(weight.reshape(len(weight) // width, width, *weight.shape[1:]), 1, -1)


def _transform(into: Array, filters: Array, tile: int) -> None:
    """Winograd's transform of (O, I, R, R) as one product with the Kronecker square of g."""
    g = winograd_matrices(tile, filters.shape[-1]).g
    outputs, inputs, size = *filters.shape[:2], len(g)
    products = filters.reshape(outputs, inputs, -1).astype(np.float64) @ np.kron(g, g).T
    transformed = products.reshape(outputs, inputs, size, size).transpose(0, 2, 3, 1)
    into[...] = _split(transformed, into.shape[-1])


def _add_kernel_jobs(jobs: Jobs, work: _Work, plain: Array) -> None:
    kernel = _kernel(work.form)

    def pack(into: Array, source: Array) -> None:
        kernel.raw(None, source.ctypes.data, into.ctypes.data, len(into), work.chunks)  # it needs no context

    for rows in jobs.pieces(work.packed):
        into, source = work.packed[rows], plain[rows.start * work.form.width : rows.stop * work.form.width]
        jobs.add(lambda into=into, source=source: pack(into, source), into.nbytes)


def _lanes(width: int) -> int:
    """Lanes of this machine's vectors, as many as divide a panel."""
    return math.gcd(vector_lanes(_host()), width)


@lru_cache(maxsize=1)
def _host() -> Target:
    return Target("llvm")


@lru_cache
def _kernel(form: _Form) -> KernelFunc:
    """The kernel of a form for this machine, from the cache if it was compiled before."""
    lanes = _lanes(form.width)
    name = f"panels_{form.width}_{form.tile}_{form.taps}_{lanes}"
    builder = ModuleBuilder(_host())
    if builder.reuse(name, name) is None:
        if form.tile:
            builder.add(winograd_panels(form.tile, form.taps, form.width, lanes, name), name)
        else:
            builder.add(panels_by_rows(form.width, lanes, name), name)
    kernel = builder.finish().get_function(name)
    assert isinstance(kernel, KernelFunc)
    return kernel
