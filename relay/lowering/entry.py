"""The compiled run function: calls all kernels in sequence at planned addresses, without Python in between."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
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
    convert,
    seq,
)  # fmt: skip

__all__ = ["EntryFunctions", "add_dynamic_entry", "add_entry", "size_value"]

_ENTRY_NAME = "relayc_run"
_POINTER_BYTES = 8


class EntryFunctions:
    """The functions of a model that call kernels and each other. Equal ones are one: of many branches most are alike.

    `texts` has the functions by their programs, in the order in which they were added.
    """

    def __init__(self) -> None:
        self.texts: dict[str, PrimFunc] = {}
        self._names: dict[Hashable, str] = {}

    def once(self, key: Hashable, add: Callable[[], str]) -> str:
        """The name that `add` returned for this key, which determines the function that it adds."""
        if key not in self._names:
            self._names[key] = add()
        return self._names[key]

    def add(self, kind: str, params: tuple[Var, ...], body: Stmt) -> str:
        """Add a function of parameters without buffers; returns its name, ``<kind>_<number>``."""
        function = PrimFunc(params, body, {}, {"packed_api": False})
        name = f"{kind}_{len(self.texts)}" if self.texts else kind
        return self.texts.setdefault(str(function), function.with_attr("global_symbol", name)).name


def add_entry(
    entries: EntryFunctions, graph: ExecutionGraph, steps: Mapping[str, Sequence[KernelStep]] | None = None
) -> str:
    """Add ``relayc_run(arena, tensors)`` and return its name.

    `arena` is the base of the intermediate memory, `tensors` a table of addresses.

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
        sizes = [cast(INT32, convert(size)) for size in node.sizes]
        return [*map(address, (*node.inputs, *node.outputs)), *sizes]

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
    return entries.add(_ENTRY_NAME, (arena, table), seq(calls))


def add_dynamic_entry(entries: EntryFunctions, graph: ExecutionGraph, first: int, last: int) -> str:
    """Add ``relayc_run_<number>(tensors, sizes)``, nodes `first` ... `last` - 1 of a graph with size variables, and
    return its name.

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
    return entries.add(_ENTRY_NAME, (table, sizes), seq(calls))


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
