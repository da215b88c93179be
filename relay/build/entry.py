"""The compiled run function: all kernels in a row on planned addresses, no Python between them."""

from __future__ import annotations

from relay.build.graph import ExecutionGraph, GraphNode
from te.dtype import HANDLE, dtype
from te.tir import Evaluate, IntImm, PrimExpr, PrimFunc, StringImm, Var, call_intrin, const, seq

__all__ = ["ENTRY_NAME", "make_entry"]

ENTRY_NAME = "relayc_run"
_POINTER_BYTES = 8


def make_entry(graph: ExecutionGraph) -> PrimFunc:
    """``relayc_run(arena, tensors)``: `arena` is the base of the intermediate memory, `tensors` a table of addresses.

    Intermediate tensors lie at constant offsets of the arena; the table holds those of inputs, outputs and parameters.
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
        addresses = [address(number) for number in (*node.inputs, *node.outputs)]
        return Evaluate(call_intrin("int32", "call_kernel", StringImm(node.workload.name), *addresses))

    calls = [call(node) for node in graph.nodes]
    attrs = {"global_symbol": ENTRY_NAME, "packed_api": False}
    return PrimFunc((arena, table), seq(calls), {}, attrs)
