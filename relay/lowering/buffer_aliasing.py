"""Buffer aliasing: concatenations that are written in place, and slices that are read in place.

The result of a concatenation is one tensor, and its inputs become views of it: the producer of an input writes directly
into its view, with the strides of the whole, and the concatenation is no kernel any more. Likewise the results of a
slice or a split become views of their input. Chains of both, as in a DenseNet, end in one tensor that all others are
views of.

An input that cannot be aliased (an input or output of the graph, a parameter, an operand that occurs twice) is copied
into its view by a kernel of its own; if that would be most of the data, the concatenation stays a kernel.

A view whose elements are contiguous is read and written as any other tensor. For others the kernels are compiled for
the strides, which their function's attribute "strides" records: so only operators that are loops over indices take
part, and only views whose contiguous runs fill vectors.

Where the size of the batch is symbolic, and all others are constants, strides and offsets are constants too. Addresses
are not, so that kernels get that of the whole tensor, and add the offset, one of their sizes (attribute "offsets").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar

from relayc.relay.analysis import body_order
from relayc.relay.expr import Call, Constant, Function, Tuple, TupleGetItem, Var
from relayc.relay.lowering.canonical_sizes import sizes_of
from relayc.relay.lowering.graph import AliasReport, ExecutionGraph, GraphNode, GraphTensor, byte_offset, is_compact
from relayc.relay.lowering.graph_pass import GraphPass
from relayc.relay.lowering.lower import Workload, offset_name, tensor_types
from relayc.relay.op.base import OpPattern
from relayc.relay.op.joining import Concatenate, Split
from relayc.relay.op.transform import StridedSlice
from relayc.relay.type import TensorType
from relayc.te.ir import PassContext

__all__ = ["AliasViews", "has_only_loops", "note_strides"]

_SHORTEST = 16
"""Minimum number of contiguous elements in a view: a cache line of float32."""


class AliasViews(GraphPass):
    """Tensors alias views of others, where only the first dimension of both may be symbolic; on CPUs only.

    Nodes have to run in the order of the graph, as a tensor may be read before all its slices are written. Kernels of
    other devices rely on the alignment of their arguments. The graph's `aliasing` counts the views. Kernels are not
    compiled yet.
    """

    opt_level: ClassVar[int] = 2

    def arrange(self, graph: ExecutionGraph, context: PassContext) -> bool:
        for part in graph.all_graphs():
            if part.runs_in_order:
                _alias(part, graph.aliasing)
        return graph.aliasing.aliased > 0


def _alias(graph: ExecutionGraph, report: AliasReport) -> None:
    sharing = _Sharing(graph, report)
    for node in list(graph.nodes):
        sharing.cut(node)
    for node in reversed(list(graph.nodes)):
        sharing.join(node)
    graph.nodes = [n for node in graph.nodes for n in sharing.replaced.get(id(node), [node])]
    note_strides(graph)


@dataclass
class _Sharing:
    graph: ExecutionGraph
    report: AliasReport
    replaced: dict[int, list[GraphNode]] = field(default_factory=dict)
    """the nodes that replace a node, by its identity"""
    readers: dict[int, list[GraphNode]] = field(default_factory=dict)
    producer: dict[int, GraphNode] = field(default_factory=dict)
    views: dict[int, list[int]] = field(default_factory=dict)
    outputs: set[int] = field(init=False)
    """the graph's outputs, and all tensors that an output is a view of, directly or not"""

    def __post_init__(self) -> None:
        self.outputs = set[int]()
        for number in self.graph.outputs:
            self._note_output(number)
        for number, tensor in enumerate(self.graph.tensors):
            if tensor.base is not None:
                self.views.setdefault(tensor.base, []).append(number)
        for node in self.graph.nodes:
            for number in node.inputs:
                self.readers.setdefault(number, []).append(node)
            for number in node.outputs:
                self.producer[number] = node

    def cut(self, node: GraphNode) -> None:
        """Make the results of a slice or split views of its input, if all of them can be."""
        begins = _cuts(node)
        if begins is None:
            return
        source = node.inputs[0]
        if not self._is_ours(self.graph.base_of(source)) or self.graph.tensors[source].rows is None:
            return
        strides = self.graph.strides_of(source)
        if not all(self._is_free(o) and self._can_take(o, strides) for o in node.outputs):
            return
        for output, begin in zip(node.outputs, begins, strict=True):
            self._make_view(output, source, begin)
        self._remove(node, [])

    def join(self, node: GraphNode) -> None:
        """Make the inputs of a concatenation views of its result, and copy those that can't be."""
        concatenated = _concatenated(node)
        if concatenated is None or not self._is_ours(self.graph.base_of(node.outputs[0])):
            return
        inputs, axis = concatenated
        whole = node.outputs[0]
        if any(self.graph.tensors[number].rows is None for number in (whole, *inputs)):
            return
        if axis == 0 and not self.graph.tensors[whole].tensor_type.is_static:
            return
        if self._is_contiguous_already(inputs, whole, axis):
            self._remove(node, [])
            return
        strides = self.graph.strides_of(whole)
        placed: dict[int, tuple[int, tuple[int, ...]]] = {}  # by the tensor that owns the memory: input, offset
        left: list[tuple[int, tuple[int, ...]]] = []
        for number, begins in self._in_order(inputs, axis):
            owner = self._owner(number, strides)
            if owner is None or owner in placed:
                left.append((number, begins))
            else:
                placed[owner] = number, begins
        tensors = self.graph.tensors
        if 2 * sum(map(self._nbytes, placed)) < self._nbytes(whole):
            return
        for owner, (number, begins) in placed.items():
            self._place(owner, tensors[number].tensor_type, whole, begins)
        self._remove(node, [self._copy(number, whole, begins, node.sources) for number, begins in left])
        self.report.copied += len(left)

    def _in_order(self, inputs: Sequence[int], axis: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The inputs and their offsets in the result; adjacent inputs that together are all of one tensor become that
        tensor."""
        position, i = 0, 0
        while i < len(inputs):
            number, count = self._run(inputs, i, axis)
            shape = self._rows(number)
            yield number, tuple([position if a == axis else 0 for a in range(len(shape))])
            position, i = position + shape[axis], i + count

    def _run(self, inputs: Sequence[int], first: int, axis: int) -> tuple[int, int]:
        """The tensor that the inputs from `first` on make up together, and the number of these inputs."""
        tensors, base = self.graph.tensors, self.graph.tensors[inputs[first]].base
        if base is None or tensors[inputs[first]].begins is None:
            return inputs[first], 1
        shape, position = self._rows(base), 0
        for count, number in enumerate(inputs[first:], 1):
            part = tensors[number]
            here = tuple([position if a == axis else 0 for a in range(len(shape))])
            own = self._rows(number)
            if part.base != base or part.begins != here or _but(own, axis) != _but(shape, axis):
                break
            position += own[axis]
            if position == shape[axis]:
                return base, count
        return inputs[first], 1

    def _is_contiguous_already(self, inputs: Sequence[int], whole: int, axis: int) -> bool:
        """Are the inputs adjacent in another tensor, in order? Then the result becomes a view of that tensor."""
        tensors = self.graph.tensors
        first = tensors[inputs[0]]
        if first.base is None or first.begins is None or tensors[whole].base is not None:
            return False
        position = first.begins[axis]
        for number in inputs:
            part = tensors[number]
            here = tuple([position if a == axis else b for a, b in enumerate(first.begins)])
            if part.base != first.base or part.begins != here:
                return False
            position += self._rows(number)[axis]
        if not self._can_take(whole, self.graph.strides_of(first.base)):
            return False
        self._make_view(whole, first.base, first.begins)
        return True

    def _owner(self, number: int, strides: Sequence[int]) -> int | None:
        """The tensor to be made a view with these strides for `number` to be one; None if it has to stay."""
        base = self.graph.base_of(number)
        if not self._is_ours(base):
            return None
        if base == number:
            return base if self._can_take(base, strides) else None
        same = all(self.graph.tensors[n].begins is None for n in self._chain(number))
        return base if same and is_compact(self._rows(number), strides) else None

    def _chain(self, number: int) -> Iterator[int]:
        """A view and the tensors that it is a view of, transitively."""
        while (base := self.graph.tensors[number].base) is not None:
            yield number
            number = base

    def _rows(self, number: int) -> tuple[int, ...]:
        """The `rows` of a tensor that has them."""
        rows = self.graph.tensors[number].rows
        assert rows is not None
        return rows

    def _nbytes(self, number: int) -> int:
        """The bytes of a tensor, of one element of its first dimension if that is symbolic."""
        ty = self.graph.tensors[number].tensor_type
        return ty.nbytes if ty.is_static else math.prod(self._rows(number)[1:]) * ty.dtype.nbytes

    def _is_ours(self, number: int) -> bool:
        """Is this the result of a kernel, so that its storage can be chosen?"""
        return self.graph.tensors[number].storage is None and number not in self.outputs

    def _is_free(self, number: int) -> bool:
        """Is this the result of a kernel that is not a view of another tensor yet? Batch slices compute views."""
        return self._is_ours(number) and self.graph.tensors[number].base is None

    def _note_output(self, number: int | None) -> None:
        """Note that an output is this tensor, or a view of it."""
        while number is not None and number not in self.outputs:
            self.outputs.add(number)
            number = self.graph.tensors[number].base

    def _can_take(self, number: int, strides: Sequence[int]) -> bool:
        """Can all kernels that write and read a tensor, and views of it, be compiled for these strides?"""
        shape = self.graph.tensors[number].rows
        if shape is None:
            return False
        if is_compact(shape, strides):
            return True
        views = self.views.get(number, ())
        nodes = [*self.readers.get(number, ()), *([self.producer[number]] if number in self.producer else [])]
        slices_only = all(self.graph.tensors[v].begins is not None for v in views)
        serves = slices_only and _piece(shape, strides) >= _SHORTEST and all(map(has_only_loops, nodes))
        return serves and all(self._can_take(v, strides) for v in views)

    def _make_view(self, number: int, base: int, begins: tuple[int, ...]) -> None:
        tensor = self.graph.tensors[number]
        tensor.base, tensor.begins = base, begins
        self.views.setdefault(base, []).append(number)
        if number in self.outputs:
            self._note_output(base)

    def _place(self, owner: int, ty: TensorType, whole: int, begins: tuple[int, ...]) -> None:
        """Make `owner` a part of `whole`, or a reshaped view of such a part."""
        if self.graph.tensors[owner].tensor_type is ty:
            self._make_view(owner, whole, begins)
            return
        part = self._new_view(ty, whole, begins)
        assert owner not in self.outputs  # `_owner` leaves outputs where they are
        self.graph.tensors[owner].base = part
        self.views.setdefault(part, []).append(owner)

    def _new_view(self, ty: TensorType, whole: int, begins: tuple[int, ...]) -> int:
        self.graph.tensors.append(GraphTensor(f"t{len(self.graph.tensors)}", ty))
        part = len(self.graph.tensors) - 1
        self._make_view(part, whole, begins)
        return part

    def _copy(self, number: int, whole: int, begins: tuple[int, ...], sources: list[str]) -> GraphNode:
        """A kernel that copies a tensor into a view of `whole`."""
        ty = self.graph.tensors[number].tensor_type
        part = self._new_view(ty, whole, begins)
        argument = Var("p0", ty)
        copy = Function((argument,), Concatenate(axis=0)(argument), {"primitive": True})
        made = GraphNode(Workload.of(copy), [number], [part], sources, names=sizes_of(copy))
        self.producer[part] = made
        self.readers.setdefault(number, []).append(made)
        return made

    def _remove(self, node: GraphNode, instead: list[GraphNode]) -> None:
        self.replaced[id(node)] = instead
        self.report.aliased += 1
        for number in dict.fromkeys(node.inputs):
            self.readers[number] = [reader for reader in self.readers[number] if reader is not node]
        for number in node.outputs:
            self.producer.pop(number, None)


def _cuts(node: GraphNode) -> list[tuple[int, ...]] | None:
    """The offsets of the results of a slice or split in its input; None for other kernels, and for strides other than
    1."""
    function = node.workload.function
    body = function.body
    if not isinstance(body, Call) or len(function.params) != 1 or body.args[0] is not function.params[0]:
        return None
    match body.op:
        case StridedSlice() as op:
            first, steps, _ = op.resolved(function.params[0].shape)
            known = all(isinstance(d, int) for d in first) and all(step == 1 for step in steps)
            return [tuple(first)] if known else None  # type: ignore[list-item]
        case Split() as op:
            axis = op.axis % len(function.params[0].shape)
            sizes = [d for ty in tensor_types(body.ty) if isinstance(d := ty.shape[axis], int)]
            if len(sizes) < len(tensor_types(body.ty)):
                return None
            rank = len(function.params[0].shape)
            begins = accumulate(sizes[:-1], initial=0)
            return [tuple([begin if a == axis else 0 for a in range(rank)]) for begin in begins]
        case _:
            return None


def _concatenated(node: GraphNode) -> tuple[list[int], int] | None:
    """The inputs of a kernel that is only a concatenation, in order, and its axis; None for other kernels."""
    function = node.workload.function
    body = function.body
    if not isinstance(body, Call) or not isinstance(body.op, Concatenate) or len(body.args) < 2:
        return None
    positions = {id(p): i for i, p in enumerate(function.params)}
    if not all(id(a) in positions for a in body.args):
        return None
    return [node.inputs[positions[id(a)]] for a in body.args], body.op.axis % len(body.shape)


def has_only_loops(node: GraphNode) -> bool:
    """Does this kernel consist of loops over indices, which work with any strides?"""
    return all(
        isinstance(e, Tuple | TupleGetItem | Var | Constant) or (isinstance(e, Call) and _has_loops(e))
        for e in body_order(node.workload.function)
    )


def _has_loops(call: Call) -> bool:
    return call.operator.pattern <= OpPattern.OUT_FUSABLE


def _piece(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of contiguous elements in memory."""
    length = 1
    for d, stride in zip(reversed(shape), reversed(strides), strict=True):
        if d != 1 and stride != length:
            break
        length *= d
    return length


def _but(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """The dimensions except `axis`."""
    return (*shape[:axis], *shape[axis + 1 :])


def note_strides(graph: ExecutionGraph) -> None:
    """Set the attribute "strides" of kernels that access tensors that are not contiguous.

    With size variables the attribute "offsets", too: the number of elements that an argument's offset is a multiple of,
    or None where it begins at the address passed. How many multiples is a size of the kernel, `offset_name`.
    """
    made: dict[tuple[str, Any, Any], Workload] = {}
    known: dict[int, int] = {}
    is_static = graph.is_static
    for node in graph.nodes:
        tensors = (*node.inputs, *node.outputs)
        offsets = [0 if is_static else _offset(graph, i, known) for i in tensors]
        if all(map(graph.is_compact, tensors)) and not any(offsets):
            continue
        strides = tuple([None if graph.is_compact(i) else graph.strides_of(i) for i in tensors])
        units = tuple([math.gcd(offset, _SHORTEST) if offset else None for offset in offsets])
        key = node.workload.key, strides, units
        if key not in made:
            function = node.workload.function.with_attr("strides", strides)
            made[key] = Workload.of(function.with_attr("offsets", units) if any(units) else function)
        node.workload = made[key]
        places = zip(offsets, units, strict=True)
        node.names = {**node.names, **{offset_name(i): at // unit for i, (at, unit) in enumerate(places) if unit}}


def _offset(graph: ExecutionGraph, number: int, known: dict[int, int]) -> int:
    """The elements from the start of the memory that holds a tensor to its first one; 0 for what is no tensor."""
    ty = graph.tensors[number].ty
    return byte_offset(graph, number, known) // ty.dtype.nbytes if isinstance(ty, TensorType) and ty.dtype.nbytes else 0
