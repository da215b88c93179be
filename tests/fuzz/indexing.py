"""Generators for operators that pick and place elements by index, sort, and search."""

from __future__ import annotations

import numpy as np

from tests.fuzz.builder import NUMBERS, GraphBuilder, Value, operator
from tests.fuzz.dims import Symbolic
from tests.fuzz.structure import moved

__all__: list[str] = []

ANY = (*NUMBERS, "bool")


def legal_indices(size: int) -> int:
    """A number of indices that stays legal when a symbolic dimension is smaller."""
    return 1 if isinstance(size, Symbolic) else min(size, 8)


@operator("Gather", weight=2)
def gather(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Gather", ANY), 1, 3, smallest=1)
    axis = g.integer(0, x.rank - 1)
    size = legal_indices(x.shape[axis])
    indices = g.input(g.choice(["int64", "int32"]), g.shape(0, 2, 0), -size if g.opset >= 11 else 0, size - 1)
    shape = [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]
    return moved(g, "Gather", x, [x, indices], shape, axis=axis)


@operator("GatherElements")
def gather_elements(g: GraphBuilder) -> Value:
    x = g.pick(g.types("GatherElements", ANY), 1, smallest=1)
    axis = g.integer(0, x.rank - 1)
    size = legal_indices(x.shape[axis])
    shape = [g.integer(1, 4) if i == axis else d for i, d in enumerate(x.shape)]
    indices = g.input(g.choice(["int64", "int32"]), shape, -size, size - 1)
    return moved(g, "GatherElements", x, [x, indices], shape, axis=axis)


@operator("GatherND")
def gather_nd(g: GraphBuilder) -> Value:
    x = g.pick(g.types("GatherND", ANY), 1, smallest=1)
    batch = 1 if g.opset >= 12 and x.rank > 1 and not isinstance(x.shape[0], Symbolic) and g.chance(0.3) else 0
    depth = g.integer(1, x.rank - batch)
    lead = [*x.shape[:batch], *[g.integer(1, 4) for _ in range(g.integer(0, 1))]]
    columns = [g.numbers.integers(0, legal_indices(x.shape[batch + i]), lead) for i in range(depth)]
    indices = g.constant(np.stack(columns, axis=-1), "int64")
    attributes = {"batch_dims": batch} if batch else {}
    return moved(g, "GatherND", x, [x, indices], [*lead, *x.shape[batch + depth :]], **attributes)


def _distinct_places(g: GraphBuilder, shape: tuple[int, ...], axis: int, count: int) -> np.ndarray:
    """Indices along an axis, no two of a lane the same."""
    kept = [*shape[:axis], count, *shape[axis + 1 :]]
    lanes = (*kept[:axis], *kept[axis + 1 :], shape[axis])
    places = g.numbers.permuted(np.broadcast_to(np.arange(shape[axis]), lanes), axis=-1)
    return np.moveaxis(places[..., :count], -1, axis)


@operator("ScatterElements", "Scatter", weight=2)
def scatter_elements(g: GraphBuilder, name: str) -> Value:
    x = g.pick(g.types(name), 1, within=(-20, 20), smallest=1, where=lambda v: v.is_static)
    axis = g.integer(0, x.rank - 1)
    places = _distinct_places(g, x.shape, axis, g.integer(1, x.shape[axis]))
    updates = g.input(x.dtype, places.shape)
    reductions = ["none"]
    if g.has(name, "reduction"):
        reductions += ["add", "mul", *(["max", "min"] if g.opset >= 18 else [])]
    how = g.choice(reductions)
    attributes = {"reduction": how} if how != "none" else {}
    bound = x.largest * 2 + 4
    exact = x.exact and (how == "none" or not x.is_float)
    return g.node(name, [x, g.constant(places, "int64"), updates], x.dtype, x.shape, exact, -bound, bound, axis=axis,
                  **attributes)  # fmt: skip


@operator("ScatterND")
def scatter_nd(g: GraphBuilder) -> Value:
    x = g.pick(g.types("ScatterND"), 1, within=(-20, 20), smallest=1, where=lambda v: v.is_static)
    rows = g.rng.sample(range(x.shape[0]), g.integer(1, x.shape[0]))
    updates = g.input(x.dtype, [len(rows), *x.shape[1:]])
    how = g.choice(["none", "add", "mul"]) if g.opset >= 16 else "none"
    attributes = {"reduction": how} if how != "none" else {}
    bound = x.largest * 2 + 2
    exact = x.exact and (how == "none" or not x.is_float)
    inputs = [x, g.constant(np.reshape(rows, (-1, 1)), "int64"), updates]
    return g.node("ScatterND", inputs, x.dtype, x.shape, exact, -bound, bound, **attributes)


@operator("TensorScatter")
def tensor_scatter(g: GraphBuilder) -> Value:
    batch, size = g.integer(1, 3), g.integer(3, 6)
    count = g.integer(1, 3)
    cache = g.input("float32", (batch, 2, size, 3))
    update = g.input("float32", (batch, 2, count, 3))
    circular = g.chance(0.4)
    starts = g.constant([g.integer(0, size - 1 if circular else size - count) for _ in range(batch)], "int64")
    mode = {"mode": "circular"} if circular else {}
    return g.node("TensorScatter", [cache, update, starts], "float32", cache.shape, True, -2, 2, **mode)


@operator("OneHot")
def one_hot(g: GraphBuilder) -> Value:
    indices = g.input(g.choice(["int64", "int32"]), g.shape(1, 2), 0 if g.opset < 11 else -4, 3)
    axis = g.integer(-1, indices.rank)
    place = indices.rank if axis == -1 else axis
    shape = [*indices.shape[:place], 4, *indices.shape[place:]]
    kind = g.choice(["float32", "int64", "int32"])
    inputs = [indices, g.constant([4] if g.chance(0.3) else 4, "int64"), g.constant([0, 2], kind)]
    return g.node("OneHot", inputs, kind, shape, True, 0, 2, axis=axis)


@operator("TopK", weight=2)
def top_k(g: GraphBuilder) -> Value:
    x = g.pick(g.types("TopK", ("float32", "float64", "int32", "int64", "float16")), 1, exact=True, smallest=1)
    axis = g.integer(0, x.rank - 1)
    count = g.integer(1, legal_indices(x.shape[axis]))
    shape = [count if i == axis else d for i, d in enumerate(x.shape)]
    largest = {"largest": g.integer(0, 1)} if g.has("TopK", "largest") else {}
    inputs: list[Value | str | None] = [x]
    if g.opset < 10:
        largest = {"k": count}
    else:
        inputs.append(g.constant([count], "int64"))
    return moved(g, "TopK", x, inputs, shape, axis=axis, outputs=2, **largest)  # the order of equal values is open


@operator("NonZero")
def non_zero(g: GraphBuilder) -> Value:
    x = g.pick(g.types("NonZero", ("float32", "int32", "int64", "bool", "uint8")), 1, 3, exact=True)
    return _counted(g, g.node("NonZero", [x], "int64", (x.rank, 3), True, 0, 11))


def _counted(g: GraphBuilder, value: Value) -> Value:
    """Sums over a tensor of data-dependent size, to get static shapes again."""
    g.values.remove(value)
    inputs = [value.name] if g.opset < 13 else [value.name, g.constant([1], "int64")]
    axes = {"axes": [1]} if g.opset < 13 else {}
    return g.node("ReduceSum", inputs, value.dtype, value.shape[:1], True, 0, 100, keepdims=0, **axes)


@operator("Compress")
def compress(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Compress", ("float32", "int64", "bool", "float16")), 1, 3, smallest=1)
    axis = g.integer(0, x.rank - 1)
    if isinstance(x.shape[axis], Symbolic):
        raise LookupError("picking of a named dimension")
    wanted = [True, *[g.chance(0.5) for _ in range(x.shape[axis] - 1)]]
    shape = [sum(wanted) if i == axis else d for i, d in enumerate(x.shape)]
    return moved(g, "Compress", x, [x, g.constant(wanted, "bool")], shape, axis=axis)


@operator("Unique")
def unique(g: GraphBuilder) -> Value:
    x = g.input(g.choice(["float32", "int64", "int8"]), g.shape(1, 2), 0, 3)
    if x.is_float:
        x = g.node("Floor", [x], x.dtype, x.shape, True, 0, 3)
    value = g.node("Unique", [x], x.dtype, (1,), True, 0, 3, outputs=4, sorted=1)
    inverse, counts = g.nodes[-1].output[2:]
    g.values.remove(value)
    for tensor in (inverse, counts):
        g.dtypes[tensor] = "int64"
    g.dtypes[g.nodes[-1].output[1]] = "int64"
    return g.node("Gather", [value, inverse], x.dtype, (x.shape[0] * (x.shape[1] if x.rank > 1 else 1),), True, 0, 3)
