"""Memory that is asked for ahead of its use, while there is arithmetic to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayc import te
from relayc.te.tir.substitute import substitute
from relayc.topi.cpu.tiling import has_few_fill_buffers, has_high_latency_llc, prefetches_to_l1
from relayc.topi.groups import constant_size, extent_of
from relayc.topi.registry import operations_behind
from relayc.topi.tag import is_broadcast
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayc.backend.target import Target
    from relayc.te.tir import PrimExpr

__all__ = [
    "LINE_BYTES", "elements_ahead", "exceeds_all_caches", "inputs_of", "is_beyond_caches", "is_streamed",
    "prefetch_elements", "prefetch_next", "prefetch_places", "prefetch_rows", "read_later", "rows_ahead",
]  # fmt: skip

LINE_BYTES = 64
"""A cache line."""
_AHEAD_BYTES = 8192
"""What a core reads from memory in the time that one line takes (Zen 5: 40 GB/s, 200 ns); a quarter of the smallest
first-level cache."""
_AHEAD_IN_PAGE = 2048
"""Half a page. Where memory is far the second-level cache goes ahead by itself, in the page of what is asked for: a
core that asks for the page behind it has to wait for each line (Xeon of the Sapphire Rapids family: 13 and 23 GB/s)."""
_ROWS_OF_L2 = 4
"""Rows that the second-level cache holds where the next is asked for: that, this one, what is kept of it, and room."""
_LEAST_BYTES = 512
"""Of rows for which memory is asked while the one before is stored: shorter ones the processor sees coming itself."""
_SHARE_OF_L2, _SHARE_OF_LLC = 2, 8
"""Rows up to such a part of a cache are still there, or nearer, when they are wanted: what doesn't come from memory has
to be in the second-level cache then."""


def exceeds_all_caches(nbytes: int, target: Target) -> bool:
    """Does none of the caches that there are hold so many bytes beside anything else?"""
    return nbytes >= max(target.cache_bytes)


def is_beyond_caches(tensor: te.Tensor, target: Target) -> bool:
    """Is it known that no cache holds it beside anything else? Results that are so large are stored past the caches."""
    return 0 < target.cache_bytes.l3 <= constant_size(tensor.shape) * tensor.dtype.nbytes


def is_streamed(tensor: te.Tensor, length: int, target: Target) -> bool:
    """Is it worth asking ahead for rows of `length` elements of it?

    Small tensors stay in the cache, long rows would drive each other out of it.
    """
    size, row = constant_size(tensor.shape) * tensor.dtype.nbytes, length * tensor.dtype.nbytes
    return size > target.cache_bytes.l2 >= _ROWS_OF_L2 * row


def elements_ahead(nbytes: int, target: Target, length: int = 1) -> int:
    """How many elements of so many bytes ahead it is asked for what is read in the order of memory.

    Whole rows of `length` elements, where the next one begins only when this has been worked on.
    """
    ahead = _AHEAD_IN_PAGE if has_high_latency_llc(target) else _AHEAD_BYTES
    return -(-ahead // (length * nbytes)) * length


def rows_ahead(nbytes: int) -> int:
    """How many rows of so many bytes ahead is asked for one: what memory sends while a core waits for it, at least.

    Of rows that are read one here, one there: see `elements_ahead` for those that follow each other.
    """
    return -(-_AHEAD_BYTES // nbytes)


def prefetch_rows(
    s: te.Schedule, stage: te.Tensor, loop: te.IterVar, elements: int, length: int, target: Target, *,
    once: bool = False, always: bool = False,
) -> None:  # fmt: skip
    """Ask in each iteration of `loop` for what it reads of inputs of so many elements, rows of `length` further on.

    Those that it reads through elementwise operations, which are inlined, too. What is read `once` need not be a whole
    row ahead: within the page, where memory is far. A core that waits for few lines comes far enough ahead by itself,
    and loses by asking, unless it is to ask `always`: where powers of e are computed, or each row has two ends that are
    read before they are written. It asks the second-level cache then.
    """
    few = has_few_fill_buffers(target)
    if few and not always:
        return
    within_page = once and has_high_latency_llc(target)
    for tensor in inputs_of(s[stage].op):
        if constant_size(tensor.shape) == elements and is_streamed(tensor, 1 if within_page else length, target):
            ahead = elements_ahead(tensor.dtype.nbytes, target, 1 if within_page else length)
            s[stage].prefetch_ahead(tensor, loop, ahead, to_l1=not few)


def prefetch_next(s: te.Schedule, out: te.Tensor, vectors: te.IterVar, length: int, each: int, target: Target) -> bool:
    """Ask for the next row, of `length` elements, `each` of them in an iteration of `vectors`, which stores as many.

    Memory answers while results are stored, and what the first-level cache has no room for goes to the next. False
    where nothing is asked for: rows are short, or would drive each other out.
    """
    row, shape, caches = length * out.dtype.nbytes, tuple(out.shape), target.cache_bytes
    if not all(isinstance(d, int) for d in shape) or row < _LEAST_BYTES:
        return False
    far = exceeds_all_caches(constant_size(shape) * out.dtype.nbytes, target)
    if row > (caches.l3 // _SHARE_OF_LLC if far else caches.l2 // _SHARE_OF_L2):
        return False
    read = [op.output(0) for op in operations_behind([out]) if isinstance(op, te.PlaceholderOp)]
    alike = [t for t in read if tuple(t.shape) == shape and is_streamed(t, 1, target)]
    near = prefetches_to_l1(target) or row > caches.l2 // _SHARE_OF_L2
    for tensor in alike:
        prefetch_places(s, out, tensor, vectors, elements_ahead(out.dtype.nbytes, target, length), each, near=near)
    return bool(alike)


def prefetch_elements(s: te.Schedule, out: te.Tensor, vectors: te.IterVar, each: int, target: Target) -> None:
    """Ask for later elements of the inputs of an elementwise `out`, `each` of them in an iteration of `vectors`.

    Where memory is far: a core that finds each page by itself comes too late for most of its lines then (the Xeon: gelu
    14 and 21 GB/s). Others are no faster for it.
    """
    if not has_high_latency_llc(target):
        return
    read = [op.output(0) for op in operations_behind([out]) if isinstance(op, te.PlaceholderOp)]
    for tensor in read:
        if constant_size(tensor.shape) == constant_size(out.shape) and is_streamed(tensor, 1, target):
            prefetch_places(s, out, tensor, vectors, elements_ahead(tensor.dtype.nbytes, target), each)


def prefetch_places(
    s: te.Schedule, out: te.Tensor, tensor: te.Tensor, loop: te.IterVar, ahead: int, each: int, *, near: bool = True
) -> None:
    """Ask for so many elements of `tensor`, `ahead` of those at the place where `out` is stored.

    `near`: into the first-level cache, else the second.
    """

    def place(*i: PrimExpr) -> Sequence[PrimExpr]:
        return [ravel_index(i, tuple(out.shape)) + ahead]

    s[out].prefetch_line(tensor, loop, place, lines=-(-each * tensor.dtype.nbytes // LINE_BYTES), to_l1=near)


def read_later(
    axes: Sequence[te.IterVar], index: Sequence[PrimExpr], number: int, steps: int
) -> Callable[..., list[PrimExpr]]:
    """Where a tensor that is read at `index`, by `axes`, is read so many steps along one of them later, or at its end.

    For `Stage.prefetch_line`, by the values of the axes.
    """
    last = constant_size([extent_of(axes[number])]) - 1

    def place(*first: PrimExpr) -> list[PrimExpr]:
        values = [te.min(e + steps, last) if n == number else e for n, e in enumerate(first)]
        return [substitute(i, {axis.var: e for axis, e in zip(axes, values, strict=True)}) for i in index]

    return place


def inputs_of(op: te.Operation) -> list[te.Tensor]:
    """The inputs that an operation reads itself, and those of its shape that elementwise ones in front read for it."""
    found = [t for t in op.input_tensors if isinstance(t.op, te.PlaceholderOp)]
    pending = [t for t in op.input_tensors if tuple(t.shape) == tuple(op.output(0).shape) and is_broadcast(t.op.tag)]
    for tensor in pending:
        alike = [t for t in tensor.op.input_tensors if tuple(t.shape) == tuple(tensor.shape)]
        found += [t for t in alike if isinstance(t.op, te.PlaceholderOp)]
        pending += [t for t in alike if is_broadcast(t.op.tag)]
    return list(dict.fromkeys(found))
