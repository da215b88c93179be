"""Data-movement operators: reshape, transpose, concat, split, slice, expand, tile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import counted, question_of_one, reshape_to, take_as_one, transposed
from relayc.frontends.onnx.ops.computed_axes import bounds_of_all_axes, squeezed, stepped, unsqueezed
from relayc.frontends.onnx.registry import converter
from relayc.frontends.onnx.sizes import MOST_SIZES
from relayc.relay import op
from relayc.relay.errors import TypeInferenceError
from relayc.relay.expr import Expr, const
from relayc.relay.sizes import (
    add_sizes,
    dims_equal,
    dims_match,
    floor_divide,
    is_at_least,
    larger,
    product,
    quotient,
    size_variables,
    smaller,
)
from relayc.relay.type import MAX_RANK, shape_text, shapes_equal
from relayc.te.tir import Dim

__all__ = ["take_ranges"]


@converter("Reshape", since=1)
def reshape_1(node: OnnxNode) -> Expr:
    return _reshape(node, node.attr_ints("shape"), allow_zero=False)


@converter("Reshape", since=5)
def reshape(node: OnnxNode) -> Expr:
    allow_zero = node.attr_bool("allowzero", False)
    wanted = node.sizes_or_none(1)
    return _reshape_dynamic(node, allow_zero) if wanted is None else _reshape(node, wanted, allow_zero)


def _reshape_dynamic(node: OnnxNode, allow_zero: bool) -> Expr:
    """Reshape by a computed shape: the program resolves 0 and -1, then binds the sizes."""
    source, shape = node.type(0).shape, op.cast(node[1], "int64")
    (rank,) = node.static(shape, "the shape of the new shape")
    if rank > MAX_RANK:
        raise node.error(f"a new shape of {rank} dimensions", expected=f"at most {MAX_RANK} dimensions")
    zero, one = const(0, "int64"), const(1, "int64")
    if not allow_zero:
        kept = op.size_tensor([source[axis] if axis < len(source) else 0 for axis in range(rank)])
        shape = op.where(op.equal(shape, zero), kept, shape)
    open_ = op.equal(shape, const(-1, "int64"))
    passed = op.prod(op.where(open_, one, shape))
    rest = op.trunc_divide(op.size_tensor((product(source),), ()), op.maximum(passed, one))
    several = op.greater(op.sum(op.cast(open_, "int64")), one)
    rest = op.where(several, const(-1, "int64"), rest)  # two -1 dimensions give an invalid size
    return op.reshape(node[0], node.bind(op.where(open_, rest, shape), "the new shape"))


def _reshape(node: OnnxNode, wanted: Sequence[Dim], allow_zero: bool) -> Expr:
    """Reshape; 0 keeps the input's dimension (unless `allow_zero`), one -1 is inferred."""
    source = node.type(0).shape
    target: list[Dim] = []
    for axis, size in enumerate(wanted):
        if isinstance(size, int) and size == 0 and not allow_zero:
            if axis >= len(source):
                raise node.error(f"the new shape {list(wanted)} keeps axis {axis}, which the input does not have")
            target.append(source[axis])
        elif isinstance(size, int) and size < -1:
            raise node.error(f"the new shape {list(wanted)}", expected="sizes of 0 or more, and at most one -1")
        else:
            target.append(size)
    unknown = [axis for axis, size in enumerate(target) if isinstance(size, int) and size == -1]
    if len(unknown) > 1:
        raise node.error(f"the new shape {list(wanted)} leaves two dimensions open", expected="at most one -1")
    total = product(source)
    if unknown:
        known = [size for axis, size in enumerate(target) if axis not in unknown]
        rest = None if 0 in [d for d in known if isinstance(d, int)] else quotient(source, known)
        if rest is None:
            raise node.error(f"{total} elements do not fit into {list(wanted)}")
        target[unknown[0]] = rest
    if not dims_match(product(target), total):
        raise node.error(f"{total} elements do not fit into {target}", expected="a shape of as many elements")
    return reshape_to(node[0], target)


@converter("Flatten", since=1)
def flatten(node: OnnxNode) -> Expr:
    """Collapses the axes before `axis` and those from it on to a matrix."""
    rank = node.rank(0)
    axis = node.attr_int("axis", 1)
    axis = axis if axis == rank else node.axis(axis, rank)
    shape = node.type(0).shape
    return reshape_to(node[0], (product(shape[:axis]), product(shape[axis:])))


@converter("Transpose")
def transpose(node: OnnxNode) -> Expr:
    rank = node.rank(0)
    perm = node.attr_ints("perm", tuple(reversed(range(rank))))
    if sorted(perm) != list(range(rank)):
        raise node.error(f"perm is {list(perm)}", expected=f"a permutation of 0 .. {rank - 1}")
    return transposed(node[0], perm)


@converter("Unsqueeze", since=1)
def unsqueeze_1(node: OnnxNode) -> Expr:
    return _unsqueeze(node, node.attr_ints("axes"))


@converter("Unsqueeze", since=13)
def unsqueeze(node: OnnxNode) -> Expr:
    if node.known_value(1) is None:
        return unsqueezed(node)
    return _unsqueeze(node, node.constant_ints(1, "the axes"))


def _unsqueeze(node: OnnxNode, axes: Sequence[int]) -> Expr:
    """Insert axes at positions of the result."""
    x = node[0]
    for axis in sorted(node.axes(axes, node.rank(0) + len(axes))):
        x = op.expand_dims(x, axis)
    return x


@converter("Squeeze", since=1)
def squeeze_1(node: OnnxNode) -> Expr:
    return _squeeze(node, node.attrs.get_ints("axes"))


@converter("Squeeze", since=13)
def squeeze(node: OnnxNode) -> Expr:
    if node.get(1) is not None and node.known_value(1) is None:
        return squeezed(node)
    return _squeeze(node, node.constant_ints(1, "the axes") if node.get(1) is not None else None)


def _squeeze(node: OnnxNode, axes: Sequence[int] | None) -> Expr:
    """Drop `axes`, or all of size 1."""
    dims = node.type(0).shape
    if axes is None:
        chosen = tuple(i for i, d in enumerate(dims) if _is_taken_as_one(node, d))
    else:
        chosen = node.axes(axes, len(dims))
        for axis in chosen:
            if isinstance(dims[axis], int) and dims[axis] != 1:
                raise node.error(f"axis {axis} has extent {dims[axis]}", expected="extent 1")
    return op.squeeze(node[0], axis=chosen) if chosen else node[0]


def _is_taken_as_one(node: OnnxNode, d: Dim) -> bool:
    """Is a size 1 in this version of the model? It decides the rank of a Squeeze without axes."""
    if isinstance(d, int):
        return d == 1
    answer = bool(node.answer(question_of_one(d)))
    take_as_one(node, d, answer, " (the rank of a Squeeze without axes)")
    return answer


@converter("Concat", since=1)
def concat(node: OnnxNode) -> Expr:
    inputs = node.all_inputs()
    default = 1 if node.opset < 4 else None
    axis = node.axis(node.attr_int("axis", default), node.rank(0))
    return _joined(node, inputs, axis)


def _joined(node: OnnxNode, inputs: Sequence[Expr], axis: int) -> Expr:
    """Concatenate; many inputs of symbolic sizes are joined in groups, with a new variable for each group's size.

    Detectors concatenate results per class, and kernels that index with sums of 90 sizes compile slowly.
    """
    if len(inputs) == 1:
        return inputs[0]
    if len(size_variables([x.shape[axis] for x in inputs])) <= MOST_SIZES:
        return op.concatenate(inputs, axis=axis)
    if len(inputs) <= MOST_SIZES:
        return node.with_named_size(op.concatenate(inputs, axis=axis), axis)
    starts = range(0, len(inputs), MOST_SIZES)
    some = [_joined(node, inputs[start : start + MOST_SIZES], axis) for start in starts]
    whole = _joined(node, [node.with_named_size(part, axis) for part in some], axis)
    return node.with_named_size(whole, axis)


@converter("Split", since=1)
def split_1(node: OnnxNode) -> list[Expr | None]:
    sizes: Sequence[Dim] | None = node.attrs.get_ints("split")
    if sizes is None and node.get(1) is not None:
        sizes = node.sizes(1, "the split", len(node.outputs))
    return _split(node, sizes, len(node.outputs))


@converter("Split", since=13)
def split(node: OnnxNode) -> list[Expr | None]:
    sizes = node.sizes(1, "the split", len(node.outputs)) if node.get(1) is not None else None
    count = node.attr_int("num_outputs", len(node.outputs))
    if count != len(node.outputs):
        raise node.error(f"num_outputs is {count}", expected=f"{len(node.outputs)}, the number of outputs")
    return _split(node, sizes, count)


def _split(node: OnnxNode, sizes: Sequence[Dim] | None, count: int) -> list[Expr | None]:
    """Split into parts of `sizes`, or into `count` equal parts (the last may be smaller)."""
    axis = node.axis(node.attr_int("axis", 0), node.rank(0))
    extent = node.type(0).shape[axis]
    if sizes is None:
        if count < 1:
            raise node.error(f"{count} outputs", expected="at least one")
        chunk = floor_divide(add_sizes(extent, count - 1), count)
        ends = [smaller(product((chunk, i)), extent) for i in range(count + 1)]
        sizes = [add_sizes(b, product((-1, a))) for a, b in itertools.pairwise(ends)]
    if not all(isinstance(d, int) for d in (*sizes, extent)):
        return _split_dynamic(node, axis, sizes)
    return _split_known(node, axis, [int(d) for d in sizes], int(extent))  # type: ignore[arg-type]


def _split_dynamic(node: OnnxNode, axis: int, sizes: Sequence[Dim]) -> list[Expr | None]:
    """Split by symbolic sizes into slices; checks that the sizes add up to the extent."""
    extent = node.type(0).shape[axis]
    if not dims_match(add_sizes(*sizes), extent):
        raise node.error(f"parts of {list(sizes)} of axis {axis}", expected=f"sizes that add up to {extent}")
    parts: list[Expr | None] = []
    begin: Dim = 0
    for size in sizes:
        end = add_sizes(begin, size)
        parts.append(op.strided_slice(node[0], (begin,), (end,), (1,), axes=(axis,)))
        begin = end
    return parts


def _split_known(node: OnnxNode, axis: int, sizes: Sequence[int], extent: int) -> list[Expr | None]:
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise node.error(f"parts of {list(sizes)} of axis {axis}", expected=f"sizes that add up to {extent}")
    if len(sizes) == 1:
        return [node[0]]
    cuts = tuple(int(c) for c in np.cumsum(sizes)[:-1])
    parts = op.split(node[0], cuts, axis=axis)
    return [parts[i] for i in range(len(sizes))]


@converter("Slice", since=1)
def slice_1(node: OnnxNode) -> Expr:
    starts, ends = node.attr_ints("starts"), node.attr_ints("ends")
    return _slice(node, starts, ends, node.attrs.get_ints("axes"), None)


@converter("Slice", since=10)
def slice_(node: OnnxNode) -> Expr:
    # TensorFlow's exporter writes numbers in the place of vectors of one element.
    node = node.with_inputs([x if i == 0 or x is None or x.shape else op.reshape(x, (1,))
                             for i, x in enumerate(node.inputs)])  # fmt: skip
    if node.get(3) is not None and node.known_value(3) is None:
        bounds = node.with_inputs([node[0], *bounds_of_all_axes(node)])
        axes = range(node.rank(0))
        return _slice_dynamic(bounds, None, None, axes, None) if _steps_are_one(node) else stepped(bounds, axes)
    axes = node.constant_ints(3, "the axes") if node.get(3) is not None else None
    if axes is not None:  # their number is that of bounds that a run counts
        bounds = [_counted(node, index, len(axes)) for index in (1, 2)]
        node = node.with_inputs([node[0], *bounds, *node.inputs[3:]])
    if node.get(4) is not None and node.known_value(4) is None:
        return stepped(node.with_inputs([node[0], node[1], node[2], node[4]]), axes)
    steps = node.constant_ints(4, "the steps") if node.get(4) is not None else None
    starts, ends = node.sizes_or_none(1), node.sizes_or_none(2)
    numbers = (*(starts or (None,)), *(ends or (None,)))
    dims = node.type(0).shape
    sliced = range(len(dims)) if axes is None else node.axes(axes, len(dims))
    if all(isinstance(v, int) for v in (*numbers, *(dims[axis] for axis in sliced))):
        return _slice(node, starts, ends, axes, steps)  # type: ignore[arg-type]
    return _slice_dynamic(node, starts, ends, sliced, steps)


def _counted(node: OnnxNode, index: int, number: int) -> Expr:
    """Input `index` as a vector of `number` elements, if its length is not known when compiling."""
    if node.type(index).is_static:
        return node[index]
    node.count(index, number, "the bounds")
    return op.reshape(node[index], (number,))


def _steps_are_one(node: OnnxNode) -> bool:
    steps = node.known_value(4)
    return node.get(4) is None or (steps is not None and bool((steps == 1).all()))


def _slice_dynamic(
    node: OnnxNode,
    starts: Sequence[Dim] | None,
    ends: Sequence[Dim] | None,
    axes: Sequence[int],
    steps: Sequence[int] | None,
) -> Expr:
    """Slice with symbolic or computed positions."""
    count = len(starts or ends or ()) or int(node.shape(1)[0])
    steps = [1] * count if steps is None else steps
    x, dims = node[0], node.type(0).shape
    axes = tuple(axes)[:count]
    if not count == len(axes) == len(steps):
        raise node.error(f"{count} starts, {len(axes)} axes, {len(steps)} steps")
    for k, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        backwards = step < 0
        if starts is not None and ends is not None and starts[k] == -1 and step == 1 and _reaches(ends[k], dims[axis]):
            x = _last_element(node, x, axis, dims[axis])
            continue
        begin = _position(node, 1, k, None if starts is None else starts[k], dims[axis], backwards)
        end = _position(node, 2, k, None if ends is None else ends[k], dims[axis], backwards)
        if backwards:
            x = op.reverse(x, axis=axis)
            begin = 0 if dims_equal(begin, 0) else smaller(begin, larger(add_sizes(dims[axis], -1), 0))
        if not dims_equal(begin, 0) or step not in (1, -1) or not _reaches(end, dims[axis]):
            x = op.strided_slice(x, (begin,), (end,), (abs(step),), axes=(axis,))
    return x


def _last_element(node: OnnxNode, x: Expr, axis: int, extent: Dim) -> Expr:
    """x[-1:] along `axis` with static size 1, so that it broadcasts (not min(extent, 1)); checks for empty axes."""
    node.check_equal(smaller(extent, 1), 1, "the last element")
    return op.take(x, const([-1], "int64"), axis, mode="numpy") if extent != 1 else x


def _reaches(end: Dim, extent: Dim) -> bool:
    """Is a position known to be at or past the end of its axis?"""
    return (isinstance(end, int) and end >= _FAR[0]) or is_at_least(end, extent)


_FAR = (2**31 - 1, 2**63 - 1)
"""Sentinels that exporters write for the end of an axis."""


def _position(node: OnnxNode, index: int, k: int, passed: Dim | None, extent: Dim, backwards: bool) -> Dim:
    """Element `k` of input `index` as a normalised position, static or symbolic.

    For negative steps it is in the reversed axis: position p is extent - 1 - p.
    """
    if backwards and passed is not None:
        passed = min(-1 - passed, _FAR[0]) if isinstance(passed, int) else add_sizes(-1, product((-1, passed)))
    if isinstance(passed, int):
        passed = max(passed, -_FAR[0])
        # Negative positions are non-negative ones in the reversed axis; `extent` is added to the others.
        return min(passed, _FAR[0]) if not backwards or passed >= 0 else larger(add_sizes(extent, passed), 0)
    if passed is not None and is_at_least(passed, 0):
        return passed
    if passed is not None and is_at_least(-1, passed):
        return larger(add_sizes(extent, passed), 0)
    position = op.cast(op.reshape(op.strided_slice(node[index], (k,), (k + 1,), (1,)), ()), "int64")
    position = op.subtract(const(-1, "int64"), position) if backwards else position
    size, zero = op.size_tensor((extent,), ()), const(0, "int64")
    position = op.where(op.less(position, zero), op.add(position, size), position)
    return node.bind(op.minimum(op.maximum(position, zero), size), "a position")[0]


def _slice(
    node: OnnxNode,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Expr:
    """Slice with static positions; steps may be negative."""
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.error(f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes, {len(steps)} steps")
    if 0 in steps:
        raise node.error("a step of 0")
    dims = node.type(0).shape
    ranges: dict[int, range] = {}
    for axis, start, end, step in zip(node.axes(axes, len(dims)), starts, ends, steps, strict=True):
        extent = dims[axis]
        ranges[axis] = _positions(extent if isinstance(extent, int) else node.shape(0)[axis], start, end, step)
    return take_ranges(node[0], {a: r for a, r in ranges.items() if r != range(dims[a])})  # type: ignore[arg-type]


def _positions(size: int, start: int, end: int, step: int) -> range:
    """The positions that a slice selects. Unlike in Python, a start before the first element is clamped to it for
    negative steps too."""
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def take_ranges(x: Expr, ranges: dict[int, range]) -> Expr:
    """Strided slices of `x` at `ranges` of axes."""
    backwards = tuple(axis for axis, r in ranges.items() if r.step < 0 and len(r))
    forwards = {axis: (r[::-1] if axis in backwards else r) for axis, r in ranges.items()}
    if forwards:
        begins = tuple(r.start if len(r) else 0 for r in forwards.values())
        ends = tuple(r[-1] + 1 if len(r) else 0 for r in forwards.values())
        strides = tuple(max(r.step, 1) for r in forwards.values())
        x = op.strided_slice(x, begins, ends, strides, axes=tuple(forwards))
    for axis in backwards:
        x = op.reverse(x, axis=axis)
    return x


@converter("Expand", since=8)
def expand(node: OnnxNode) -> Expr:
    source = node.type(0).shape
    wanted = node.sizes_or_none(1)
    if wanted is None:
        (rank,) = node.static(node[1], "the shape of the shape")
        aligned = [1] * (rank - len(source)) + list(source[max(len(source) - rank, 0) :])
        passed = op.cast(node[1], "int64")
        if any(not isinstance(d, int) or d != 1 for d in aligned):  # a size of 1 keeps that of the input
            passed = op.where(op.equal(passed, const(1, "int64")), op.size_tensor(aligned), passed)
        wanted = node.bind(passed, "the shape")
    try:
        x, shape = node.broadcast(node[0], wanted)
    except TypeInferenceError:
        raise node.error(f"shape {shape_text(source)} does not broadcast with {shape_text(wanted)}") from None
    return x if shapes_equal(shape, x.shape) else op.broadcast_to(x, shape)


@converter("Tile", since=1)
def tile_1(node: OnnxNode) -> Expr:
    """Tile before opset 6, which repeats one axis."""
    count = _whole_number(node, 1, "the number of tiles")
    axis = node.axis(_whole_number(node, 2, "the axis"), node.rank(0))
    if count < 0:
        raise node.error(f"{count} tiles", expected="0 or more")
    return op.tile(node[0], [count if a == axis else 1 for a in range(node.rank(0))])


def _whole_number(node: OnnxNode, index: int, what: str) -> int:
    """Input `index`, an integer of any type: the schema declares the data's type, which may be floating point."""
    value = node.constant(index, what)
    if value.size != 1 or value.item() != value.astype(np.int64).item():
        raise node.error(f"{what} (input {index}) is {value.tolist()}", expected="one whole number")
    return value.astype(np.int64).item()


@converter("Tile", since=6)
def tile(node: OnnxNode) -> Expr:
    reps = node.sizes(1, "the repeats", node.rank(0))
    known = [r for r in reps if isinstance(r, int)]
    if len(reps) != node.rank(0) or min(known, default=0) < 0:
        raise node.error(f"repeats {list(reps)}", expected=f"{node.rank(0)} numbers of 0 or more")
    if len(known) == len(reps) and all(r == 1 for r in known):
        return node[0]
    shape = node.type(0).shape
    repeated = [not (isinstance(r, int) and r == 1) for r in reps]
    if all(isinstance(d, int) for d, several in zip(shape, repeated, strict=True) if several):
        return op.tile(node[0], reps)
    return _laid_side_by_side(node[0], reps, repeated)


def _laid_side_by_side(x: Expr, reps: Sequence[Dim], repeated: Sequence[bool]) -> Expr:
    """Tile by reshape and broadcasting; avoids index arithmetic that divides by symbolic sizes."""
    apart: list[Dim] = []
    grown: list[Dim] = []
    for d, r, several in zip(x.shape, reps, repeated, strict=True):
        apart += [1, d] if several else [d]
        grown += [r, d] if several else [d]
    whole = [product((d, r)) for d, r in zip(x.shape, reps, strict=True)]
    return reshape_to(op.broadcast_to(reshape_to(x, apart), tuple(grown)), whole)


@converter("DepthToSpace", since=1)
def depth_to_space(node: OnnxNode) -> Expr:
    block, mode = node.attr_int("blocksize"), node.attr_choice("mode", ("DCR", "CRD"), "DCR")
    n, c, h, w = _image(node)
    depth = quotient((c,), (block * block,)) if block >= 1 else None
    if depth is None:
        raise node.error(f"{c} channels in blocks of {block}x{block}", expected="a multiple of blocksize squared")
    if mode == "DCR":
        x = reshape_to(node[0], (n, block, block, depth, h, w))
        x = transposed(x, (0, 3, 4, 1, 5, 2))
    else:
        x = reshape_to(node[0], (n, depth, block, block, h, w))
        x = transposed(x, (0, 1, 4, 2, 5, 3))
    return reshape_to(x, (n, depth, product((h, block)), product((w, block))))


@converter("SpaceToDepth", since=1)
def space_to_depth(node: OnnxNode) -> Expr:
    block = node.attr_int("blocksize")
    n, c, h, w = _image(node)
    rows, columns = (quotient((d,), (block,)) if block >= 1 else None for d in (h, w))
    if rows is None or columns is None:
        raise node.error(f"{h}x{w} in blocks of {block}x{block}", expected="a multiple of blocksize")
    mode = node.attr_choice("mode", ("DCR", "CRD"), "DCR")
    x = reshape_to(node[0], (n, c, rows, block, columns, block))
    x = transposed(x, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return reshape_to(x, (n, product((c, block * block)), rows, columns))


def _image(node: OnnxNode) -> tuple[Dim, Dim, Dim, Dim]:
    shape = node.type(0).shape
    if len(shape) != 4:
        raise node.error(f"an input of rank {len(shape)}", expected="rank 4: N, C, H, W")
    n, c, h, w = shape
    return n, c, h, w


@converter("Trilu", since=14)
def trilu(node: OnnxNode) -> Expr:
    """Zeroes one side of the k-th diagonal of the last two axes."""
    if node.rank(0) < 2:
        raise node.error(f"an input of rank {node.rank(0)}", expected="rank 2 or more")
    upper = node.attr_bool("upper", True)
    if node.get(1) is not None and node.known_value(1) is None:
        rows, columns = node.type(0).shape[-2:]
        diagonal = op.add(op.expand_dims(counted(rows), 1), op.cast(op.reshape(node[1], ()), "int64"))
        kept = (op.greater_equal if upper else op.less_equal)(counted(columns), diagonal)
        return op.where(kept, node[0], const(0, node.dtype(0)))
    offset = node.constant_ints(1, "the diagonal") if node.get(1) is not None else (0,)
    reach = sum(d if isinstance(d, int) else 1 << 29 for d in node.type(0).shape[-2:])  # larger offsets are equivalent
    return op.trilu(node[0], min(max(offset[0], -reach), reach), upper)
