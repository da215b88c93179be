"""From a schedule to loops: the nest of every stage, with the stages computed inside it in their places.

The result is a statement over multi-dimensional buffers. A stage that is no argument of the function gets memory of
the size of its region, allocated where the stage is attached; its elements are addressed relative to the region's
start. A reduction starts its elements just outside its first reduce loop and updates them inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from relayc.te.bounds import Bounds, Guard, Loops, guard_expr
from relayc.te.errors import LoweringError, ScheduleError
from relayc.te.operation import ComputeOp, ExternOp, PlaceholderOp, ScanOp
from relayc.te.poly import Poly, number
from relayc.te.prefetch import prefetches
from relayc.te.rewrite import map_reads
from relayc.te.speculation import only_for, recomputed_if_invalid
from relayc.te.stage import MAX_LANES, Split, Stage
from relayc.te.tensor import Tensor
from relayc.te.tensorize import TensorizedLoops
from relayc.te.tir import ops
from relayc.te.tir.buffer import Buffer, buffer_strides
from relayc.te.tir.expr import BufferLoad, Dim, IterVar, PrimExpr, ProducerLoad, Reduce, Var
from relayc.te.tir.ops import convert, seq
from relayc.te.tir.passes.inject_software_pipeline import FILL_BEHIND, PIPELINE_SCOPE
from relayc.te.tir.stmt import Allocate, AttrStmt, BufferStore, Evaluate, For, ForKind, IfThenElse, LetStmt, Stmt
from relayc.te.tir.substitute import substitute

__all__ = ["schedule_to_loops"]


def schedule_to_loops(bounds: Bounds, arguments: Mapping[Tensor, Buffer]) -> Stmt:
    """The program of a schedule whose bounds are known, over the buffers of its argument tensors.

    Raises LoweringError for an input that is no argument, ScheduleError for loops that can't run as scheduled.
    """
    return _Nests(bounds, arguments).program()


class _Nests:
    def __init__(self, bounds: Bounds, arguments: Mapping[Tensor, Buffer]) -> None:
        self.bounds = bounds
        self.math = bounds.math
        self.buffers: dict[Tensor, Buffer] = dict(arguments)
        self.starts: dict[Tensor, tuple[Poly, ...]] = {}
        self.states: list[Tensor] = []
        """results of scans that are not arguments"""
        self.children: dict[Stage, list[list[Stage]]] = {}
        for stage in bounds.schedule.stages:
            self.children[stage] = [[] for _ in stage.leaf_iter_vars]
        for stage in bounds.schedule.stages:
            path = bounds.path(stage)
            if path:
                self.children[path[-1][0]][path[-1][1]].append(stage)
        self.scans = [s for s in bounds.schedule.stages if isinstance(s.op, ScanOp)]
        for stage in self.scans:
            self._share_states(stage)
        for stage in bounds.schedule.stages:
            if stage not in bounds.speculated:
                self._assign_buffers(stage)
        for stage, exact in bounds.speculated.items():
            self._share_memory(stage, exact)

    def program(self) -> Stmt:
        roots = [s for s in self.bounds.schedule.stages if s.attach == "root" and s in self.bounds.loops]
        body = self._in_order(roots, self._kernel, ops.no_op())
        for tensor in self.states:
            body = Allocate(self.buffers[tensor], body)
        return body

    # -- memory --------------------------------------------------------------------------------------------------

    def _assign_buffers(self, stage: Stage) -> None:
        if isinstance(stage.op, PlaceholderOp):
            for tensor in stage.op.outputs:
                if tensor not in self.buffers:
                    raise LoweringError(f"input {tensor.name} is read but is not among the arguments; add it to them")
            return
        region = self.bounds.regions[stage]
        scope = self.bounds.scopes[stage]
        for tensor in stage.op.outputs:
            if tensor in self.buffers:
                continue
            shape, self.starts[tensor] = tensor.shape, tuple([number(0) for _ in tensor.shape])
            if isinstance(stage.op, ComputeOp):
                shape, self.starts[tensor] = tuple([self._allocated(stage, e) for e in region.extents]), region.mins
            strides = _aligned_strides(stage, shape)
            align = 1024 if stage.swizzled else 64
            self.buffers[tensor] = Buffer(tensor.name, shape, tensor.dtype, strides=strides, scope=scope, align=align,
                                          swizzled=stage.swizzled)  # fmt: skip

    def _allocated(self, stage: Stage, extent: Poly) -> Dim:
        """The extent of a region in memory: inside of loops the largest it may be, so that strides are constant."""
        most = self.math.bounds(extent)[1] if stage.attach == "at" else None
        return self.math.as_dim(extent) if most is None else most

    def _share_states(self, stage: Stage) -> None:
        """The first states, the next states and the states read are all in the memory of the scan's result."""
        scan = stage.op
        assert isinstance(scan, ScanOp)
        for i, tensor in enumerate(scan.outputs):
            if tensor not in self.buffers:
                self.buffers[tensor] = Buffer(tensor.name, tensor.shape, tensor.dtype)
                self.states.append(tensor)
            for shared in (scan.init[i], scan.update[i], scan.state_placeholder[i]):
                if shared in self.buffers and self.buffers[shared] is not self.buffers[tensor]:
                    raise LoweringError(f"{shared.name} belongs to scan {scan.name} and shares its memory; it can't be "
                                        "an argument or belong to two scans: copy it with te.compute")  # fmt: skip
                self.buffers[shared] = self.buffers[tensor]

    def _share_memory(self, speculated: Stage, exact: Stage) -> None:
        """A speculated result has the memory of the exact one that it stands for."""
        by, tensor = speculated.op.output(0), exact.op.output(0)
        self.buffers[by] = self.buffers[tensor]
        if tensor in self.starts:  # allocated with the speculated one, which is computed first
            self.starts[by] = self.starts[tensor]

    def _realize(self, stage: Stage, nest: Stmt, rest: Stmt) -> Stmt:
        """`nest`, then `rest`, inside the allocations of the results of `nest`."""
        own = [t for t in stage.op.outputs if t in self.starts and stage not in self.bounds.speculated.values()]
        if stage.double_buffered:
            for tensor in own:
                nest = AttrStmt("double_buffer_scope", self.buffers[tensor], ops.const(1), nest)
        if stage.pipeline_stages > 1:
            for tensor in own:
                inner = AttrStmt(FILL_BEHIND, None, ops.const(1), nest) if stage.fills_behind else nest
                nest = AttrStmt(PIPELINE_SCOPE, self.buffers[tensor], ops.const(stage.pipeline_stages), inner)
        body = seq(nest, rest)
        for tensor in reversed(own):
            body = Allocate(self.buffers[tensor], body)
        return body

    # -- loops ---------------------------------------------------------------------------------------------------

    def _kernel(self, stage: Stage) -> Stmt:
        """The nest of a stage at root inside the thread axes that it and the stages within it run on."""
        body = self.nest(stage)
        for thread in reversed(list(self.bounds.threads.get(stage, {}).values())):
            virtual = thread.thread_tag.startswith(("vthread", "cthread"))
            assert thread.dom is not None
            body = AttrStmt("virtual_thread" if virtual else "thread_extent", thread, convert(thread.dom.extent), body)
        return body

    def nest(self, stage: Stage) -> Stmt:
        """All loops of a stage."""
        return StageNest(self, stage).build()

    def attach(self, stage: Stage, position: int, inner: Stmt) -> Stmt:
        """`inner` after the stages computed at the leaf at `position`."""
        return self._in_order(self.children[stage][position], self.nest, inner)

    def _in_order(self, stages: Sequence[Stage], nest: Callable[[Stage], Stmt], rest: Stmt) -> Stmt:
        """The nests of stages computed at one loop, then `rest`; exact results only where speculation fails."""
        speculations = [g for g in self.bounds.schedule.speculations if g.exact[0] in stages]
        again = {stage: g for g in speculations for stage in only_for(g, stages, lambda s: self._readers(s, stages))}
        for stage in reversed(stages):
            speculation = again.get(stage)
            if speculation is None:
                rest = self._realize(stage, nest(stage), rest)
            elif stage is next(s for s in reversed(stages) if s in speculation.exact):
                exact: Stmt = ops.no_op()
                for one in reversed([s for s in stages if again.get(s) is speculation]):
                    exact = self._realize(one, nest(one), exact)
                result = speculation.by[-1].op.output(0)
                rest = seq(recomputed_if_invalid(speculation, self.buffers[result], self._ends(result), exact), rest)
        return rest

    def _ends(self, tensor: Tensor) -> list[PrimExpr | None]:
        """The end of the computed elements in each dimension of a tensor's memory; None where all of it may be."""
        sizes = [self.math.dim(d) for d in self.buffers[tensor].shape]
        starts = self.starts.get(tensor, tuple([number(0) for _ in sizes]))
        left = [self.math.dim(d) - start for d, start in zip(tensor.shape, starts, strict=True)]
        return [None if self.math.nonneg(n - d) else self.math.expr(n) for n, d in zip(left, sizes, strict=True)]

    def _readers(self, stage: Stage, stages: Sequence[Stage]) -> set[Stage | None]:
        """The readers of `stage` among `stages`, directly or through stages inside them; None for any other."""
        around = [[reader, *[s for s, _ in self.bounds.path(reader)]] for reader in self.bounds.consumers(stage)]
        return {next((s for s in nest if s in stages), None) for nest in around}

    # -- expressions ---------------------------------------------------------------------------------------------

    def indices(self, tensor: Tensor, indices: Sequence[Poly]) -> tuple[PrimExpr, ...]:
        """Where an element of a tensor lies in its buffer."""
        starts = self.starts.get(tensor)
        polys = indices if starts is None else [self.math.merge(i - s) for i, s in zip(indices, starts, strict=True)]
        return tuple([self.resolve(self.math.expr(p)) if _has_reads(p) else self.math.expr(p) for p in polys])

    def resolve(self, expr: PrimExpr) -> PrimExpr:
        """The reads in an expression over loop variables as reads of buffers."""
        return self.lower(expr, {})

    def lower(self, expr: PrimExpr, values: Mapping[Var, Poly]) -> PrimExpr:
        """An expression of an operation's body over the loop variables and the buffers."""

        def read(load: ProducerLoad) -> PrimExpr:
            polys = [self.math.poly(i, {}) for i in load.indices]
            return BufferLoad(self.buffers[load.producer], self.indices(load.producer, polys))

        return map_reads(expr, read, values, self.math.expr)


def _bind_dims(declared: Sequence[Dim], actual: Sequence[Dim]) -> dict[Var, PrimExpr]:
    pairs = zip(declared, actual, strict=True)
    return {d: convert(a) for d, a in pairs if isinstance(d, Var) and d is not a}


def _has_reads(p: Poly) -> bool:
    return any(a.kind not in ("var",) for a in p.atoms())


def _aligned_strides(stage: Stage, shape: Sequence[Dim]) -> list[Dim] | None:
    """Row-major strides with those of aligned axes padded; None when no axis is aligned."""
    aligned = {i: stage.attrs_of(axis).align for i, axis in enumerate(stage.op.axis)}
    if not any(aligned.values()):
        return None
    strides: list[Dim] = []
    stride: Dim = 1
    for i in reversed(range(len(shape))):
        align = aligned.get(i)
        if align is not None:
            factor, offset = align
            stride = ops.as_dim(stride + (offset - convert(stride) % factor + factor) % factor)
        strides.insert(0, stride)
        stride = ops.product([stride, shape[i]])
    return strides


class StageNest:
    """The loops of one stage, built from the outside in."""

    def __init__(self, nests: _Nests, stage: Stage) -> None:
        self.nests, self.stage = nests, stage
        self.math = nests.math
        self.loops: Loops = nests.bounds.loops[stage]
        self.leaves = stage.leaf_iter_vars
        self.values: dict[Var, Poly] = self.loops.root_values()
        self.guards: dict[int, list[Guard]] = {}
        self.positions = {leaf.var: i for i, leaf in enumerate(self.leaves)}
        for guard in self.loops.guards:
            self.guards.setdefault(self._guard_position(guard), []).append(guard)
        self.partial: list[tuple[Buffer, tuple[PrimExpr, ...]]] = []
        """partial results of one thread, in a cross-thread reduction"""
        self.tensorized = self._match_intrinsic()
        self.first_reduce = next((i for i, leaf in enumerate(self.leaves) if leaf.kind == "reduce"), None)
        if self._threads_reduce():
            self.first_reduce = self._cross_thread_position()

    def _match_intrinsic(self) -> tuple[int, TensorizedLoops] | None:
        """The first tensorized leaf and the loops from it inwards as an instance of its intrinsic."""
        for i, leaf in enumerate(self.leaves):
            intrin = self.stage.attrs_of(leaf).intrin
            if intrin is None:
                continue
            where = f"stage {self.stage.name}: tensorize with {intrin.name}"
            if any(position >= i for position in self.guards):
                raise ScheduleError(f"{where}: the tensorized loops are guarded, because a split inside or around them "
                                    "does not divide; use factors that divide, or tail='shift'")  # fmt: skip
            inside = [child.name for children in self.nests.children[self.stage][i:] for child in children]
            if inside:
                raise ScheduleError(f"{where}: stage {inside[0]} is computed inside the tensorized loops; compute it "
                                    "at a loop around them")  # fmt: skip
            return i, TensorizedLoops(self.math, self.loops, i, intrin)
        return None

    def _intrinsic(self, part: str, renamed: Callable[[Poly], Poly] = lambda p: p) -> Stmt:
        assert self.tensorized is not None
        _, match = self.tensorized
        stmt = getattr(match.intrin, part)
        if stmt is None:
            raise ScheduleError(f"stage {self.stage.name}: tensorize with {match.intrin.name}: the intrinsic has no "
                                f"{part}, which is needed when the reduction runs outside the tensorized loops; put "
                                "all reduce loops inside, or declare it")  # fmt: skip
        return match.place(stmt, self.nests.buffers, self.nests.indices, renamed)

    def _tensorized_level(self, updating: bool) -> Stmt:
        assert self.tensorized is not None
        if updating:
            return self._intrinsic("reduce_update")
        if self.tensorized[1].intrin.body is not None:
            return self._intrinsic("body")
        return seq(self._intrinsic("reduce_init"), self._intrinsic("reduce_update"))

    def _guard_position(self, guard: Guard) -> int:
        """The leaf inside which the guard stands: as far out as its variables allow.

        A guard on threads stands innermost: barriers of what is computed inside the loops must be met by all threads.
        """
        variables = guard.variables()
        threads = {t.var for t in self.nests.bounds.threads.get(self.nests.bounds.kernel_of(self.stage), {}).values()}
        if variables & threads:
            return len(self.leaves)
        return max([self.positions[v] for v in variables if v in self.positions], default=-1)

    def build(self) -> Stmt:
        """The nest, inside the guards that hold for all of it."""
        if self.first_reduce is not None:
            for relation in self.stage.relations:
                if isinstance(relation, Split) and relation.tail == "shift":
                    self._check_shift(relation, self.first_reduce)
        return self._guarded(-1, self._level(0, updating=False))

    def _check_shift(self, relation: Split, first_reduce: int) -> None:
        """Elements that two parts compute must start anew in each: no reduction may update them in between."""
        where = f"stage {self.stage.name}: split of {relation.parent.var.name} with tail='shift'"
        outer = self.loops.values[relation.outer].atoms()
        inside = [leaf for leaf in self.leaves[first_reduce:] if any(leaf.var in a.vars for a in outer)]
        if inside:
            raise ScheduleError(f"{where}: reduce loop {self.leaves[first_reduce].var.name} stands outside loop "
                                f"{inside[0].var.name}, so that elements of two parts would be updated twice; reorder "
                                "them, or use tail='guard'")  # fmt: skip
        for leaf in self.leaves:
            attrs = self.stage.attrs_of(leaf)
            if attrs.kind is ForKind.PARALLEL or attrs.thread is not None:
                raise ScheduleError(f"{where}: {leaf.var.name} is parallel and its threads would update the same "
                                    "elements; cache_write the stage and split that of the copy")  # fmt: skip

    def _level(self, i: int, updating: bool) -> Stmt:
        if self.tensorized is not None and i == self.tensorized[0]:
            return self._tensorized_level(updating)
        if i == self.first_reduce and not updating and self._threads_reduce():
            return self._cross_thread(i)
        if i == self.first_reduce and not updating:
            return seq(self._init_nest(i), self._level(i, updating=True))
        if i == len(self.leaves):
            body = self._provide()
            return self._guarded(i, body if self.partial else self._predicated(body))
        inner = self.nests.attach(self.stage, i, self._level(i + 1, updating))
        leaf, body = self.leaves[i], self._guarded(i, inner)
        attrs = self.stage.attrs_of(leaf)
        return self._loop(leaf, leaf.var, seq(*prefetches(self, leaf, attrs), body))

    def _guarded(self, position: int, body: Stmt) -> Stmt:
        for guard in reversed(self.guards.get(position, ())):
            zeros = self._init_nest(position + 1) if guard.zeros else None
            body = IfThenElse(guard_expr(self.math, guard), body, zeros)
        return body

    def _predicated(self, body: Stmt) -> Stmt:
        predicate = self.stage.predicate
        if predicate is None:
            return body
        values = {**self.values, **{iv.var: p for iv, p in self.loops.values.items()}}
        return IfThenElse(self.nests.lower(predicate, values), body)

    def _loop(self, leaf: IterVar, var: Var, body: Stmt) -> Stmt:
        attrs = self.stage.attrs_of(leaf)
        extent = self.loops.extents[leaf]
        pragmas = {f"pragma_{name}": True if value is None else value for name, value in attrs.pragmas.items()}
        if attrs.thread is not None or extent.const == 1:
            for key, value in pragmas.items():
                body = AttrStmt(key, None, convert(value), body)
            return body
        kind = attrs.kind or ForKind.SERIAL
        self._check_kind(leaf, kind, extent)
        return For(var, ops.const(0), self._limited(leaf, extent), kind, body, pragmas)

    def _limited(self, leaf: IterVar, extent: Poly) -> PrimExpr:
        """The iterations of a loop, no more than its limit."""
        attrs = self.stage.attrs_of(leaf)
        if attrs.limit is None:
            return self.math.expr(extent)
        if attrs.limit_of not in (None, extent.const):
            got = self.math.expr(extent)
            raise ScheduleError(f"stage {self.stage.name}: limit of {leaf.var.name}: expected {attrs.limit_of} "
                                f"iterations, got {got}: consumers do not read one part of that length")  # fmt: skip
        if attrs.kind is not None:
            raise ScheduleError(f"stage {self.stage.name}: limit of {leaf.var.name}, which is {attrs.kind.value}; the "
                                "loop must be serial")  # fmt: skip
        values: dict[Var, Poly] = {}
        for around, _ in self.nests.bounds.path(self.stage):
            values |= {iv.var: p for iv, p in self.nests.bounds.loops[around].values.items()}
        return ops.minimum(self.math.expr(extent), self.nests.lower(attrs.limit, values))

    def _check_kind(self, leaf: IterVar, kind: ForKind, extent: Poly) -> None:
        if kind not in (ForKind.VECTORIZED, ForKind.UNROLLED):
            return
        name, stage = leaf.var.name, self.stage.name
        primitive = "vectorize" if kind is ForKind.VECTORIZED else "unroll"
        known = extent.const
        if known is None:
            raise ScheduleError(f"stage {stage}: {primitive}: loop {name} runs {self.math.expr(extent)} times, which "
                                "is not a constant; split it by a constant factor and take the inner loop")  # fmt: skip
        if kind is ForKind.VECTORIZED:
            if known > MAX_LANES:
                raise ScheduleError(f"stage {stage}: vectorize: loop {name} runs {known} times; at most {MAX_LANES} "
                                    "lanes are possible: split it and vectorize the inner loop")  # fmt: skip
            inside = [c.name for i in range(self.positions[leaf.var], len(self.leaves))
                      for c in self.nests.children[self.stage][i]]  # fmt: skip
            if inside:
                raise ScheduleError(f"stage {stage}: vectorize: stage {inside[0]} is computed inside the vectorized "
                                    f"loop {name}; compute it at a loop around it")  # fmt: skip

    # -- what a stage does in its loops ----------------------------------------------------------------------------

    def _op(self) -> ComputeOp:
        assert isinstance(self.stage.op, ComputeOp)
        return self.stage.op

    def _target(self, index: int, values: Mapping[Var, Poly]) -> tuple[Buffer, tuple[PrimExpr, ...]]:
        tensor = self._op().output(index)
        indices = [values[iv.var] for iv in self._op().axis]
        return self.nests.buffers[tensor], self.nests.indices(tensor, indices)

    def _provide(self) -> Stmt:
        if isinstance(self.stage.op, ScanOp):
            return ops.no_op()  # the updates, computed inside the loop, are all there is
        if isinstance(self.stage.op, ExternOp):
            return self._extern(self.stage.op)
        op = self._op()
        if op.reduce_axis:
            return self._update()
        stores: list[Stmt] = []
        for i, expr in enumerate(op.body):
            buffer, indices = self._target(i, self.values)
            stores.append(BufferStore(buffer, self.nests.lower(expr, self.values), indices))
        return seq(stores)

    def _extern(self, op: ExternOp) -> Stmt:
        """The statement over the program's buffers in place of those it was written for."""
        tensors = (*op.inputs, *op.outputs)
        buffers: dict[Buffer, Buffer] = {}
        variables: dict[Var, PrimExpr] = {}
        for declared, tensor in zip((*op.input_buffers, *op.output_buffers), tensors, strict=True):
            actual = buffers[declared] = self.nests.buffers[tensor]
            variables[declared.data] = actual.data
            variables.update(_bind_dims(declared.shape, actual.shape))
            if declared.strides is not None:
                variables.update(_bind_dims(declared.strides, buffer_strides(actual)))
            if isinstance(declared.elem_offset, Var):
                variables[declared.elem_offset] = convert(actual.elem_offset)
        return substitute(op.body, variables, buffers)

    def _reduction(self) -> Reduce:
        first = self._op().body[0]
        assert isinstance(first, Reduce)
        return first

    def _update(self) -> Stmt:
        """Combine the elements with the source; all results before the first store when there are several."""
        reduction = self._reduction()
        combiner = reduction.combiner
        targets = self.partial or [self._target(i, self.values) for i in range(len(combiner.result))]
        operands: dict[Var, PrimExpr] = {}
        for (buffer, indices), lhs in zip(targets, combiner.lhs, strict=True):
            operands[lhs] = BufferLoad(buffer, indices)
        for rhs, source in zip(combiner.rhs, reduction.source, strict=True):
            operands[rhs] = self.nests.lower(source, self.values)
        results = [map_reads(r, lambda load: load, operands) for r in combiner.result]
        body = _store_all(targets, results)
        if ops.is_const(reduction.condition):
            return body
        return IfThenElse(self.nests.lower(reduction.condition, self.values), body)

    # -- reductions across threads -----------------------------------------------------------------------------------

    def _threads_reduce(self) -> bool:
        return any(leaf.kind == "reduce" and leaf in self.loops.threads for leaf in self.leaves)

    def _cross_thread_position(self) -> int:
        """Where the reduction begins: inside all data loops. Axes that run on threads have no place of their own."""
        serial = [leaf not in self.loops.threads for leaf in self.leaves]
        begin = 1 + max([i for i, leaf in enumerate(self.leaves) if leaf.kind != "reduce" and serial[i]], default=-1)
        outside = [leaf.var.name for i, leaf in enumerate(self.leaves[:begin]) if leaf.kind == "reduce" and serial[i]]
        if outside:
            raise ScheduleError(f"stage {self.stage.name}: bind: the threads reduce, but reduce loop {outside[0]} "
                                f"stands outside data loop {self.leaves[begin - 1].var.name}; reorder it to the "
                                "inside")  # fmt: skip
        return begin

    def _cross_thread(self, position: int) -> Stmt:
        """Each thread reduces its share into a local element; `thread_allreduce` combines those of all threads.

        ``thread_allreduce(size, partial values..., addresses of the results..., thread variables...)`` inside an
        attribute "reduce_scope" whose subject is the reducer; every thread of the group runs it.
        """
        reduction = self._reduction()
        combiner = reduction.combiner
        zero = (ops.const(0),)
        partial = [Buffer(f"{self.stage.name}.partial", (1,), e.dtype, scope="local") for e in reduction.source]
        result = [Buffer(f"{self.stage.name}.all", (1,), e.dtype, scope="local") for e in reduction.source]
        start = seq([BufferStore(b, self.nests.lower(v, {}), zero)
                     for b, v in zip(partial, combiner.identity, strict=True)])  # fmt: skip
        self.partial = [(b, zero) for b in partial]
        update = self._level(position, updating=True)
        threads = [self.loops.threads[v].var for v in self.leaves if v.kind == "reduce" and v in self.loops.threads]
        addresses = [ops.call_intrin("handle", "address_of", BufferLoad(b, zero)) for b in result]
        arguments = [ops.const(len(partial)), *[BufferLoad(b, zero) for b in partial], *addresses, *threads]
        combine = AttrStmt("reduce_scope", combiner, ops.const(0),
                           Evaluate(ops.call_intrin("handle", "thread_allreduce", *arguments)))  # fmt: skip
        body = seq(start, update, combine, self._store_combined(result))
        for buffer in reversed([*partial, *result]):
            body = Allocate(buffer, body)
        return body

    def _store_combined(self, result: Sequence[Buffer]) -> Stmt:
        reduction = self._reduction()
        values: list[PrimExpr] = [BufferLoad(b, (ops.const(0),)) for b in result]
        if reduction.init:
            combiner = reduction.combiner
            starts = [self.nests.lower(e, self.values) for e in reduction.init]
            operands = dict(zip((*combiner.lhs, *combiner.rhs), (*starts, *values), strict=True))
            values = [map_reads(r, lambda load: load, operands) for r in combiner.result]
        targets = [self._target(i, self.values) for i in range(len(values))]
        body = self._predicated(_store_all(targets, values))
        return self._init_guards(len(self.leaves), body, lambda p: p)

    def _init_nest(self, position: int) -> Stmt:
        """The loops over data axes from `position` inwards, with fresh variables, storing the start values or zeros."""
        data = [leaf for leaf in self.leaves[position:] if leaf.kind != "reduce"]
        fresh: dict[Var, Var] = {}
        for leaf in data:
            if self.loops.extents[leaf].const != 1 and self.stage.attrs_of(leaf).thread is None:
                fresh[leaf.var] = Var(leaf.var.name + ".init", leaf.dtype)
                self.math.declare(fresh[leaf.var], self.loops.extents[leaf])
        renaming = {old: self.math.var(new) for old, new in fresh.items()}

        def renamed(p: Poly) -> Poly:
            return self.math.poly(self.math.expr(p), renaming)

        if self.tensorized is not None and self.tensorized[1].intrin.reduce_init is not None:
            data = [leaf for leaf in data if self.positions[leaf.var] < self.tensorized[0]]
            body = self._intrinsic("reduce_init", renamed)
        else:
            body = self._init_guards(len(self.leaves), self._start(renamed), renamed)
        for leaf in reversed(data):
            body = self._init_guards(self.positions[leaf.var], body, renamed)
            body = self._loop(leaf, fresh.get(leaf.var, leaf.var), body)
        return body

    def _start(self, renamed: Callable[[Poly], Poly]) -> Stmt:
        """Store the start values or zeros, under the stage's predicate."""
        values = {iv.var: renamed(self.values[iv.var]) for iv in self._op().axis}
        stores: list[Stmt] = []
        for i, start in enumerate(self._start_values()):
            buffer, indices = self._target(i, values)
            stores.append(BufferStore(buffer, self.nests.lower(start, values), indices))
        return self._predicated(seq(stores))

    def _start_values(self) -> Sequence[PrimExpr]:
        """What the elements of a reduction start from; zeros of other stages."""
        if not self._op().reduce_axis:
            return [ops.const(0, tensor.dtype) for tensor in self._op().outputs]
        reduction = self._reduction()
        return reduction.init or reduction.combiner.identity

    def _init_guards(self, position: int, body: Stmt, renamed: Callable[[Poly], Poly]) -> Stmt:
        for guard in reversed(self.guards.get(position, ())):
            if not guard.of_reduce_axis:
                limit = None if guard.limit is None else renamed(guard.limit)
                test = guard_expr(self.math, Guard(renamed(guard.value), limit, False, guard.likely))
                body = IfThenElse(test, body)
        return body


def _store_all(targets: Sequence[tuple[Buffer, tuple[PrimExpr, ...]]], results: Sequence[PrimExpr]) -> Stmt:
    if len(results) == 1:
        buffer, indices = targets[0]
        return BufferStore(buffer, results[0], indices)
    holders = [Var(f"{buffer.name}.new", r.dtype) for (buffer, _), r in zip(targets, results, strict=True)]
    body = seq([BufferStore(b, v, i) for (b, i), v in zip(targets, holders, strict=True)])
    for holder, result in reversed(list(zip(holders, results, strict=True))):
        body = LetStmt(holder, result, body)
    return body
