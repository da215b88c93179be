"""Shared by If, Loop, Scan and SequenceMap: bodies as functions, and type inference of loop-carried values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ValueInfoProto

from relayc.frontends.onnx.containers import joined_type, made, value_type
from relayc.frontends.onnx.errors import NothingInsideError
from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.tensors import dtype_name
from relayc.relay import op
from relayc.relay.container_type import ContainerType, ElementType, OptionalType, SequenceType
from relayc.relay.expr import Call, Expr, Function, Tuple, TupleGetItem, Var, const
from relayc.relay.sizes import dims_equal, size_variables
from relayc.relay.type import TensorType, TupleType
from relayc.te.dtype import dtype
from relayc.te.errors import CompileError
from relayc.te.tir import Dim

__all__ = [
    "Body",
    "ValueType",
    "contained",
    "counted_loop",
    "fields_of",
    "loop_variables",
    "may_be_ones",
    "ones",
    "outputs_of",
    "outside_type",
    "settled_body",
    "tensor_type",
    "unchanged",
    "unsettled",
    "with_outputs",
    "without_carried",
]

ValueType = TensorType | ContainerType


@dataclass(frozen=True)
class Body:
    """A subgraph as a function, its captured values, and the types of its outputs."""

    function: Function
    outside: list[Expr]
    types: list[ValueType]


def outputs_of(function: Function, graph: GraphProto) -> tuple[Expr, ...]:
    """The outputs of a closed subgraph, without the tensors that only bind sizes."""
    assert isinstance(function.body, Tuple)
    return function.body.fields[: len(graph.output)]


def with_outputs(function: Function, outputs: Sequence[Expr]) -> Function:
    """The function with its first outputs replaced."""
    assert isinstance(function.body, Tuple)
    return function.with_body(Tuple((*outputs, *function.body.fields[len(outputs) :])))


def fields_of(call: Call) -> list[Expr]:
    """The results of a control-flow call, one by one."""
    assert isinstance(call.ty, TupleType)
    return [TupleGetItem(call, i) for i in range(len(call.ty.fields))]


def contained(node: OnnxNode, values: Sequence[Expr], types: Sequence[ValueType]) -> list[Expr]:
    """The values, containers converted to `types`, which may be longer."""
    pairs = zip(values, types, strict=False)
    return [made(x, ty, node.span) if isinstance(ty, ContainerType) else x for x, ty in pairs]


def loop_variables() -> tuple[Var, Var]:
    """The leading parameters of a loop's body: iteration and condition."""
    return Var("iteration", TensorType((), "int64")), Var("goes_on", TensorType((), "bool"))


def counted_loop(
    length: Dim,
    start: Sequence[Expr],
    outside: Sequence[Expr],
    body: Function,
    results: Sequence[ValueType],
) -> list[Expr]:
    """The results of a loop of `length` iterations over a body that has no condition among its outputs."""
    assert isinstance(body.body, Tuple)
    goes_on = const(np.array(True))
    bound = tuple((name, output + 1, e, s) for name, output, e, s in body.attrs.get("bound_sizes", ()))
    attrs = {**body.attrs, "bound_sizes": bound} if bound else body.attrs
    function = Function(body.params, Tuple((goes_on, *body.body.fields)), attrs)
    return fields_of(op.while_loop(op.size_tensor((length,), ()), goes_on, start, outside, function, results))


def unsettled(ty: TensorType, first: int = 0) -> list[int]:
    """The axes, offset by `first`, whose sizes are local to an iteration."""
    return [a for a, d in enumerate(ty.shape, start=first) if any(n.startswith("#") for n in size_variables((d,)))]


def may_be_ones(node: OnnxNode, ty: TensorType) -> list[int]:
    """The axes whose sizes may be 1 at run time."""
    return [a for a, d in enumerate(ty.shape) if node.may_be_one(d)]


def outside_type(node: OnnxNode, ty: ContainerType) -> ContainerType:
    """A container type seen from outside of the body: sizes local to it become unknown."""
    return ty.mapped(lambda d: d if node.known_here(d) else None)


def tensor_type(node: OnnxNode, element: ElementType, name: str, *, inside: bool = False) -> TensorType:
    """The type of a container's element: sizes that vary get variables, which may be 1."""
    if element.dtype is None:
        raise node.nothing_inside(f"input 0, {node[0].ty},")
    if element.shape is None:
        raise node.several_ranks(f"tensors of several ranks in {node[0].ty}, one of which is computed with")
    open_axes = [a for a, d in enumerate(element.shape) if d is None]
    known = TensorType([0 if d is None else d for d in element.shape], element.dtype)
    return node.fresh_sizes(known, open_axes, f"#result_{name}", inside=inside, ones=open_axes)


def unchanged(body: GraphProto, count: int, before: int, first: int) -> dict[int, str]:
    """The carried values, of `count`, that an iteration passes on as they are: their names in the body by number.

    They are the body's inputs from `before`, and its outputs from `first` on.
    """
    copied = {node.output[0]: node.input[0] for node in body.node if (node.domain, node.op_type) == ("", "Identity")}
    kept: dict[int, str] = {}
    for k in range(count):
        inside, passed = body.input[before + k].name, body.output[first + k].name
        while passed in copied:
            passed = copied[passed]
        if passed == inside:
            kept[k] = inside
    return kept


def without_carried(body: GraphProto, numbers: Collection[int], before: int, first: int) -> GraphProto:
    """The body without these carried values among its inputs from `before`, and outputs from `first` on."""
    made = GraphProto()
    made.CopyFrom(body)
    for k in sorted(numbers, reverse=True):
        del made.input[before + k], made.output[first + k]
    return made


def settled_body(
    node: OnnxNode,
    graph: GraphProto,
    carried: Sequence[Expr],
    before: Sequence[Var] = (),
    after: Sequence[Var] = (),
    first: int = 0,
    known: Mapping[str, Expr] | None = None,
) -> Body:
    """A loop's body as a function with invariant carried types: sizes that change become size variables.

    Its parameters are `before`, the carried values, `after`; its outputs from `first` on are the carried values. It
    knows values of this graph by the names in `known`. Container types hold both the initial elements and those of each
    iteration.
    """
    types = [value_type(x) for x in carried]
    try:
        return _settled(node, graph, types, before, after, first, known)
    except CompileError:
        declared = [_declared(value) for value in graph.input[len(before) :][: len(carried)]]
        wider = [joined_type(ty, more) if more is not None and isinstance(ty, type(more)) else ty
                 for ty, more in zip(types, declared, strict=True)]  # fmt: skip
        if wider == types:
            raise
        return _settled(node, graph, wider, before, after, first, known)


def _declared(value: ValueInfoProto) -> ContainerType | None:
    """The declared type of a body's input, if it is a container of tensors of known rank."""
    optional = value.type.HasField("optional_type")
    of = value.type.optional_type.elem_type if optional else value.type
    if not of.HasField("sequence_type"):
        return None
    tensor = of.sequence_type.elem_type.tensor_type
    if not tensor.HasField("shape") or not tensor.elem_type:
        return None
    kind = dtype(dtype_name(tensor.elem_type, value.name))
    ty = SequenceType(ElementType([None] * len(tensor.shape.dim), kind))
    return OptionalType(ty) if optional else ty


def _settled(
    node: OnnxNode,
    graph: GraphProto,
    types: Sequence[ValueType],
    before: Sequence[Var],
    after: Sequence[Var],
    first: int,
    known: Mapping[str, Expr] | None,
) -> Body:
    types = list(types)
    changing: set[tuple[int, int]] = set()  # (carried value, axis)
    while True:
        params = [*before, *[Var(f"carried{k}", ty) for k, ty in enumerate(types)], *after]
        with node.attempt() as forget:
            function, outside, unreached = _closed(node, graph, params, known)
            outputs = outputs_of(function, graph)
            passed = [value_type(x) for x in outputs[first:]]
            wider = [_wider(node, ty, new) for ty, new in zip(types, passed, strict=False)]
            changed = _changes(node, wider, passed) - changing
            if wider == types and not changed:
                _leave_out(node, unreached)
                return _finished(node, function, outside, outputs, [*types, *passed[len(types) :]], first)
            forget()
        types = wider
        for k in sorted({k for k, _ in changed}):
            old, new = types[k], passed[k]
            assert isinstance(old, TensorType) and isinstance(new, TensorType)
            axes = sorted(a for number, a in changed if number == k)
            types[k] = node.fresh_sizes(old, axes, f"#carried{k}", inside=True, ones=ones(node, old, new))
        changing |= changed


def _closed(
    node: OnnxNode, graph: GraphProto, params: Sequence[Var], known: Mapping[str, Expr] | None
) -> tuple[Function, list[Expr], list[NothingInsideError]]:
    """The body as a function, its captured values, and the branches dropped as unreachable."""
    node.unreached.append([])
    try:
        function, outside = node.close_graph(graph, params, known)
    finally:
        unreached = node.unreached.pop()
    return function, outside, unreached


def _leave_out(node: OnnxNode, unreached: Sequence[NothingInsideError]) -> None:
    """Report branches that stayed unreachable, unless the types of an enclosing loop are still being inferred."""
    if unreached and not node.unreached:
        raise unreached[0]
    if unreached:
        node.unreached[-1].extend(unreached)


def _finished(
    node: OnnxNode, function: Function, outside: list[Expr], outputs: Sequence[Expr], types: list[ValueType], first: int
) -> Body:
    results = contained(node, outputs[first:], types)
    return Body(with_outputs(function, [*outputs[:first], *results]), outside, types)


def _wider(node: OnnxNode, ty: ValueType, new: ValueType) -> ValueType:
    """Widen the type of a carried value to hold its type after an iteration."""
    if isinstance(ty, TensorType) and isinstance(new, TensorType):
        return ty
    new = outside_type(node, new) if isinstance(new, ContainerType) else new
    return joined_type(ty, new)


def _changes(node: OnnxNode, types: Sequence[ValueType], passed: Sequence[ValueType]) -> set[tuple[int, int]]:
    """The (carried value, axis) pairs whose size an iteration changes."""
    changes: set[tuple[int, int]] = set()
    for k, (before, after) in enumerate(zip(types, passed, strict=False)):
        if not isinstance(before, TensorType) or not isinstance(after, TensorType):
            continue
        if before.dtype != after.dtype or before.ndim != after.ndim:
            raise node.unsupported(
                f"the carried value {k} changes from {before} to {after}", expected="one element type, and one rank"
            )
        pairs = enumerate(zip(before.shape, after.shape, strict=True))
        changes |= {(k, a) for a, (d, e) in pairs if not dims_equal(d, e)}
    return changes


def ones(node: OnnxNode, a: TensorType, b: TensorType) -> list[int]:
    """The axes that are, or may be, 1 in only one of two types."""

    def may_be_one(d: Dim) -> bool:
        return d == 1 if isinstance(d, int) else node.may_be_one(d)

    pairs = enumerate(zip(a.shape, b.shape, strict=True))
    return [i for i, (d, e) in pairs if not dims_equal(d, e) and (may_be_one(d) or may_be_one(e))]
