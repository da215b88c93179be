"""Shares kernels between fused functions that differ only in fixed extents: numbers of channels.

Where the size of images or the batch is dynamic a kernel takes sizes anyway, and its loops have versions and remainders
for all of them, which makes it expensive to compile. A model has many layers that are the same but for their numbers of
channels, which are constants of its architecture. Here these become bounded size variables, whose values a node passes
as constants: one kernel serves the layers of similar extents, and is planned for the largest of them.

Only extents on which the operators' code does not depend are abstracted (`OpDef.open_form`). What all functions of a
group have in common stays known: common factors, the least and the largest extent, and which extents are equal.
Functions of dynamic sizes stay as they are if they consist of cheap operators only.

A static model of many such layers, as a DenseNet, has a kernel for each, all of which are simple. They become one where
its code is as good as theirs: the channels of the first argument alone differ, and the rows of all tensors that have as
many lie a constant distance apart in memory, as those of slices do and of tensors from `relay.lowering.space_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from relayc.relay.analysis import body_order
from relayc.relay.expr import Call, Constant, Expr, Function, Var
from relayc.relay.lowering.canonical_sizes import sizes_of
from relayc.relay.lowering.graph import ExecutionGraph
from relayc.relay.lowering.graph_pass import GraphPass
from relayc.relay.lowering.lower import Workload
from relayc.relay.op.base import OpDef, OpPattern
from relayc.relay.op.common import WIDEST_VECTOR
from relayc.relay.sizes import add_sizes, assuming, product
from relayc.relay.type import TensorType
from relayc.te.dtype import INT32
from relayc.te.ir import PassContext
from relayc.te.ir.decisions import is_recording, note
from relayc.te.tir import Dim, SizeVar
from relayc.topi.groups import likely_rows

__all__ = ["FEWEST_STATIC", "ShareExtents", "as_sizes", "open_axes", "outlined"]

FEWEST_STATIC = 4
"""Fewest functions of static shapes that share a kernel. One kernel of any of some extents takes little longer to
compile than that of one."""

_FEWEST_OF_IMAGES = 8
"""Fewest functions that do where only the batch is dynamic: schedules for static lines of images, and so their code,
are better if all extents are known."""


class ShareExtents(GraphPass):
    """Nodes of a graph, its variants and the graphs inside of it run the same kernel if their functions differ only in
    extents that may be data.

    The extents become values of the nodes' sizes. Tensors keep their types, which those of the functions no longer are.
    """

    def arrange(self, graph: ExecutionGraph, context: PassContext) -> bool:
        nodes = [node for part in graph.all_graphs() for node in part.nodes]
        shared = _shared({node.workload.key: node.workload for node in nodes}.values())
        for node in nodes:
            if node.workload.key in shared:
                node.unshared = node.workload
                node.workload, extents = shared[node.workload.key]
                node.names = {**node.names, **extents}
        return bool(shared)


@dataclass(frozen=True, slots=True)
class _Abstracted:
    """A workload, and the extents of its function that may be data: of parameters, then of operators' attributes."""

    workload: Workload
    extents: tuple[int, ...]


def _shared(workloads: Iterable[Workload]) -> dict[str, tuple[Workload, Mapping[str, int]]]:
    """Key of a workload -> the workload that replaces it, and the values of its additional size variables."""
    alike: dict[Hashable, list[_Abstracted]] = {}
    for workload in workloads:
        found = outlined(workload.function) if _may_share(workload) else None
        if found is not None:
            outline, extents = found
            in_vectors = tuple([extent % WIDEST_VECTOR == 0 for extent in extents])
            alike.setdefault((outline, in_vectors), []).append(_Abstracted(workload, extents))
    groups = [group for each in alike.values() for group in _groups(each)]
    return {key: value for group in groups for key, value in _generalized(group)}


def _may_share(workload: Workload) -> bool:
    """Does it take sizes, all of one type, and compute more than elements one by one? Or is it static, with strides?
    """
    types = {variable.dtype for variable in sizes_of(workload.function).values()}
    if not types:
        return "strides" in workload.function.attrs and isinstance(workload.function.body.ty, TensorType)
    return len(types) == 1 and any(op.pattern >= OpPattern.COMM_REDUCE for op in workload.operator_classes)


def _groups(alike: list[_Abstracted]) -> Iterator[list[_Abstracted]]:
    """The functions, equal but for extents, in groups of those that share a kernel."""
    function = alike[0].workload.function
    if sizes_of(function):
        fewest = _FEWEST_OF_IMAGES if len(likely_rows(function.body.shape[:-1], 0)) > 1 else 2
        yield from (group for group in _similar(alike) if len(group) >= fewest)
        return
    channels = [each.workload.function.params[0].shape[-1:] for each in alike]
    columns = zip(*[each.extents for each in alike], strict=True)
    differs = [any((extent,) != own for extent, own in zip(column, channels, strict=True)) for column in columns]
    by_others: dict[Hashable, list[_Abstracted]] = {}
    for each in alike:
        others = tuple([extent for extent, other in zip(each.extents, differs, strict=True) if other])
        by_others.setdefault(others, []).append(each)
    for each in by_others.values():
        for group in _similar(each):
            if len(group) >= FEWEST_STATIC and _have_constant_strides([one.workload.function for one in group]):
                yield group


def _have_constant_strides(functions: Sequence[Function]) -> bool:
    """Do the arguments and results of several rows, which are longer in one static function than in another, have
    strides?"""
    strides: Sequence[Sequence[int] | None] = functions[0].attrs["strides"]
    shapes = [[e.shape for e in (*function.params, function.body)] for function in functions]
    return all(
        own is not None or len({shape[-1:] for shape in of_one}) == 1 or math.prod(of_one[0][:-1]) == 1
        for own, of_one in zip(strides, zip(*shapes, strict=True), strict=True)
    )


def _similar(alike: list[_Abstracted]) -> Iterator[list[_Abstracted]]:
    """The functions in groups, each of similar extents."""
    largest = min(e.operator.largest_ratio for e in body_order(alike[0].workload.function) if isinstance(e, Call))
    group: list[_Abstracted] = []
    for each in sorted(alike, key=lambda a: a.extents):
        if group and any(max(a, b) > largest * min(a, b) for a, b in zip(group[0].extents, each.extents, strict=True)):
            yield group
            group = []
        group.append(each)
    yield group


def outlined(function: Function) -> tuple[Hashable, tuple[int, ...]] | None:
    """The function without the extents that may be data, equal for functions that differ only in these, and these;
    None where nothing may be."""
    axes_of = open_axes(function)
    if axes_of is None:
        return None
    extents: list[int] = []

    def outline(value: Any, may_be_data: bool) -> Hashable:
        if may_be_data and _is_extent(value):
            extents.append(value)
            return None
        return str(value)

    values: dict[int, Hashable] = {id(p): i for i, p in enumerate(function.params)}
    rows: list[Hashable] = [repr(function.attrs)]
    for p in function.params:
        axes = enumerate(p.tensor_type.shape)
        rows.append((str(p.dtype), *[outline(d, axis in axes_of[id(p)]) for axis, d in axes]))
    for e in body_order(function):
        if isinstance(e, Constant):
            values[id(e)] = e.ty, e.data.tobytes()
        elif isinstance(e, Call):
            op, _ = _open_form(e)
            texts = [(name, outline(value, name in op.open_attributes)) for name, value in op.attributes().items()]
            rows.append((op.name, *texts, *[values[id(a)] for a in e.args]))
            values[id(e)] = len(values)
    return tuple(rows), tuple(extents)


def _is_extent(value: Any) -> bool:
    return isinstance(value, int) and value > 1


def open_axes(function: Function) -> dict[int, set[int]] | None:
    """The axes of each parameter, by its identity, whose extents may be data to all operators that read it; None for a
    function that isn't one of tensors and operators."""
    found = {id(p): set(range(p.tensor_type.ndim)) for p in function.params}
    for e in body_order(function):
        if isinstance(e, Call) and isinstance(e.op, OpDef) and isinstance(e.ty, TensorType):
            for a, axes in zip(e.args, _open_form(e)[1], strict=True):
                found.setdefault(id(a), set()).intersection_update(axes)
        elif not isinstance(e, Var | Constant):
            return None
    return found


def _open_form(call: Call) -> tuple[OpDef, Sequence[Sequence[int]]]:
    return call.operator.open_form([a.tensor_type for a in call.args])


def _generalized(group: Sequence[_Abstracted]) -> Iterator[tuple[str, tuple[Workload, Mapping[str, int]]]]:
    """The function that replaces functions equal up to extents, and the values of its variables for each of them."""
    function = group[0].workload.function
    extents, variables = as_sizes(function, [each.extents for each in group])
    generic = _with_extents(function, extents, tuple(variables.values()))
    if generic is None:
        return
    common = Workload.of(generic)
    for each in group if is_recording() else ():
        note("extents are arguments", common.name, node=f"{each.workload.name} {each.extents}")
    for i, each in enumerate(group):
        yield each.workload.key, (common, {v.name: steps[i] for steps, v in variables.items()})


def as_sizes(
    function: Function, numbers: Sequence[Sequence[int]]
) -> tuple[list[Dim], dict[tuple[int, ...], SizeVar]]:
    """Sizes that stand for the `numbers` of several functions alike, `function` being one; and the variables in them,
    by their values for each function.

    A size is the least value and a multiple of a bounded variable, the same one for numbers that grow together.
    """
    known = sizes_of(function)
    names = (name for n in count() if (name := f"#{n}") not in known)
    dtype = next((variable.dtype for variable in known.values()), INT32)
    variables: dict[tuple[int, ...], SizeVar] = {}
    sizes: list[Dim] = []
    for column in zip(*numbers, strict=True):
        least = min(column)
        step = math.gcd(*[number - least for number in column])
        if not step:
            sizes.append(least)
            continue
        steps = tuple([(number - least) // step for number in column])
        if steps not in variables:
            variables[steps] = SizeVar(next(names), dtype, most=max(steps))
        sizes.append(add_sizes(least, product((step, variables[steps]))))
    return sizes, variables


def _with_extents(
    function: Function, extents: Sequence[Dim], variables: Sequence[SizeVar]
) -> Function | None:
    """The function with other extents, in the order of `outlined`; None where they reach an operator whose code
    depends on them."""
    axes_of, left = open_axes(function), iter(extents)
    assert axes_of is not None
    params: list[Var] = []
    for p in function.params:
        axes = enumerate(p.tensor_type.shape)
        shape = [next(left) if axis in axes_of[id(p)] and _is_extent(d) else d for axis, d in axes]
        params.append(Var(p.name, p.tensor_type.with_shape(shape), span=p.span))
    done: dict[int, Expr] = {id(old): new for old, new in zip(function.params, params, strict=True)}
    with assuming():  # what was assumed of the model's sizes holds here as well
        for e in body_order(function):
            if not isinstance(e, Call):
                done.setdefault(id(e), e)
                continue
            args, (op, open_to_it) = [done[id(a)] for a in e.args], _open_form(e)
            if all(new.ty is old.ty for old, new in zip(e.args, args, strict=True)):
                op = e.operator
            for old, new, axes in zip(e.args, args, open_to_it, strict=True):
                pairs = enumerate(zip(old.shape, new.shape, strict=True))
                if any(isinstance(d, int) and not isinstance(n, int) and axis not in axes for axis, (d, n) in pairs):
                    return None
            attributes = op.attributes().items()
            changed = {n: next(left) for n, v in attributes if n in op.open_attributes and _is_extent(v)}
            done[id(e)] = Call(op.replace(**changed) if changed else op, tuple(args), span=e.span)
    bounds = (*function.attrs.get("extents", ()), *[(variable.name, variable.most) for variable in variables])
    return Function(tuple(params), done[id(function.body)], {**function.attrs, "extents": bounds})
