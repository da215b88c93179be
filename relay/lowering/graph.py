"""The execution graph of a fused function: kernels in order, tensors with their places in memory.

The result is plain data (see `backend.runtime.graph_executor` for the format), made in steps: number the values and the
kernel calls and note which tensors share memory (views); add the kernels' scratch; place the tensors: inputs, outputs
and parameters where the caller puts them, everything else in the arena.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relayc.backend.size_json import size_to_json
from relayc.relay.analysis import evaluation_order, outer_order
from relayc.relay.container_type import ContainerType
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from relayc.relay.lowering.canonical_sizes import CanonicalSizes
from relayc.relay.lowering.lower import Workload
from relayc.relay.lowering.memory_plan import Lifetime, MemoryPlan, plan_memory
from relayc.relay.lowering.workspace import Workspace
from relayc.relay.op.control import ControlFlow
from relayc.relay.op.host import HostOperator
from relayc.relay.sizes import evaluate, product
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.errors import CompileError
from relayc.te.ir import Span
from relayc.te.tir import Dim

__all__ = [
    "ExecutionGraph",
    "GraphNode",
    "GraphTensor",
    "add_workspaces",
    "last_reads",
    "make_graph",
    "moments",
    "place_outputs",
    "place_tensors",
    "plan_arena",
    "reuse_dying_buffer",
    "reuse_inputs",
]  # fmt: skip

Value = int | tuple["Value", ...]


@dataclass
class GraphTensor:
    """A tensor of the graph. A view has the number of the tensor whose memory it shows in `base`.

    `begins`, where given, makes it a part of its base: the position of its first element there, in every dimension.
    A sequence or an optional value, of which `ty` is a ContainerType, has a number too, but no memory.
    """

    name: str
    ty: TensorType | ContainerType
    storage: tuple[str, int | str] | None = None
    base: int | None = None
    begins: tuple[int, ...] | None = None

    @property
    def tensor_type(self) -> TensorType:
        """The type of what is a tensor."""
        assert isinstance(self.ty, TensorType), f"{self.name} is a {self.ty}"
        return self.ty

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of a tensor; () of a container."""
        return self.ty.shape if isinstance(self.ty, TensorType) else ()

    @property
    def nbytes(self) -> int:
        return self.tensor_type.nbytes

    def as_large_as(self, other: GraphTensor) -> bool:
        """Do both take the same number of bytes, whatever the sizes?"""
        mine, theirs = self.tensor_type, other.tensor_type
        return mine.dtype.nbytes == theirs.dtype.nbytes and product(mine.shape) is product(theirs.shape)



@dataclass
class GraphNode:
    """One kernel call; the last `scratch` of its outputs are memory that nobody reads after it.

    The kernel takes the values of `sizes` after its tensors. `names` has what the workload's size variables stand for,
    sizes of the graph, by their names.
    """

    workload: Workload
    inputs: list[int]
    outputs: list[int]
    sources: list[str]
    scratch: int = 0
    sizes: tuple[Dim, ...] = ()
    names: Mapping[str, Dim] = field(default_factory=dict[str, Dim])
    region: int | None = None
    """nodes in a row of the same number are one parallel region"""
    beside: bool = False
    """does it run at the same time as the node in front of it, in the same region?"""
    cycles: float = 0.0
    """about what the kernel takes, on one core; 0: unknown"""


@dataclass
class ControlNode:
    """What the executor does between kernels: an `If` or a loop, with graphs of its own, or one action.

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
        """The inputs to which what it gives may hold on."""
        return self.inputs[self.operator.keeps] if isinstance(self.operator, HostOperator) else self.inputs


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
    """tensors that are read between steps, so that their memory is not given away"""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    entry: str | None = None
    written_in_place: set[int] = field(default_factory=set)
    """results that lie where an input lies, which is a cache"""
    variants: list[tuple[dict[str, int], ExecutionGraph]] = field(default_factory=list)
    """this graph for certain sizes, which the executor prefers where they are given"""
    maps: Mapping[int, Sequence[str | int]] = field(default_factory=dict[int, Sequence[str | int]])
    """outputs, matrices, of which each row is a map from these keys"""

    @property
    def is_static(self) -> bool:
        """Are all sizes known now, nothing to be bound or checked at run time, and is there no control flow?"""
        is_dynamic = self.control_nodes or self.attrs.get("bound_sizes")
        return not is_dynamic and all(isinstance(t.ty, TensorType) and t.ty.is_static for t in self.tensors)

    @property
    def is_placed_now(self) -> bool:
        """Do tensors get their places when the graph is built?"""
        return self.is_static and not self.attrs.get("nested")

    def all_graphs(self) -> Iterator[ExecutionGraph]:
        """This graph and those inside its control flow."""
        yield self
        for _, variant in self.variants:
            yield from variant.all_graphs()
        for control in self.control_nodes:
            for graph in control.graphs:
                yield from graph.all_graphs()

    def base_of(self, tensor: int) -> int:
        """The tensor that owns the memory this one shows."""
        while (base := self.tensors[tensor].base) is not None:
            tensor = base
        return tensor

    def source_of(self, tensor: int) -> int:
        """The tensor that has to be computed before this one can be read: its base, or the cache as a node left it."""
        while tensor not in self.written_in_place and (base := self.tensors[tensor].base) is not None:
            tensor = base
        return tensor

    def strides_of(self, tensor: int) -> tuple[int, ...]:
        """The strides, in elements, of a tensor of known size: those of the tensor that it is a part of, or compact."""
        at = self.tensors[tensor]
        if at.base is not None and at.begins is not None:
            return self.strides_of(at.base)
        return compact_strides(at.tensor_type.static_shape)

    def is_compact(self, tensor: int) -> bool:
        """Are the elements of a tensor one after another in memory?"""
        return is_compact(self.tensors[tensor].tensor_type.static_shape, self.strides_of(tensor))

    def byte_offset_of(self, tensor: int) -> int:
        """Bytes between the start of the memory that a tensor shows and its first element."""
        at, offset = self.tensors[tensor], 0
        while at.base is not None:
            if at.begins is not None:
                strides = self.strides_of(at.base)
                offset += at.tensor_type.dtype.nbytes * sum(b * s for b, s in zip(at.begins, strides, strict=True))
            at = self.tensors[at.base]
        return offset

    def to_json(self, name: str, target: str, device: str) -> dict[str, Any]:
        """The graph as the executor reads it."""
        dynamic: dict[str, Any] = {}
        if self.steps or self.sizes:
            dynamic = {"sizes": list(self.sizes), "steps": self._steps_json(name, target, device)}
        return {
            "version": 1,
            "name": name,
            "device": device,
            "target": target,
            "tensors": [self._tensor_json(i, t) for i, t in enumerate(self.tensors)],
            "nodes": [self._node_json(i, n) for i, n in enumerate(self.nodes)],
            "inputs": self.inputs,
            "outputs": self.outputs,
            "arena_bytes": self.plan.arena_bytes,
            "entry": self.entry,
            **dynamic,
            **({"variants": self._variants_json(name, target, device)} if self.variants else {}),
            **({"texts": self._texts_json()} if "texts" in self.attrs else {}),
            **({"maps": [[position, list(keys)] for position, keys in self.maps.items()]} if self.maps else {}),
            **({"caches": self._caches_json()} if self.attrs.get("caches") else {}),
        }

    def _texts_json(self) -> dict[str, Any]:
        """The strings that the graph names, and which inputs and outputs are such."""
        texts, inputs, outputs = (list(self.attrs[name]) for name in ("texts", "text_inputs", "text_outputs"))
        return {"table": texts, "inputs": inputs, "outputs": outputs}

    def _caches_json(self) -> list[dict[str, Any]]:
        """The inputs that the executor keeps: where they grow, the size that tells their rows, the rows added."""
        positions = {self.tensors[number].name: i for i, number in enumerate(self.inputs)}
        records: Sequence[tuple[str, int, Dim, Dim]] = self.attrs["caches"]
        return [{"input": positions[name], "axis": axis, "length": size_to_json(length), "added": size_to_json(added)}
                for name, axis, length, added in records]  # fmt: skip

    def _variants_json(self, name: str, target: str, device: str) -> list[dict[str, Any]]:
        return [{"sizes": sizes, "graph": graph.to_json(name, target, device)} for sizes, graph in self.variants]

    def _steps_json(self, name: str, target: str, device: str) -> list[dict[str, Any]]:
        """The steps with the graphs of control flow in them."""
        written: list[dict[str, Any]] = []
        for step in self.steps:
            control = step.get("control")
            plain = {key: value for key, value in step.items() if key != "control"}
            if control is not None and control.graphs:
                graphs = [g.to_json(name, target, device) for g in control.graphs]
                plain |= {"graphs": graphs} if step["step"] == "if" else {"graph": graphs[0]}
            written.append(plain)
        return written

    def _tensor_json(self, number: int, tensor: GraphTensor) -> dict[str, Any]:
        dtype = tensor.ty.dtype if isinstance(tensor.ty, TensorType) else tensor.ty.tensors.dtype
        is_part = tensor.begins is not None and not self.is_compact(number)
        return {
            "name": tensor.name,
            "shape": [size_to_json(d) for d in tensor.shape],
            "dtype": "float32" if dtype is None else str(dtype),  # that of an empty list is of no account
            "storage": list(tensor.storage or ()),
            **({"strides": list(self.strides_of(number))} if is_part else {}),
            **({"is_list": True} if isinstance(tensor.ty, ContainerType) else {}),
        }

    def _node_json(self, index: int, node: GraphNode) -> dict[str, Any]:
        results = len(node.outputs) - node.scratch
        return {
            "name": f"{index}_{'_'.join(node.workload.operators)}"[:80],
            "func": node.workload.name,
            "inputs": node.inputs,
            "outputs": node.outputs[:results],
            "scratch": node.outputs[results:],
            "ops": list(node.workload.operators),
            "sources": node.sources,
            "flops": node.workload.flops,
            "bytes": node.workload.nbytes,
            **({"sizes": [size_to_json(size) for size in node.sizes]} if node.sizes else {}),
        }


class _Numbering:
    """Walks the function once and numbers what it meets."""

    def __init__(
        self, function: Function, prepare: Callable[[Function], Function], params: dict[str, Any] | None = None
    ) -> None:
        self.prepare = prepare
        self.graph = ExecutionGraph(inputs=[], attrs=function.attrs, params={} if params is None else params)
        self.values: dict[int, Value] = {}
        self.workloads: dict[str, Workload] = {}
        self.by_function: dict[int, tuple[Workload, Mapping[str, Dim]]] = {}
        self.canonical_sizes = CanonicalSizes()
        self.params_by_data: dict[int, int] = {}
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
        number = self.params_by_data.get(id(constant.data))
        if number is None:
            name = f"p{len(self.graph.params)}"
            self.graph.params[name] = constant.data
            number = self.add(name, constant.ty, ("param", name))
            self.params_by_data[id(constant.data)] = number
        return number

    def visit_kernel(self, call: Call, function: Function) -> Value:
        inputs = [number for a in call.args for number in _flatten(self.values[id(a)])]
        types = _value_types(call.ty)
        label = call.span.name if call.span is not None else ""
        if is_view(function):
            source = self.graph.tensors[inputs[0]]
            return self.add(label, types[0], source.storage, self.graph.base_of(inputs[0]))
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
        """The functions become graphs; a constant argument a parameter."""
        inputs = [self.visit_constant(a) if isinstance(a, Constant) else params[a] for a in call.args]  # type: ignore[index]
        types = _value_types(call.ty)
        outputs = [self.add(f"t{len(self.graph.tensors) + i}", ty, None) for i, ty in enumerate(types)]
        for number in outputs:
            self.graph.tensors[number].storage = ("value", number)
        bodies = op.bodies() if isinstance(op, ControlFlow) else ()
        graphs = [_Numbering(self.prepare(body), self.prepare, self.graph.params).graph for body in bodies]
        for graph in graphs:
            graph.attrs = {**graph.attrs, "nested": True}
        label = "" if span is None else span.name if graphs else f"{span.op} {span.name!r}"
        self.graph.control_nodes.append(ControlNode(op, inputs, outputs, label, graphs))
        return tuple(outputs) if isinstance(call.ty, TupleType) else outputs[0]

    def workload(self, function: Function) -> tuple[Workload, Mapping[str, Dim]]:
        """What to compile for a function, and the graph's sizes by their names there."""
        known = self.by_function.get(id(function))
        if known is None:
            renamed, names = self.canonical_sizes.rename(function)
            made = Workload.of(renamed)
            known = self.by_function[id(function)] = self.workloads.setdefault(made.key, made), names
        return known


def moments(nodes: Iterable[GraphNode]) -> Iterator[tuple[int, GraphNode]]:
    """Nodes in order, numbered in time: those that run at the same time have one number."""
    moment = -1
    for node in nodes:
        moment += not node.beside
        yield moment, node


def compact_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a tensor without gaps, the last dimension innermost."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def is_compact(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Do these strides leave no gaps? Those of dimensions of one element don't count."""
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
    """Does this fused function only give its one argument another shape?"""
    calls = [e for e in evaluation_order(function.body) if isinstance(e, Call)]
    return len(function.params) == 1 and bool(calls) and all(call.operator.is_view for call in calls)


def sources_of(function: Function, label: str) -> list[str]:
    """Names in the user's model of the operators of a group, without repetition."""
    names = [e.span.name for e in evaluation_order(function.body) if isinstance(e, Call) and e.span is not None]
    return list(dict.fromkeys([n for n in (*names, label) if n]))


def place_outputs(graph: ExecutionGraph, elsewhere: Container[int] = ()) -> None:
    """Give outputs that a kernel writes the caller's memory, but for those that are computed `elsewhere` and copied."""
    for i, number in enumerate(graph.outputs):
        base = graph.tensors[graph.base_of(number)]
        if base.storage is None and number not in elsewhere:
            base.storage = ("output", i)


def reuse_dying_buffer(graph: ExecutionGraph) -> None:
    """Give what steps hand on, so that a list or a result may hold on to it, memory of its own in every run."""
    for number in [i for control in graph.control_nodes for i in control.reused]:
        base = graph.base_of(number)
        if graph.tensors[base].storage is None:
            graph.tensors[base].storage = ("own", base)


def last_reads(graph: ExecutionGraph) -> dict[int, int]:
    """Tensor that owns memory -> the last step that writes or reads it."""
    last: dict[int, int] = {}
    for step, node in moments(graph.nodes):
        for number in (*node.outputs, *node.inputs):
            last[graph.base_of(number)] = step
    return {**last, **{graph.base_of(number): len(graph.nodes) for number in graph.kept}}


def reuse_inputs(graph: ExecutionGraph, in_place: Mapping[str, Sequence[int]]) -> None:
    """Let results take the memory of inputs that are read for the last time, where the kernel allows it."""
    last = last_reads(graph)
    read: dict[int, list[int]] = {}
    for step, node in moments(graph.nodes):
        read.setdefault(step, []).extend(node.inputs)
    for step, node in moments(graph.nodes):
        result = node.outputs[0]
        if graph.tensors[result].base is not None:  # a slice of a batch has its place
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


def plan_arena(graph: ExecutionGraph) -> MemoryPlan:
    """Offsets for the tensors that have no place yet."""
    last = last_reads(graph)
    first: dict[int, int] = {}
    for step, node in moments(graph.nodes):
        for number in node.outputs:
            first.setdefault(graph.base_of(number), step)
    owned = [n for n in first if graph.tensors[n].storage is None]
    return plan_memory([Lifetime(n, graph.tensors[n].nbytes, first[n], last[n]) for n in owned])


def _place_arena(graph: ExecutionGraph) -> None:
    graph.plan = plan_arena(graph)
    for number, offset in graph.plan.offsets.items():
        graph.tensors[number].storage = ("arena", offset)


def make_graph(function: Function, prepare: Callable[[Function], Function] = lambda f: f) -> ExecutionGraph:
    """The execution graph of a function whose body calls fused functions; `place_tensors` comes next.

    `prepare` optimises and fuses the functions inside control flow. Raises CompileError for what can't be executed.
    """
    return _Numbering(function, prepare).graph


def share_params(graph: ExecutionGraph, other: ExecutionGraph) -> None:
    """Put the parameters of `other` with those of `graph`, equal data under one name."""
    names = {_content(data): name for name, data in graph.params.items()}
    renamed: dict[str, str] = {}
    for name, data in other.params.items():
        content = _content(data)
        renamed[name] = names.setdefault(content, f"p{len(graph.params)}")
        graph.params.setdefault(renamed[name], data)
    for tensor in other.tensors:
        if tensor.storage is not None and tensor.storage[0] == "param":
            tensor.storage = ("param", renamed[str(tensor.storage[1])])
    other.params = graph.params


def _content(data: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return data.dtype.str, data.shape, hashlib.blake2b(np.ascontiguousarray(data).tobytes()).digest()


def add_workspaces(graph: ExecutionGraph, workspaces: Mapping[str, Sequence[Workspace]]) -> None:
    """Give the nodes scratch tensors: `workspaces` holds what they are by the name of the kernel."""
    for node in graph.nodes:
        for count, element in workspaces[node.workload.name]:
            node.outputs.append(len(graph.tensors))
            node.scratch += 1
            here = TensorType((evaluate(count, node.names),), element)
            graph.tensors.append(GraphTensor(f"scratch{len(graph.tensors)}", here))


def share_storage(graph: ExecutionGraph) -> None:
    """Views lie where what they show lies, parts at an offset of it, which only tensors in the arena have."""
    for number, tensor in enumerate(graph.tensors):
        tensor.storage = graph.tensors[graph.base_of(number)].storage
        offset = graph.byte_offset_of(number)
        if offset:
            assert tensor.storage is not None and tensor.storage[0] == "arena"
            tensor.storage = ("arena", int(tensor.storage[1]) + offset)


def place_tensors(graph: ExecutionGraph, in_place: Mapping[str, Sequence[int]] | None = None) -> None:
    """Decide where every tensor lies; `in_place` names the inputs that kernels may overwrite, by the kernel's name.

    `relay.lowering.dynamic` does it for graphs with symbolic sizes.
    """
    place_outputs(graph)
    reuse_inputs(graph, in_place or {})
    _place_arena(graph)
    share_storage(graph)
