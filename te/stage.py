"""Stages: the loops that compute one operation. A schedule holds one for each operation.

A stage starts with the operation's axes as its loops (`leaf_iter_vars`). Primitives replace leaves by others and note
the relation, so that the values of the operation's axes can be recovered from the loop variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from relayc.te.errors import ScheduleError
from relayc.te.operation import ComputeOp, Operation, PlaceholderOp, ScanOp
from relayc.te.tensor import Tensor
from relayc.te.tir.expr import Dim, IterVar, PrimExpr, Var
from relayc.te.tir.ops import as_dim, convert
from relayc.te.tir.stmt import ForKind

if TYPE_CHECKING:
    from relayc.te.tensor_intrin import TensorIntrin

__all__ = ["Fuse", "LoopAttrs", "Prefetch", "Relation", "Singleton", "Split", "SplitLines", "Stage"]

MAX_LANES = 1024
"""The longest loop that `vectorize` accepts."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """`parent` = `outer` * inner extent + `inner`; exactly one of `factor` (of inner) and `nparts` (of outer).

    With `tail` "shift" the start of the last part is moved back so that it ends with the parent; with "predicate" the
    guard of a part that does not divide is kept in place. `least`: see `Stage.split`.
    """

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: Dim | None
    nparts: Dim | None
    tail: str = "guard"
    least: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Fuse:
    """`fused` = `outer` * inner extent + `inner`."""

    outer: IterVar
    inner: IterVar
    fused: IterVar


@dataclass(frozen=True, slots=True, eq=False)
class Singleton:
    """`axis` is always 0: the fusion of no axes."""

    axis: IterVar


@dataclass(frozen=True, slots=True, eq=False)
class SplitLines:
    """`parent`, an operation's last axes, is split into tiles of `width` elements and lines of `length`.

    See `Stage.split_lines`.
    """

    parent: IterVar
    tile: IterVar
    line: IterVar
    element: IterVar
    width: int
    length: int
    apart: bool


Relation = Split | Fuse | Singleton | SplitLines


@dataclass(frozen=True, slots=True)
class Prefetch:
    """What each iteration of a loop prefetches of a tensor: how far ahead, into which level of cache, in which order.

    Without an `order` that is every cache line of what the iteration reads of the tensor, `distance` elements further;
    of a tensor that is written, which has the shape of the stage, of its own results. With `iterations` it is what the
    loop reads so many iterations later.

    ``order(*axes)`` gives the element in the first of `lines` cache lines instead, less the distance: its index, or one
    index into the trailing dimensions as one, as a function of the first value of each axis of the operation (reduce
    axes last) in the iteration. It may use variables of loops. Indices are clamped to the last element; with `past_end`
    that of the last dimension is not, which saves an instruction or two. Prefetching past the tensor's end has no
    effect. `written`: the lines are for a store.

    `level`: 1 or 2, of which a core has more outstanding requests to the latter.
    """

    distance: Dim = 0
    level: int = 1
    order: Callable[..., Sequence[Any]] | None = None
    lines: int = 1
    written: bool = False
    past_end: bool = False
    iterations: Dim = 0


@dataclass(slots=True)
class LoopAttrs:
    """The annotations of one loop."""

    kind: ForKind | None = None
    thread: IterVar | None = None
    intrin: TensorIntrin | None = None
    pragmas: dict[str, Any] = field(default_factory=dict)
    prefetches: list[tuple[Tensor, Prefetch]] = field(default_factory=list)
    align: tuple[int, int] | None = None
    limit: PrimExpr | None = None
    """the most iterations, an expression over the variables of loops around this one"""
    limit_of: int | None = None
    """the iterations that the loop must have without the limit"""
    overrun: Literal["", "zeros", "computed"] = ""
    """what the iterations past the end of the tensor store, where they are not guarded"""


class Stage:
    """The loops of one operation and where they stand. Made by `te.create_schedule`; found as ``s[tensor]``.

    Primitives raise ScheduleError when they are used against their rules. (TVM: `te.schedule.Stage`.)
    """

    def __init__(self, op: Operation, is_output: bool) -> None:
        self.op = op
        self.origin_op = op
        self.is_output = is_output
        self.all_iter_vars: list[IterVar] = list(op.root_axes)
        self.leaf_iter_vars: list[IterVar] = list(op.root_axes)
        self.relations: list[Relation] = []
        self.loop_attrs: dict[IterVar, LoopAttrs] = {}
        self.attach: str = "root"
        """"root", "inline" or "at" (then `attach_stage` and `attach_axis` say where)."""
        self.attach_stage: Stage | None = None
        self.attach_axis: IterVar | None = None
        self.home: tuple[Stage, IterVar] | None = None
        """the scan stage and axis in whose steps this stage is computed, wherever it is moved"""
        self.scope = ""
        self.double_buffered = False
        self.pipeline_stages = 1
        self.fills_behind = False
        self.swizzled = False
        self.predicate: PrimExpr | None = None
        self.launched_threads: tuple[IterVar, ...] = ()

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.op.name

    def __repr__(self) -> str:
        return f"stage({self.name}: {', '.join(iv.var.name for iv in self.leaf_iter_vars)})"

    # -- loop structure ------------------------------------------------------------------------------------------

    def split(
        self, parent: IterVar, factor: Any = None, nparts: Any = None, tail: str = "guard", least: int = 0
    ) -> tuple[IterVar, IterVar]:
        """Split a loop in two and give (outer, inner): the inner of extent `factor`, or the outer of `nparts`.

        `tail` says what becomes of a factor that does not divide the extent. "guard": iterations past the end are
        skipped by a guard, which loop partitioning takes out of the main part. "shift": the last part is moved back to
        end with the loop and computes some elements a second time, so that all parts are whole and none is guarded
        (Halide's ShiftInwards); for data axes, and not where elements are updated in place by several threads or from
        outside the part. A dynamic extent below the factor, or below `least` where that is more, is left to other loops
        (`Schedule.specialize_small`), so that tests of borders can be dropped here. "predicate": the guard stays in
        place, for short code (the store of a finished tile) where a second copy of all the code around it does not pay;
        a factor larger than the loop is kept too.
        """
        self._check_leaf("split", parent)
        self._check_plain("split", parent)
        if (factor is None) == (nparts is None):
            raise self._error("split", f"of {parent.var.name} needs exactly one of factor= and nparts=")
        size = as_dim(factor if nparts is None else nparts)
        if isinstance(size, int) and size <= 0:
            raise self._error("split", f"of {parent.var.name} by {size}; the factor must be at least 1")
        if isinstance(size, PrimExpr) and not size.dtype.is_integral:
            raise self._error("split", f"of {parent.var.name} by {size}, a {size.dtype}; expected an integer")
        if tail not in ("guard", "shift", "predicate"):
            raise self._error("split", f'with tail={tail!r}; expected "guard", "shift" or "predicate"')
        if tail == "shift" and (parent.kind != "data" or factor is None):
            raise self._error("split", f"of {parent.var.name} with tail='shift', for factors of data axes only")
        outer = IterVar(None, Var(parent.var.name + ".outer", parent.dtype), parent.kind)
        inner = IterVar(None, Var(parent.var.name + ".inner", parent.dtype), parent.kind)
        by_factor = nparts is None
        factors = (size, None) if by_factor else (None, size)
        self.relations.append(Split(parent, outer, inner, *factors, tail, least))
        self._replace_leaves((parent,), (outer, inner))
        return outer, inner

    def split_lines(self, width: int, length: int, *, apart: bool = False) -> tuple[IterVar, IterVar, IterVar]:
        """Split the last axis of an output at cache lines and give (tile, line, element).

        Lines begin at multiples of `length` in memory, wherever the other axes put the row, so that whole cache lines
        are written at once even where rows are no multiples of them. A row is all that the last axis is fused with.

        A tile computes the `width` elements of those lines that begin in its first `length` elements or after; it reads
        `width` + `length` elements, whatever the row. The first tile begins with an unaligned line at the start of the
        row, and the last one ends with an unaligned line at its end; both are computed before the other lines of their
        tiles. Elements may be computed twice, as with `tail` "shift" of `split`. `apart`: the unaligned lines compute
        only the elements that no aligned line in the row has.

        Rows must have a constant length of at least `width` + `length`, in tensors of which only the first dimension
        may be symbolic; `width` is a multiple of `length`.
        """
        parent, axes = self._last_loop()
        self._check_leaf("split_lines", parent)
        self._check_plain("split_lines", parent)
        shape, own = self.op.output(0).shape, set(axes) <= set(self.op.axis)
        sizes = [d for d in shape[len(shape) - len(axes) :] if isinstance(d, int)]
        known = all(isinstance(d, int) for d in shape[1:]) and len(sizes) == len(axes)
        if not self.is_output or not own or not known or "memory_strides" in self.op.attrs:
            raise self._error("split_lines", "of what is no compact output of a known shape, without reductions")
        columns = prod(sizes)
        if width % length or columns < width + length:
            raise self._error("split_lines", f"of rows of {columns} in tiles of {width} and lines of {length}; "
                              "expected tiles of whole lines, and rows of a tile and a line at least")  # fmt: skip
        names = ("tile", "line", "element")
        tile, line, element = [IterVar(None, Var(f"{parent.var.name}.{n}", parent.dtype), "data") for n in names]
        self.relations.append(SplitLines(parent, tile, line, element, width, length, apart))
        self._replace_leaves((parent,), (tile, line, element))
        return tile, line, element

    def _last_loop(self) -> tuple[IterVar, list[IterVar]]:
        """The last axis, or the loop that it is fused into, and the axes fused in that loop."""
        loop, made = self.op.root_axes[-1], {r.inner: r for r in self.relations if isinstance(r, Fuse)}
        parts = [loop]
        while loop in made:
            parts = [*self._parts_of(made[loop].outer), *parts]
            loop = made[loop].fused
        return loop, parts

    def _parts_of(self, loop: IterVar) -> list[IterVar]:
        """The axes fused into this loop, or the loop alone."""
        fusion = next((r for r in self.relations if isinstance(r, Fuse) and r.fused is loop), None)
        return [loop] if fusion is None else [*self._parts_of(fusion.outer), *self._parts_of(fusion.inner)]

    def fuse(self, *axes: IterVar) -> IterVar:
        """Fuse adjacent loops, outermost first, into one; fusing none gives a loop of one iteration."""
        if not axes:
            single = IterVar(None, Var("singleton"), "data")
            self.relations.append(Singleton(single))
            self.all_iter_vars.append(single)
            self.leaf_iter_vars.insert(0, single)
            return single
        for axis in axes:
            self._check_leaf("fuse", axis)
            self._check_plain("fuse", axis)
        fused = axes[0]
        for axis in axes[1:]:
            fused = self._fuse_pair(fused, axis)
        return fused

    def _fuse_pair(self, outer: IterVar, inner: IterVar) -> IterVar:
        position = _position(self.leaf_iter_vars, outer)
        if _position(self.leaf_iter_vars, inner) != position + 1:
            raise self._error(
                "fuse", f"of {outer.var.name} and {inner.var.name}, which are not adjacent in this order; the loops "
                f"are {self._leaf_names()}: reorder them first"
            )  # fmt: skip
        if (outer.kind == "reduce") != (inner.kind == "reduce"):
            raise self._error("fuse", f"of the {outer.kind} axis {outer.var.name} with the {inner.kind} axis "
                              f"{inner.var.name}; fuse axes of one kind")  # fmt: skip
        fused = IterVar(None, Var(f"{outer.var.name}.{inner.var.name}.fused", outer.dtype), outer.kind)
        self.relations.append(Fuse(outer, inner, fused))
        self._replace_leaves((outer, inner), (fused,))
        return fused

    def reorder(self, *axes: IterVar) -> None:
        """Put loops into this order, in the places they hold now."""
        for axis in axes:
            self._check_leaf("reorder", axis)
        if len({id(a) for a in axes}) != len(axes):
            names = ", ".join(a.var.name for a in axes)
            raise self._error("reorder", f"names an axis twice: {names}; name each loop once")
        places = sorted(_position(self.leaf_iter_vars, a) for a in axes)
        for place, axis in zip(places, axes, strict=True):
            self.leaf_iter_vars[place] = axis

    def tile(
        self, x_parent: IterVar, y_parent: IterVar, x_factor: Any, y_factor: Any
    ) -> tuple[IterVar, IterVar, IterVar, IterVar]:
        """Split both loops and order them x.outer, y.outer, x.inner, y.inner. Gives these four."""
        x_outer, x_inner = self.split(x_parent, factor=x_factor)
        y_outer, y_inner = self.split(y_parent, factor=y_factor)
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

    # -- placement -----------------------------------------------------------------------------------------------

    def compute_at(self, parent: Stage, scope: IterVar) -> None:
        """Compute what an iteration of loop `scope` of stage `parent` needs, at the start of that iteration."""
        self._check_movable("compute_at")
        if parent is self:
            raise self._error("compute_at", "of a stage at itself; attach it at a loop of a consumer")
        parent._check_leaf("compute_at", scope)
        if not _reads(parent.op, self.op):
            raise self._error("compute_at", f"at stage {parent.name}, which does not consume {self.name} directly or "
                              "through others; attach it at a loop of one of its consumers")  # fmt: skip
        self.attach, self.attach_stage, self.attach_axis = "at", parent, scope

    def compute_inline(self) -> None:
        """Replace every read of this operation by its formula."""
        self._check_movable("compute_inline")
        if not isinstance(self.op, ComputeOp) or self.op.reduce_axis:
            raise self._error("compute_inline", "of an operation that is a reduction, scan or extern; only plain "
                              "formulas can be inlined: use compute_at")  # fmt: skip
        self.attach, self.attach_stage, self.attach_axis = "inline", None, None

    def compute_root(self) -> None:
        """Compute the whole operation before its consumers start (the default); in a scan, at the start of a step."""
        if self.home is None:
            self.attach, self.attach_stage, self.attach_axis = "root", None, None
        else:
            self.attach, (self.attach_stage, self.attach_axis) = "at", self.home

    def set_scope(self, scope: str) -> None:
        """Where the result is stored: "global", "shared", "shared.dyn", "warp", "local", ..."""
        if self.is_output and scope != "global":
            raise self._error("set_scope", f"{scope!r} of an output; outputs are in global memory: cache_write it")
        self.scope = scope

    # -- loop kinds ----------------------------------------------------------------------------------------------

    def vectorize(self, axis: IterVar) -> None:
        """Run the loop as one vector operation; its extent must be a constant of at most 1024."""
        self._check_not_reduction("vectorize", axis, "its lanes would write one element; use rfactor")
        self._set_kind("vectorize", axis, ForKind.VECTORIZED)

    def unroll(self, axis: IterVar) -> None:
        """Repeat the body for each iteration; the extent must be constant when lowered."""
        self._set_kind("unroll", axis, ForKind.UNROLLED)

    def parallel(self, axis: IterVar) -> None:
        """Run the iterations on several threads."""
        self._check_not_reduction("parallel", axis, "its iterations update the same elements; use rfactor")
        self._set_kind("parallel", axis, ForKind.PARALLEL)

    def bind(self, ivar: IterVar, thread_ivar: IterVar) -> None:
        """Run the iterations of a loop on a thread axis, one thread each."""
        self._check_leaf("bind", ivar)
        if not isinstance(thread_ivar, IterVar):
            raise self._error("bind", f"of {ivar.var.name} to {thread_ivar!r}; expected an axis: te.thread_axis(tag)")
        if thread_ivar.kind != "thread":
            raise self._error("bind", f"of {ivar.var.name} to {thread_ivar.var.name}, a {thread_ivar.kind} axis; "
                              "expected one made by te.thread_axis")  # fmt: skip
        attrs = self.loop_attrs.setdefault(ivar, LoopAttrs())
        if attrs.thread is not None:
            raise self._error("bind", f"of {ivar.var.name}, which is bound to {attrs.thread.thread_tag} already; a "
                              "loop runs on one thread axis")  # fmt: skip
        if attrs.kind is not None:
            raise self._error("bind", f"of {ivar.var.name}, which is {attrs.kind.value} already; a loop has one kind")
        for leaf in self.leaf_iter_vars:
            other = self.attrs_of(leaf).thread
            virtual = thread_ivar.thread_tag.startswith("vthread")
            if other is not None and other.thread_tag == thread_ivar.thread_tag and not virtual:
                raise self._error("bind", f"of {ivar.var.name} to {thread_ivar.thread_tag}, to which {leaf.var.name} "
                                  "is bound; bind each thread axis once in a stage, or fuse the loops")  # fmt: skip
        attrs.thread = thread_ivar

    def env_threads(self, threads: IterVar | Sequence[IterVar]) -> None:
        """Start these threads around the whole stage (a scan), outside all its loops."""
        launched = (threads,) if isinstance(threads, IterVar) else tuple(threads)
        for thread in launched:
            if thread.kind != "thread":
                raise self._error("env_threads", f"with {thread.var.name}, a {thread.kind} axis; expected thread axes")
        self.launched_threads = launched

    def tensorize(self, axis: IterVar, intrin: TensorIntrin) -> None:
        """Replace the loop and all inside it by the tensor intrinsic, whose computation must be the same."""
        self._check_leaf("tensorize", axis)
        if not isinstance(self.op, ComputeOp):
            raise self._error("tensorize", "of an operation that is not a compute")
        self.loop_attrs.setdefault(axis, LoopAttrs()).intrin = intrin

    # -- annotations ---------------------------------------------------------------------------------------------

    def pragma(self, axis: IterVar, pragma_type: str, pragma_value: Any = None) -> None:
        """Annotate the loop: "auto_unroll_max_step", "loop_partition_hint", "most_threads", ..."""
        self._check_leaf("pragma", axis)
        self.loop_attrs.setdefault(axis, LoopAttrs()).pragmas[pragma_type] = pragma_value

    def limit(self, axis: IterVar, iterations: PrimExpr, of: int | None = None) -> None:
        """Run at most so many iterations of a loop, an expression over the axes of the loops around the stage.

        Where the iterations have to be those that a part of a consumer reads, there are `of` of them without the limit:
        lowering raises ScheduleError where bound inference finds others.

        What the others would compute stays undefined, and a reduction leaves their terms out. That is right only where
        nothing reads the former, and the latter change nothing: causal attention computes no scores of hidden keys, and
        adds no values whose weight is 0. The loop must be serial.
        """
        self._check_leaf("limit", axis)
        attrs = self.loop_attrs.setdefault(axis, LoopAttrs())
        if attrs.kind is not None or attrs.thread is not None:
            raise self._error("limit", f"of {axis.var.name}, which is not serial; limit a loop around it")
        attrs.limit, attrs.limit_of = iterations, of

    def overrun(self, axis: IterVar, zeros: bool = False) -> None:
        """Let a loop run past the end of the tensor, in a region with memory for all its iterations.

        A guard is tested for the first iteration only, so that a register tile has no test for each of its rows
        (Halide's RoundUp). The elements past the end are computed of those past the ends of the inputs, which must be
        stages computed at a loop around this one, or have no end within the loop: a multiple of its length. With
        `zeros`, for stages that do not reduce, each iteration past the end stores zeros. Outputs of the schedule have
        no memory past their ends.
        """
        self._check_not_reduction("overrun", axis, "terms past its end would change the result")
        if zeros and not (isinstance(self.op, ComputeOp) and not self.op.reduce_axis):
            raise self._error("overrun", f"of {axis.var.name} with zeros, for computes without a reduction only")
        if self.is_output:
            raise self._error("overrun", f"of {axis.var.name} of an output, which has no memory past its end; "
                              "cache_write it and let that run past the end")  # fmt: skip
        self.loop_attrs.setdefault(axis, LoopAttrs()).overrun = "zeros" if zeros else "computed"

    def prefetch(self, tensor: Tensor, axis: IterVar, ahead: Prefetch | Any) -> None:
        """Prefetch a part of `tensor` in each iteration of the loop: see `Prefetch`.

        A number stands for what the loop reads of it so many iterations later. The tensor is one that the stage reads,
        or one that its inputs are computed from; with an `order` any argument of the function, and without one also an
        argument of the stage's own shape that will be written.
        """
        self._check_leaf("prefetch", axis)
        wanted = ahead if isinstance(ahead, Prefetch) else Prefetch(iterations=as_dim(ahead))
        if not self._can_prefetch(tensor, wanted):
            names = ", ".join(t.name for t in self.op.input_tensors)
            raise self._error("prefetch", f"of {tensor.name}, which the stage does not read; it reads {names}")
        self.loop_attrs.setdefault(axis, LoopAttrs()).prefetches.append((tensor, wanted))

    def _can_prefetch(self, tensor: Tensor, wanted: Prefetch) -> bool:
        """Is the tensor's memory known in this stage?"""
        if not (isinstance(wanted.iterations, int) and wanted.iterations == 0):
            return tensor in self.op.input_tensors
        if wanted.order is None:
            known = any(tuple(tensor.shape) == tuple(t.shape) for t in self.op.outputs)
        else:
            known = wanted.written or isinstance(tensor.op, PlaceholderOp)
        return known or tensor in self._sources()

    def _sources(self) -> list[Tensor]:
        """The tensors that the stage reads, and those that they are computed from."""
        found = list(self.op.input_tensors)
        for read in found:
            found += [source for source in read.op.input_tensors if source not in found]
        return found

    def storage_align(self, axis: IterVar, factor: int, offset: int = 0) -> None:
        """Pad the dimension's stride in storage so that stride = offset modulo factor (elements)."""
        if not any(axis is a for a in self.op.axis):
            names = ", ".join(a.var.name for a in self.op.axis)
            raise self._error("storage_align", f"of {axis.var.name}; expected one of the operation's axes: {names}")
        if factor < 1:
            raise self._error("storage_align", f"with factor {factor}; the factor must be at least 1")
        self.loop_attrs.setdefault(axis, LoopAttrs()).align = (factor, offset)

    def swizzle(self) -> None:
        """XOR-swizzle shared memory: the 16-byte part p of line l (of 128 bytes) lies at p ^ (l % 8).

        Equal parts of eight lines then lie in different banks, without padding. Some instructions expect this layout;
        in "shared.dyn" the memory is aligned to 1024 bytes, as they need.
        """
        if not self.scope.startswith("shared"):
            raise self._error("swizzle", f"in scope {self.scope!r}; only shared memory has banks")
        self.swizzled = True

    def double_buffer(self) -> None:
        """Keep two copies of the result, so that the next part is computed while this one is used."""
        if self.is_output:
            raise self._error("double_buffer", "of an output; only intermediate results can be double buffered")
        self.double_buffered = True

    def pipeline(self, stages: int, behind: bool = False) -> None:
        """Fill the result, in the loop it is computed at, `stages` - 1 iterations ahead, in a ring of `stages` copies.

        Where the device can, the copies run while other iterations are computed. All stages that one loop pipelines
        have the same number of stages, at least 2. `behind`: an iteration uses its copies before it starts others,
        which pays where separate units (tensor cores) compute with them. (TVM: the annotation
        "software_pipeline_stage".)
        """
        if self.is_output:
            raise self._error("pipeline", "of an output; only intermediate results can be filled ahead")
        if stages < 2:
            raise self._error("pipeline", f"of {stages} stages; expected at least 2")
        self.pipeline_stages, self.fills_behind = stages, behind

    def set_store_predicate(self, predicate: Any) -> None:
        """Store only where `predicate` holds: one thread of several that hold the same value."""
        expr = convert(predicate)
        if not expr.dtype.is_bool:
            raise self._error("set_store_predicate", f"with {expr}, a {expr.dtype}; expected a bool expression")
        self.predicate = expr

    # -- checks --------------------------------------------------------------------------------------------------

    def attrs_of(self, axis: IterVar) -> LoopAttrs:
        """The annotations of a loop."""
        return self.loop_attrs.get(axis) or LoopAttrs()

    def _leaf_names(self) -> str:
        return ", ".join(iv.var.name for iv in self.leaf_iter_vars) or "none"

    def _error(self, primitive: str, what: str) -> ScheduleError:
        return ScheduleError(f"stage {self.name}: {primitive} {what}")

    def _check_leaf(self, primitive: str, axis: IterVar) -> None:
        if not isinstance(axis, IterVar):
            raise self._error(primitive, f"of {axis!r}; expected an axis of the stage: {self._leaf_names()}")
        if any(axis is leaf for leaf in self.leaf_iter_vars):
            return
        if any(axis is known for known in self.all_iter_vars):
            raise self._error(primitive, f"of axis {axis.var.name}, which was split or fused already; the stage's "
                              f"loops are now {self._leaf_names()}")  # fmt: skip
        if isinstance(self.op, PlaceholderOp):
            raise self._error(primitive, f"of axis {axis.var.name}: {self.name} is an input and has no loops")
        raise self._error(primitive, f"of axis {axis.var.name}, which is no axis of the stage; its loops are "
                          f"{self._leaf_names()}")  # fmt: skip

    def _check_plain(self, primitive: str, axis: IterVar) -> None:
        """Raise ScheduleError for a loop that has a kind already: it can't be split or fused any more."""
        attrs = self.loop_attrs.get(axis)
        if attrs is None or (attrs.kind is None and attrs.thread is None and attrs.intrin is None):
            return
        kind = attrs.kind.value if attrs.kind is not None else "tensorized" if attrs.thread is None else "bound"
        raise self._error(primitive, f"of {axis.var.name}, which is {kind} already; {primitive} first, then say how "
                          "the resulting loops run")  # fmt: skip

    def _check_not_reduction(self, primitive: str, axis: IterVar, why: str) -> None:
        self._check_leaf(primitive, axis)
        if axis.kind == "reduce":
            raise self._error(primitive, f"of the reduce axis {axis.var.name}: {why}")

    def _set_kind(self, primitive: str, axis: IterVar, kind: ForKind) -> None:
        self._check_leaf(primitive, axis)
        attrs = self.loop_attrs.setdefault(axis, LoopAttrs())
        if attrs.thread is not None:
            raise self._error(primitive, f"of {axis.var.name}, which is bound to {attrs.thread.thread_tag}; a loop has "
                              "one kind")  # fmt: skip
        if attrs.kind is not None and attrs.kind is not kind:
            raise self._error(primitive, f"of {axis.var.name}, which is {attrs.kind.value} already; a loop has one "
                              "kind")  # fmt: skip
        if axis.kind in ("scan", "opaque"):
            raise self._error(primitive, f"of {axis.var.name}, a {axis.kind} axis, whose order is fixed")
        attrs.kind = kind

    def _check_movable(self, primitive: str) -> None:
        if isinstance(self.op, PlaceholderOp):
            raise self._error(primitive, "of an input; inputs are not computed")
        if self.is_output:
            raise self._error(primitive, "of an output; outputs are computed at root: cache_write it and move that")

    def _replace_leaves(self, old: tuple[IterVar, ...], new: tuple[IterVar, ...]) -> None:
        position = _position(self.leaf_iter_vars, old[0])
        self.leaf_iter_vars[position : position + len(old)] = new
        self.all_iter_vars.extend(new)


def _position(axes: Sequence[IterVar], axis: IterVar) -> int:
    return next(i for i, a in enumerate(axes) if a is axis)


def _reads(consumer: Operation, producer: Operation) -> bool:
    """Does `consumer` read `producer`, directly or through others?"""
    seen: set[Operation] = set()
    stack = [consumer]
    while stack:
        op = stack.pop()
        inputs = [t.op for t in op.input_tensors]
        if isinstance(op, ScanOp):
            inputs += [t.op for t in op.inputs]
        for source in inputs:
            if source is producer:
                return True
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return False
