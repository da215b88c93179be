"""Generators for control flow and sequences: small bodies that take tensors from outside."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, ValueInfoProto, helper, numpy_helper

from tests.fuzz.builder import GraphBuilder, Modern, Value, operator
from tests.fuzz.dims import Symbolic, is_symbolic
from tests.fuzz.reductions import axes_operand
from tests.fuzz.schemas import kind_of

__all__: list[str] = []

_STEPS = ("Tanh", "Neg", "Abs", "Sigmoid", "Relu")
TAME = (-20.0, 20.0)


def _body(g: GraphBuilder, source: str, target: str) -> list[NodeProto]:
    """One to three nodes from `source` to `target`; a branch may be among them."""
    ops = [g.choice((*_STEPS, "If")) for _ in range(g.integer(1, 3))]
    names = [source, *[g.name("b") for _ in ops[1:]], target]
    nodes: list[NodeProto] = []
    for op, a, b in zip(ops, names, names[1:], strict=False):
        nodes += _inner_branch(g, a, b) if op == "If" else [helper.make_node(op, [a], [b])]
    return nodes


def _inner_branch(g: GraphBuilder, source: str, target: str) -> list[NodeProto]:
    """A branch inside of a body: its condition is known, or whether there is a positive element."""
    chosen = g.name("b")
    if g.opset >= 13 and g.chance(0.6):
        largest = g.name("b")
        condition = [helper.make_node("ReduceMax", [source], [largest], keepdims=0),
                     helper.make_node("Cast", [largest], [chosen], to=kind_of("bool"))]  # fmt: skip
    else:
        condition = [_constant(chosen, g.chance(0.5))]
    branches = {}
    for branch, op in (("then_branch", g.choice(_STEPS)), ("else_branch", g.choice(_STEPS))):
        out = g.name("b")
        branches[branch] = _graph([helper.make_node(op, [source], [out])], [], [_info(out, "float32")])
    return [*condition, helper.make_node("If", [chosen], [target], **branches)]


def _constant(name: str, value: object) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value)))


def _info(name: str, dtype: str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind_of(dtype), None)


def _graph(nodes: list[NodeProto], inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]) -> GraphProto:
    return helper.make_graph(nodes, "body", inputs, outputs)


@operator("If", weight=2)
def if_(g: GraphBuilder) -> Value:
    x = g.pick(("float32",), 0, 4, within=TAME)
    condition = g.choice([g.input("bool", ()), g.constant(g.chance(0.5), "bool")])
    branches = {}
    for branch in ("then_branch", "else_branch"):
        out = g.name("b")
        branches[branch] = _graph(_body(g, x.name, out), [], [_info(out, x.dtype)])
    return g.node("If", [condition], x.dtype, x.shape, False, -x.largest - 1, x.largest + 1, **branches)


@operator("Loop", weight=2)
def loop(g: GraphBuilder) -> Value:
    if g.opset >= 11 and g.chance(0.25):
        return _growing_loop(g)
    x = g.pick(("float32",), 0, 3, within=TAME, smallest=1)
    known = g.chance(0.6)
    trips = g.constant(g.integer(0 if g.chance(0.2) else 1, 5), "int64") if known else g.input("int64", (), 1, 4)
    step, go, carried, result, still, row = (g.name("b") for _ in range(6))
    going = [helper.make_node("Identity", [go], [still])]
    if g.opset >= 9 and g.chance(0.4):  # fewer iterations than the trip count
        last = g.name("b")
        going = [_constant(last, g.integer(0, 3)), helper.make_node("Less", [step, last], [still])]
    nodes = [
        *going,
        *_body(g, carried, row),
        helper.make_node("Add", [row, x.name], [result]),
    ]
    collects = g.chance(0.5)
    outputs = [_info(still, "bool"), _info(result, x.dtype), *([_info(row, x.dtype)] if collects else [])]
    body = _graph(nodes, [_info(step, "int64"), _info(go, "bool"), _info(carried, x.dtype)], outputs)
    condition = g.constant(True, "bool") if g.chance(0.4) else None
    bound = x.largest * 6 + 5
    return g.node("Loop", [trips, condition, x], x.dtype, x.shape, False, -bound, bound, outputs=1 + collects,
                  body=body)  # fmt: skip


def _growing_loop(g: GraphBuilder) -> Value:
    """A carried tensor that grows in each iteration; its sum if the trip count is dynamic."""
    kind = g.choice(["float32", "int64"])
    x = g.pick((kind,), 1, 3, within=TAME, smallest=1)
    known, rounds = g.chance(0.5), g.integer(1, 4)
    trips = g.constant(rounds, "int64") if known else g.input("int64", (), 0, 4)
    step, go, still, carried, longer, size = (g.name("b") for _ in range(6))
    nodes = [
        helper.make_node("Identity", [go], [still]),
        helper.make_node("Concat", [carried, x.name], [longer], axis=0),
        helper.make_node("Shape", [longer], [size]),
    ]
    body = _graph(nodes, [_info(step, "int64"), _info(go, "bool"), _info(carried, kind)],
                  [_info(still, "bool"), _info(longer, kind), _info(size, "int64")])  # fmt: skip
    shape = (x.shape[0] * (rounds + 1), *x.shape[1:])
    value = g.node("Loop", [trips, None, x], kind, shape, x.exact, x.low, x.high, outputs=2, body=body)
    g.dtypes[g.nodes[-1].output[1]] = "int64"
    if known:
        return g.also(1, value, "int64", (rounds, x.rank), True, 0, 1000)
    g.values.remove(value)
    more, axes = axes_operand(g, "ReduceSum", [0])
    bound = x.largest * 5 * x.shape[0]
    exact = x.exact and kind == "int64"
    return g.node("ReduceSum", [value, *more], kind, x.shape[1:], exact, -bound, bound, keepdims=0, **axes)


@operator("Scan", weight=2)
def scan(g: GraphBuilder) -> Value:
    if g.opset < 9:
        raise LookupError("another operator by this name")
    rows: int = Symbolic.named("length") if g.dynamic and g.chance(0.6) else g.integer(1, 6)
    shape = g.shape(0, 2)
    x = g.input("float32", (rows, *shape))
    state = g.operand("float32", shape)
    before, part, after, out = (g.name("b") for _ in range(4))
    mixed = g.name("b")
    nodes = [helper.make_node("Add", [before, part], [mixed]), helper.make_node("Tanh", [mixed], [after]),
             *_body(g, mixed, out)]  # fmt: skip
    body = _graph(nodes, [_info(before, "float32"), _info(part, "float32")],
                  [_info(after, "float32"), _info(out, "float32")])  # fmt: skip
    how: dict[str, list[int]] = {}
    for attribute in ("scan_input_directions", "scan_output_directions"):
        if g.chance(0.25):
            how[attribute] = [1]
    if shape and not is_symbolic((rows, *shape)) and g.chance(0.3):
        x = g.input("float32", (*shape, rows))
        how["scan_input_axes"] = [len(shape)]
    final = g.node("Scan", [state, x], "float32", shape, False, -1, 1, outputs=2, body=body, num_scan_inputs=1, **how)
    return g.also(1, final, "float32", (rows, *shape), False, -5, 5)


@operator("SequenceConstruct")
def sequence(g: GraphBuilder) -> Value:
    x = g.pick(("float32", "int64"), 1, 3, smallest=1, where=lambda v: v.is_static)
    others = [g.input(x.dtype, x.shape) for _ in range(g.integer(0, 2))]
    parts = [x, *others]
    made = g.node("SequenceConstruct", parts, "", (), True, 0, 0)
    g.values.remove(made)
    del g.dtypes[made.name]
    low, high = min(p.low for p in parts), max(p.high for p in parts)
    if g.chance(0.4):
        place = g.constant(g.integer(-len(parts), len(parts) - 1), "int64")
        return g.node("SequenceAt", [made.name, place], x.dtype, x.shape, x.exact, low, high)
    new = g.integer(0, 1)
    axis = g.integer(0, x.rank - 1)
    if new:
        shape = [*x.shape[:axis], len(parts), *x.shape[axis:]]
    else:
        shape = [d * len(parts) if i == axis else d for i, d in enumerate(x.shape)]
    return g.node("ConcatFromSequence", [made.name], x.dtype, shape, x.exact, low, high, axis=axis, new_axis=new)


@operator("SplitToSequence")
def split_to_sequence(g: GraphBuilder) -> Value:
    x = g.pick(("float32", "int32"), 1, 3, smallest=1, where=lambda v: v.is_static)
    axis = g.integer(0, x.rank - 1)
    keep = g.integer(0, 1)
    made = g.node("SplitToSequence", [x], "", (), True, 0, 0, axis=axis, keepdims=keep)
    g.values.remove(made)
    del g.dtypes[made.name]
    place = g.constant(g.integer(0, x.shape[axis] - 1), "int64")
    shape = [1 if i == axis else d for i, d in enumerate(x.shape) if keep or i != axis]
    return g.node("SequenceAt", [made.name, place], x.dtype, shape, x.exact, x.low, x.high)


def _hidden(g: GraphBuilder, op: str, inputs: list[Value | str | None], **attributes: Any) -> str:
    """A node whose output is no tensor: its name."""
    made = g.node(op, inputs, "", (), True, 0, 0, **attributes)
    g.values.remove(made)
    del g.dtypes[made.name]
    return made.name


@operator("SequenceInsert", "SequenceErase", "SequenceLength")
def changed_sequence(g: GraphBuilder, name: str) -> Value:
    """A sequence with an element inserted or erased, of which one is read."""
    x = g.pick(("float32", "int64", "float16"), 0, 3, smallest=1, where=lambda v: v.is_static)
    others = [g.input(x.dtype, x.shape) for _ in range(g.integer(1, 2))]
    if x.dtype == "float32" and g.chance(0.3):
        made, count = _hidden(g, "SequenceInsert", [_hidden(g, "SequenceEmpty", []), x]), 1
    else:
        made, count = _hidden(g, "SequenceConstruct", [x, *others]), 1 + len(others)
    low, high = min(v.low for v in (x, *others)), max(v.high for v in (x, *others))
    exact = x.exact
    if name == "SequenceLength":
        return g.node(name, [made], "int64", (), True, 0, 4)
    place = g.constant(g.integer(-count, count - 1), "int64")
    if name == "SequenceInsert" or count == 1:
        made, count = _hidden(g, "SequenceInsert", [made, others[0], *([place] if g.chance(0.7) else [])]), count + 1
    if name == "SequenceErase":
        made, count = _hidden(g, "SequenceErase", [made, *([place] if g.chance(0.7) else [])]), count - 1
    inputs = [made, g.constant(g.integer(-count, count - 1), "int64")]
    return g.node("SequenceAt", inputs, x.dtype, x.shape, exact, low, high)


@operator("OptionalGetElement", "OptionalHasElement")
def optional(g: GraphBuilder, name: str) -> Value:
    """An optional value, present or empty, and tests of it. The oracles evaluate an equivalent."""
    x = g.pick(("float32", "int64", "bool"), 0, 4)

    def identity(names: list[str], out: list[str]) -> list[NodeProto]:
        return [helper.make_node("Identity", names[:1], out)]

    def constant(value: bool) -> Modern:
        made = numpy_helper.from_array(np.array(value))
        return lambda names, out: [helper.make_node("Constant", [], out, value=made)]

    if name == "OptionalHasElement" and g.chance(0.4):
        kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(kind_of(x.dtype), x.shape))
        empty = _hidden(g, "Optional", [], type=kind, modern=constant(False))
        return g.node(name, [empty], "bool", (), True, 0, 1, modern=constant(False))
    made: Value | str = _hidden(g, "Optional", [x], modern=identity)
    if g.opset >= 18 and g.chance(0.3):
        made = x
    if name == "OptionalHasElement":
        return g.node(name, [made], "bool", (), True, 0, 1, modern=constant(True))
    return g.node(name, [made], x.dtype, x.shape, x.exact, x.low, x.high, modern=identity)


@operator("SequenceMap")
def mapped_sequence(g: GraphBuilder) -> Value:
    x = g.pick(("float32",), 1, 3, within=TAME, smallest=1, where=lambda v: v.is_static)
    others = [g.input(x.dtype, x.shape) for _ in range(g.integer(0, 2))]
    made = _hidden(g, "SequenceConstruct", [x, *others])
    item, result = g.name("b"), g.name("b")
    body = _graph(_body(g, item, result), [_info(item, "float32")], [_info(result, "float32")])
    mapped = _hidden(g, "SequenceMap", [made], body=body)
    bound = x.largest + 3
    shape = [1 + len(others), *x.shape]
    return g.node("ConcatFromSequence", [mapped], "float32", shape, False, -bound, bound, axis=0, new_axis=1)


@operator("SequenceEmpty", weight=2)
def grown_sequence(g: GraphBuilder) -> Value:
    """A sequence built by a loop of dynamic trip count; one element is read, or all are added."""
    x = g.pick(("float32",), 0, 3, within=TAME, smallest=1)
    trips = g.input("int64", (), 1, 5)
    start = _hidden(g, "SequenceEmpty", []) if g.chance(0.6) else _hidden(g, "SequenceConstruct", [x])
    step, go, still, grown, longer, row, number, new = (g.name("b") for _ in range(8))
    nodes = [
        helper.make_node("Identity", [go], [still]),
        helper.make_node("Cast", [step], [number], to=kind_of("float32")),
        *_body(g, x.name, row),
        helper.make_node("Add", [row, number], [new]),
        helper.make_node("SequenceInsert", [grown, new], [longer]),
    ]
    body = _graph(nodes, [_info(step, "int64"), _info(go, "bool"), _list_info(grown)],
                  [_info(still, "bool"), _list_info(longer)])  # fmt: skip
    made = _hidden(g, "Loop", [trips, None, start], body=body)
    bound = x.largest + 7
    if g.chance(0.4):
        place = g.input("int64", (), -1, 0)
        return g.node("SequenceAt", [made, place], "float32", x.shape, False, -bound, bound)
    axis = g.integer(0, x.rank)
    joined = _hidden(g, "ConcatFromSequence", [made], axis=axis, new_axis=1)
    axes: dict[str, object] = {"axes": [axis]} if g.opset < 13 else {}
    inputs = [joined] if axes else [joined, g.constant([axis], "int64")]
    return g.node("ReduceSum", inputs, "float32", x.shape, False, -7 * bound, 7 * bound, keepdims=0, **axes)


def _list_info(name: str) -> ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, kind_of("float32"), None)
