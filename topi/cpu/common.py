"""Helpers shared by the CPU schedules."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from relayc import te
from relayc.topi.cpu.tiling import group_columns, parallel_worthwhile, threads_worthwhile, vector_lanes
from relayc.topi.groups import constant_size, extent_of, iterations, least_extent, likely_extent
from relayc.topi.registry import operations_behind
from relayc.topi.tuning import choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayc.backend.target import Target

__all__ = [
    "attach", "fuses_inner", "has_wide_groups", "local_accumulator", "operands", "panel_width", "parallel",
    "parallel_outer", "reduce_by_vectors", "split_columns", "tile_columns", "vectorize_panel", "vectorize_runs",
]  # fmt: skip


def panel_width(anchor: te.Operation) -> int:
    """NR: the last dimension of the packed operand, the second input of a product or convolution."""
    width = operands(anchor)[1].shape[-1]
    assert isinstance(width, int)
    return width


def operands(anchor: te.Operation) -> tuple[te.Tensor, te.Tensor]:
    """The data and the packed weights of a product or convolution; a table of the data to read comes before them.

    They are one tensor in its product with itself, as of a Gram matrix.
    """
    tensors = anchor.input_tensors
    return tensors[max(len(tensors) - 2, 0)], tensors[-1]


def has_wide_groups(anchor: te.Operation) -> bool:
    """Whether there are groups, each of several panels."""
    return anchor.attrs["groups"] > 1 and panel_width(anchor) < anchor.attrs["outputs"]


def tile_columns(target: Target, anchor: te.Operation, rows: int, steps: int) -> int:
    """Columns of the register tile: a panel, or the best part of one where each panel is a group."""
    attrs = anchor.attrs
    if attrs["groups"] == 1 or has_wide_groups(anchor):
        return panel_width(anchor)
    return group_columns(target, rows, attrs["outputs"], steps)


def split_columns(
    s: te.Schedule, tensor: te.Tensor, column: te.IterVar, columns: te.Dim, panel: int, tile: int, masked: bool = False
) -> tuple[list[te.IterVar], te.IterVar]:
    """The loops over the tiles of `column`, and the one inside a tile. The last tile of a panel is shifted inwards.

    A partial last panel has tiles of its own, unless its stores are `masked`, as those of a narrow only panel are.
    """
    masked = masked or (isinstance(columns, int) and columns < panel)
    outer, inner = s[tensor].split(column, factor=panel, tail="predicate" if masked else "guard")
    if tile == panel:
        return [outer], inner
    within, inner = s[tensor].split(inner, factor=tile, tail="shift")
    return [outer, within], inner


def attach(s: te.Schedule, tensor: te.Tensor, out: te.Tensor, loop: te.IterVar) -> None:
    """Compute what each iteration of a loop of `out` needs of `tensor`, in local memory."""
    s[tensor].set_scope("local")
    s[tensor].compute_at(s[out], loop)


def local_accumulator(s: te.Schedule, anchor: te.Operation, out: te.Tensor) -> te.Tensor:
    """The anchor's result as a local tensor that `out` writes.

    When the anchor is the output itself a local copy is computed in its place; otherwise the anchor becomes local and
    its epilogue reads it while it is still in registers.
    """
    result = anchor.output(0)
    if anchor is out.op:
        return s.cache_write(result, "local")
    s[result].set_scope("local")
    return result


def parallel(
    s: te.Schedule, tensor: te.Tensor, axis: te.IterVar, operations: float, lanes: int, kernel: float = 0.0
) -> None:
    """Parallelise `axis` if the kernel's `operations` are worth it, with as many threads as they are worth.

    Where the `operations` are those of a part only, those of the whole `kernel` may be worth it.
    """
    if not choose("parallel", parallel_worthwhile(max(operations, kernel), lanes), (True, False)):
        return
    s[tensor].parallel(axis)
    if all(isinstance(d, int) for op in operations_behind([s[tensor].op.output(0)]) for d in op.output(0).shape):
        s[tensor].pragma(axis, "most_threads", threads_worthwhile(operations, lanes))


_SHARES = 16
"""Iterations of a parallel loop for each core, for load balance."""
_PART_ELEMENTS, _LIKELY = 8192, 64
"""Elements of a part of a loop inside of dynamic ones, which should outweigh the start of a thread, and the assumed
extent of dynamic axes."""


def fuses_inner(axes: Sequence[te.IterVar], target: Target) -> bool:
    """True if loops over `axes` have too few iterations to be a parallel loop without the next one inside."""
    known = [axis.dom for axis in axes if axis.dom is not None]  # loops that splits make have none yet
    return constant_size([dom.extent for dom in known]) < _SHARES * target.num_cores


def parallel_outer(
    s: te.Schedule, tensor: te.Tensor, axes: Sequence[te.IterVar], operations: float, target: Target,
    *, divides: bool = False,
) -> list[te.IterVar]:  # fmt: skip
    """Parallelise the outermost of `axes`, as many as give enough iterations, fused into one loop.

    Returns that loop and those inside, which stay separate loops: taking a fused index apart costs a division in every
    iteration. Dynamic axes count as long ones. With `divides` the loop inside of those that may have one iteration is
    divided, and its parts are fused with them.
    """
    count = 1
    while count < len(axes) and fuses_inner(axes[:count], target):
        count += 1
    outer, inner = list(axes[:count]), list(axes[count:])
    length = _part_of(s[tensor].op, outer, inner, target) if divides else None
    if length is not None:
        part, inner[0] = s[tensor].split(inner[0], factor=length, tail="predicate")
        s[tensor].pragma(inner[0], "loop_partition_hint")
        outer.append(part)
    loop = s[tensor].fuse(*outer)
    parallel(s, tensor, loop, operations, vector_lanes(target))
    return [loop, *inner]


def _part_of(op: te.Operation, outer: Sequence[te.IterVar], inner: Sequence[te.IterVar], target: Target) -> int | None:
    """The iterations of a part of the first of the `inner` loops; None if there are enough of the `outer` ones."""
    wanted = _SHARES * target.num_cores
    if not inner or any(axis not in op.axis for axis in (*outer, inner[0])):
        return None
    fewest = math.prod([least_extent(extent_of(axis)) for axis in outer])
    if fewest >= wanted:
        return None
    inside = [likely_extent(extent_of(axis), _LIKELY) for axis in op.axis[op.axis.index(inner[0]) + 1 :]]
    part, extent = _PART_ELEMENTS // math.prod(inside), extent_of(inner[0])
    return max(min(part, extent * max(fewest, 1) // wanted) if isinstance(extent, int) else part, 1)


def reduce_by_vectors(
    s: te.Schedule, tensor: te.Tensor, axis: te.IterVar | None = None, lanes: int = 0, *, unrolled: int = 0,
    loops: bool = False,
) -> None:  # fmt: skip
    """Run the reduction of `tensor` outside of a vector of results along `axis`, by default its last one.

    With `lanes`, the axis has several vectors of so many, outside of the reduction: unrolled, or a loop with `loops`.
    Reductions of up to `unrolled` elements are unrolled.
    """
    axis = s[tensor].op.axis[-1] if axis is None else axis
    outer, over, lane = [a for a in s[tensor].op.axis if a is not axis], list(s[tensor].op.reduce_axis), axis
    if lanes:
        vectors, lane = s[tensor].split(axis, factor=lanes)
        if not loops:
            s[tensor].unroll(vectors)
        outer.append(vectors)
    s[tensor].reorder(*outer, *over, lane)
    if iterations(over) <= unrolled:
        for loop in over:
            s[tensor].unroll(loop)
    s[tensor].vectorize(lane)


def vectorize_panel(
    s: te.Schedule, tensor: te.Tensor, axis: te.IterVar, panel: int, lanes: int, *, apart: bool = False
) -> None:
    """Vectorise the `panel` channels of `axis`, the innermost.

    A power of two of whole vectors is one long vector, which the code generator splits. Other counts would be padded to
    one, so there each vector gets a loop iteration of its own, as with `apart`: vectors of which no element is used are
    then skipped.
    """
    vectors = max(panel // lanes, 1)
    if vectors & (vectors - 1) or (apart and panel > lanes) or (panel > lanes and panel % lanes):
        each, axis = s[tensor].split(axis, factor=lanes)
        s[tensor].unroll(each)
    s[tensor].vectorize(axis)


def vectorize_runs(
    s: te.Schedule, tensor: te.Tensor, axis: te.IterVar, panel: int, lanes: int, run: int, *, apart: bool = False
) -> None:
    """Vectorise channels that are stored in contiguous runs: vectors are stored whole, or by parts.

    A run begins with a panel, or wherever the part of a vector ends that a run is made of; 0 is a run of all channels.
    See `vectorize_panel` for the other arguments.
    """
    vectorize_panel(s, tensor, axis, panel, math.gcd(run, lanes), apart=apart or run % panel != 0)
