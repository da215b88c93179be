"""Generators for operators that work element by element, and for reductions over axes."""

from __future__ import annotations

import math

import numpy as np
from onnx import helper

from tests.fuzz.builder import FLOATS, INTEGERS, NAMED, GraphBuilder, Value, operator

__all__: list[str] = []

SIGNED = tuple(d for d in INTEGERS if not d.startswith("u"))
WIDE = ("int64", "int32")
NUMBERS = (*FLOATS, *WIDE)
ANY = (*FLOATS, *INTEGERS, "bool")

# operator: the interval that the input must lie in, and one that the output then lies in
_UNARY: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "Exp": ((-6, 6), (0, 404)), "Log": ((0.05, 900), (-3, 7)), "Sqrt": ((0, 900), (0, 30)), "Sin": ((-50, 50), (-1, 1)),
    "Cos": ((-50, 50), (-1, 1)), "Tan": ((-1.2, 1.2), (-3, 3)), "Asin": ((-0.9, 0.9), (-2, 2)),
    "Acos": ((-0.9, 0.9), (0, 3)), "Atan": ((-900, 900), (-2, 2)), "Sinh": ((-4, 4), (-28, 28)),
    "Cosh": ((-4, 4), (1, 28)), "Tanh": ((-900, 900), (-1, 1)), "Asinh": ((-900, 900), (-8, 8)),
    "Acosh": ((1.1, 900), (0, 8)), "Atanh": ((-0.9, 0.9), (-2, 2)), "Erf": ((-900, 900), (-1, 1)),
    "Sigmoid": ((-900, 900), (0, 1)), "Softsign": ((-900, 900), (-1, 1)), "Softplus": ((-900, 80), (0, 81)),
    "Reciprocal": ((0.2, 900), (0, 5)), "HardSigmoid": ((-900, 900), (0, 1)), "Mish": ((-900, 80), (-1, 80)),
    "Gelu": ((-900, 80), (-1, 80)), "HardSwish": ((-900, 80), (-1, 80)), "Selu": ((-900, 80), (-2, 90)),
    "Elu": ((-900, 80), (-1, 80)), "Celu": ((-900, 80), (-1, 80)), "LeakyRelu": ((-900, 900), (-10, 900)),
    "ThresholdedRelu": ((-900, 900), (0, 900)),
}  # fmt: skip
_EXACT_ONLY = frozenset({"ThresholdedRelu"})
_FLOAT32_ONLY = frozenset({"Celu"})


@operator(*_UNARY)
def unary(g: GraphBuilder, name: str) -> Value:
    domain, bounds = _UNARY[name]
    dtypes = ("float32",) if name in _FLOAT32_ONLY else FLOATS
    x = g.pick(dtypes, exact=name in _EXACT_ONLY, within=domain)
    attributes = {}
    if name in ("LeakyRelu", "Elu", "Celu") and g.chance(0.5):
        attributes["alpha"] = g.choice([0.01, 0.5, 1.0])
    if name == "Gelu" and x.dtype == "float32" and g.chance(0.5):  # onnxruntime's float64 has float32 constants
        attributes["approximate"] = "tanh"
    return g.node(name, [x], x.dtype, x.shape, False, *bounds, **attributes)


@operator("Abs", "Neg", "Relu", "Sign", "Floor", "Ceil", "Round")
def exact_unary(g: GraphBuilder, name: str) -> Value:
    jumps = name in ("Sign", "Floor", "Ceil", "Round")
    dtypes = FLOATS if name in ("Floor", "Ceil", "Round") else (*FLOATS, *(SIGNED if name != "Relu" else ()))
    x = g.pick(dtypes, exact=jumps, within=(-100, 100))
    bounds = {
        "Abs": (0.0, x.largest), "Neg": (-x.high, -x.low), "Relu": (0.0, max(x.high, 0.0)), "Sign": (-1.0, 1.0),
    }.get(name, (math.floor(x.low), math.ceil(x.high)))  # fmt: skip
    return g.node(name, [x], x.dtype, x.shape, x.exact, *bounds)


@operator("IsNaN", "IsInf")
def classify(g: GraphBuilder, name: str) -> Value:
    x = g.pick(("float32", "float64"))
    return g.node(name, [x], "bool", x.shape, True, 0, 1)


@operator("Not")
def logical_not(g: GraphBuilder) -> Value:
    x = g.pick(("bool",))
    return g.node("Not", [x], "bool", x.shape, True, 0, 1)


@operator("BitwiseNot")
def bitwise_not(g: GraphBuilder) -> Value:
    x = g.pick(SIGNED)
    return g.node("BitwiseNot", [x], x.dtype, x.shape, True, -x.high - 1, -x.low - 1)


def partner(g: GraphBuilder, x: Value, dtype: str | None = None, low: float = -2.0, high: float = 2.0) -> Value:
    """A value that broadcasts with `x`: of its shape, or with dimensions left out or one, a constant or an input."""
    shape = list(x.shape)
    if g.chance(0.5):
        shape = [1 if g.chance(0.4) else d for d in shape]
        shape = shape[g.integer(0, len(shape)) :] if g.chance(0.3) else shape
    same = [v for v in g.values if v.shape == tuple(shape) and v.dtype == (dtype or x.dtype)]
    same = [v for v in same if v is not x and low * 50 <= v.low and v.high <= high * 50 and (low < 0 or v.low >= low)]
    if same and g.chance(0.5):
        return g.choice(same)
    static = not g.dynamic or NAMED.isdisjoint(shape)
    make = g.weight if g.chance(0.4) and static else g.input
    return make(dtype or x.dtype, shape, low, high)


def broadcast(x: Value, y: Value) -> tuple[int, ...]:
    return np.broadcast_shapes(x.shape, y.shape)


@operator("Add", "Sub", "Mul", "Div", "PRelu")
def arithmetic(g: GraphBuilder, name: str) -> Value:
    dtypes = FLOATS if name in ("Div", "PRelu") else NUMBERS
    x = g.pick(dtypes, within=(-200, 200))
    y = partner(g, x, low=0.5, high=3.0) if name == "Div" else partner(g, x)
    if name == "PRelu" and (y.rank > x.rank or broadcast(x, y) != x.shape):
        y = g.weight(x.dtype, x.shape[-1:])
    integer = not x.is_float
    if name in ("Add", "Sub"):
        low, high = (x.low + y.low, x.high + y.high) if name == "Add" else (x.low - y.high, x.high - y.low)
    elif name == "Div":
        low, high = -x.largest / 0.5, x.largest / 0.5
    else:
        bound = x.largest * max(y.largest, 1.0)
        low, high = -bound, bound
    if integer and max(abs(low), abs(high)) > 1e6:
        raise LookupError("integers would overflow")
    inputs = [y, x] if name in ("Add", "Mul") and g.chance(0.3) else [x, y]
    return g.node(name, inputs, x.dtype, broadcast(x, y), integer and x.exact and y.exact, low, high)


@operator("Pow")
def power(g: GraphBuilder) -> Value:
    x = g.pick(("float32", "float64"), within=(0.1, 5))
    y = g.weight(x.dtype, x.shape[-1:] if g.chance(0.5) else (), -2, 2)
    return g.node("Pow", [x, y], x.dtype, broadcast(x, y), False, 0, max(x.high, 10.0) ** 2)


@operator("Mod")
def modulo(g: GraphBuilder) -> Value:
    x = g.pick(WIDE)
    y = g.input(x.dtype, x.shape, 1, 7)
    return g.node("Mod", [x, y], x.dtype, x.shape, True, 0, 7, **({"fmod": 1} if g.chance(0.3) else {}))


@operator("Max", "Min", "Sum", "Mean")
def variadic(g: GraphBuilder, name: str) -> Value:
    exact = name in ("Max", "Min")
    x = g.pick(NUMBERS if exact else FLOATS, within=(-100, 100))
    others = [partner(g, x) for _ in range(g.integer(0, 2))]
    inputs = [x, *others]
    shape = np.broadcast_shapes(*[v.shape for v in inputs])
    bound = sum(v.largest for v in inputs)
    return g.node(name, inputs, x.dtype, shape, exact and all(v.exact for v in inputs), -bound, bound)


@operator("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal")
def compare(g: GraphBuilder, name: str) -> Value:
    x = g.pick(("float32", "float64", *WIDE), exact=True)
    y = g.input(x.dtype, x.shape[g.integer(0, x.rank) :])
    return g.node(name, [x, y], "bool", broadcast(x, y), True, 0, 1)


@operator("And", "Or", "Xor")
def logical(g: GraphBuilder, name: str) -> Value:
    x = g.pick(("bool",))
    y = partner(g, x)
    return g.node(name, [x, y], "bool", broadcast(x, y), True, 0, 1)


@operator("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(g: GraphBuilder, name: str) -> Value:
    x = g.pick(INTEGERS, exact=True, within=(-128, 127))
    y = partner(g, x)
    low = 0.0 if x.dtype.startswith("u") else -256.0
    return g.node(name, [x, y], x.dtype, broadcast(x, y), y.exact, low, 255)


@operator("BitShift")
def bit_shift(g: GraphBuilder) -> Value:
    x = g.pick(("uint8", "uint32", "uint64"), within=(0, 31))
    y = g.input(x.dtype, x.shape, 0, 3)
    return g.node("BitShift", [x, y], x.dtype, x.shape, True, 0, 255, direction=g.choice(["LEFT", "RIGHT"]))


@operator("Where")
def where(g: GraphBuilder) -> Value:
    x = g.pick((*NUMBERS, "bool", "uint8"))
    y = partner(g, x)
    condition = partner(g, x, "bool")
    shape = np.broadcast_shapes(x.shape, y.shape, condition.shape)
    low, high = min(x.low, y.low), max(x.high, y.high)
    return g.node("Where", [condition, x, y], x.dtype, shape, x.exact and y.exact, low, high)


@operator("Clip")
def clip(g: GraphBuilder) -> Value:
    x = g.pick(NUMBERS)
    low = g.constant(-1, x.dtype) if g.chance(0.8) else None
    high = g.constant(2, x.dtype) if g.chance(0.8) else None
    inputs = [x, low, high] if high is not None else [x, low] if low is not None else [x]
    bottom = max(x.low, -1.0) if low else x.low
    top = min(x.high, 2.0) if high else x.high
    return g.node("Clip", inputs, x.dtype, x.shape, x.exact, min(bottom, 2.0), max(top, -1.0))


@operator("Cast")
def cast(g: GraphBuilder) -> Value:
    to = g.choice(ANY)
    jumps = to in INTEGERS or to == "bool"
    limits = (0.0, 120.0) if to.startswith("uint") else (-120.0, 120.0)
    x = g.pick(ANY, exact=jumps, within=limits if jumps else (-900, 900))
    narrows = to in FLOATS and x.is_float and np.dtype(to).itemsize < np.dtype(x.dtype).itemsize
    low, high = (0.0, 1.0) if to == "bool" else (x.low, x.high)
    kind = int(helper.np_dtype_to_tensor_dtype(np.dtype(to)))
    return g.node("Cast", [x], to, x.shape, x.exact and not narrows, low, high, to=kind)


_REDUCE = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
           "ReduceLogSumExp")  # fmt: skip


@operator(*_REDUCE)
def reduction(g: GraphBuilder, name: str) -> Value:
    exact = name in ("ReduceMax", "ReduceMin")
    limits = (-20, 20) if name != "ReduceProd" else (-2, 2)
    integers = WIDE if name in ("ReduceSum", "ReduceMax", "ReduceMin") else ()
    x = g.pick(("float32", "float64", *integers), within=limits, smallest=1)
    axes = sorted(g.rng.sample(range(x.rank), g.integer(0, x.rank)))
    keep = g.integer(0, 1)
    inputs = [x, g.constant([a - x.rank if g.chance(0.3) else a for a in axes], "int64")] if axes else [x]
    reduced = axes or list(range(x.rank))
    shape = [1 if i in reduced else d for i, d in enumerate(x.shape) if keep or i not in reduced]
    count = math.prod(x.shape[i] for i in reduced)
    bound = {
        "ReduceProd": max(x.largest, 1.0) ** min(count, 400), "ReduceLogSumExp": x.largest + math.log(max(count, 1)),
        "ReduceSumSquare": x.largest**2 * count,
    }.get(name, x.largest * count)  # fmt: skip
    if bound > 1e6:
        raise LookupError("values would become too large")
    return g.node(name, inputs, x.dtype, shape, x.exact and (exact or not x.is_float), -bound, bound, keepdims=keep)


@operator("ArgMax", "ArgMin")
def arg_reduction(g: GraphBuilder, name: str) -> Value:
    x = g.pick(("float32", "int32"), 1, exact=True, smallest=1)
    axis, keep = g.integer(-x.rank, x.rank - 1), g.integer(0, 1)
    shape = [1 if i == axis % x.rank else d for i, d in enumerate(x.shape) if keep or i != axis % x.rank]
    last = g.integer(0, 1)
    return g.node(name, [x], "int64", shape, True, 0, max(x.shape), axis=axis, keepdims=keep, select_last_index=last)


@operator("CumSum")
def cumulative_sum(g: GraphBuilder) -> Value:
    x = g.pick(("float32", "float64", "int32"), 1, within=(-50, 50), smallest=1)
    axis = g.constant(g.integer(-x.rank, x.rank - 1), "int64")
    bound = x.largest * max(x.shape)
    return g.node("CumSum", [x, axis], x.dtype, x.shape, not x.is_float and x.exact, -bound, bound,
                  exclusive=g.integer(0, 1), reverse=g.integer(0, 1))  # fmt: skip


@operator("Softmax", "LogSoftmax", "Hardmax")
def softmax(g: GraphBuilder, name: str) -> Value:
    x = g.pick(("float32", "float64"), 1, exact=name == "Hardmax", within=(-50, 50), smallest=1)
    low, high = (-2 * x.largest - 10, 0.0) if name == "LogSoftmax" else (0.0, 1.0)
    return g.node(name, [x], x.dtype, x.shape, name == "Hardmax", low, high, axis=g.integer(-x.rank, x.rank - 1))
