"""The compiled run function: calls all kernels in sequence at planned addresses, without Python in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, zip_longest

from relayc.relay.lowering.graph import ExecutionGraph, GraphNode, time_steps
from relayc.relay.lowering.kernel_steps import KernelStep, call_steps
from relayc.te.dtype import HANDLE, INT32, dtype
from relayc.te.tir import (
    AttrStmt,
    Binary,
    Cast,
    Dim,
    Evaluate,
    IntImm,
    PrimExpr,
    PrimFunc,
    Stmt,
    StringImm,
    Var,
    call_intrin,
    cast,
    const,
    seq,
)  # fmt: skip

__all__ = ["ENTRY_NAME", "make_dynamic_entry", "make_entry", "size_value"]

ENTRY_NAME = "relayc_run"
_POINTER_BYTES = 8


def make_entry(
    graph: ExecutionGraph, name: str = ENTRY_NAME, steps: Mapping[str, Sequence[KernelStep]] | None = None
) -> PrimFunc:
    """``relayc_run(arena, tensors)``: `arena` is the base of the intermediate memory, `tensors` a table of addresses.

    Intermediate tensors lie at constant offsets of the arena; the table holds those of inputs, outputs and parameters.
    `steps` are the steps of the kernels by name, for nodes in parallel regions.
    """
    arena, table = Var("arena", HANDLE), Var("tensors", HANDLE)

    def address(number: int) -> PrimExpr:
        tensor = graph.tensors[number]
        assert tensor.storage is not None
        kind, place = tensor.storage
        if kind == "arena":
            return call_intrin("handle", "handle_add_byte_offset", arena, IntImm(dtype("int64"), int(place)))
        return call_intrin("handle", "load_at", table, const(graph.base_of(number) * _POINTER_BYTES, "int64"))

    def call(node: GraphNode) -> Evaluate:
        return Evaluate(call_intrin("int32", "call_kernel", StringImm(node.workload.name), *arguments(node)))

    def arguments(node: GraphNode) -> list[PrimExpr]:
        return [address(number) for number in (*node.inputs, *node.outputs)]

    def merged(nodes: Sequence[GraphNode]) -> Iterator[Stmt]:
        """The steps of nodes in a region; steps of nodes that run concurrently are merged."""
        assert steps is not None
        for _, concurrent in groupby(time_steps(nodes), lambda pair: pair[0]):
            loops = [call_steps(n.workload.name, steps[n.workload.name], arguments(n), n.cycles) for _, n in concurrent]
            for step in zip_longest(*loops):
                own = sorted([loop for loop in step if loop is not None], key=lambda loop: -loop.cycles)
                yield own[0] if len(own) == 1 else AttrStmt("independent", None, const(len(own)), seq(own))

    calls: list[Stmt] = []
    for region, nodes in groupby(graph.nodes, lambda node: node.region):
        if region is None or steps is None:
            calls += map(call, nodes)
        else:
            calls.append(AttrStmt("region", None, const(region), seq(merged(list(nodes)))))
    attrs = {"global_symbol": name, "packed_api": False}
    return PrimFunc((arena, table), seq(calls), {}, attrs)


def make_dynamic_entry(graph: ExecutionGraph, number: int, first: int, last: int) -> PrimFunc:
    """``relayc_run_<number>(tensors, sizes)``: nodes `first` ... `last` - 1 of a graph with size variables.

    `tensors` is a table of the addresses of all tensors, `sizes` a table of the values of the size variables.
    """
    table, sizes = Var("tensors", HANDLE), Var("sizes", HANDLE)

    def address(tensor: int) -> PrimExpr:
        return call_intrin("handle", "load_at", table, const(graph.base_of(tensor) * _POINTER_BYTES, "int64"))

    calls: list[Stmt] = []
    for node in graph.nodes[first:last]:
        values = [cast(INT32, size_value(size, sizes, graph.sizes)) for size in node.sizes]
        arguments = [*map(address, (*node.inputs, *node.outputs)), *values]
        calls.append(Evaluate(call_intrin("int32", "call_kernel", StringImm(node.workload.name), *arguments)))
    attrs = {"global_symbol": f"{ENTRY_NAME}_{number}", "packed_api": False}
    return PrimFunc((table, sizes), seq(calls), {}, attrs)


def size_value(size: Dim, table: PrimExpr, names: Sequence[str]) -> PrimExpr:
    """A size in 64 bits, where `table` is the address of the values of the size variables `names`."""
    if isinstance(size, Var):
        return call_intrin("int64", "load_at", table, const(names.index(size.name) * _POINTER_BYTES, "int64"))
    if isinstance(size, Binary):
        return size.__class__(size_value(size.a, table, names), size_value(size.b, table, names))
    if isinstance(size, Cast):
        return size_value(size.value, table, names)
    assert isinstance(size, int | IntImm)
    return const(int(size), "int64")
