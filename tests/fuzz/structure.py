"""Generators for operators that move elements: shapes, indices, padding, resizing."""

from __future__ import annotations

import math

import numpy as np

from tests.fuzz.builder import FLOATS, NAMED, GraphBuilder, Value, operator

__all__: list[str] = []

MOVED = (*FLOATS, "int64", "int32", "uint8", "bool")


def moved(g: GraphBuilder, op: str, x: Value, inputs: list[Value | str | None], shape: list[int] | tuple[int, ...],
          **attributes: object) -> Value:  # fmt: skip
    """A node that gives elements of `x` only."""
    return g.node(op, inputs, x.dtype, shape, x.exact, x.low, x.high, **attributes)


def is_static(g: GraphBuilder, x: Value) -> bool:
    """Does no dimension have a name? Operators with sizes written into the graph need that."""
    return not g.dynamic or NAMED.isdisjoint(x.shape)


def legal_indices(g: GraphBuilder, size: int) -> int:
    """A number of indices that stays legal when a named dimension is smaller."""
    return 1 if g.dynamic and size in NAMED else min(size, 8)


@operator("Reshape")
def reshape(g: GraphBuilder) -> Value:
    x = g.pick(MOVED, 1, smallest=1)
    kept = g.integer(0, x.rank - 1)
    rest = math.prod(x.shape[kept:])
    tail = [rest]
    if is_static(g, x) and g.chance(0.6):
        divisor = g.choice([d for d in range(1, rest + 1) if rest % d == 0])
        tail = [divisor, rest // divisor]
    wanted = [0] * kept + ([-1] if len(tail) == 1 else [g.choice([-1, tail[0]]), tail[1]])
    return moved(g, "Reshape", x, [x, g.constant(wanted, "int64")], [*x.shape[:kept], *tail])


@operator("Flatten")
def flatten(g: GraphBuilder) -> Value:
    x = g.pick(MOVED, 1)
    axis = g.integer(0, x.rank)
    shape = [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])]
    return moved(g, "Flatten", x, [x], shape, axis=axis)


@operator("Transpose")
def transpose(g: GraphBuilder) -> Value:
    x = g.pick(MOVED, 1)
    perm = g.rng.sample(range(x.rank), x.rank)
    return moved(g, "Transpose", x, [x], [x.shape[p] for p in perm], perm=perm)


@operator("Squeeze")
def squeeze(g: GraphBuilder) -> Value:
    x = g.pick(MOVED, 1, where=lambda v: 1 in v.shape)
    axes = [i for i, d in enumerate(x.shape) if d == 1]
    chosen = g.rng.sample(axes, g.integer(1, len(axes)))
    shape = [d for i, d in enumerate(x.shape) if i not in chosen]
    return moved(g, "Squeeze", x, [x, g.constant(chosen, "int64")], shape)


@operator("Unsqueeze")
def unsqueeze(g: GraphBuilder) -> Value:
    x = g.pick(MOVED, 0, 3)
    axis = g.integer(0, x.rank)
    return moved(g, "Unsqueeze", x, [x, g.constant([axis], "int64")], [*x.shape[:axis], 1, *x.shape[axis:]])


@operator("Expand")
def expand(g: GraphBuilder) -> Value:
    x = g.pick(MOVED, where=lambda v: 1 in v.shape or v.rank < 3, smallest=1)
    wanted = [g.integer(2, 3) if d == 1 and g.chance(0.7) else 1 for d in x.shape]
    wanted = [2, *wanted] if x.rank < 3 else wanted
    shape = np.broadcast_shapes(x.shape, wanted)
    return moved(g, "Expand", x, [x, g.constant(wanted, "int64")], shape)


@operator("Tile")
def tile(g: GraphBuilder) -> Value:
    x = g.pick(MOVED, 1, 3)
    times = [g.integer(1, 3) for _ in x.shape]
    return moved(g, "Tile", x, [x, g.constant(times, "int64")], [d * n for d, n in zip(x.shape, times, strict=True)])


@operator("Concat")
def concat(g: GraphBuilder) -> Value:
    x = g.pick(MOVED, 1)
    axis = g.integer(0, x.rank - 1)
    if g.dynamic and x.shape[axis] in NAMED:
        raise LookupError("joining a named dimension")
    others = [g.input(x.dtype, [g.integer(1, 3) if i == axis else d for i, d in enumerate(x.shape)])
              for _ in range(g.integer(1, 2))]  # fmt: skip
    parts = [x, *others]
    g.rng.shuffle(parts)
    shape = [sum(p.shape[axis] for p in parts) if i == axis else d for i, d in enumerate(x.shape)]
    low, high = min(p.low for p in parts), max(p.high for p in parts)
    return g.node("Concat", parts, x.dtype, shape, x.exact, low, high, axis=axis - (x.rank if g.chance(0.3) else 0))


@operator("Split")
def split(g: GraphBuilder) -> Value:
    x = g.pick(MOVED, 1, where=lambda v: max(v.shape, default=0) > 1)
    axis = g.choice([i for i, d in enumerate(x.shape) if d > 1])
    if g.dynamic and x.shape[axis] in NAMED:
        raise LookupError("splitting a named dimension")
    first = g.integer(1, x.shape[axis] - 1)
    sizes = [first, x.shape[axis] - first]
    one, other = ([size if i == axis else d for i, d in enumerate(x.shape)] for size in sizes)
    value = moved(g, "Split", x, [x, g.constant(sizes, "int64")], one, axis=axis, outputs=2)
    return g.also(1, value, x.dtype, other, x.exact, x.low, x.high)


@operator("Slice")
def slice_(g: GraphBuilder) -> Value:
    x = g.pick(MOVED, 1, smallest=1)
    axes = [i for i in g.rng.sample(range(x.rank), g.integer(1, x.rank)) if not (g.dynamic and x.shape[i] in NAMED)]
    if not axes:
        raise LookupError("cutting a named dimension")
    shape, starts, ends, steps = list(x.shape), [], [], []
    for axis in axes:
        start, end, step = g.integer(-7, 7), g.integer(-9, 9), g.choice([1, 1, 2, -1, -2, 3])
        shape[axis] = len(range(*slice(start, end, step).indices(x.shape[axis])))
        starts, ends, steps = [*starts, start], [*ends, end], [*steps, step]
    if 0 in shape and g.chance(0.9):
        raise LookupError("nothing would be left")
    inputs = [x, *[g.constant(v, "int64") for v in (starts, ends, axes, steps)]]
    return moved(g, "Slice", x, inputs, shape)


@operator("Pad")
def pad(g: GraphBuilder) -> Value:
    x = g.pick(("float32", "float64", "int32"), 1, smallest=1)
    mode = g.choice(["constant", "constant", "edge", "reflect", "wrap"])
    top = 2 if mode == "constant" else min(min(x.shape) - 1, 2)
    before, after = ([g.integer(0, max(top, 0)) for _ in x.shape] for _ in range(2))
    named = [g.dynamic and d in NAMED for d in x.shape]
    before, after = ([0 if n else p for n, p in zip(named, side, strict=True)] for side in (before, after))
    inputs: list[Value | str | None] = [x, g.constant([*before, *after], "int64")]
    if mode == "constant" and g.chance(0.5):
        inputs.append(g.constant(1, x.dtype))
    shape = [b + d + a for b, d, a in zip(before, x.shape, after, strict=True)]
    return g.node("Pad", inputs, x.dtype, shape, x.exact, min(x.low, 0), max(x.high, 1), mode=mode)


@operator("Gather")
def gather(g: GraphBuilder) -> Value:
    x = g.pick(MOVED, 1, 3, smallest=1)
    axis = g.integer(0, x.rank - 1)
    size = legal_indices(g, x.shape[axis])
    indices = g.input(g.choice(["int64", "int32"]), g.shape(0, 2), -size, size - 1)
    return moved(g, "Gather", x, [x, indices], [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]], axis=axis)


@operator("GatherElements")
def gather_elements(g: GraphBuilder) -> Value:
    x = g.pick(MOVED, 1, smallest=1)
    axis = g.integer(0, x.rank - 1)
    size = legal_indices(g, x.shape[axis])
    shape = [g.integer(1, 4) if i == axis else d for i, d in enumerate(x.shape)]
    indices = g.input("int64", shape, -size, size - 1)
    return moved(g, "GatherElements", x, [x, indices], shape, axis=axis)


@operator("GatherND")
def gather_nd(g: GraphBuilder) -> Value:
    x = g.pick(MOVED, 1, smallest=1)
    depth = g.integer(1, x.rank)
    lead = g.shape(0, 1)
    columns = [g.numbers.integers(0, legal_indices(g, x.shape[i]), lead) for i in range(depth)]
    indices = g.constant(np.stack(columns, axis=-1), "int64")
    return moved(g, "GatherND", x, [x, indices], [*lead, *x.shape[depth:]])


@operator("ScatterElements")
def scatter_elements(g: GraphBuilder) -> Value:
    x = g.pick(("float32", "int32", "int64"), 1, within=(-100, 100), smallest=1, where=lambda v: is_static(g, v))
    axis = g.integer(0, x.rank - 1)
    count = g.integer(1, x.shape[axis])
    shape = [count if i == axis else d for i, d in enumerate(x.shape)]
    lanes = (*shape[:axis], *shape[axis + 1 :], x.shape[axis])
    places = g.numbers.permuted(np.broadcast_to(np.arange(x.shape[axis]), lanes), axis=-1)
    indices = g.constant(np.moveaxis(places[..., :count], -1, axis), "int64")
    updates = g.input(x.dtype, shape)
    how = g.choice(["none", "add", "mul", "max", "min"])
    bound = x.largest * 2 + 4
    return g.node("ScatterElements", [x, indices, updates], x.dtype, x.shape, x.exact and not x.is_float, -bound, bound,
                  axis=axis, reduction=how)  # fmt: skip


@operator("ScatterND")
def scatter_nd(g: GraphBuilder) -> Value:
    x = g.pick(("float32", "int32"), 1, within=(-100, 100), smallest=1, where=lambda v: is_static(g, v))
    rows = g.rng.sample(range(x.shape[0]), g.integer(1, x.shape[0]))
    updates = g.input(x.dtype, [len(rows), *x.shape[1:]])
    bound = x.largest + 2
    return g.node("ScatterND", [x, g.constant(np.reshape(rows, (-1, 1)), "int64"), updates], x.dtype, x.shape,
                  x.exact and not x.is_float, -bound, bound, reduction=g.choice(["none", "add"]))  # fmt: skip


@operator("Trilu")
def trilu(g: GraphBuilder) -> Value:
    x = g.pick(("float32", "int64"), 2)
    inputs = [x, g.constant(g.integer(-2, 2), "int64")] if g.chance(0.6) else [x]
    return g.node("Trilu", inputs, x.dtype, x.shape, x.exact, min(x.low, 0), max(x.high, 0), upper=g.integer(0, 1))


@operator("OneHot")
def one_hot(g: GraphBuilder) -> Value:
    indices = g.input("int64", g.shape(1, 2), -4, 5)
    axis = g.integer(-1, indices.rank)
    place = indices.rank if axis == -1 else axis
    shape = [*indices.shape[:place], 4, *indices.shape[place:]]
    inputs = [indices, g.constant(4, "int64"), g.constant([-1.0, 2.0], "float32")]
    return g.node("OneHot", inputs, "float32", shape, True, -1, 2, axis=axis)


@operator("TopK")
def top_k(g: GraphBuilder) -> Value:
    x = g.pick(("float32", "float64"), 1, exact=True, smallest=1)
    axis = g.integer(0, x.rank - 1)
    count = g.integer(1, legal_indices(g, x.shape[axis]))
    shape = [count if i == axis else d for i, d in enumerate(x.shape)]
    inputs = [x, g.constant([count], "int64")]
    values = moved(g, "TopK", x, inputs, shape, axis=axis, largest=g.integer(0, 1), outputs=2)
    return g.also(1, values, "int64", shape, False, 0, x.shape[axis])  # the order of equal values is open


@operator("DepthToSpace", "SpaceToDepth")
def depth_space(g: GraphBuilder, name: str) -> Value:
    n, c, h, w = (g.integer(1, 3) for _ in range(4))
    shape = [n, c * 4, h, w] if name == "DepthToSpace" else [n, c, h * 2, w * 2]
    result = [n, c, h * 2, w * 2] if name == "DepthToSpace" else [n, c * 4, h, w]
    x = g.input("float32", shape)
    mode = {"mode": g.choice(["DCR", "CRD"])} if name == "DepthToSpace" else {}
    return moved(g, name, x, [x], result, blocksize=2, **mode)


@operator("ReverseSequence")
def reverse_sequence(g: GraphBuilder) -> Value:
    x = g.input("float32", (g.integer(1, 4), g.integer(1, 4), 3))
    lengths = g.constant([g.integer(1, x.shape[0]) for _ in range(x.shape[1])], "int64")
    return moved(g, "ReverseSequence", x, [x, lengths], x.shape, time_axis=0, batch_axis=1)


@operator("Resize")
def resize(g: GraphBuilder) -> Value:
    x = g.pick(("float32",), 4, 4, smallest=2, where=lambda v: is_static(g, v))
    mode = g.choice(["nearest", "linear", "cubic"])
    sizes = [*x.shape[:2], g.integer(1, 8), g.integer(1, 8)]
    transform = g.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    attributes = {"nearest_mode": g.choice(["floor", "ceil"])} if mode == "nearest" else {}
    if mode == "nearest" and transform != "asymmetric":
        transform = "asymmetric"  # elsewhere positions fall between two elements, and rounding decides
    inputs = [x, None, None, g.constant(sizes, "int64")]
    return g.node("Resize", inputs, "float32", sizes, x.exact and mode == "nearest", -2 * x.largest, 2 * x.largest,
                  mode=mode, coordinate_transformation_mode=transform, **attributes)  # fmt: skip


@operator("Shape", "Size")
def sizes(g: GraphBuilder, name: str) -> Value:
    x = g.pick(MOVED)
    shape = (x.rank,) if name == "Shape" else ()
    return g.node(name, [x], "int64", shape, True, 0, max(x.size, *x.shape, 1))


@operator("Identity")
def identity(g: GraphBuilder) -> Value:
    x = g.pick(MOVED)
    return moved(g, "Identity", x, [x], x.shape)
