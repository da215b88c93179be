"""Generators for elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, helper

from tests.fuzz.builder import FLOATS, INTEGERS, NUMBERS, GraphBuilder, Value, operator
from tests.fuzz.dims import broadcast_shapes, is_symbolic, rival
from tests.fuzz.schemas import NARROW, as_dtype, kind_of

__all__ = ["broadcast", "partner"]

SIGNED = tuple(d for d in INTEGERS if not d.startswith("u"))
ANY = (*NUMBERS, "bool")
WIDEST = 4
"""The highest rank of broadcasting with more than one partner."""

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
    "ThresholdedRelu": ((-900, 900), (0, 900)), "Swish": ((-900, 80), (-1, 80)), "Shrink": ((-900, 900), (-900, 900)),
}  # fmt: skip
_EXACT_ONLY = frozenset({"ThresholdedRelu", "Shrink"})


@operator(*_UNARY)
def unary(g: GraphBuilder, name: str) -> Value:
    domain, bounds = _UNARY[name]
    x = g.pick(g.types(name, FLOATS), exact=name in _EXACT_ONLY, within=domain)
    attributes = {}
    if name in ("LeakyRelu", "Elu", "Celu", "Swish", "ThresholdedRelu") and g.chance(0.5):
        attributes["alpha"] = g.choice([0.01, 0.5, 1.0])
    if name == "Gelu" and x.dtype == "float32" and g.chance(0.5):  # onnxruntime's float64 has float32 constants
        attributes["approximate"] = "tanh"
    if name == "HardSigmoid" and g.chance(0.5):
        attributes.update(alpha=0.25, beta=0.4)
    if name == "Selu" and g.opset < 6:  # whose defaults had fewer digits
        attributes.update(alpha=1.5, gamma=1.25)
    if name == "Shrink":
        attributes.update(lambd=g.choice([0.5, 1.0]), bias=g.choice([0.0, 0.5]))
    return g.node(name, [x], x.dtype, x.shape, False, *bounds, **attributes)


@operator("Abs", "Neg", "Relu", "Sign", "Floor", "Ceil", "Round")
def exact_unary(g: GraphBuilder, name: str) -> Value:
    jumps = name in ("Sign", "Floor", "Ceil", "Round")
    among = NUMBERS if name in ("Abs", "Sign") else (*FLOATS, *SIGNED)
    x = g.pick(g.types(name, among), exact=jumps, within=(-100, 100), special=name != "Sign")
    bounds = {
        "Abs": (0.0, x.largest), "Neg": (-x.high, -x.low), "Relu": (0.0, max(x.high, 0.0)), "Sign": (-1.0, 1.0),
    }.get(name, (x.low - 1, x.high + 1))  # fmt: skip
    return g.node(name, [x], x.dtype, x.shape, x.exact, *bounds)


@operator("IsNaN", "IsInf")
def classify(g: GraphBuilder, name: str) -> Value:
    x = g.pick(g.types(name, FLOATS), special=True)
    attributes = {"detect_negative": g.integer(0, 1)} if name == "IsInf" else {}
    return g.node(name, [x], "bool", x.shape, True, 0, 1, **attributes)


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
    if g.dynamic and g.chance(0.4):
        shape = [rival(d) for d in shape]
    same = [v for v in g.values if v.shape == tuple(shape) and v.dtype == (dtype or x.dtype)]
    same = [v for v in same if [is_symbolic([d]) for d in v.shape] == [is_symbolic([d]) for d in shape]]
    same = [v for v in same if v is not x and low * 50 <= v.low and v.high <= high * 50 and (low < 0 or v.low >= low)]
    if same and g.chance(0.5):
        return g.choice(same)
    make = g.weight if g.chance(0.4) and not is_symbolic(shape) else g.input
    return make(dtype or x.dtype, shape, low, high)


def broadcast(*values: Value) -> tuple[int, ...]:
    """The shape of values together. Raises LookupError when they do not broadcast."""
    return broadcast_shapes(*[v.shape for v in values])


def _binary(
    g: GraphBuilder, name: str, x: Value, y: Value, dtype: str, exact: bool, low: float, high: float
) -> Value:
    """A node of two operands; before opset 7 the second has dimensions that stand together in the first's."""
    inputs = [y, x] if name in ("Add", "Mul", "And", "Or", "Xor") and g.chance(0.3) else [x, y]
    if g.opset >= 7:
        return g.node(name, inputs, dtype, broadcast(x, y), exact, low, high)
    first = g.integer(0, x.rank)
    last = g.integer(first, x.rank)
    y = g.operand(y.dtype, x.shape[first:last], y.low, y.high)
    added = list(range(last - first, x.rank - first))

    def modern(names: list[str], out: list[str]) -> list[NodeProto]:
        if not added:
            return [helper.make_node(name, names, out)]
        axes = helper.make_node("Constant", [], ["axes"], value_ints=added)
        wide = helper.make_node("Unsqueeze", [names[1], "axes"], ["wide"])
        return [axes, wide, helper.make_node(name, [names[0], "wide"], out)]

    attributes = {"axis": first} if first < last and (last < x.rank or g.chance(0.3)) else {}
    return g.node(name, [x, y], dtype, x.shape, exact, low, high, modern=modern, broadcast=1, **attributes)


@operator("Add", "Sub", "Mul", "Div", weight=3)
def arithmetic(g: GraphBuilder, name: str) -> Value:
    x = g.pick(g.types(name, FLOATS if name == "Div" else NUMBERS), within=(-200, 200), special=True)
    if name == "Sub" and x.dtype.startswith("u"):
        raise LookupError("negative numbers of a type without sign")
    y = partner(g, x, low=0.5, high=3.0) if name == "Div" else partner(g, x)
    if name in ("Add", "Sub"):
        low, high = (x.low + y.low, x.high + y.high) if name == "Add" else (x.low - y.high, x.high - y.low)
    elif name == "Div":
        low, high = -x.largest / 0.5, x.largest / 0.5
    else:
        bound = x.largest * max(y.largest, 1.0)
        low, high = -bound, bound
    if x.largest == math.inf:
        low, high = -math.inf, math.inf
    if not x.is_float and max(abs(low), abs(high)) > (120 if x.dtype.endswith("int8") else 3e4):
        raise LookupError("integers would overflow")
    return _binary(g, name, x, y, x.dtype, not x.is_float and x.exact and y.exact, low, high)


@operator("PRelu", weight=2)
def prelu(g: GraphBuilder) -> Value:
    x = g.pick(g.types("PRelu", FLOATS), 2 if g.opset < 7 else 0)
    if g.opset < 7:
        slope = g.operand(x.dtype, g.choice([(1,), x.shape[1:2]]))

        def modern(names: list[str], out: list[str]) -> list[NodeProto]:
            if x.rank == 2:
                return [helper.make_node("PRelu", names, out)]
            axes = helper.make_node("Constant", [], ["axes"], value_ints=list(range(1, x.rank - 1)))
            wide = helper.make_node("Unsqueeze", [names[1], "axes"], ["wide"])
            return [axes, wide, helper.make_node("PRelu", [names[0], "wide"], out)]

        return g.node("PRelu", [x, slope], x.dtype, x.shape, False, -x.largest, x.largest, modern=modern)
    shape = [1 if g.chance(0.3) else d for d in x.shape][g.integer(0, x.rank) :]
    slope = g.operand(x.dtype, shape)
    return g.node("PRelu", [x, slope], x.dtype, x.shape, False, -x.largest, x.largest)


@operator("Pow")
def power(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Pow", ("float32", "float64", "float16")), within=(0.1, 5))
    among = g.types("Pow", (*FLOATS, "int32", "int64"), 1) if g.opset >= 12 else (x.dtype,)
    y = g.operand(g.choice(among), () if x.rank == 0 or g.opset < 7 or g.chance(0.5) else x.shape[-1:], -2, 2)
    return _binary(g, "Pow", x, y, x.dtype, False, 0, max(x.high, 10.0) ** 2)


@operator("Mod")
def modulo(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Mod", (*INTEGERS, "float32", "float64")), exact=True)
    y = g.input(x.dtype, x.shape, 1, 7)
    fmod = 1 if x.is_float else g.choice([0, 0, 1])
    return g.node("Mod", [x, y], x.dtype, x.shape, not x.is_float, -7, 7, fmod=fmod)


@operator("Max", "Min", "Sum", "Mean")
def variadic(g: GraphBuilder, name: str) -> Value:
    exact = name in ("Max", "Min")
    x = g.pick(g.types(name), within=(-100, 100), special=True)
    old = g.opset < 8
    others = [g.operand(x.dtype, x.shape) if old else partner(g, x) for _ in range(g.integer(0, 2))]
    if name == "Sum" and sum(v.largest for v in (x, *others)) > 100 and x.dtype.endswith("int8"):
        raise LookupError("integers would overflow")
    inputs = [x, *others]
    bound = sum(v.largest for v in inputs)
    exact = (exact or len(inputs) == 1) and all(v.exact for v in inputs)
    return g.node(name, inputs, x.dtype, broadcast(*inputs), exact, -bound, bound)


@operator("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal")
def compare(g: GraphBuilder, name: str) -> Value:
    x = g.pick(g.types(name, ANY), exact=True, special=True)
    y = g.operand(x.dtype, x.shape[g.integer(0, x.rank) :], -2, 2)
    return _binary(g, name, x, y, "bool", True, 0, 1)


@operator("And", "Or", "Xor")
def logical(g: GraphBuilder, name: str) -> Value:
    x = g.pick(("bool",))
    return _binary(g, name, x, partner(g, x), "bool", True, 0, 1)


@operator("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(g: GraphBuilder, name: str) -> Value:
    x = g.pick(INTEGERS, exact=True, within=(-128, 127))
    y = partner(g, x)
    low = 0.0 if x.dtype.startswith("u") else -256.0
    return g.node(name, [x, y], x.dtype, broadcast(x, y), y.exact, low, 255)


@operator("BitShift")
def bit_shift(g: GraphBuilder) -> Value:
    x = g.pick(g.types("BitShift", INTEGERS), within=(0, 31))
    y = g.input(x.dtype, x.shape, 0, 3)
    return g.node("BitShift", [x, y], x.dtype, x.shape, True, 0, 255, direction=g.choice(["LEFT", "RIGHT"]))


@operator("Where", weight=2)
def where(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Where", ANY, position=1), 0, WIDEST, special=True)
    y = partner(g, x)
    condition = partner(g, x, "bool")
    low, high = min(x.low, y.low), max(x.high, y.high)
    return g.node("Where", [condition, x, y], x.dtype, broadcast(x, y, condition), x.exact and y.exact, low, high)


@operator("Clip")
def clip(g: GraphBuilder) -> Value:
    x = g.pick(g.types("Clip"), special=True)
    bottom, top = (0 if x.dtype.startswith("u") else -1), 2
    has_low, has_high = g.chance(0.8), g.chance(0.8)
    if x.largest == math.inf:
        has_low = has_high = True  # onnxruntime takes a bound that is left out for the largest finite number
    attributes: dict[str, float] = {}
    inputs: list[Value | str | None] = [x]
    if g.has("Clip", "min"):
        attributes = {**({"min": float(bottom)} if has_low else {}), **({"max": float(top)} if has_high else {})}
    else:
        low = g.constant(bottom, x.dtype) if has_low else None
        high = g.constant(top, x.dtype) if has_high else None
        inputs = [x, low, high] if high is not None else [x, low] if low is not None else [x]
    least = max(x.low, bottom) if has_low else x.low
    most = min(x.high, top) if has_high else x.high
    return g.node("Clip", inputs, x.dtype, x.shape, x.exact, min(least, 2.0), max(most, -1.0), **attributes)


@operator("Cast", weight=2)
def cast(g: GraphBuilder) -> Value:
    if g.opset >= 9 and g.chance(0.05):
        return _numerals(g)
    if g.opset < 9:
        to: str = g.choice(g.types("Cast", (*NUMBERS[:3], *INTEGERS, "bool")))
    else:
        to = g.choice(g.types("Cast", (*ANY, *ANY, *(NARROW if g.opset >= 21 else ()))))
    special = to in ("float32", "float64", "bool")
    x = g.pick(g.types("Cast", ANY), exact=_jumps(to), within=_limits(to), special=special)
    narrows = not _jumps(to) and x.is_float and as_dtype(to).itemsize < as_dtype(x.dtype).itemsize
    narrows = narrows or (to == "bfloat16" and x.dtype == "float16")
    low, high = (0.0, 1.0) if to == "bool" else (x.low, x.high)
    kind = kind_of(to)
    target: int | str = kind if g.opset >= 6 else helper.tensor_dtype_to_string(kind).rpartition(".")[2]
    return g.node("Cast", [x], to, x.shape, x.exact and not narrows, low, high, to=target)


def _numerals(g: GraphBuilder) -> Value:
    """Numeric strings cast to numbers."""
    to = g.choice(["float32", "float64", "int64", "int32"])
    words = ("1", "-2", "007", *(() if to.startswith("int") else ("0.5", "1e2", "-0.125")))
    shape = [g.integer(1, 4) for _ in range(g.integer(0, 2))]
    array = np.asarray(g.numbers.choice(np.array(words, object), shape), object)
    return g.node("Cast", [g.constant(array)], to, shape, True, -2, 100, to=kind_of(to))


def _jumps(to: str) -> bool:
    """Is a cast to this type discontinuous beyond rounding in the last place?"""
    return to in INTEGERS or to == "bool" or to in NARROW


def _limits(to: str) -> tuple[float, float]:
    if to == "float8_e8m0fnu":  # powers of 2, none of them negative
        return 0.01, 900.0
    if to.startswith("uint"):
        return 0.0, {"uint4": 14.0, "uint2": 2.0}.get(to, 120.0)
    if to in ("int4", "int2"):
        return (-7.0, 7.0) if to == "int4" else (-1.0, 1.0)
    return (-120.0, 120.0) if _jumps(to) else (-900.0, 900.0)


@operator("CastLike")
def cast_like(g: GraphBuilder) -> Value:
    x = g.pick(g.types("CastLike", NUMBERS), exact=True, within=(0.0, 100.0))
    like = g.operand(g.choice(g.types("CastLike", ANY)), (1,))
    low, high = (0.0, 1.0) if like.dtype == "bool" else (x.low, x.high)
    exact = not like.is_float or like.dtype in ("float32", "float64")
    return g.node("CastLike", [x, like], like.dtype, x.shape, exact and x.dtype != "float64", low, high)


@operator("Identity", "Dropout")
def same(g: GraphBuilder, name: str) -> Value:
    x = g.pick(g.types(name, ANY))
    attributes: dict[str, object] = {}
    inputs: Sequence[Value | str | None] = [x]
    if name == "Dropout" and g.opset < 7:
        attributes["is_test"] = 1
    if name == "Dropout" and g.opset >= 12 and g.chance(0.4):
        inputs = [x, g.constant(0.3, "float32"), g.constant(False, "bool")][: g.integer(2, 3)]
    return g.node(name, inputs, x.dtype, x.shape, x.exact, x.low, x.high, **attributes)


@operator("BitCast")
def bit_cast(g: GraphBuilder) -> Value:
    x = g.pick(("int32", "uint32", "int64"), exact=True, within=(0, 100))
    to = {"int32": "uint32", "uint32": "int32", "int64": "uint64"}[x.dtype]
    return g.node("BitCast", [x], to, x.shape, True, x.low, x.high, to=kind_of(to))
