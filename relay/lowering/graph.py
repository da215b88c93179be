"""The execution graph of a fused function: kernels in order, tensors with their placement in memory.

The result is an `ExecutionGraph`, from which `relay.lowering.description` makes the `backend.runtime.graph.Graph` of
the compiled model. It is made in steps: number the values and the kernel calls and note which tensors share memory
(views); add the kernels' scratch; place the tensors: inputs, outputs and parameters at addresses of the caller,
everything else in the arena.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from relayc.backend.runtime.metadata import ModelMetadata
from relayc.relay.analysis import body_order, outer_order
from relayc.relay.container_type import ContainerType
from relayc.relay.equal_constants import EqualConstants
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from relayc.relay.lowering.canonical_sizes import CanonicalSizes
from relayc.relay.lowering.function_numbers import FunctionNumbers
from relayc.relay.lowering.lower import Workload
from relayc.relay.lowering.memory_plan import Lifetime, MemoryPlan, plan_memory
from relayc.relay.lowering.workspace import Workspace
from relayc.relay.op.control import ControlFlow
from relayc.relay.op.host import HostOperator
from relayc.relay.sizes import evaluate, product
from relayc.relay.stored import StoredConstant, fetched
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.errors import CompileError
from relayc.te.ir import Span
from relayc.te.tir import Dim, SizeVar

__all__ = [
    "AliasReport",
    "BatchSlices",
    "ExecutionGraph",
    "GraphNode",
    "GraphTensor",
    "SlicedRun",
    "add_workspaces",
    "byte_offset",
    "last_reads",
    "lifetimes",
    "make_graph",
    "place_outputs",
    "plan_arena",
    "reuse_dying_buffer",
    "reuse_inputs",
    "share_storage",
    "time_steps",
]  # fmt: skip

Value = int | tuple["Value", ...]


@dataclass
class GraphTensor:
    """A tensor of the graph. A view has the number of the tensor whose memory it aliases in `base`.

    `begins`, if set, makes it a slice of its base: the position of its first element there, in every dimension. A
    sequence or an optional value, whose `ty` is a ContainerType, has a number too, but no memory.
    """

    name: str
    ty: TensorType | ContainerType
    storage: tuple[str, int | str] | None = None
    base: int | None = None
    begins: tuple[int, ...] | None = None

    @property
    def tensor_type(self) -> TensorType:
        """The type, which must be a TensorType."""
        assert isinstance(self.ty, TensorType), f"{self.name} is a {self.ty}"
        return self.ty

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of a tensor; () of a container."""
        return self.ty.shape if isinstance(self.ty, TensorType) else ()

    @property
    def nbytes(self) -> int:
        return self.tensor_type.nbytes

    @property
    def rows(self) -> tuple[int, ...] | None:
        """The shape of a tensor of which only the first dimension may be symbolic, which is 0 then: strides don't
        depend on it. None for others."""
        if not isinstance(self.ty, TensorType) or not all(isinstance(d, int) for d in self.shape[1:]):
            return None
        return tuple([d if isinstance(d, int) else 0 for d in self.shape])

    def as_large_as(self, other: GraphTensor) -> bool:
        """Do both take the same number of bytes, whatever the sizes?"""
        mine, theirs = self.tensor_type, other.tensor_type
        return mine.dtype.nbytes == theirs.dtype.nbytes and product(mine.shape) is product(theirs.shape)


@dataclass(frozen=True, eq=False)
class BatchSlices:
    """Consecutive nodes with the same object run for `images` images of a symbolic `batch`, then for the next ones."""

    batch: SizeVar
    images: int


@dataclass
class GraphNode:
    """One kernel call; the last `scratch` of its outputs are scratch memory.

    The kernel takes the values of `sizes` after its tensors. `names` maps the workload's size variables to sizes of the
    graph.
    """

    workload: Workload
    inputs: list[int]
    outputs: list[int]
    sources: list[str]
    scratch: int = 0
    sizes: tuple[Dim, ...] = ()
    names: Mapping[str, Dim] = field(default_factory=dict[str, Dim])
    region: int | None = None
    """consecutive nodes of the same number form one parallel region"""
    concurrent: bool = False
    """does it run concurrently with the previous node, in the same region?"""
    unshared: Workload | None = None
    """the workload of these extents only, where extents are among `names`"""
    cycles: float = 0.0
    """estimated cycles of the kernel on one core; 0: unknown"""
    slices: BatchSlices | None = None
    """the slices of the batch that it runs for, one at a time, with the nodes beside it"""

    @property
    def own_workload(self) -> Workload:
        """The workload of these extents only."""
        return self.unshared or self.workload


class SlicedRun(NamedTuple):
    """Nodes `first` ... `last` - 1, which run for slices of the batch.

    `passing` are the tensors that own memory which is accessed outside of the run, too, or belongs to the caller.
    """

    first: int
    last: int
    slices: BatchSlices
    passing: frozenset[int]


@dataclass
class ControlNode:
    """A step of the executor between kernels: an `If` or a loop, with graphs of its own, or one action.

    `inputs` are the tensors of its arguments.
    """

    operator: ControlFlow | HostOperator
    inputs: list[int]
    outputs: list[int]
    source: str
    graphs: list[ExecutionGraph]
    scratch: int = 0
    sizes: tuple[str, ...] = ()

    @property
    def reused(self) -> list[int]:
        """The inputs that its results may alias."""
        return self.inputs[self.operator.keeps] if isinstance(self.operator, HostOperator) else self.inputs


@dataclass
class AliasReport:
    """Concatenations, slices and splits that became views of other tensors; inputs that are still copied for them."""

    aliased: int = 0
    copied: int = 0

    def __str__(self) -> str:
        return f"{self.aliased} concatenations, slices and splits in place, {self.copied} of their inputs copied"


@dataclass
class ExecutionGraph:
    """Kernels in order, tensors by number, the parameters' data by name."""

    inputs: list[int]
    outputs: list[int] = field(default_factory=list)
    tensors: list[GraphTensor] = field(default_factory=list)
    nodes: list[GraphNode] = field(default_factory=list)
    params: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    plan: MemoryPlan = field(default_factory=lambda: MemoryPlan({}, 0, 0))
    sizes: tuple[str, ...] = ()
    steps: list[dict[str, Any]] = field(default_factory=list)
    control_nodes: list[ControlNode] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    """tensors that are read between steps, so that their memory is not reused"""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    entry: str | None = None
    written_in_place: set[int] = field(default_factory=set)
    """results that alias an input, which is a KV cache"""
    variants: list[tuple[dict[str, int], ExecutionGraph]] = field(default_factory=list)
    """specialisations of this graph to certain sizes, which the executor prefers if the inputs match"""
    maps: Mapping[int, Sequence[str | int]] = field(default_factory=dict[int, Sequence[str | int]])
    """outputs, matrices, of which each row is a map from these keys"""
    metadata: ModelMetadata = field(default_factory=ModelMetadata)
    aliasing: AliasReport = field(default_factory=AliasReport)
    """the views of this graph and of all graphs inside of it"""

    def __str__(self) -> str:
        """A line for each kernel call: results, kernel, operands."""
        lines = [f"{', '.join(map(self._text, n.outputs))} = {n.workload.name}({', '.join(map(self._text, n.inputs))})"
                 for n in self.nodes]  # fmt: skip
        return "\n".join(lines)

    def _text(self, number: int) -> str:
        tensor = self.tensors[number]
        return f"%{number}" if tensor.base is None else f"%{number} of %{tensor.base}"

    @property
    def is_static(self) -> bool:
        """Are all sizes static, without run-time bindings or checks, and is there no control flow?"""
        is_dynamic = self.control_nodes or self.attrs.get("bound_sizes")
        return not is_dynamic and all(isinstance(t.ty, TensorType) and t.ty.is_static for t in self.tensors)

    @property
    def is_placed_statically(self) -> bool:
        """Are tensors placed when the graph is built?"""
        return self.is_static and not self.attrs.get("nested")

    @property
    def runs_in_order(self) -> bool:
        """Do all nodes run in the order of the graph, as all sizes are those of its inputs?"""
        waits = self.control_nodes or self.attrs.get("bound_sizes") or self.attrs.get("caches")
        return not waits and not self.attrs.get("nested")

    def all_graphs(self) -> Iterator[ExecutionGraph]:
        """This graph and those inside its control flow, once each: equal bodies have one graph."""
        seen: set[int] = set()
        stack = [self]
        while stack:
            graph = stack.pop()
            if id(graph) not in seen:
                seen.add(id(graph))
                yield graph
                variants = [variant for _, variant in graph.variants]
                stack += [*variants, *[body for control in graph.control_nodes for body in control.graphs]][::-1]

    def is_parameter(self, tensor: int) -> bool:
        """Does the tensor lie in the memory of a parameter?"""
        storage = self.tensors[self.base_of(tensor)].storage
        return storage is not None and storage[0] == "param"

    def base_of(self, tensor: int) -> int:
        """The tensor that owns the memory of this one."""
        while (base := self.tensors[tensor].base) is not None:
            tensor = base
        return tensor

    def source_of(self, tensor: int) -> int:
        """The tensor that has to be computed before this one can be read: its base, or the KV cache after an update."""
        while tensor not in self.written_in_place and (base := self.tensors[tensor].base) is not None:
            tensor = base
        return tensor

    def sliced_runs(self) -> Iterator[SlicedRun]:
        """The runs of nodes for slices of the batch, in order."""
        if not any(node.slices for node in self.nodes):
            return
        uses = Counter(n for node in self.nodes for n in self.bases_of(node))
        kept = {self.base_of(number) for number in (*self.outputs, *self.kept)}
        first = 0
        for slices, group in groupby(self.nodes, key=lambda node: node.slices):
            inside = list(group)
            first, begin = first + len(inside), first
            if slices is None:
                continue
            here = Counter(n for node in inside for n in self.bases_of(node))
            passing = [n for n, count in here.items() if count < uses[n] or n in kept or self._is_callers(n)]
            yield SlicedRun(begin, first, slices, frozenset([n for n in passing if not self.is_parameter(n)]))

    def _is_callers(self, base: int) -> bool:
        """Does the memory of a tensor belong to the caller, or may it be handed out?"""
        storage = self.tensors[base].storage
        return storage is not None and storage[0] != "slot"

    def bases_of(self, node: GraphNode) -> list[int]:
        """The tensors that own the memory which a node accesses."""
        return [self.base_of(number) for number in (*node.inputs, *node.outputs)]

    def strides_of(self, tensor: int) -> tuple[int, ...]:
        """The strides, in elements, of a tensor with `rows`: those of the tensor that it is a slice of, or contiguous
        ones."""
        at = self.tensors[tensor]
        while at.base is not None and at.begins is not None:
            at = self.tensors[at.base]
        assert at.rows is not None
        return compact_strides(at.rows)

    def is_compact(self, tensor: int) -> bool:
        """Are the elements of a tensor contiguous in memory?"""
        at = self.tensors[tensor]
        return at.begins is None or (at.rows is not None and is_compact(at.rows, self.strides_of(tensor)))


class Params:
    """Parameters of a graph, of its variants and of the graphs in its control flow: equal values are stored once."""

    def __init__(self) -> None:
        self.values: dict[str, np.ndarray[Any, Any]] = {}
        self._equal = EqualConstants()
        self._stored: dict[Hashable, Constant] = {}
        """the values of constants that stayed in a file until now, by their places"""
        self._names: dict[int, str] = {}
        """by the id of the first constant of the values"""

    def name(self, constant: Constant) -> str:
        """The name of the parameter with these values."""
        first = self._first(constant)
        name = self._names.setdefault(id(first), f"p{len(self.values)}")
        self.values.setdefault(name, first.data)
        return name

    def _first(self, constant: Constant) -> Constant:
        """The first constant with these values, which are in memory."""
        if not isinstance(constant, StoredConstant):
            return self._equal.first(constant)
        place = constant.ty, constant.place
        if place not in self._stored:
            self._stored[place] = self._equal.first(Constant(fetched(constant)))
        return self._stored[place]


class _Bodies:
    """The graphs of the functions inside control flow; those of equal functions are one.

    The names of operators in the user's model are those of the first of them.
    """

    def __init__(self, prepare: Callable[[Function], Function], params: Params) -> None:
        self.prepare, self.params = prepare, params
        self.graphs: dict[int, ExecutionGraph] = {}
        self.number_of = FunctionNumbers()

    def graph_of(self, body: Function) -> ExecutionGraph:
        """The graph of a function, whose parameters are among `params`."""
        number = self.number_of(body)
        if number not in self.graphs:
            graph = self.graphs[number] = _Numbering(self.prepare(body), self).graph
            graph.attrs = {**graph.attrs, "nested": True}
        return self.graphs[number]


class _Numbering:
    """Walks the function once and numbers its values."""

    def __init__(self, function: Function, bodies: _Bodies) -> None:
        self.bodies, self.params = bodies, bodies.params
        self.graph = ExecutionGraph(inputs=[], attrs=function.attrs, params=self.params.values)
        self.values: dict[int, Value] = {}
        self.workloads: dict[int, Workload] = {}
        """by the number of the function over canonical sizes"""
        self.named: dict[int, tuple[Workload, Mapping[str, Dim]]] = {}
        """workload and sizes of a function of the model, by its number"""
        self.canonical_sizes = CanonicalSizes()
        self.param_numbers: dict[str, int] = {}
        for i, param in enumerate(function.params):
            (ty,) = _value_types(param.ty)
            number = self.add(param.name, ty, ("input", i))
            self.graph.inputs.append(number)
            self.values[id(param)] = number
        for expr in outer_order(function.body):
            if id(expr) not in self.values:
                self.values[id(expr)] = self.visit(expr)
        self.graph.outputs = _flatten(self.values[id(function.body)])

    def add(
        self, name: str, ty: TensorType | ContainerType, storage: tuple[str, int | str] | None, base: int | None = None
    ) -> int:
        self.graph.tensors.append(GraphTensor(name, ty, storage, base))
        return len(self.graph.tensors) - 1

    def visit(self, expr: Expr) -> Value:
        match expr:
            case Constant():
                return self.visit_constant(expr)
            case Tuple():
                return tuple(self.values[id(f)] for f in expr.fields)
            case TupleGetItem():
                whole = self.values[id(expr.tuple_value)]
                assert isinstance(whole, tuple)
                return whole[expr.index]
            case Call(op=Function() as function):
                return self.visit_kernel(expr, function)
            case Var():
                raise CompileError(f"variable {expr.name} is free in the function to build")
            case _:
                raise CompileError(f"a {type(expr).__name__} can't be executed by the graph executor; "
                                   "expected calls of fused functions, tuples and constants")  # fmt: skip

    def visit_constant(self, constant: Constant) -> int:
        name = self.params.name(constant)
        if name not in self.param_numbers:
            self.param_numbers[name] = self.add(name, constant.ty, ("param", name))
        return self.param_numbers[name]

    def visit_kernel(self, call: Call, function: Function) -> Value:
        inputs = [number for a in call.args for number in _flatten(self.values[id(a)])]
        types = _value_types(call.ty)
        label = call.span.name if call.span is not None else ""
        if is_view(function):
            source, ty = self.graph.tensors[inputs[0]], types[0]
            is_static = isinstance(ty, TensorType) and ty.is_static
            if is_static or not self.graph.is_parameter(inputs[0]):  # weights have static shapes
                return self.add(label, ty, source.storage, self.graph.base_of(inputs[0]))
        inner = function.body
        if isinstance(inner, Call) and isinstance(inner.op, ControlFlow | HostOperator):
            return self.visit_control(inner, inner.op, dict(zip(function.params, inputs, strict=True)), call.span)
        workload, names = self.workload(function)
        outputs = [self.add(f"t{len(self.graph.tensors) + i}", ty, None) for i, ty in enumerate(types)]
        self.graph.nodes.append(GraphNode(workload, inputs, outputs, sources_of(function, label), names=names))
        return outputs[0] if isinstance(call.ty, TensorType) else tuple(outputs)

    def visit_control(
        self, call: Call, op: ControlFlow | HostOperator, params: Mapping[Var, int], span: Span | None
    ) -> Value:
        """Turn the functions into graphs, and constant arguments into parameters."""
        inputs = [self.visit_constant(a) if isinstance(a, Constant) else params[a] for a in call.args]  # type: ignore[index]
        types = _value_types(call.ty)
        outputs = [self.add(f"t{len(self.graph.tensors) + i}", ty, None) for i, ty in enumerate(types)]
        for number in outputs:
            self.graph.tensors[number].storage = ("value", number)
        bodies = op.bodies() if isinstance(op, ControlFlow) else ()
        graphs = [self.bodies.graph_of(body) for body in bodies]
        label = "" if span is None else span.name if graphs else f"{span.op} {span.name!r}"
        self.graph.control_nodes.append(ControlNode(op, inputs, outputs, label, graphs))
        return tuple(outputs) if isinstance(call.ty, TupleType) else outputs[0]

    def workload(self, function: Function) -> tuple[Workload, Mapping[str, Dim]]:
        """The workload of a function, and the graph's sizes by their names there."""
        number = self.bodies.number_of(function)
        if number not in self.named:
            renamed, names = self.canonical_sizes.rename(function)
            same = self.bodies.number_of(renamed)
            if same not in self.workloads:
                self.workloads[same] = Workload.of(renamed)
            self.named[number] = self.workloads[same], names
        return self.named[number]


def time_steps(nodes: Iterable[GraphNode]) -> Iterator[tuple[int, GraphNode]]:
    """Nodes in order, numbered in time: nodes that run concurrently have one number."""
    time_step = -1
    for node in nodes:
        time_step += not node.concurrent
        yield time_step, node


def compact_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a contiguous tensor, the last dimension innermost."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def is_compact(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Do these strides leave no gaps? Strides of dimensions of one element don't count."""
    return all(d == 1 or a == b for d, a, b in zip(shape, strides, compact_strides(shape), strict=True))


def _value_types(ty: Type) -> list[TensorType | ContainerType]:
    """The types of the tensors and containers of a value, tuples flattened."""
    if isinstance(ty, TupleType):
        return [t for f in ty.fields for t in _value_types(f)]
    assert isinstance(ty, TensorType | ContainerType)
    return [ty]


def _flatten(value: Value) -> list[int]:
    return [value] if isinstance(value, int) else [n for v in value for n in _flatten(v)]


def is_view(function: Function) -> bool:
    """Is this fused function a mere reshape of its one argument?"""
    calls = [e for e in body_order(function) if isinstance(e, Call)]
    return len(function.params) == 1 and bool(calls) and all(call.operator.is_view for call in calls)


def sources_of(function: Function, label: str) -> list[str]:
    """Names in the user's model of the operators of a group, without repetition."""
    names = [e.span.name for e in body_order(function) if isinstance(e, Call) and e.span is not None]
    return list(dict.fromkeys([n for n in (*names, label) if n]))


def place_outputs(graph: ExecutionGraph, elsewhere: Container[int] = ()) -> None:
    """Place outputs that a kernel writes in the caller's memory, except for those computed `elsewhere` and copied."""
    for i, number in enumerate(graph.outputs):
        base = graph.tensors[graph.base_of(number)]
        if base.storage is None and number not in elsewhere:
            base.storage = ("output", i)


def reuse_dying_buffer(graph: ExecutionGraph) -> None:
    """Allocate values that the executor may retain (in a sequence or a result) anew in every run."""
    for number in [i for control in graph.control_nodes for i in control.reused]:
        base = graph.base_of(number)
        if graph.tensors[base].storage is None:
            graph.tensors[base].storage = ("own", base)


def last_reads(graph: ExecutionGraph) -> dict[int, int]:
    """The last step that writes or reads each tensor that owns memory."""
    last: dict[int, int] = {}
    for step, node in time_steps(graph.nodes):
        for number in (*node.outputs, *node.inputs):
            last[graph.base_of(number)] = step
    for run in graph.sliced_runs():  # the next slice reads and writes what is not inside the run
        last |= dict.fromkeys([n for n in run.passing if last[n] < run.last], run.last - 1)
    return {**last, **{graph.base_of(number): len(graph.nodes) for number in graph.kept}}


def reuse_inputs(graph: ExecutionGraph, in_place: Mapping[str, Sequence[int]]) -> None:
    """Let results reuse the memory of dying inputs, where the kernel allows it."""
    last = last_reads(graph)
    read: dict[int, list[int]] = {}
    for step, node in time_steps(graph.nodes):
        read.setdefault(step, []).extend(node.inputs)
    for step, node in time_steps(graph.nodes):
        result = node.outputs[0]
        if graph.tensors[result].base is not None:  # a batch slice is placed already
            continue
        for position in in_place.get(node.workload.name, ()):
            base = graph.base_of(node.inputs[position])
            mine = graph.tensors[result].storage is None and graph.tensors[base].storage is None
            mine = mine and graph.tensors[result].base is None
            once = [graph.base_of(number) for number in read[step]].count(base) == 1
            if mine and once and last[base] == step and graph.tensors[base].as_large_as(graph.tensors[result]):
                graph.tensors[result].base = base
                last[base] = last[result]
                break


def lifetimes(graph: ExecutionGraph) -> dict[int, Lifetime]:
    """The lifetimes of the tensors that nodes write and that own memory, by number."""
    last = last_reads(graph)
    first: dict[int, int] = {}
    for step, node in time_steps(graph.nodes):
        for number in node.outputs:
            first.setdefault(graph.base_of(number), step)
    return {n: Lifetime(n, graph.tensors[n].nbytes, first[n], last[n]) for n in first}


def plan_arena(graph: ExecutionGraph) -> MemoryPlan:
    """Offsets in the arena for the tensors that are not placed yet."""
    return plan_memory([alive for n, alive in lifetimes(graph).items() if graph.tensors[n].storage is None])


def make_graph(
    function: Function, prepare: Callable[[Function], Function] = lambda f: f, params: Params | None = None
) -> ExecutionGraph:
    """The execution graph of a function whose body calls fused functions; its tensors are placed next.

    `prepare` optimises and fuses the functions inside control flow; `params` are shared with other graphs. Raises
    CompileError for expressions that can't be executed.
    """
    return _Numbering(function, _Bodies(prepare, Params() if params is None else params)).graph


def add_workspaces(graph: ExecutionGraph, workspaces: Mapping[str, Sequence[Workspace]]) -> None:
    """Give the nodes scratch tensors: `workspaces` holds their sizes and types by the name of the kernel."""
    for node in graph.nodes:
        for count, element in workspaces[node.workload.name]:
            node.outputs.append(len(graph.tensors))
            node.scratch += 1
            here = TensorType((evaluate(count, node.names),), element)
            graph.tensors.append(GraphTensor(f"scratch{len(graph.tensors)}", here))


def share_storage(graph: ExecutionGraph) -> None:
    """Place views at the address of their base, slices in the arena at an offset from it.

    Other slices are those of a graph with size variables, to which kernels add the offset: see `note_strides`.
    """
    offsets: dict[int, int] = {}
    for number, tensor in enumerate(graph.tensors):
        tensor.storage = graph.tensors[graph.base_of(number)].storage
        if tensor.storage is not None and tensor.storage[0] == "arena" and (at := byte_offset(graph, number, offsets)):
            tensor.storage = ("arena", int(tensor.storage[1]) + at)


def byte_offset(graph: ExecutionGraph, number: int, known: dict[int, int]) -> int:
    """Bytes from the start of the memory that holds a tensor to its first element; `known` keeps those of all its
    bases."""
    chain: list[int] = []
    base: int | None = number
    while base is not None and base not in known:
        chain.append(base)
        base = graph.tensors[base].base
    offset = 0 if base is None else known[base]
    for view in reversed(chain):
        at = graph.tensors[view]
        if at.base is not None and at.begins is not None:
            strides = graph.strides_of(at.base)
            offset += at.tensor_type.dtype.nbytes * sum(b * s for b, s in zip(at.begins, strides, strict=True))
        known[view] = offset
    return offset
