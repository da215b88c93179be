"""The values of a kernel that have to be tracked: those that determine an address, a branch or a loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from relayc.te.ir.node import Node
from relayc.te.ir.visitor import post_order
from relayc.te.tir.expr import BufferLoad, Call, Let, Logical, PrimExpr, Var
from relayc.te.tir.stmt import AttrStmt, BufferStore, For, IfThenElse, LetStmt, While

__all__ = ["Steering", "find_steering"]


@dataclass(frozen=True, slots=True)
class Steering:
    """Pointers of buffers and variables whose values are needed, and pointers of the buffers the kernel writes."""

    memory: frozenset[Var]
    variables: frozenset[Var]
    written: frozenset[Var]


def find_steering(body: Node, everything: bool = False, needed: frozenset[Var] = frozenset()) -> Steering:
    """Values of `body` that determine control flow and addresses, and those `needed` later; or `everything`."""
    nodes = list(post_order(body))
    written = {n.buffer.data for n in nodes if isinstance(n, BufferStore)}
    for call in nodes:
        if isinstance(call, Call):
            written.update(_written_by(call))
    if everything:
        memory = {n.buffer.data for n in nodes if isinstance(n, BufferLoad | BufferStore)}
        variables = {n.var for n in nodes if isinstance(n, LetStmt | Let)}
        return Steering(frozenset(memory), frozenset(variables), frozenset(written))
    steers: set[Var] = set(needed)
    seen: set[int] = set()
    waiting = [root for node in nodes for root in _roots(node)]
    for node in nodes:
        source = _source(node, steers)
        if source is not None:
            seen.add(id(node))
            waiting.append(source)
    while waiting:
        for node in post_order(waiting.pop()):
            if isinstance(node, Var):
                steers.add(node)
            elif isinstance(node, BufferLoad):
                steers.add(node.buffer.data)
        for node in nodes:
            source = _source(node, steers)
            if source is not None and id(node) not in seen:
                seen.add(id(node))
                waiting.append(source)
    variables = {n.var for n in nodes if isinstance(n, LetStmt | Let)} & steers
    return Steering(frozenset(steers), frozenset(variables), frozenset(written))


def _written_by(call: Call) -> Iterator[Var]:
    """Pointers of memory that a call may write, as far as its kind tells."""
    addresses = call.args[:1] if call.op in ("async_copy", "atomic_add", "atomic_max") else call.args
    if call.op in ("async_copy", "atomic_add", "atomic_max", "call_extern"):
        for address in addresses:
            if isinstance(address, Call) and address.op == "address_of" and isinstance(address.args[0], BufferLoad):
                yield address.args[0].buffer.data


def _roots(node: Node) -> Iterator[PrimExpr]:
    """Expressions of one node that determine control flow and addresses."""
    match node:
        case For():
            yield from (node.min, node.extent)
        case While() | IfThenElse():
            yield node.condition
        case BufferStore() | BufferLoad():
            yield from node.indices
            if node.predicate is not None:
                yield node.predicate
        case AttrStmt() if node.key == "thread_extent":
            yield node.value
        case Call() if node.op == "if_then_else":
            yield node.args[0]
        case Logical() if any(isinstance(n, BufferLoad) for n in post_order(node.b)):
            yield node.a
        case Call() if node.op == "async_copy":
            yield node.args[3]
        case _:
            pass


def _source(node: Node, steers: set[Var]) -> PrimExpr | None:
    """The source of the value of a steering variable or memory, or None."""
    if isinstance(node, BufferStore):
        return node.value if node.buffer.data in steers else None
    if isinstance(node, LetStmt | Let):
        return node.value if node.var in steers else None
    return None
