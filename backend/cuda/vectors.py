"""Vector accesses in CUDA text: how many elements an access may move, and how it is written."""

from __future__ import annotations

from collections.abc import Callable

from relayc.backend.c_like import CLikeGenerator
from relayc.te.arith import Analyzer
from relayc.te.ir import Node
from relayc.te.tir import (
    Broadcast,
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    Let,
    LetStmt,
    Logical,
    PrimExpr,
    Ramp,
    Var,
    is_one,
)
from relayc.te.tir.ops import logical_not

__all__ = ["VectorAccesses"]

_WIDEST = 16
"""Maximum bytes that one access moves."""


_Loads = dict[BufferLoad, list[tuple[PrimExpr, ...]]]
"""Vector loads, each with the scalar conditions of its uses: it may execute where all those of one use hold."""


class VectorAccesses(CLikeGenerator):
    """The vector part of the CUDA generator.

    A vector is an `rc_vec`. Loads and stores of adjacent elements move as many at once as are known to be aligned;
    arithmetic stays lane by lane, in loops that the compiler unrolls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.analyzer = Analyzer()
        self.loaded: dict[BufferLoad, str] = {}
        self.alignments: dict[Var, int] = {}
        """Pointer -> its required alignment in bytes."""

    # -- what is known of an access

    def contiguous(self, access: BufferLoad | BufferStore) -> PrimExpr | None:
        """The first element of an access to adjacent elements of memory; None for any other access.

        Memory of one thread ("local") lies in registers, which have no addresses: it is accessed lane by lane.
        """
        index = access.indices[0]
        plain = access.predicate is None and access.buffer.scope != "local" and len(access.indices) == 1
        return index.base if plain and isinstance(index, Ramp) and is_one(index.stride) else None

    def chunk(self, buffer: Buffer, base: PrimExpr, lanes: int) -> int:
        """The number of elements moved at once, of `lanes` from `base` on: a power of two that divides lanes and
        address."""
        offset = buffer.elem_offset
        size = buffer.dtype.element.nbytes
        most = min(_WIDEST, buffer.align) // size
        count = 1
        while count * 2 <= most and lanes % (count * 2) == 0 and all(
            self.is_multiple(part, count * 2) for part in (base, offset)
        ):
            count *= 2
        self.needs_alignment(buffer, count * size)
        return count

    def needs_alignment(self, buffer: Buffer, nbytes: int) -> None:
        """Record that an access of so many bytes, aligned within the buffer, requires the buffer to be aligned as
        well."""
        self.alignments[buffer.data] = max(nbytes, self.alignments.get(buffer.data, 1))

    def is_multiple(self, value: PrimExpr | int, of: int) -> bool:
        """Is an index provably a multiple of `of`?"""
        if isinstance(value, int):
            return value % of == 0
        coefficient, base = self.analyzer.modular(value)
        return coefficient % of == 0 and base % of == 0

    # -- loads

    def vector_loads(self, node: Node, within: tuple[PrimExpr, ...], found: _Loads) -> None:
        """Collect the loads of adjacent elements in a value, each with the conditions of the selects that it stands in.

        Loads that only some lanes may evaluate are omitted: they are done lane by lane.
        """
        if isinstance(node, BufferLoad) and node.dtype.lanes > 1 and self.contiguous(node) is not None:
            found.setdefault(node, []).append(within)
        elif isinstance(node, Call) and node.op == "if_then_else":
            test, *choices = node.args
            self.vector_loads(test, within, found)
            scalar = test.value if isinstance(test, Broadcast) else test
            if scalar.dtype.lanes == 1:
                for choice, condition in zip(choices, (scalar, logical_not(scalar)), strict=True):
                    self.vector_loads(choice, (*within, condition), found)
        elif isinstance(node, Logical):
            self.vector_loads(node.a, within, found)
        elif isinstance(node, Let):
            self.vector_loads(node.value, within, found)
        else:
            for child in node.node_children():
                self.vector_loads(child, within, found)

    def load_vectors(self, value: PrimExpr) -> None:
        """Load the adjacent elements that a value reads into variables, whose lanes replace those loads."""
        found: _Loads = {}
        self.vector_loads(value, (), found)
        for load, uses in found.items():
            base = self.contiguous(load)
            if load in self.loaded or base is None:
                continue
            name, kind, lanes = self.fresh(load.buffer.name + "_lanes"), self.type_name(load.dtype), load.dtype.lanes
            chunk = self.chunk(load.buffer, base, lanes)
            text = f"rc_load<{kind}, {lanes}, {chunk}>(&{self.element_at(load.buffer, self.scalar(base))})"
            if () in uses:
                self.line(f"const rc_vec<{kind}, {lanes}> {name} = {text};")
            else:
                tests = [" && ".join([self.scalar(c) for c in conditions]) for conditions in uses]
                self.line(f"rc_vec<{kind}, {lanes}> {name};")
                self.line(f"if ({' || '.join(tests)}) {name} = {text};")
            self.loaded[load] = name

    def visit_BufferLoad(self, node: BufferLoad) -> str:
        name = self.loaded.get(node)
        return f"{name}.lane[{self.lane}]" if name is not None and self.lane else super().visit_BufferLoad(node)

    # -- statements on vectors

    def each_lane(self, lanes: int, statement: Callable[[str], str]) -> None:
        self.lines.append("#pragma unroll")
        super().each_lane(lanes, statement)

    def visit_LetStmt(self, node: LetStmt) -> None:
        lanes = node.var.dtype.lanes
        if lanes == 1:
            super().visit_LetStmt(node)
            return
        self.load_vectors(node.value)
        super().visit_LetStmt(node)
        self.loaded.clear()

    def visit_BufferStore(self, node: BufferStore) -> None:
        lanes = max(node.value.dtype.lanes, node.indices[-1].dtype.lanes)
        if lanes == 1:
            super().visit_BufferStore(node)
            return
        base, kind = self.contiguous(node), self.type_name(node.buffer.dtype)
        with self.block(""):
            self.load_vectors(node.value)
            if base is None:
                super().visit_BufferStore(node)
            else:
                name = self.fresh(node.buffer.name + "_lanes")
                self.line(f"rc_vec<{kind}, {lanes}> {name};")
                self.each_lane(lanes, lambda lane: f"{name}.lane[{lane}] = {self.lane_of(node.value, lane)};")
                chunk = self.chunk(node.buffer, base, lanes)
                place = self.element_at(node.buffer, self.scalar(base))
                self.line(f"rc_store<{kind}, {lanes}, {chunk}>(&{place}, {name});")
        self.loaded.clear()
