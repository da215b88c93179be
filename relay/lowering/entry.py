"""The compiled run function: calls all kernels in sequence at planned addresses, without Python in between."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import groupby, zip_longest
from types import MappingProxyType
from typing import NamedTuple

from relayc.relay.lowering.graph import ExecutionGraph, GraphNode, SlicedRun, time_steps
from relayc.relay.lowering.kernel_steps import KernelStep, call_steps
from relayc.te.dtype import HANDLE, INT32, dtype
from relayc.te.tir import (
    Add,
    AttrStmt,
    Binary,
    Cast,
    Dim,
    Evaluate,
    FloorDiv,
    For,
    ForKind,
    IntImm,
    LetStmt,
    Min,
    Mul,
    PrimExpr,
    PrimFunc,
    Stmt,
    StringImm,
    Sub,
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

    def call(node: GraphNode, piece: _Piece | None = None) -> Evaluate:
        numbers = (*node.inputs, *node.outputs)
        addresses = [call_intrin("handle", "load_at", table, const(graph.base_of(i) * _POINTER_BYTES, "int64"))
                     for i in numbers]  # fmt: skip
        known = {} if piece is None else {piece.batch: piece.images}
        if piece is not None:
            addresses = [piece.address(graph, i, address) for i, address in zip(numbers, addresses, strict=True)]
        values = [cast(INT32, size_value(size, sizes, graph.sizes, known)) for size in node.sizes]
        return Evaluate(call_intrin("int32", "call_kernel", StringImm(node.workload.name), *addresses, *values))

    runs = {run.first: run for run in graph.sliced_runs()}
    calls: list[Stmt] = []
    position = first
    while position < last:
        run = runs.get(position)
        if run is None:
            calls.append(call(graph.nodes[position]))
            position += 1
            continue
        batch = size_value(run.slices.batch, sizes, graph.sizes)
        calls.append(_in_slices(run, batch, [partial(call, node) for node in graph.nodes[position : run.last]]))
        position = run.last
    return entries.add(_ENTRY_NAME, (table, sizes), seq(calls))


class _Piece(NamedTuple):
    """A slice of a batch: `images` images from `first` on. `passing` are the tensors of which it is a slice."""

    batch: str
    first: Var
    images: Var
    passing: Set[int]

    def address(self, graph: ExecutionGraph, tensor: int, whole: PrimExpr) -> PrimExpr:
        """The address of the slice of a tensor that lies at the address `whole`."""
        if graph.base_of(tensor) not in self.passing:
            return whole
        image = graph.strides_of(tensor)[0] * graph.tensors[tensor].tensor_type.dtype.nbytes
        return call_intrin("handle", "handle_add_byte_offset", whole, Mul(self.first, const(image, "int64")))


def _in_slices(run: SlicedRun, batch: PrimExpr, calls: Sequence[Callable[[_Piece], Stmt]]) -> Stmt:
    """A loop over the slices of a batch, of which the last may have fewer images."""
    index, first, images = Var("slice", dtype("int64")), Var("first", dtype("int64")), Var("images", dtype("int64"))
    most = const(run.slices.images, "int64")
    piece = _Piece(run.slices.batch.name, first, images, run.passing)
    body = LetStmt(images, Min(most, Sub(batch, first)), seq([call(piece) for call in calls]))
    count = FloorDiv(Add(batch, Sub(most, const(1, "int64"))), most)
    return For(index, const(0, "int64"), count, ForKind.SERIAL, LetStmt(first, Mul(index, most), body))


def size_value(
    size: Dim, table: PrimExpr, names: Sequence[str], known: Mapping[str, PrimExpr] = MappingProxyType({})
) -> PrimExpr:
    """A size in 64 bits, where `table` is the address of the values of the size variables `names`.

    The variables that `known` names have other values.
    """
    if isinstance(size, Var) and size.name in known:
        return known[size.name]
    if isinstance(size, Var):
        return call_intrin("int64", "load_at", table, const(names.index(size.name) * _POINTER_BYTES, "int64"))
    if isinstance(size, Binary):
        return size.__class__(size_value(size.a, table, names, known), size_value(size.b, table, names, known))
    if isinstance(size, Cast):
        return size_value(size.value, table, names, known)
    assert isinstance(size, int | IntImm)
    return const(int(size), "int64")
