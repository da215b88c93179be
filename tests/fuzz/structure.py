"""Generators for data-movement operators: reshape, slice, concat, pad."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import helper

from tests.fuzz.builder import FLOATS, INTEGERS, NUMBERS, GraphBuilder, Modern, Value, operator
from tests.fuzz.dims import Symbolic, broadcast_shapes, is_symbolic
from tests.fuzz.reductions import axes_operand
from tests.fuzz.schemas import NARROW

__all__ = ["MOVED", "moved"]

MOVED = (*FLOATS, *INTEGERS, "bool", *NARROW)


def moved(g: GraphBuilder, op: str, x: Value, inputs: Sequence[Value | str | None], shape: Sequence[int],
          **attributes: object) -> Value:  # fmt: skip
    """A node that gives elements of `x` only."""
    return g.node(op, inputs, x.dtype, shape, x.exact, x.low, x.high, **attributes)


@operator("Reshape", weight=3)
def reshape(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Reshape", MOVED), 1, smallest=1)
    kept = g.integer(0, x.rank - 1)
    rest = math.prod(x.shape[kept:])
    tail = [rest]
    if not is_symbolic(x.shape[kept:]) and g.chance(0.6):
        divisor = g.choice([d for d in range(1, rest + 1) if rest % d == 0])
        tail = [divisor, rest // divisor]
    wanted = [0] * kept + ([-1] if len(tail) == 1 else [g.choice([-1, tail[0]]), tail[1]])
    shape = [*x.shape[:kept], *tail]
    if g.opset < 5:
        return g.node("Reshape", [x], x.dtype, shape, x.exact, x.low, x.high, modern=_with_constant("Reshape", wanted),
                      shape=wanted)  # fmt: skip
    return moved(g, "Reshape", x, [x, g.constant(wanted, "int64")], shape)


def _with_constant(op: str, value: list[int]) -> Modern:
    """The operator with an attribute of old as its second input."""
    return lambda names, out: [
        helper.make_node("Constant", [], ["second"], value_ints=value),
        helper.make_node(op, [names[0], "second"], out),
    ]


@operator("Flatten")
def flatten(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Flatten", MOVED), 1)
    axis = g.integer(-x.rank if g.opset >= 11 else 0, x.rank)
    cut = axis + x.rank if axis < 0 else axis
    return moved(g, "Flatten", x, [x], [math.prod(x.shape[:cut]), math.prod(x.shape[cut:])], axis=axis)


@operator("Transpose", weight=3)
def transpose(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Transpose", MOVED), special=True)
    perm = g.rng.sample(range(x.rank), x.rank)
    if g.chance(0.2) or x.rank == 0:
        return moved(g, "Transpose", x, [x], x.shape[::-1])
    return moved(g, "Transpose", x, [x], [x.shape[p] for p in perm], perm=perm)


@operator("Squeeze")
def squeeze(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Squeeze", MOVED), 1,
               where=lambda v: any(not isinstance(d, Symbolic) and d == 1 for d in v.shape))  # fmt: skip
    axes = [i for i, d in enumerate(x.shape) if d == 1 and not isinstance(d, Symbolic)]
    if x.is_static and g.chance(0.2):
        return moved(g, "Squeeze", x, [x], [d for d in x.shape if d != 1])
    chosen = g.rng.sample(axes, g.integer(1, len(axes)))
    shape = [d for i, d in enumerate(x.shape) if i not in chosen]
    more, attributes = axes_operand(g, "Squeeze", chosen)
    return moved(g, "Squeeze", x, [x, *more], shape, **attributes)


@operator("Unsqueeze")
def unsqueeze(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Unsqueeze", MOVED), 0, 3)
    count = g.integer(1, 2)
    axes = sorted(g.rng.sample(range(x.rank + count), count))
    shape, old = [], iter(x.shape)
    for i in range(x.rank + count):
        shape.append(1 if i in axes else next(old))
    signed = [a - len(shape) if g.opset >= 11 and g.chance(0.3) else a for a in axes]
    more, attributes = axes_operand(g, "Unsqueeze", signed)
    return moved(g, "Unsqueeze", x, [x, *more], shape, **attributes)


@operator("Expand", weight=2)
def expand(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Expand", (*NUMBERS, "bool")), 0, 4, smallest=1, where=lambda v: 1 in v.shape or v.rank < 3)
    wanted = [g.integer(2, 3) if d == 1 and not isinstance(d, Symbolic) and g.chance(0.7) else 1 for d in x.shape]
    wanted = [2, *wanted] if x.rank < 3 else wanted
    return moved(g, "Expand", x, [x, g.constant(wanted, "int64")], broadcast_shapes(x.shape, wanted))


@operator("Tile")
def tile(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Tile", (*NUMBERS, "bool")), 1, 3)
    if g.opset < 6:
        axis, count = g.integer(0, x.rank - 1), g.integer(1, 3)
        along = [count if i == axis else 1 for i in range(x.rank)]
        inputs = [x, g.constant(count, x.dtype), g.constant(axis, x.dtype)]
        shape = [d * n for d, n in zip(x.shape, along, strict=True)]
        return moved(g, "Tile", x, inputs, shape, modern=_with_constant("Tile", along))
    times = [g.integer(0 if g.chance(0.05) else 1, 3) for _ in x.shape]
    return moved(g, "Tile", x, [x, g.constant(times, "int64")], [d * n for d, n in zip(x.shape, times, strict=True)])


@operator("Concat", weight=2)
def concat(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Concat", (*NUMBERS, "bool")), 1, special=True)
    axis = g.integer(0, x.rank - 1)
    shapes = [[g.integer(0 if g.chance(0.1) else 1, 3) if i == axis else d for i, d in enumerate(x.shape)]
              for _ in range(g.integer(0, 3))]  # fmt: skip
    others = [g.input(x.dtype, shape) for shape in shapes]
    parts = [x, *others, *([x] if g.chance(0.2) else [])]
    g.rng.shuffle(parts)
    shape = [sum([p.shape[axis] for p in parts]) if i == axis else d for i, d in enumerate(x.shape)]
    low, high = min(p.low for p in parts), max(p.high for p in parts)
    signed = axis - (x.rank if g.opset >= 11 and g.chance(0.3) else 0)
    return g.node("Concat", parts, x.dtype, shape, x.exact, low, high, axis=signed)


@operator("Split", weight=2)
def split(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Split", (*NUMBERS, "bool")), 1, where=lambda v: _divisible(v.shape))
    axis = g.choice([i for i, d in enumerate(x.shape) if _divisible([d])])
    size = x.shape[axis]
    counts = [g.integer(1, size - 1)]
    counts.append(size - counts[0])
    how: dict[str, object] = {}
    inputs: list[Value | str | None] = [x]
    if size % 2 == 0 and g.chance(0.4):
        counts = [size // 2] * 2
        how = {"num_outputs": 2} if g.has("Split", "num_outputs") else {}
    elif g.has("Split", "split"):
        how = {"split": counts}
    else:
        inputs.append(g.constant(counts, "int64"))
    one, other = ([c if i == axis else d for i, d in enumerate(x.shape)] for c in counts)
    value = moved(g, "Split", x, inputs, one, axis=axis, outputs=2, **how)
    return g.also(1, value, x.dtype, other, x.exact, x.low, x.high) if value.name == g.nodes[-1].output[0] else value


def _divisible(shape: Sequence[int]) -> bool:
    return any(not isinstance(d, Symbolic) and d > 1 for d in shape)


@operator("Slice", weight=4)
def slice_(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Slice", (*NUMBERS, "bool")), 1, smallest=1)
    axes = [i for i in g.rng.sample(range(x.rank), g.integer(1, x.rank)) if not isinstance(x.shape[i], Symbolic)]
    if not axes:
        raise LookupError("cutting a named dimension")
    shape, starts, ends, steps = list(x.shape), [], [], []
    for axis in axes:
        step = g.choice([1, 1, 2, -1, -2, 3]) if g.opset >= 10 else 1
        far = 2**31 - 1 if step > 0 else -(2**31)  # the other way onnxruntime takes it for no end at all
        start, end = g.integer(-7, 7), g.choice([g.integer(-9, 9), far])
        if step < 0 and start < -x.shape[axis]:
            start = -x.shape[axis]  # here ONNX and Python differ
        shape[axis] = len(range(*slice(start, end, step).indices(x.shape[axis])))
        starts, ends, steps = [*starts, start], [*ends, end], [*steps, step]
    if 0 in shape and g.chance(0.9):
        raise LookupError("nothing would be left")
    if g.opset < 10:
        return moved(g, "Slice", x, [x], shape, starts=starts, ends=ends, axes=axes)
    kind = g.choice(["int64", "int32"])
    inputs = [x, *[g.constant(v, kind) for v in (starts, ends, axes, steps)]]
    return moved(g, "Slice", x, inputs, shape)


@operator("Pad", weight=2)
def pad(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Pad"), 1, 4, smallest=1)
    modes = ["constant", "constant", "edge", "reflect", *(["wrap"] if g.opset >= 19 else [])]
    mode = g.choice(modes)
    top = 2 if mode == "constant" else min(min(x.shape) - 1, 2)
    before, after = ([g.integer(0, max(top, 0)) for _ in x.shape] for _ in range(2))
    before, after = (
        [0 if isinstance(d, Symbolic) else p for d, p in zip(x.shape, side, strict=True)] for side in (before, after)
    )
    if mode == "constant" and g.chance(0.15):
        before = [-1 if d > 2 and not isinstance(d, Symbolic) else p for d, p in zip(x.shape, before, strict=True)]
    fill = mode == "constant" and g.chance(0.5)
    shape = [b + d + a for b, d, a in zip(before, x.shape, after, strict=True)]
    low, high = min(x.low, 0), max(x.high, 1)
    if g.opset < 11:
        if not x.is_float:
            raise LookupError("only for floating point")
        value = {"value": 1.0} if fill else {}
        pads = {"pads" if g.has("Pad", "pads") else "paddings": [*before, *after]}
        return g.node("Pad", [x], x.dtype, shape, x.exact, low, high, mode=mode, **pads, **value)
    cuts = min([*before, *after], default=0) < 0  # only pads known when compiling may be negative
    inputs: list[Value | str | None] = [x, g.constant([*before, *after], "int64", fixed=cuts)]
    if fill:
        inputs.append(g.constant(1, x.dtype))
    return g.node("Pad", inputs, x.dtype, shape, x.exact, low, high, mode=mode)


@operator("CenterCropPad")
def center_crop_pad(g: GraphBuilder) -> Value:
    x = g.pick(g.types("CenterCropPad"), 1, 4, smallest=1, where=lambda v: v.is_static)
    axis = g.integer(0, x.rank - 1)
    wanted = g.integer(1, 7)
    shape = [wanted if i == axis else d for i, d in enumerate(x.shape)]
    inputs = [x, g.constant([wanted], "int64")]
    return g.node("CenterCropPad", inputs, x.dtype, shape, x.exact, min(x.low, 0), max(x.high, 0), axes=[axis])


@operator("Trilu")
def trilu(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Trilu", (*NUMBERS, "bool")), 2)
    inputs = [x, g.constant(g.integer(-2, 2), "int64")] if g.chance(0.6) else [x]
    return g.node("Trilu", inputs, x.dtype, x.shape, x.exact, min(x.low, 0), max(x.high, 0), upper=g.integer(0, 1))


@operator("DepthToSpace", "SpaceToDepth")
def depth_space(g: GraphBuilder, name: str) -> Value:
    n = Symbolic.named("batch") if g.dynamic else g.integer(1, 3)
    c, h, w = (g.integer(1, 3) for _ in range(3))
    shape = [n, c * 4, h, w] if name == "DepthToSpace" else [n, c, h * 2, w * 2]
    result = [n, c, h * 2, w * 2] if name == "DepthToSpace" else [n, c * 4, h, w]
    x = g.input(g.choice(g.types(name, ("float32", "float64", "float16", "int32"))), shape)
    mode = {"mode": g.choice(["DCR", "CRD"])} if g.has(name, "mode") else {}
    return moved(g, name, x, [x], result, blocksize=2, **mode)


@operator("ReverseSequence")
def reverse_sequence(g: GraphBuilder) -> Value:
    x = g.input(g.choice(("float32", "int32", "float16", "bool")), (g.integer(1, 4), g.integer(1, 4), 3))
    lengths = g.constant([g.integer(1, x.shape[0]) for _ in range(x.shape[1])], "int64")
    return moved(g, "ReverseSequence", x, [x, lengths], x.shape, time_axis=0, batch_axis=1)


@operator("Shape", "Size")
def sizes(g: GraphBuilder, name: str) -> Value:
    x = g.pick(g.types(name, (*NUMBERS, "bool")))
    shape: tuple[int, ...] = (x.rank,) if name == "Shape" else ()
    attributes = {}
    if name == "Shape" and g.opset >= 15 and g.chance(0.4):
        start, end = g.integer(-x.rank, x.rank), g.integer(-x.rank, x.rank)
        attributes = {"start": start, "end": end}
        shape = (len(range(x.rank)[start:end]),)
    return g.node(name, [x], "int64", shape, True, 0, max(x.size, *x.shape, 1), **attributes)


@operator("EyeLike")
def eye_like(g: GraphBuilder) -> Value:
    x = g.pick(("float32", "int32", "float64"), 2, 2)
    return g.node("EyeLike", [x], x.dtype, x.shape, True, 0, 1, k=g.integer(-1, 1))


@operator("ConstantOfShape")
def constant_of_shape(g: GraphBuilder) -> Value:
    shape = g.shape(0, 3, smallest=0)
    if is_symbolic(shape):
        raise LookupError("a constant has no symbolic dimensions")
    return g.node("ConstantOfShape", [g.constant(list(shape), "int64")], "float32", shape, True, 0, 0)


@operator("Range")
def range_(g: GraphBuilder) -> Value:
    start, limit, delta = g.integer(-3, 3), g.integer(4, 9), g.integer(1, 3)
    if g.chance(0.3):
        start, limit, delta = limit, start, -delta
    kind = g.choice(["int64", "int32", "int16", "float32", "float64"])
    inputs = [g.constant(v, kind) for v in (start, limit, delta)]
    return g.node("Range", inputs, kind, (len(np.arange(start, limit, delta)),), True, -3, 9)
