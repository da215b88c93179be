"""Loads of elements of one vector in any order: one instruction loads or converts, another permutes."""

from __future__ import annotations

from collections.abc import Iterator

from relayc.backend.llvm.codegen.index import Index
from relayc.backend.llvm.codegen.memory import MemoryEmitter
from relayc.backend.llvm.types import register_type
from relayc.te.dtype import DType, dtype
from relayc.te.tir import Add, Broadcast, Buffer, BufferLoad, Cast, PrimExpr, Var, const
from relayc.te.tir.substitute import substitute

__all__ = ["PermutedLoadEmitter"]

_PERMUTATIONS = {16: ("avx512f", "llvm.x86.avx512.permvar.{}.512"), 8: ("avx2", "llvm.x86.avx2.perm{}")}
"""Lanes of 32 bits -> (feature, permutation of a vector by the low bits of each lane of another)."""
_INT32 = dtype("int32")
_MAX_REGISTERS = 2
"""Maximum number of vector registers that one instruction permutes."""
_KINDS = {("float", 16): "sf", ("i32", 16): "si", ("float", 8): "ps", ("i32", 8): "d"}


class PermutedLoadEmitter(MemoryEmitter):
    """Emits permuted loads from one aligned vector with indices that depend on a loop, such as ``x[16 * i + lane // 4 *
    4 + k]`` with k of a loop over [0, 4); and of float16 in another order."""

    def visit_Cast(self, expr: Cast) -> str:
        widened = self._load_widened(expr.value, expr.dtype) if isinstance(expr.value, BufferLoad) else None
        return super().visit_Cast(expr) if widened is None else widened

    def _load_widened(self, load: BufferLoad, of: DType) -> str | None:
        """Load float16, converted to float32 before it is permuted. That is done once if the vector is also loaded in
        order, or if lanes share elements. On x86, converting takes longer than permuting; for few registers each is one
        instruction.
        """
        index, narrow = load.indices[-1], load.dtype
        is_widened = (narrow.element, of.element) == ("float16", "float32") and "f16c" in self.machine.features
        is_masked = load.predicate is not None or self.mask is not None
        if not is_widened or is_masked or narrow.lanes == 1 or self.as_ramp(index) is not None:
            return None
        block = self._block_of(load.buffer, index, narrow.lanes)
        if block is None:
            return None
        start, count, picks = block
        if not 1 < count <= min(narrow.lanes, _MAX_REGISTERS * self._register_lanes(of)):
            return None
        value = self.load(load.buffer, start, narrow.with_lanes(count))
        wide = of.with_lanes(count)
        return self._permute(self.convert(value, narrow.with_lanes(count), wide), None, picks, wide)

    def _load_block(self, buffer: Buffer, index: PrimExpr, of: DType) -> str | None:
        block = super()._load_block(buffer, index, of)
        return self._load_permuted(buffer, index, of) if block is None else block

    def _load_permuted(self, buffer: Buffer, index: PrimExpr, of: DType) -> str | None:
        lanes, extent, kind = of.lanes, buffer.shape[0], register_type(of.element)
        needed, name = _PERMUTATIONS.get(lanes, ("", ""))
        whole = isinstance(extent, int) and extent % lanes == 0
        if needed not in self.machine.features or (kind, lanes) not in _KINDS or not whole:
            return None
        for var in _added_variables(index):
            if var not in self.ranges:
                continue
            low, high = self.ranges[var]
            spread = self.as_lanes(substitute(index, {var: const(0, var.dtype)}))
            if spread is None or spread[0].factor % lanes:
                return None
            base, offsets = spread
            picks = [base.constant + offset for offset in offsets]
            first = (min(picks) + low) // lanes * lanes
            if max(picks) + high > first + lanes:
                continue
            block = self.load(buffer, Index(base.value, first, base.factor), of)
            return self._permuted(block, var, [pick - first for pick in picks], of, name.format(_KINDS[kind, lanes]))
        return None

    def _permuted(self, block: str, var: Var, picks: list[int], of: DType, name: str) -> str:
        """The elements of a vector at `picks` plus the value of `var`."""
        kind, index = register_type(of), f"<{of.lanes} x i32>"
        place = self.text.pure(f"trunc i64 {self.operand(self.index(var))} to i32")
        words = ", ".join([f"i32 {pick}" for pick in picks])
        places = self.text.pure(f"add {index} {self.splat(place, _INT32.with_lanes(of.lanes))}, <{words}>")
        self.text.module.declare(name, kind, f"{kind}, {index}")
        return self.text.pure(f"call {kind} @{name}({kind} {block}, {index} {places})")


def _added_variables(index: PrimExpr) -> Iterator[Var]:
    """Variables that contribute equally to all lanes of an index."""
    if isinstance(index, Add):
        yield from _added_variables(index.a)
        yield from _added_variables(index.b)
    elif isinstance(index, Broadcast):
        yield from _added_variables(index.value)
    elif isinstance(index, Var):
        yield index
