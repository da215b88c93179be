"""Matching the inner loops of a stage with a tensor intrinsic, and putting its statements in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relayc.te.bounds import Loops
from relayc.te.errors import ScheduleError
from relayc.te.index import IndexMath
from relayc.te.ir.node import Node
from relayc.te.ir.structural import structural_equal
from relayc.te.ir.visitor import post_order
from relayc.te.operation import ComputeOp
from relayc.te.poly import Interval, Poly
from relayc.te.tensor import Tensor
from relayc.te.tensor_intrin import TensorIntrin
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer, buffer_strides
from relayc.te.tir.expr import BufferLoad, Call, Dim, IterVar, PrimExpr, ProducerLoad, Reduce, Var
from relayc.te.tir.ops import convert
from relayc.te.tir.stmt import BufferStore, Stmt
from relayc.te.tir.substitute import Substitution, fresh_copy

__all__ = ["TensorizedLoops"]


class TensorizedLoops:
    """The loops of a stage from `position` inwards as an instance of an intrinsic.

    Raises ScheduleError where extents or the computation differ.
    """

    def __init__(self, math: IndexMath, loops: Loops, position: int, intrin: TensorIntrin) -> None:
        assert isinstance(loops.stage.op, ComputeOp)
        self.math, self.loops, self.intrin = math, loops, intrin
        self.op = loops.stage.op
        self.inner = loops.stage.leaf_iter_vars[position:]
        self.sizes: dict[Var, PrimExpr] = {}
        """values of the intrinsic's symbolic sizes in this stage"""
        self.starts: dict[Tensor, tuple[Tensor, tuple[Poly, ...]]] = {}
        """tensor of the intrinsic -> the tensor it stands for and the first element of the part"""
        self.values: dict[Var, Poly] = {}
        starts = self._match_axes(self.op.axis, intrin.op.axis)
        self._match_axes(self.op.reduce_axis, intrin.op.reduce_axis)
        self._check_whole()
        self.own_axes = frozenset([iv.var for iv in intrin.op.root_axes])
        for mine, theirs in zip(self.op.outputs, intrin.op.outputs, strict=True):
            self.starts[theirs] = (mine, tuple(starts))
        for mine, theirs in zip(self.op.body, intrin.op.body, strict=True):
            self._match(mine, theirs)

    def _error(self, what: str) -> ScheduleError:
        return ScheduleError(f"stage {self.loops.stage.name}: tensorize with {self.intrin.name}: {what}")

    def _range(self, axis: IterVar) -> Interval:
        interval = self.math.relax(self.loops.values[axis], frozenset([leaf.var for leaf in self.inner]))
        assert interval is not None
        return interval

    def _match_axes(self, mine: Sequence[IterVar], theirs: Sequence[IterVar]) -> list[Poly]:
        """Pair axes from the innermost out; unpaired ones must run once. Gives the start of each of `mine`."""
        starts: list[Poly] = []
        extra = len(mine) - len(theirs)
        for i, axis in enumerate(mine):
            run = self._range(axis)
            starts.append(run.lo)
            self.values[axis.var] = run.lo
            if i < extra:
                if run.span.const != 0:
                    times = self.math.as_dim(run.span + 1)
                    raise self._error(f"axis {axis.var.name} runs {times} times inside, but the intrinsic has no such "
                                      "axis; split it and leave its loop outside")  # fmt: skip
                continue
            other = theirs[i - extra]
            assert other.dom is not None
            self._match_extent(axis, run.span + 1, other.dom.extent)
            self.math.declare(other.var, run.span + 1)
            self.values[axis.var] = run.lo + self.math.var(other.var)
        if extra < 0:
            raise self._error(f"the intrinsic has {len(theirs)} axes of a kind of which the stage has {len(mine)}")
        return starts

    def _match_extent(self, axis: IterVar, extent: Poly, expected: Dim) -> None:
        if isinstance(expected, Var):
            self.sizes[expected] = self.math.expr(extent)
        elif extent.key() != self.math.dim(expected).key():
            raise self._error(f"axis {axis.var.name} runs {self.math.as_dim(extent)} times inside the tensorized loop, "
                              f"the intrinsic's {expected}; split it to the intrinsic's size")  # fmt: skip

    def _check_whole(self) -> None:
        points = cells = Poly({(): 1})
        for leaf in self.inner:
            points = points * self.loops.extents[leaf]
        for axis in self.op.root_axes:
            cells = cells * (self._range(axis).span + 1)
        if points.key() != cells.key():
            raise self._error("the inner loops do not run over a whole box of the axes; split by factors that divide")

    # -- the computation -----------------------------------------------------------------------------------------

    def _match(self, mine: PrimExpr, theirs: PrimExpr) -> None:
        if isinstance(mine, Reduce) and isinstance(theirs, Reduce):
            same = structural_equal(mine.combiner, theirs.combiner) and ops.is_const(mine.condition)
            if not same or len(mine.source) != len(theirs.source):
                raise self._error("the reduction is another one")
            for a, b in zip(mine.source, theirs.source, strict=True):
                self._match(a, b)
        elif isinstance(mine, ProducerLoad) and isinstance(theirs, ProducerLoad):
            self._match_read(mine, theirs)
        elif mine.__class__ is not theirs.__class__ or mine.dtype != theirs.dtype:
            raise self._differs(mine, theirs)
        elif mine.dtype.is_integral and not any(isinstance(e, ProducerLoad) for e in post_order(mine)):
            if self.math.poly(mine, self.values).key() != self.math.poly(theirs, {}).key():
                raise self._differs(mine, theirs)
        else:
            self._match_parts(mine, theirs)

    def _differs(self, mine: PrimExpr, theirs: PrimExpr) -> ScheduleError:
        return self._error(f"the stage computes {mine} where the intrinsic computes {theirs}")

    def _match_parts(self, mine: PrimExpr, theirs: PrimExpr) -> None:
        if any(getattr(mine, name) != getattr(theirs, name) for name in mine.data_fields):
            raise self._differs(mine, theirs)
        a, b = list(mine.node_children()), list(theirs.node_children())
        if len(a) != len(b):
            raise self._differs(mine, theirs)
        for x, y in zip(a, b, strict=True):
            assert isinstance(x, PrimExpr) and isinstance(y, PrimExpr)
            self._match(x, y)

    def _match_read(self, mine: ProducerLoad, theirs: ProducerLoad) -> None:
        extra = len(mine.indices) - len(theirs.indices)
        if extra < 0 or mine.dtype != theirs.dtype:
            raise self._differs(mine, theirs)
        start: list[Poly] = []
        for i, index in enumerate(mine.indices):
            poly = self.math.poly(index, self.values)
            if i >= extra:
                poly = self.math.merge(poly - self.math.poly(theirs.indices[i - extra], {}))
            if any(not a.vars.isdisjoint(self.own_axes) for a in poly.atoms()):
                raise self._differs(mine, theirs)
            start.append(poly)
        known = self.starts.get(theirs.producer)
        if known is None:
            self.starts[theirs.producer] = (mine.producer, tuple(start))
        elif known[0] is not mine.producer or [p.key() for p in known[1]] != [p.key() for p in start]:
            raise self._error(f"{theirs.producer.name} of the intrinsic would stand for two different parts")

    # -- the statements ------------------------------------------------------------------------------------------

    def place(
        self,
        stmt: Stmt,
        buffers: Mapping[Tensor, Buffer],
        indices: Callable[[Tensor, Sequence[Poly]], tuple[PrimExpr, ...]],
        renamed: Callable[[Poly], Poly],
    ) -> Stmt:
        """A statement of the intrinsic over the program's buffers; `renamed` replaces loop variables in the starts."""
        variables: dict[Var, Any] = dict(self.sizes)
        parts: dict[Buffer, tuple[Buffer, tuple[PrimExpr, ...]]] = {}
        for theirs, (mine, start) in self.starts.items():
            declared, actual = self.intrin.buffers[theirs], buffers[mine]
            first = indices(mine, [renamed(p) for p in start])
            parts[declared] = (actual, first)
            self._bind(declared, actual, first, variables, _takes_address(stmt, declared))
        return _PartSubstitution(variables, parts).apply(fresh_copy(stmt))

    def _bind(
        self,
        declared: Buffer,
        actual: Buffer,
        first: tuple[PrimExpr, ...],
        variables: dict[Var, Any],
        by_address: bool,
    ) -> None:
        strides = buffer_strides(actual)
        inner = strides[len(strides) - len(declared.shape) :]
        variables[declared.data] = actual.data
        offset: Any = actual.elem_offset
        for index, stride in zip(first, strides, strict=True):
            offset = ops.add(offset, ops.mul(index, stride))
        if isinstance(declared.elem_offset, Var):
            variables[declared.elem_offset] = convert(offset)
        for size, wanted, stride in zip(declared.shape, buffer_strides(declared), inner, strict=True):
            if isinstance(wanted, Var):
                variables[wanted] = convert(stride)
            elif by_address and wanted != stride and size != 1:
                raise self._error(f"{declared.name} lies in {actual.name} with strides {tuple(inner)}, the intrinsic "
                                  f"expects {tuple(buffer_strides(declared))}; declare its buffer with variables as "
                                  "strides, or cache_read the tensor")  # fmt: skip


def _takes_address(stmt: Stmt, buffer: Buffer) -> bool:
    for node in post_order(stmt):
        if node is buffer.data:
            return True
        if isinstance(node, Call) and node.op == "address_of":
            target = node.args[0]
            if isinstance(target, BufferLoad) and target.buffer is buffer:
                return True
    return False


class _PartSubstitution(Substitution):
    """Accesses to a declared buffer go to the part of the actual one that it stands for."""

    def __init__(
        self, variables: Mapping[Var, Any], parts: Mapping[Buffer, tuple[Buffer, tuple[PrimExpr, ...]]]
    ) -> None:
        super().__init__(variables, {}, fresh=False)
        self.parts = parts

    def _replaces(self, node: Node) -> bool:
        return super()._replaces(node) or getattr(node, "buffer", None) in self.parts

    def _moved(self, node: BufferLoad | BufferStore, new: Any) -> Node:
        part = self.parts.get(node.buffer)
        if part is None:
            return new
        actual, first = part
        extra = len(first) - len(new.indices)
        indices = (*first[:extra], *[ops.add(a, b) for a, b in zip(first[extra:], new.indices, strict=True)])
        return new.replace(buffer=actual, indices=indices)

    def visit_BufferLoad(self, node: BufferLoad) -> Any:
        return self._moved(node, node.rebuild(self.visit))

    def visit_BufferStore(self, node: BufferStore) -> Any:
        return self._moved(node, node.rebuild(self.visit))
