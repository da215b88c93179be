"""Generators for reductions over axes, sums along an axis and softmax."""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto, helper

from tests.fuzz.builder import FLOATS, GraphBuilder, Modern, Value, operator

__all__ = ["axes_operand"]

WIDE = ("int64", "int32")


def axes_operand(g: GraphBuilder, op: str, axes: list[int]) -> tuple[list[str], dict[str, list[int]]]:
    """Axes as this version of the operator takes them: a further input, or an attribute."""
    return ([], {"axes": axes}) if g.has(op, "axes") else ([g.constant(axes, "int64")], {})


_REDUCE = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
           "ReduceLogSumExp", "ReduceLogSum")  # fmt: skip


@operator(*_REDUCE)
def reduction(g: GraphBuilder, name: str) -> Value:
    exact = name in ("ReduceMax", "ReduceMin")
    limits = {"ReduceProd": (-2, 2), "ReduceLogSum": (0.1, 20)}.get(name, (-20, 20))
    integers = {"ReduceSum": WIDE, "ReduceMax": (*WIDE, "int8", "uint8", "bool"),
                "ReduceMin": (*WIDE, "int8", "uint8", "bool")}.get(name, ())  # fmt: skip
    undefined = name == "ReduceMean" or (exact and g.opset < 20)  # of no elements
    x = g.pick(g.types(name, (*FLOATS, *integers)), within=limits, smallest=int(undefined), special=exact)
    axes = sorted(g.rng.sample(range(x.rank), g.integer(0, x.rank)))
    keep = g.integer(0, 1)
    inputs, attributes = [x], {}
    if axes:
        signed = [a - x.rank if g.opset >= 11 and g.chance(0.3) else a for a in axes]
        more, attributes = axes_operand(g, name, signed)
        inputs = [x, *more]
    noop = not axes and g.has(name, "noop_with_empty_axes") and g.chance(0.3)
    if noop and name not in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd"):
        raise LookupError("what these do with no axes at all is told differently")
    reduced = [] if noop else axes or list(range(x.rank))
    shape = [1 if i in reduced else d for i, d in enumerate(x.shape) if keep or i not in reduced]
    count = math.prod([int(x.shape[i]) for i in reduced])
    bound = {
        "ReduceProd": max(x.largest, 1.0) ** min(count, 60), "ReduceLogSumExp": x.largest + math.log(max(count, 1)),
        "ReduceSumSquare": x.largest**2 * count, "ReduceLogSum": 10.0,
    }.get(name, x.largest * count)  # fmt: skip
    if x.size == 0 or x.largest == math.inf:
        bound = math.inf
    elif bound > (1e6 if x.dtype != "float16" else 1e4):
        raise LookupError("values would become too large")
    if noop:
        attributes["noop_with_empty_axes"] = 1
    return g.node(name, inputs, x.dtype, shape, x.exact and (exact or not x.is_float), -bound, bound, keepdims=keep,
                  **attributes)  # fmt: skip


@operator("ArgMax", "ArgMin")
def arg_reduction(g: GraphBuilder, name: str) -> Value:
    x = g.pick(g.types(name, ("float32", "float64", "int32", "int8", "uint8")), 1, exact=True, smallest=1)
    axis, keep = g.integer(-x.rank if g.opset >= 11 else 0, x.rank - 1), g.integer(0, 1)
    shape = [1 if i == axis % x.rank else d for i, d in enumerate(x.shape) if keep or i != axis % x.rank]
    last = {"select_last_index": g.integer(0, 1)} if g.has(name, "select_last_index") else {}
    return g.node(name, [x], "int64", shape, True, 0, max(x.shape), axis=axis, keepdims=keep, **last)


@operator("CumSum", "CumProd")
def cumulative(g: GraphBuilder, name: str) -> Value:
    limits = (-50, 50) if name == "CumSum" else (-1.2, 1.2)
    x = g.pick(g.types(name, (*FLOATS, *WIDE)), 1, within=limits, smallest=1)
    axis = g.constant(g.integer(-x.rank, x.rank - 1), "int64")
    bound = x.largest * max(x.shape) if name == "CumSum" else 1.2 ** min(max(x.shape), 30)
    return g.node(name, [x, axis], x.dtype, x.shape, not x.is_float and x.exact, -bound, bound,
                  exclusive=g.integer(0, 1), reverse=g.integer(0, 1))  # fmt: skip


@operator("Softmax", "LogSoftmax", "Hardmax", weight=2)
def softmax(g: GraphBuilder, name: str) -> Value:
    x = g.pick(g.types(name, FLOATS), 1, exact=name == "Hardmax", within=(-50, 50), smallest=1)
    if name == "Softmax" and x.is_static and g.chance(0.1):
        x = _masked(g, x)
    low, high = (-2 * x.largest - 10, 0.0) if name == "LogSoftmax" else (0.0, 1.0)
    axis = g.integer(-x.rank if g.opset >= 11 else 0, x.rank - 1)
    attributes = {"axis": axis} if g.chance(0.8) else {}
    modern = None
    if g.opset < 13:
        if x.rank < 2 and not attributes:
            attributes = {"axis": 0}
        modern = _flat_softmax(name, attributes.get("axis", 1) % x.rank)
    return g.node(name, [x], x.dtype, x.shape, name == "Hardmax", low, high, modern=modern, **attributes)


def _masked(g: GraphBuilder, x: Value) -> Value:
    """Some elements -inf, as attention masks have them; never all along an axis."""
    kept = g.numbers.random(x.shape) < 0.6
    for axis in range(x.rank):
        np.put_along_axis(kept, np.zeros([1 if i == axis else d for i, d in enumerate(x.shape)], np.int64), True, axis)
    if g.opset < 9:
        raise LookupError("no Where")
    inputs = [g.constant(kept, "bool"), x, g.constant(-math.inf, x.dtype)]
    return g.node("Where", inputs, x.dtype, x.shape, x.exact, -math.inf, x.high)


def _flat_softmax(name: str, axis: int) -> Modern:
    """Before opset 13: over all dimensions from an axis on, as one."""

    def modern(names: list[str], out: list[str]) -> list[NodeProto]:
        return [
            helper.make_node("Flatten", names, ["flat"], axis=axis),
            helper.make_node(name, ["flat"], ["scaled"], axis=1),
            helper.make_node("Shape", names, ["shape"]),
            helper.make_node("Reshape", ["scaled", "shape"], out),
        ]

    return modern
