"""The executor's description of an execution graph whose tensors are placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relayc.backend.runtime.execution_plan import Step, read_steps
from relayc.backend.runtime.fields import Record
from relayc.backend.runtime.graph import Graph, GraphKVCache, GraphNode, GraphStrings, GraphTensor
from relayc.backend.runtime.sizes import Size, SizeReader, size_text, substitute
from relayc.backend.size_json import size_to_json
from relayc.relay.container_type import ContainerType
from relayc.relay.lowering.graph import ExecutionGraph, GraphNode as Node, GraphTensor as Tensor
from relayc.relay.type import TensorType
from relayc.te.tir import Dim

__all__ = ["describe"]

_WHERE = "graph"


def describe(graph: ExecutionGraph, name: str, target: str, device: str) -> Graph:
    """The graph as the executor reads it; an artifact has the same, which is checked when it is loaded."""
    return _Describer(name, target, device).graph(graph)


@dataclass(frozen=True)
class _Describer:
    """Describes a graph, its variants and those in its control flow, with one name, target and device."""

    name: str
    target: str
    device: str

    def graph(self, graph: ExecutionGraph) -> Graph:
        return Graph(
            name=self.name,
            device=self.device,
            target=self.target,
            tensors=tuple([_tensor(graph, i, t) for i, t in enumerate(graph.tensors)]),
            nodes=tuple([_node(graph, i, n) for i, n in enumerate(graph.nodes)]),
            inputs=tuple(graph.inputs),
            outputs=tuple(graph.outputs),
            arena_bytes=graph.plan.arena_bytes,
            entry=graph.entry,
            sizes=graph.sizes,
            steps=self._steps(graph),
            variants=tuple([(sizes, self.graph(variant)) for sizes, variant in graph.variants]),
            strings=_strings(graph),
            maps={position: tuple(keys) for position, keys in graph.maps.items()},
            caches=_caches(graph),
            metadata=graph.metadata,
        )

    def _steps(self, graph: ExecutionGraph) -> tuple[Step, ...]:
        """The steps, including the graphs of control flow."""
        records: list[Record] = []
        for step in graph.steps:
            control = step.get("control")
            plain = {key: value for key, value in step.items() if key != "control"}
            if control is not None and control.graphs:
                graphs = [self.graph(inside) for inside in control.graphs]
                plain |= {"graphs": graphs} if step["step"] == "if" else {"graph": graphs[0]}
            records.append(Record(plain, f"{_WHERE}.steps[{len(records)}]"))
        sizes = SizeReader(graph.sizes)
        return read_steps(records, sizes, len(graph.nodes), len(graph.tensors), lambda inside, _: inside)


def _tensor(graph: ExecutionGraph, number: int, tensor: Tensor) -> GraphTensor:
    assert tensor.storage is not None
    dtype = tensor.ty.dtype if isinstance(tensor.ty, TensorType) else tensor.ty.tensors.dtype
    is_part = tensor.storage[0] == "arena" and tensor.begins is not None and not graph.is_compact(number)
    return GraphTensor(
        tensor.name,
        _shape(tensor.shape, graph.sizes),
        "float32" if dtype is None else str(dtype),  # the address of an empty tensor does not matter
        *tensor.storage,
        strides=graph.strides_of(number) if is_part else None,
        is_sequence=isinstance(tensor.ty, ContainerType),
    )


def _shape(dims: Sequence[Dim], names: Sequence[str]) -> tuple[Size, ...]:
    reader = SizeReader(names)
    return tuple([dim if isinstance(dim, int) else reader.size(size_to_json(dim), _WHERE) for dim in dims])


def _node(graph: ExecutionGraph, index: int, node: Node) -> GraphNode:
    workload, results, work = node.workload, len(node.outputs) - node.scratch, node.own_workload
    names = dict(zip(node.names, _shape(list(node.names.values()), graph.sizes), strict=True))
    return GraphNode(
        name=f"{index}_{'_'.join(workload.operators)}"[:80],
        func=workload.name,
        inputs=tuple(node.inputs),
        outputs=tuple(node.outputs[:results]),
        scratch=tuple(node.outputs[results:]),
        ops=workload.operators,
        sources=tuple(node.sources),
        flops=substitute(work.operations, names),
        bytes=substitute(work.traffic, names),
        sizes=_shape(node.sizes, graph.sizes),
        multiplied=work.multiplied,
    )


def _strings(graph: ExecutionGraph) -> GraphStrings | None:
    """The strings that the graph names, and the inputs and outputs that are strings."""
    if "texts" not in graph.attrs:
        return None
    return GraphStrings(*[tuple(graph.attrs[name]) for name in ("texts", "text_inputs", "text_outputs")])


def _caches(graph: ExecutionGraph) -> tuple[GraphKVCache, ...]:
    """The KV caches that the executor keeps: the axis they grow along, the size variable of their length, the rows
    added."""
    positions = {graph.tensors[number].name: i for i, number in enumerate(graph.inputs)}
    records: Sequence[tuple[str, int, Dim, Dim]] = graph.attrs.get("caches", ())
    return tuple([
        GraphKVCache(positions[name], axis, size_text(size_to_json(length)), _shape((added,), graph.sizes)[0])
        for name, axis, length, added in records
    ])  # fmt: skip
