"""Software prefetch of memory-bound kernels: what is fetched, how far ahead, into which cache.

Only inputs that exceed the L2 cache are (`is_streamed`), and only where the hardware prefetcher falls behind:

* Reads in sequence with little arithmetic need none, but with a high-latency LLC: then half a page ahead
  (`prefetch_elements`).
* Arithmetic between them, such as NaN tests, keeps out-of-order execution from running ahead: a kilobyte, or what a
  core reads during a memory latency (`prefetch_ahead`).
* Rows that are read twice are fetched a row ahead, while memory is idle (`prefetch_rows`), or while results are stored
  (`prefetch_next`).
* Rows at scattered addresses, and blocks in another order than memory's, have an index function of their own
  (`prefetch_places`), some rows ahead (`rows_ahead`).

Lines go to L1; to L2 on cores with few line-fill buffers (`level_of`), whose hardware prefetcher needs those of L1.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.tiling import has_few_fill_buffers, has_high_latency_llc
from relayc.topi.groups import constant_size, is_static
from relayc.topi.registry import operations_behind
from relayc.topi.tag import is_broadcast
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = [
    "CONFLICT_BYTES", "LINE_BYTES", "PAGE_BYTES", "elements_ahead", "has_line_vectors", "in_sequence",
    "inputs_of", "is_beyond_caches", "is_streamed", "level_of", "prefetch_ahead",
    "prefetch_elements", "prefetch_next", "prefetch_places", "prefetch_rows", "rows_ahead",
    "rows_of_whole_lines",
]  # fmt: skip

LINE_BYTES, PAGE_BYTES = 64, 4096
"""Bytes of a cache line, and of a page: addresses that far apart have the same set in an L1 cache, and few in L2."""
CONFLICT_BYTES = 512
"""Rows at multiples of this distance, in bytes, conflict in sets of the caches and in banks of memory."""
_AHEAD_BYTES = 8192
"""Prefetch distance in bytes: what a core reads from memory during one memory latency (Zen 5: 40 GB/s, 200 ns); a
quarter of the smallest L1 cache."""
_AHEAD_IN_PAGE = 2048
"""Prefetch distance in bytes with a high-latency LLC: half a page. The hardware prefetcher of the L2 cache stays in the
page of the last access: a core that prefetches in the page behind it waits for each line (Xeon of the Sapphire Rapids
family: 13 and 23 GB/s)."""
_BUSY_BYTES = 1024
"""Prefetch distance in bytes where elements take several instructions each."""
_ROWS_OF_L2 = 4
"""Rows that the L2 cache must hold for prefetching the next: that, this one, what is kept of it, and spare room."""
_LEAST_BYTES = 512
"""Least bytes of rows that are prefetched while the one before is stored: shorter ones the hardware prefetcher
covers."""
_SHARE_OF_L2, _SHARE_OF_LLC = 2, 8
"""Rows up to this fraction (1 / n) of a cache are still there, or nearer, when they are used: what doesn't come from
memory must then be in L2."""


def rows_of_whole_lines(nbytes: int, least: int = 1) -> int:
    """The fewest contiguous rows of `nbytes` bytes that are whole cache lines together, `least` bytes or more."""
    count = LINE_BYTES // math.gcd(nbytes, LINE_BYTES)
    return count * -(-least // max(count * nbytes, 1))


def has_line_vectors(target: Target) -> bool:
    """Whether a vector is a whole cache line, as in AVX-512: it is stored without reading the line, or by a mask."""
    return target.vector_bytes >= LINE_BYTES


def is_beyond_caches(tensor: te.Tensor, target: Target) -> bool:
    """Whether the tensor fills or exceeds a known L3 cache. Such results are written with non-temporal stores."""
    return 0 < target.cache_bytes.l3 <= constant_size(tensor.shape) * tensor.dtype.nbytes


def is_streamed(tensor: te.Tensor, length: int, target: Target) -> bool:
    """Whether prefetching rows of `length` elements of the tensor pays.

    Small tensors stay in the cache, long rows would evict each other.
    """
    size, row = constant_size(tensor.shape) * tensor.dtype.nbytes, length * tensor.dtype.nbytes
    return size > target.cache_bytes.l2 >= _ROWS_OF_L2 * row


def elements_ahead(nbytes: int, target: Target, length: int = 1) -> int:
    """Prefetch distance in elements of `nbytes` bytes for sequential reads.

    Whole rows of `length` elements, where the next row begins only when this one is done.
    """
    ahead = _AHEAD_IN_PAGE if has_high_latency_llc(target) else _AHEAD_BYTES
    return -(-ahead // (length * nbytes)) * length


def level_of(target: Target) -> int:
    """The level of the cache that prefetches go to by default."""
    return 2 if has_few_fill_buffers(target) else 1


def in_sequence(tensor: te.Tensor, target: Target, length: int = 1) -> te.Prefetch:
    """The prefetch of a tensor that is read in sequence, by rows of `length` elements: see `elements_ahead`."""
    return te.Prefetch(elements_ahead(tensor.dtype.nbytes, target, length), level_of(target))


def rows_ahead(nbytes: int) -> int:
    """Prefetch distance in rows of `nbytes` bytes: at least a memory latency.

    For rows at scattered addresses; for sequential rows see `elements_ahead`.
    """
    return -(-_AHEAD_BYTES // nbytes)


def prefetch_ahead(
    s: te.Schedule, stage: te.Tensor, loop: te.IterVar, tensors: Sequence[te.Tensor], target: Target,
    *, busy: bool = False,
) -> None:  # fmt: skip
    """Prefetch, in each iteration of `loop`, a little ahead in those of `tensors` that exceed the caches.

    `busy`: elements take several instructions, so that loads are far apart in time.
    """
    for tensor in tensors:
        if is_streamed(tensor, 1, target):
            near = te.Prefetch(_BUSY_BYTES // tensor.dtype.nbytes, level_of(target))
            s[stage].prefetch(tensor, loop, near if busy else in_sequence(tensor, target))


def prefetch_rows(
    s: te.Schedule, stage: te.Tensor, loop: te.IterVar, elements: int, length: int, target: Target, *,
    once: bool = False, always: bool = False,
) -> None:  # fmt: skip
    """Prefetch in each iteration of `loop` what it will read, rows of `length` ahead, of inputs of `elements` elements.

    Inputs read through inlined elementwise operations, too. For data read `once` the distance need not be a whole row:
    it stays within the page with a high-latency LLC. With few line-fill buffers the hardware prefetcher is early
    enough, and prefetches slow it down, unless `always`: where exponentials are computed, or each row has two ends that
    are read before they are written. They then go to L2.
    """
    if not always and has_few_fill_buffers(target):
        return
    length = 1 if once and has_high_latency_llc(target) else length
    for tensor in inputs_of(s[stage].op):
        if constant_size(tensor.shape) == elements and is_streamed(tensor, length, target):
            s[stage].prefetch(tensor, loop, in_sequence(tensor, target, length))


def prefetch_next(s: te.Schedule, out: te.Tensor, vectors: te.IterVar, length: int, each: int, target: Target) -> bool:
    """Prefetch the next row, of `length` elements, `each` of them in an iteration of `vectors`, which stores as many.

    The row arrives while results are stored, and what exceeds the L1 cache goes to L2. Returns False where nothing is
    prefetched: rows are short, or would evict each other.
    """
    row, shape, caches = length * out.dtype.nbytes, tuple(out.shape), target.cache_bytes
    if not is_static(shape) or row < _LEAST_BYTES:
        return False
    far = is_beyond_caches(out, target)
    if row > (caches.l3 // _SHARE_OF_LLC if far else caches.l2 // _SHARE_OF_L2):
        return False
    read = [op.output(0) for op in operations_behind([out]) if isinstance(op, te.PlaceholderOp)]
    alike = [t for t in read if tuple(t.shape) == shape and is_streamed(t, 1, target)]
    level = 1 if row > caches.l2 // _SHARE_OF_L2 else level_of(target)
    for tensor in alike:
        ahead = te.Prefetch(elements_ahead(out.dtype.nbytes, target, length), level)
        prefetch_places(s, out, tensor, vectors, ahead, each)
    return bool(alike)


def prefetch_elements(s: te.Schedule, out: te.Tensor, vectors: te.IterVar, each: int, target: Target) -> None:
    """Prefetch later elements of the inputs of an elementwise `out`, `each` of them in an iteration of `vectors`.

    Only with a high-latency LLC: the hardware prefetcher, which starts anew in each page, is then too late for most of
    its lines (the Xeon: gelu 14 and 21 GB/s). Other processors are no faster for it.
    """
    if not has_high_latency_llc(target):
        return
    read = [op.output(0) for op in operations_behind([out]) if isinstance(op, te.PlaceholderOp)]
    for tensor in read:
        if constant_size(tensor.shape) == constant_size(out.shape) and is_streamed(tensor, 1, target):
            prefetch_places(s, out, tensor, vectors, in_sequence(tensor, target), each)


def prefetch_places(
    s: te.Schedule, out: te.Tensor, tensor: te.Tensor, loop: te.IterVar, ahead: te.Prefetch, each: int
) -> None:
    """Prefetch `each` elements of `tensor`, `ahead` of the position that `out` stores."""
    in_memory = lambda *i: [ravel_index(i, tuple(out.shape))]  # noqa: E731
    lines = -(-each * tensor.dtype.nbytes // LINE_BYTES)
    s[out].prefetch(tensor, loop, replace(ahead, order=in_memory, lines=lines))


def inputs_of(op: te.Operation) -> list[te.Tensor]:
    """The placeholders that an operation reads, and those of its shape that elementwise producers read for it."""
    read, shape = dict.fromkeys(op.input_tensors), tuple(op.output(0).shape)
    pending = [t for t in read if is_broadcast(t.op.tag) and tuple(t.shape) == shape]
    for tensor in pending:  # grows
        alike = [t for t in tensor.op.input_tensors if tuple(t.shape) == shape and t not in read]
        read.update(dict.fromkeys(alike))
        pending += [t for t in alike if is_broadcast(t.op.tag)]
    return [t for t in read if isinstance(t.op, te.PlaceholderOp)]
