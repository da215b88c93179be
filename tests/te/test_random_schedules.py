"""Random programs under random legal schedules compute what the programs mean.

A program is a small graph of computes over tiny, odd or symbolic sizes; its meaning is evaluated by numpy straight from
the tensor expressions. Each seed draws a program and a schedule; the lowered loops run in the interpreter, which also
rejects accesses outside a buffer and reads of uninitialised memory. Try more with ``--random-schedules=2000``.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relayc import te
from relayc.backend.llvm.build import build
from relayc.backend.runtime import nd
from relayc.backend.target import Target
from relayc.te.ir import IRModule
from relayc.te.ir.visitor import Visitor
from relayc.te.operation import ComputeOp, PlaceholderOp
from relayc.te.tir import Call, Cast, FloatImm, IntImm, Not, ProducerLoad, Select, Var, expr as tir_expr
from relayc.te.tir.interpreter import Interpreter, InterpreterError

# -- what a program means --------------------------------------------------------------------------------------------


class Evaluator(Visitor[Any]):
    """Evaluates tensor expressions in numpy, each operation vectorised over the grid of its axes."""

    def __init__(self, inputs: dict[te.Tensor, np.ndarray], sizes: dict[Var, int]) -> None:
        self.arrays = dict(inputs)
        self.env: dict[Var, Any] = dict(sizes)

    def size(self, dim: Any) -> int:
        return dim if isinstance(dim, int) else int(self.visit(dim))

    def tensor(self, tensor: te.Tensor) -> np.ndarray:
        if tensor not in self.arrays:
            for t, value in zip(tensor.op.outputs, self.operation(tensor.op), strict=True):
                self.arrays[t] = value
        return self.arrays[tensor]

    def operation(self, op: ComputeOp) -> list[np.ndarray]:
        for source in op.input_tensors:
            self.tensor(source)
        shape = [self.size(d) for d in op.output(0).shape]
        for i, axis in enumerate(op.axis):
            self.env[axis.var] = np.arange(shape[i]).reshape([-1 if d == i else 1 for d in range(len(shape))])
        if op.reduce_axis:
            return self.reduction(op, shape)
        return [np.broadcast_to(self.visit(e), shape).astype(e.dtype) for e in op.body]

    def reduction(self, op: ComputeOp, shape: list[int]) -> list[np.ndarray]:
        first = op.body[0]
        starts = first.init or first.combiner.identity
        state = [np.broadcast_to(self.visit(e), shape).astype(e.dtype) for e in starts]
        ranges = [range(self.size(a.dom.min), self.size(a.dom.min) + self.size(a.dom.extent)) for a in first.axis]
        for point in itertools.product(*ranges):
            self.env.update({a.var: p for a, p in zip(first.axis, point, strict=True)})
            holds = np.broadcast_to(self.visit(first.condition), shape)
            source = [np.broadcast_to(self.visit(e), shape).astype(e.dtype) for e in first.source]
            self.env.update(zip(first.combiner.lhs, state, strict=True))
            self.env.update(zip(first.combiner.rhs, source, strict=True))
            combined = [np.broadcast_to(self.visit(r), shape) for r in first.combiner.result]
            state = [np.where(holds, new, old) for new, old in zip(combined, state, strict=True)]
        return state

    def visit_Var(self, node: Var) -> Any:
        return self.env[node]

    def visit_IntImm(self, node: IntImm) -> Any:
        return bool(node.value) if node.dtype == "bool" else node.value

    def visit_FloatImm(self, node: FloatImm) -> Any:
        return np.float32(node.value)

    def visit_ProducerLoad(self, node: ProducerLoad) -> Any:
        array = self.arrays[node.producer]
        # a guarded read may lie outside; its value is not used then
        indices = [np.clip(self.visit(i), 0, n - 1) for i, n in zip(node.indices, array.shape, strict=True)]
        return array[tuple(indices)]

    def visit_Select(self, node: Select) -> Any:
        return np.where(self.visit(node.condition), self.visit(node.true_value), self.visit(node.false_value))

    def visit_Cast(self, node: Cast) -> Any:
        return np.asarray(self.visit(node.value)).astype(str(node.dtype))

    def visit_Call(self, node: Call) -> Any:
        args = [self.visit(a) for a in node.args]
        assert node.op == "if_then_else"
        return np.where(*args)

    def visit_Not(self, node: Not) -> Any:
        return np.logical_not(self.visit(node.a))

    def visit_default(self, node: Any) -> Any:
        return BINARY[type(node)](self.visit(node.a), self.visit(node.b))


BINARY: dict[type, Any] = {
    tir_expr.Add: np.add, tir_expr.Sub: np.subtract, tir_expr.Mul: np.multiply, tir_expr.FloorDiv: np.floor_divide,
    tir_expr.FloorMod: np.mod, tir_expr.Min: np.minimum, tir_expr.Max: np.maximum, tir_expr.EQ: np.equal,
    tir_expr.NE: np.not_equal, tir_expr.LT: np.less, tir_expr.LE: np.less_equal, tir_expr.GT: np.greater,
    tir_expr.GE: np.greater_equal, tir_expr.And: np.logical_and, tir_expr.Or: np.logical_or,
}  # fmt: skip


# -- random programs -------------------------------------------------------------------------------------------------


class Program:
    """A random graph: its inputs, the tensors made so far, and the values of its symbolic sizes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sizes: dict[Var, int] = {}
        self.symbolic = rng.random() < 0.25
        self.inputs: list[te.Tensor] = []
        self.tensors: list[te.Tensor] = []
        for _ in range(rng.choice([1, 1, 2])):
            self.input([self.dim() for _ in range(rng.choice([1, 2, 2, 3]))])
        makers = [self.elementwise, self.broadcast, self.transpose, self.flatten, self.stencil, self.pad, self.reduce,
                  self.matmul, self.convolution, self.several, self.argmax, self.gather, self.strided]  # fmt: skip
        for _ in range(rng.randint(1, 4)):
            rng.choice(makers)()
        read = {t.op for made in self.tensors for t in made.op.input_tensors}
        made = [t for t in self.tensors if not isinstance(t.op, PlaceholderOp)]
        self.outputs = [t for t in made if t.op not in read] or made[-1:]
        if not self.outputs:
            self.elementwise()
            self.outputs = self.tensors[-1:]

    def dim(self) -> Any:
        value = self.rng.choice([1, 2, 3, 4, 5, 6, 7, 8])
        if self.symbolic and self.rng.random() < 0.5:
            var = self.rng.choice([te.var, te.size_var])(f"n{len(self.sizes)}")
            self.sizes[var] = value
            return var
        return value

    def input(self, shape: list[Any], dtype: str = "float32") -> te.Tensor:
        tensor = te.placeholder(tuple(shape), dtype, name=f"x{len(self.inputs)}")
        self.inputs.append(tensor)
        if dtype == "float32":
            self.tensors.append(tensor)
        return tensor

    def pick(self, ndim: int = 0) -> te.Tensor:
        fitting = [t for t in self.tensors if t.ndim >= ndim]
        # a late tensor is the likelier choice: it makes chains
        return self.rng.choice(fitting[-3:]) if fitting else self.input([self.dim() for _ in range(ndim)])

    def add(self, shape: Any, f: Any) -> None:
        made = te.compute(tuple(shape), f, name=f"t{len(self.tensors)}")
        self.tensors.extend(made if isinstance(made, tuple) else [made])

    def elementwise(self) -> None:
        x = self.pick()
        self.add(x.shape, self.rng.choice([lambda *i: x(*i) * 2.0 + 1.0, lambda *i: te.max(x(*i), 0.0) - x(*i)]))

    def broadcast(self) -> None:
        x = self.pick(1)
        axis = self.rng.randrange(x.ndim)
        y = self.input([x.shape[axis]])
        self.add(x.shape, lambda *i: x(*i) + y(i[axis]))

    def transpose(self) -> None:
        x = self.pick(1)
        order = self.rng.sample(range(x.ndim), x.ndim)
        self.add([x.shape[o] for o in order], lambda *i: x(*[i[order.index(d)] for d in range(x.ndim)]) - 1.0)

    def flatten(self) -> None:
        x = self.pick(2)
        w = x.shape[-1]
        *rest, h = x.shape[:-1]
        self.add([*rest, h * w], lambda *i: x(*i[:-1], i[-1] // w, i[-1] % w) + 1.0)

    def stencil(self) -> None:
        x = self.pick(1)
        axis, reach = self.rng.randrange(x.ndim), self.rng.choice([1, 2])
        if not isinstance(x.shape[axis], int) or x.shape[axis] <= reach:
            return self.elementwise()
        shape = [d - reach if k == axis else d for k, d in enumerate(x.shape)]
        return self.add(shape, lambda *i: x(*i) - 2.0 * x(*[v + reach if k == axis else v for k, v in enumerate(i)]))

    def strided(self) -> None:
        x = self.pick(1)
        if not isinstance(x.shape[0], int) or x.shape[0] < 2:
            return self.elementwise()
        return self.add([x.shape[0] // 2, *x.shape[1:]], lambda *i: x(2 * i[0], *i[1:]) + x(2 * i[0] + 1, *i[1:]))

    def pad(self) -> None:
        x = self.pick(1)
        axis, n = self.rng.randrange(x.ndim), self.rng.choice([1, 2])
        d = x.shape[axis]

        def padded(*i: Any) -> Any:
            inside = te.all(i[axis] >= n, i[axis] < d + n)
            return te.if_then_else(inside, x(*[v - n if k == axis else v for k, v in enumerate(i)]), 0.0)

        self.add([d + 2 * n if k == axis else d_ for k, d_ in enumerate(x.shape)], padded)

    def reduce(self) -> None:
        x = self.pick(1)
        over = self.rng.sample(range(x.ndim), self.rng.randint(1, x.ndim))
        axes = {d: te.reduce_axis((0, x.shape[d]), name=f"r{d}") for d in over}
        reducer = self.rng.choice([te.sum, te.max, te.min])

        def reduced(*i: Any) -> Any:
            rest = iter(i)
            indices = [axes[d] if d in axes else next(rest) for d in range(x.ndim)]
            first = axes[over[0]]
            where = None
            if self.rng.random() < 0.2:
                where = te.any(first.var % 2 < 1, first.var > 3)
            return reducer(x(*indices), axis=[axes[d] for d in over], where=where)

        self.add([d for k, d in enumerate(x.shape) if k not in axes], reduced)

    def matmul(self) -> None:
        x = self.pick(2)
        y = self.input([x.shape[-1], self.dim()])
        k = te.reduce_axis((0, x.shape[-1]), name="k")
        self.add([*x.shape[:-1], y.shape[1]], lambda *i: te.sum(x(*i[:-1], k) * y(k, i[-1]), axis=k))

    def convolution(self) -> None:
        x = self.pick(2)
        stride = self.rng.choice([1, 1, 2])
        kernel = self.rng.choice([1, 2, 3])
        if not isinstance(x.shape[-2], int) or x.shape[-2] < kernel:
            return self.matmul()
        w = self.input([kernel, x.shape[-1], self.rng.choice([1, 3, 4])])
        r, c = te.reduce_axis((0, kernel), name="kw"), te.reduce_axis((0, x.shape[-1]), name="ic")
        width = (x.shape[-2] - kernel) // stride + 1
        return self.add(
            [*x.shape[:-2], width, w.shape[2]],
            lambda *i: te.sum(x(*i[:-2], i[-2] * stride + r, c) * w(r, c, i[-1]), axis=[r, c]),
        )

    def several(self) -> None:
        x = self.pick()
        self.add(x.shape, lambda *i: (x(*i) + 3.0, x(*i) * 2.0))

    def argmax(self) -> None:
        x = self.pick(1)
        k = te.reduce_axis((0, x.shape[-1]), name="k")
        self.add(x.shape[:-1], lambda *i: LARGEST((k.var, x(*i, k)), axis=k))
        position = self.tensors.pop(-2)
        self.add(position.shape, lambda *i: position(*i).astype("float32"))

    def gather(self) -> None:
        x = self.pick(1)
        n = self.rng.choice([1, 3, 5])
        index = self.input([n], "int32")
        self.add([n, *x.shape[1:]], lambda *i: x(index(i[0]), *i[1:]))


def _larger(x: Any, y: Any) -> Any:
    first = te.any(x[1] > y[1], te.all(x[1] >= y[1], x[0] < y[0]))
    return te.select(first, x[0], y[0]), te.select(first, x[1], y[1])


LARGEST = te.comm_reducer(_larger, lambda i, v: (te.max_value(i), te.min_value(v)), name="largest")


# -- random schedules ------------------------------------------------------------------------------------------------


class RandomSchedule:
    """Random legal primitives in random order; `log` lists them."""

    def __init__(self, rng: random.Random, outputs: list[te.Tensor], threads: bool) -> None:
        self.rng = rng
        self.threads = threads
        self.s = te.create_schedule([t.op for t in outputs])
        self.log: list[str] = []

    def build(self) -> te.Schedule:
        self.rewrite_graph()
        computed = [st for st in self.s.stages if isinstance(st.op, ComputeOp)]
        for stage in self.rng.sample(computed, len(computed)):
            self.transform_loops(stage)
        for stage in reversed(computed):
            self.place(stage)
        for stage in computed:
            self.annotate(stage)
        return self.s

    def note(self, text: str) -> None:
        self.log.append(text)

    def rewrite_graph(self) -> None:
        rng = self.rng
        for stage in list(self.s.stages):
            op, draw = stage.op, rng.random()
            if isinstance(op, ComputeOp) and op.reduce_axis and draw < 0.25:
                self.factor(stage)
            elif isinstance(op, ComputeOp) and draw < 0.5:
                self.s.cache_write(list(op.outputs), rng.choice(["local", "global"]))
                self.note(f"cache_write {op.name}")
            elif draw > 0.8:
                tensor = op.output(0)
                readers = [r for r in self.s.stages if tensor in r.op.input_tensors]
                if readers:
                    some = rng.sample(readers, rng.randint(1, len(readers)))
                    self.s.cache_read(tensor, rng.choice(["local", "global"]), [r.op for r in some])
                    self.note(f"cache_read {op.name} for {[r.name for r in some]}")

    def factor(self, stage: te.Stage) -> None:
        axis = self.rng.choice(stage.op.reduce_axis)
        if self.rng.random() < 0.6:
            axis = self.rng.choice(stage.split(axis, self.rng.randint(1, 4)))
        position = self.rng.randint(0, len(stage.op.axis))
        self.s.rfactor(stage.op.output(0), axis, position)
        self.note(f"rfactor {stage.name} {axis.var.name} {position}")

    def transform_loops(self, stage: te.Stage) -> None:
        rng = self.rng
        for _ in range(rng.randint(0, 5)):
            leaves = stage.leaf_iter_vars
            if not leaves:
                return
            action = rng.choice(["split", "split", "fuse", "reorder", "shift"])
            axis = rng.choice(leaves)
            if action == "split":
                how = {rng.choice(["factor", "nparts"]): rng.randint(1, 5)}
                stage.split(axis, **how)
                self.note(f"split {stage.name} {axis.var.name} {how}")
            elif action == "shift" and axis.kind == "data" and not stage.op.reduce_axis:
                if all(isinstance(d, int) for d in stage.op.output(0).shape):
                    stage.split(axis, rng.randint(1, 5), tail="shift")
                    self.note(f"shift {stage.name} {axis.var.name}")
            elif action == "fuse":
                pairs = [(a, b) for a, b in itertools.pairwise(leaves) if a.kind == b.kind]
                if pairs:
                    pair = rng.choice(pairs)
                    stage.fuse(*pair)
                    self.note(f"fuse {stage.name} {[a.var.name for a in pair]}")
            elif action == "reorder":
                order = rng.sample(leaves, len(leaves))
                stage.reorder(*order)
                self.note(f"reorder {stage.name} {[a.var.name for a in order]}")

    def place(self, stage: te.Stage) -> None:
        rng = self.rng
        readers = [r for r in self.s.stages if any(t.op is stage.op for t in r.op.input_tensors)]
        if stage.is_output or not readers or rng.random() < 0.25:
            return
        fresh = not stage.op.reduce_axis and not stage.relations
        if fresh and rng.random() < 0.3 and not any(r.attach_stage is stage for r in self.s.stages):
            stage.compute_inline()
            self.note(f"inline {stage.name}")
            return
        places = self.common_places(readers)
        if places:
            at, axis = rng.choice(places)
            stage.compute_at(at, axis)
            self.note(f"{stage.name} at {at.name} {axis.var.name}")

    def common_places(self, readers: list[te.Stage]) -> list[tuple[te.Stage, Any]]:
        """Loops around every reader. Readers of an inlined reader count in its place."""
        per_reader: list[dict[tuple[int, int], tuple[te.Stage, Any]]] = []
        pending = list(readers)
        while pending:
            reader = pending.pop()
            if reader.attach == "inline":
                pending += [r for r in self.s.stages if any(t.op is reader.op for t in r.op.input_tensors)]
                continue
            found = {(id(reader), id(leaf)): (reader, leaf) for leaf in reader.leaf_iter_vars}
            while reader.attach == "at":
                outer = reader.attach_stage
                position = next(i for i, v in enumerate(outer.leaf_iter_vars) if v is reader.attach_axis)
                found.update({(id(outer), id(v)): (outer, v) for v in outer.leaf_iter_vars[: position + 1]})
                reader = outer
            per_reader.append(found)
        common = set.intersection(*[set(f) for f in per_reader])
        return [place for key, place in per_reader[0].items() if key in common]

    def annotate(self, stage: te.Stage) -> None:
        rng, leaves = self.rng, stage.leaf_iter_vars
        holds = {id(st.attach_axis) for st in self.s.stages if st.attach == "at"}
        if stage.attach == "inline" or not leaves:
            return
        constant = all(isinstance(d, int) for t in stage.op.outputs for d in t.shape)
        constant = constant and all(isinstance(a.dom.extent, int) for a in stage.op.reduce_axis)
        first_reduce = next((i for i, v in enumerate(leaves) if v.kind == "reduce"), len(leaves))
        if leaves[0].kind == "data" and rng.random() < 0.3:
            no_local = not any(st.scope == "local" for st in self.s.stages)
            if stage.attach == "root" and rng.random() < 0.3 and no_local and self.threads:
                stage.bind(leaves[0], te.thread_axis("blockIdx.x"))
                self.note(f"bind {stage.name} {leaves[0].var.name}")
            elif first_reduce > 0 and stage.attach == "root":
                stage.parallel(leaves[0])
                self.note(f"parallel {stage.name} {leaves[0].var.name}")
        if stage.op.axis and not stage.is_output and rng.random() < 0.1:
            stage.storage_align(rng.choice(stage.op.axis), 4, rng.randint(0, 3))
            self.note(f"storage_align {stage.name}")
        if stage.attach == "at" and constant and rng.random() < 0.1:
            stage.double_buffer()
            self.note(f"double_buffer {stage.name}")
        if not constant:
            return
        free = stage.attach == "root" and leaves[0] not in stage.loop_attrs and first_reduce > 0
        if free and leaves[0].kind == "data" and rng.random() < 0.15:
            stage.bind(leaves[0], te.thread_axis("vthread", name="vx"))
            self.note(f"vthread {stage.name} {leaves[0].var.name}")
        last = leaves[-1]
        if last.kind == "data" and id(last) not in holds and len(leaves) > 1 and rng.random() < 0.4:
            stage.vectorize(last)
            self.note(f"vectorize {stage.name} {last.var.name}")
        for leaf in leaves[1:-1]:
            if rng.random() < 0.3:
                stage.unroll(leaf)
                self.note(f"unroll {stage.name} {leaf.var.name}")


# -- the test --------------------------------------------------------------------------------------------------------


def make_arrays(program: Program, seed: int) -> dict[te.Tensor, np.ndarray]:
    """Inputs of small integers, so that sums are exact in any order."""
    rng = np.random.default_rng(seed)
    arrays: dict[te.Tensor, np.ndarray] = {}
    sizes = Evaluator({}, program.sizes)
    for t in program.inputs:
        shape = [sizes.size(d) for d in t.shape]
        low, high = (0, 1) if t.dtype == "int32" else (-2, 3)
        arrays[t] = rng.integers(low, high, shape).astype(str(t.dtype))
    return arrays


class Case:
    """The program and schedule of one seed: lowered, with arguments and the results they must give."""

    def __init__(self, seed: int, threads: bool = True) -> None:
        rng = random.Random(seed)
        program = Program(rng)
        arrays = make_arrays(program, seed)
        evaluator = Evaluator(arrays, program.sizes)
        self.expected = [evaluator.tensor(t) for t in program.outputs]
        drawn = RandomSchedule(rng, program.outputs, threads)
        used = [t for t in program.inputs if any(st.op is t.op for st in drawn.s.stages)]
        self.seed, self.log = seed, drawn.log
        self.name = f"seed{seed}"
        self.module = te.lower(drawn.build(), [*program.sizes, *used, *program.outputs], name=self.name)
        self.inputs = [*program.sizes.values(), *[arrays[t] for t in used]]

    def check(self, run: Callable[..., None]) -> None:
        """Run on fresh results and compare; an error shows the seed, the primitives and the loops."""
        results = [np.full(e.shape, 99, e.dtype) for e in self.expected]
        try:
            run(*self.inputs, *results)
            for got, want in zip(results, self.expected, strict=True):
                np.testing.assert_array_equal(got, want)
        except Exception as error:
            error.add_note("\n".join([f"seed {self.seed}", *self.log, str(self.module)]))
            raise

    def interpret(self) -> None:
        """In the interpreter, which watches every access."""
        run = Interpreter(self.module, check_uninitialized=True)
        self.check(lambda *arguments: run(self.name, *arguments))


def test_random_schedules_compute_the_reference(schedule_seeds):
    for seed in schedule_seeds:
        Case(seed).interpret()


def test_random_schedules_compiled_by_llvm(schedule_seeds):
    cases = [Case(seed, threads=False) for seed in schedule_seeds]
    compiled = build(IRModule({case.name: case.module[case.name] for case in cases}), Target("llvm"))
    for case in cases:
        case.check(lambda *arguments, kernel=compiled[case.name]: call_kernel(kernel, arguments))


def call_kernel(kernel: Any, arguments: Sequence[Any]) -> None:
    """A compiled kernel on numpy arrays, results written back."""
    placed = [nd.array(a) if isinstance(a, np.ndarray) else a for a in arguments]
    kernel(*placed)
    for array, argument in zip(placed, arguments, strict=True):
        if isinstance(argument, np.ndarray):
            argument[...] = array.numpy()


def test_the_evaluator_agrees_with_numpy():
    a, b = te.placeholder((3, 4), name="a"), te.placeholder((4, 5), name="b")
    k = te.reduce_axis((0, 4), name="k")
    c = te.compute((3, 5), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    x, y = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones((4, 5), np.float32)
    np.testing.assert_array_equal(Evaluator({a: x, b: y}, {}).tensor(c), x @ y)


def test_an_incorrect_schedule_is_detected(monkeypatch):
    """The comparison can fail: without guards some schedules give wrong results."""
    monkeypatch.setattr("relayc.te.bounds._require", lambda *args: None)
    wrong = 0
    for seed in range(20):
        try:
            Case(seed).interpret()
        except (AssertionError, InterpreterError):
            wrong += 1
    assert wrong > 0
