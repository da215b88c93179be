"""Loops as compiled functions, with the branches and loops inside of them.

A loop is compiled if its body is *settled*: once it begins, the sizes of all of its tensors are known. Its state lies
in frames (`backend.runtime.frames`), one for each graph. The body's functions take the addresses of tensors from its
frame, so an iteration passes its results on by exchanging addresses: a carried value lies in two buffers in turn, and a
stacked output is written where it belongs in the stack. Only results that alias something else are copied.

Compiled code leaves a loop when the turns of the context have run out, and goes on when it is called again. All it has
to know is in the frames: how many iterations of each loop are done, and the stage that each body has reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from relayc.backend.runtime.frames import FrameLayout
from relayc.backend.runtime.layouts import RESULT_SIZE
from relayc.relay.lowering.entry import EntryFunctions, size_value
from relayc.relay.lowering.frame_code import bool_at, call, copy_bytes, int_at, offset_of, store
from relayc.relay.lowering.graph import ControlNode, ExecutionGraph
from relayc.relay.op.control import ControlFlow, WhileLoop
from relayc.relay.sizes import dims_equal, product, size_variables
from relayc.relay.type import TensorType
from relayc.te.dtype import HANDLE, dtype
from relayc.te.ir import collect
from relayc.te.tir import (
    EQ,
    GE,
    GT,
    LT,
    Add,
    And,
    Cast,
    Dim,
    Div,
    FloorDiv,
    IfThenElse,
    IntImm,
    LetStmt,
    Max,
    Min,
    Mul,
    Not,
    PrimExpr,
    Stmt,
    Sub,
    Var,
    While,
    call_intrin,
    const,
    if_then_else,
    seq,
)  # fmt: skip

__all__ = ["compile_loops"]

_LOOP_NAME, _BODY_NAME = "relayc_loop", "relayc_body"


def compile_loops(graph: ExecutionGraph, entries: EntryFunctions) -> None:
    """Add the functions of the settled loops in a graph and in the graphs inside of it to `entries`.

    Notes their names in the steps of those that the executor calls, and the sizes that may change from one iteration to
    the next. All graphs are planned.
    """
    made = _Compiled(entries)
    for part in graph.all_graphs():
        for step in part.steps:
            control = step.get("control")
            if control is None or not isinstance(control.operator, WhileLoop) or not _is_settled(control.graphs[0]):
                continue
            growing = _growing(control)
            if not growing or _may_grow(control, set(growing)):
                step["entry"], step["growing"] = made.loop(control), list(growing)


def _growing(control: ControlNode) -> dict[str, Dim]:
    """The size variables that stand for dimensions of carried values, and their values in the next iteration, where
    those may differ."""
    assert isinstance(control.operator, WhileLoop)
    (body,), carried = control.graphs, control.operator.carried
    pairs = zip(body.inputs[2 : 2 + carried], body.outputs[1 : 1 + carried], strict=True)
    dims = [each for a, b in pairs for each in zip(body.tensors[a].shape, body.tensors[b].shape, strict=True)]
    return {name: e for d, e in dims if not dims_equal(d, e) for name in size_variables((d,))}


def _may_grow(control: ControlNode, growing: Set[str]) -> bool:
    """Can compiled code run a loop in which these sizes change?

    The memory that is enough for the largest of them has to be enough for all, and nothing but kernels and carried
    values may depend on them.
    """
    assert isinstance(control.operator, WhileLoop)
    (body,), carried = control.graphs, control.operator.carried
    inside = {name for graph in body.all_graphs() if graph is not body for name in graph.sizes}
    passed = [i for node in body.control_nodes for i in (*node.inputs, *node.outputs)]
    fixed = [body.tensors[i].shape for i in (*body.outputs[1 + carried :], *passed)]
    checked = [check[:2] for check in body.attrs.get("size_checks", ())]
    if growing & (inside | set(size_variables([*fixed, *checked]))):
        return False
    return all(_is_monotonic(d, growing) for tensor in body.tensors for d in tensor.shape)


def _is_monotonic(size: Dim, growing: Set[str]) -> bool:
    """Does a size surely not get smaller when these variables get larger?"""
    if growing.isdisjoint(size_variables((size,))) or isinstance(size, Var):
        return True
    if isinstance(size, Cast):
        return _is_monotonic(size.value, growing)
    if isinstance(size, Sub | FloorDiv | Div):
        return _is_monotonic(size.a, growing) and growing.isdisjoint(size_variables((size.b,)))
    if isinstance(size, Add | Mul | Max | Min) and not any(part.value < 0 for part in collect(size, IntImm)):
        return _is_monotonic(size.a, growing) and _is_monotonic(size.b, growing)
    return False


def _is_settled(graph: ExecutionGraph) -> bool:
    """Do the sizes of a graph's tensors follow from those of its inputs, and from sizes of the graph around it?"""
    if not all(isinstance(tensor.ty, TensorType) for tensor in graph.tensors):
        return False
    if any(element >= 0 for _, _, element, _ in graph.attrs.get("bound_sizes", ())):
        return False
    return all(map(_is_settled_inside, graph.control_nodes)) and not any(
        name.startswith(RESULT_SIZE)
        for control in graph.control_nodes
        for name in size_variables(graph.tensors[i].shape for i in control.outputs)
    )


def _is_settled_inside(control: ControlNode) -> bool:
    if not isinstance(control.operator, ControlFlow) or not all(map(_is_settled, control.graphs)):
        return False
    return not isinstance(control.operator, WhileLoop) or not _growing(control)


def _has_loop(graph: ExecutionGraph) -> bool:
    """Can the turns run out inside of a graph?"""
    return any(isinstance(part.operator, WhileLoop) for each in graph.all_graphs() for part in each.control_nodes)


@dataclass(frozen=True)
class _Frame:
    """Accesses to the frame of a graph at the address `pointer`."""

    graph: ExecutionGraph
    pointer: PrimExpr

    @property
    def layout(self) -> FrameLayout:
        children = sum(len(control.graphs) for control in _controls(self.graph))
        return FrameLayout(len(self.graph.tensors), len(self.graph.sizes), len(self.graph.outputs), children)

    @property
    def sizes(self) -> PrimExpr:
        """The address of the values of the size variables."""
        return call_intrin("handle", "handle_add_byte_offset", self.pointer, offset_of(self.layout.sizes))

    @property
    def is_idle(self) -> PrimExpr:
        """Did the graph reach its end, or has it not begun?"""
        return EQ(self.word(self.layout.stage, "int64"), const(0, "int64"))

    def word(self, index: int, of: str = "handle") -> PrimExpr:
        return call_intrin(of, "load_at", self.pointer, offset_of(index))

    def put(self, index: int, value: PrimExpr) -> Stmt:
        return store(self.pointer, value, index)

    def tensor(self, number: int) -> PrimExpr:
        """The address of a tensor."""
        return self.word(self.graph.base_of(number))

    def place(self, number: int, address: PrimExpr) -> Stmt:
        """Set the address of a tensor and of what aliases it."""
        return self.put(self.graph.base_of(number), address)

    def nbytes(self, number: int) -> PrimExpr:
        tensor = self.graph.tensors[number].tensor_type
        return size_value(product((*tensor.shape, max(tensor.dtype.nbytes, 1))), self.sizes, self.graph.sizes)

    def is_written(self, position: int) -> bool:
        """Does the graph write an output where its frame says, or is it another tensor that has to be copied there?"""
        bases = [self.graph.base_of(number) for number in self.graph.outputs]
        storage = self.graph.tensors[bases[position]].storage
        assert storage is not None
        return storage[0] in ("output", "value") and bases.index(bases[position]) == position

    def child(self, control: ControlNode, which: int = 0) -> _Frame:
        """The frame of a graph of a control-flow node."""
        children = [graph for each in _controls(self.graph) for graph in each.graphs]
        number = next(i for i, graph in enumerate(children) if graph is control.graphs[which])
        return _Frame(control.graphs[which], self.word(self.layout.children + number))


def _controls(graph: ExecutionGraph) -> list[ControlNode]:
    """The control-flow nodes in the order of the steps."""
    return [step["control"] for step in graph.steps if "control" in step]


@dataclass
class _Compiled:
    """The names of the functions made so far, by what they run."""

    entries: EntryFunctions
    names: dict[int, str] = field(default_factory=dict[int, str])

    def loop(self, control: ControlNode) -> str:
        """The function that runs a settled loop, whose frame is that of the body: ``relayc_loop_<number>(frame)``."""
        assert isinstance(control.operator, WhileLoop)
        (body,), carried, growing = control.graphs, control.operator.carried, _growing(control)
        return self._function(_LOOP_NAME, id(control), body, lambda frame: self._turns(frame, carried, growing))

    def _body(self, graph: ExecutionGraph) -> str:
        """The function that runs a graph with control flow: ``relayc_body_<number>(frame)``."""
        return self._function(_BODY_NAME, id(graph), graph, self._stages)

    def _function(self, kind: str, key: int, graph: ExecutionGraph, make: Callable[[_Frame], Stmt]) -> str:
        if key not in self.names:
            pointer = Var("frame", HANDLE)
            self.names[key] = self.entries.add(kind, (pointer,), make(_Frame(graph, pointer)))
        return self.names[key]

    # -- a loop

    def _turns(self, frame: _Frame, carried: int, growing: Mapping[str, Dim]) -> Stmt:
        layout, graph = frame.layout, frame.graph
        iteration, limit = int_at(frame.tensor(graph.inputs[0])), frame.word(layout.limit, "int64")
        goes_on = And(LT(iteration, limit), GT(int_at(frame.word(layout.turns)), const(0, "int64")))
        written = [k for k in range(len(graph.outputs)) if frame.is_written(k)]
        begin = [frame.place(graph.outputs[k], frame.word(layout.results + k)) for k in written]
        end = seq([*self._end_of_turn(frame, carried, written), *_change_sizes(frame, growing)])
        return While(goes_on, seq([*begin, *self._run(frame), _where_finished(frame, end)]))

    def _end_of_turn(self, frame: _Frame, carried: int, written: Sequence[int]) -> Iterator[Stmt]:
        """Pass the results of an iteration on, count it, and end the loop where its condition is false.

        The condition is read first: it may be a carried value, whose place the next one takes.
        """
        layout, graph = frame.layout, frame.graph
        ends = Not(bool_at(frame.tensor(graph.outputs[0])))
        yield IfThenElse(ends, frame.put(layout.limit, const(0, "int64")))
        moving = [k for k in range(1, len(graph.outputs)) if not _is_invariant(graph, k, carried)]
        for k in moving:
            if k not in written:
                number = graph.outputs[k]
                yield copy_bytes(frame.word(layout.results + k), frame.tensor(number), frame.nbytes(number))
        for k in moving:
            result, spare = layout.results + k, layout.spares + k
            if k > carried:
                nbytes = frame.nbytes(graph.outputs[k])
                yield frame.put(result, call_intrin("handle", "handle_add_byte_offset", frame.word(result), nbytes))
                continue
            yield frame.place(graph.inputs[1 + k], frame.word(result))
            yield frame.put(result, frame.word(spare))
            yield frame.put(spare, frame.tensor(graph.inputs[1 + k]))
        for counter, change in ((frame.tensor(graph.inputs[0]), 1), (frame.word(layout.turns), -1)):
            yield store(counter, int_at(counter) + const(change, "int64"))

    # -- a graph

    def _run(self, frame: _Frame) -> list[Stmt]:
        """Run a graph once, or as far as turns are left."""
        if frame.graph.control_nodes:
            return [call(self._body(frame.graph), frame.pointer)]
        return [self._kernels(frame, step) for step in frame.graph.steps if step["step"] == "run"]

    def _kernels(self, frame: _Frame, step: Mapping[str, Any]) -> Stmt:
        return call(step["entry"], frame.pointer, frame.sizes)

    def _stages(self, frame: _Frame) -> Stmt:
        """The steps of a graph in stages. A stage that can be left before its end goes on where it was left."""
        at = frame.layout.stage
        stages: list[Stmt] = []
        straight: list[Stmt] = []

        def finish(body: Sequence[Stmt], done: PrimExpr | None = None, following: int | None = None) -> None:
            here = len(stages)
            after = frame.put(at, const(here + 1 if following is None else following, "int64"))
            then = after if done is None else IfThenElse(done, after)
            stages.append(IfThenElse(EQ(frame.word(at, "int64"), const(here, "int64")), seq([*body, then])))

        for step in frame.graph.steps:
            control = step.get("control")
            if control is None:
                straight += [self._kernels(frame, step)] if step["step"] == "run" else []
            elif isinstance(control.operator, WhileLoop):
                inner = frame.child(control)
                finish([*straight, *_begin_loop(frame, inner, control)])
                finish([call(self.loop(control), inner.pointer)], _has_ended(inner))
                straight = list(_results_of_loop(frame, inner, control))
            elif any(map(_has_loop, control.graphs)):
                finish(straight)
                finish([self._branches(frame, control)], And(*[frame.child(control, i).is_idle for i in range(2)]))
                straight = []
            else:
                straight.append(self._branches(frame, control))
        if not stages:
            return seq(straight)
        finish(straight, following=0)
        return seq(stages)

    def _branches(self, frame: _Frame, control: ControlNode) -> Stmt:
        """Run the branch that a condition selects; its results are written where the frame has them."""
        split = 1 + len(control.graphs[0].inputs)
        arguments = control.inputs[1:split], control.inputs[split:]
        branches = [self._branch(frame, frame.child(control, i), arguments[i], control.outputs) for i in range(2)]
        return IfThenElse(bool_at(frame.tensor(control.inputs[0])), *branches)

    def _branch(self, frame: _Frame, inner: _Frame, arguments: Sequence[int], results: Sequence[int]) -> Stmt:
        written = [k for k in range(len(results)) if inner.is_written(k)]
        begin = [*_pass(frame, inner, inner.graph.inputs, arguments),
                 *[inner.place(inner.graph.outputs[k], frame.tensor(results[k])) for k in written]]  # fmt: skip
        copied = [copy_bytes(frame.tensor(number), inner.tensor(own), inner.nbytes(own))
                  for k, (number, own) in enumerate(zip(results, inner.graph.outputs, strict=True))
                  if k not in written]  # fmt: skip
        return seq([*begin, *self._run(inner), *([_where_finished(inner, seq(copied))] if copied else [])])


def _change_sizes(frame: _Frame, growing: Mapping[str, Dim]) -> Iterator[Stmt]:
    """Give size variables their values of the next iteration; there are no turns left if the memory is too small."""
    if not growing:
        return
    layout, zero = frame.layout, const(0, "int64")
    values = [Var(f"next{i}", dtype("int64")) for i in range(len(growing))]
    places = [frame.graph.sizes.index(name) for name in growing]
    stores: list[Stmt] = []
    for place, value in zip(places, values, strict=True):
        leave = store(frame.word(layout.turns), zero)
        stores += [frame.put(layout.sizes + place, value),
                   IfThenElse(GT(value, frame.word(layout.capacities + place, "int64")), leave)]  # fmt: skip
    body = seq(stores)
    for value, size in zip(values, growing.values(), strict=True):  # all are computed before one is stored
        body = LetStmt(value, size_value(size, frame.sizes, frame.graph.sizes), body)
    yield body


def _is_invariant(graph: ExecutionGraph, output: int, carried: int) -> bool:
    """Is this result of a loop's body the carried value itself, unchanged?"""
    return output <= carried and graph.base_of(graph.outputs[output]) == graph.inputs[1 + output]


def _where_finished(frame: _Frame, then: Stmt) -> Stmt:
    """`then`, unless the graph was left before its end."""
    if not _has_loop(frame.graph):
        return then
    return IfThenElse(frame.is_idle, then)


def _has_ended(body: _Frame) -> PrimExpr:
    """Are all iterations of a loop done?"""
    return GE(int_at(body.tensor(body.graph.inputs[0])), body.word(body.layout.limit, "int64"))


def _pass(frame: _Frame, inner: _Frame, params: Sequence[int], arguments: Sequence[int]) -> Iterator[Stmt]:
    for param, argument in zip(params, arguments, strict=True):
        yield inner.place(param, frame.tensor(argument))


def _begin_loop(frame: _Frame, inner: _Frame, control: ControlNode) -> Iterator[Stmt]:
    """Set up the frame of a loop inside of a graph."""
    trips, begins, *arguments = control.inputs
    assert isinstance(control.operator, WhileLoop)
    carried = control.operator.carried
    zero, layout, limit = const(0, "int64"), inner.layout, int_at(frame.tensor(trips))
    for number in control.outputs[carried:]:
        limit = Min(limit, size_value(frame.graph.tensors[number].shape[0], frame.sizes, frame.graph.sizes))
    yield store(inner.tensor(inner.graph.inputs[0]), zero)
    yield inner.put(layout.limit, if_then_else(bool_at(frame.tensor(begins)), limit, zero))
    yield from _pass(frame, inner, inner.graph.inputs[2:], arguments)
    for k, number in enumerate(control.outputs[carried:], start=1 + carried):
        yield inner.put(layout.results + k, frame.tensor(number))


def _results_of_loop(frame: _Frame, inner: _Frame, control: ControlNode) -> Iterator[Stmt]:
    """Copy the final carried values to where the graph around the loop has them."""
    assert isinstance(control.operator, WhileLoop)
    carried = control.operator.carried
    for number, own in zip(control.outputs[:carried], inner.graph.inputs[2:], strict=False):
        yield copy_bytes(frame.tensor(number), inner.tensor(own), inner.nbytes(own))
