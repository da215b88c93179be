"""The compiled plan of a graph with size variables: what its runs do between kernels, without Python in between.

``relayc_plan_<number>(frame)`` binds the size variables from the shapes of the inputs and from tensors, places the
tensors in memory, checks sizes and calls the functions of the kernels. Its state is the frame
(`backend.runtime.plan_frame`); a piece that it can't do is left to the executor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial, reduce
from operator import attrgetter

from relayc.backend.runtime.dtype import nbytes
from relayc.backend.runtime.execution_plan import Bind, Check, IfStep, LoopStep, RunNodes, SequenceStep, Step
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.layouts import ALIGNMENT, Stage, owner_of
from relayc.backend.runtime.plan_frame import (
    Piece,
    PlanFrame,
    StateWords,
    TurnsFrame,
    known_around,
    largest_sizes,
)
from relayc.backend.runtime.runners import MOST_WASTE, SMALL_BUFFER
from relayc.backend.runtime.sizes import MAX_ELEMENTS, Size, variables
from relayc.relay.lowering.entry import EntryFunctions
from relayc.relay.lowering.frame_code import bool_at, call, copy_bytes, int_at, offset_of, store
from relayc.te.dtype import HANDLE
from relayc.te.tir import (
    EQ,
    GE,
    GT,
    LT,
    NE,
    Add,
    And,
    FloorDiv,
    FloorMod,
    IfThenElse,
    LetStmt,
    Max,
    Min,
    Mul,
    Not,
    Or,
    PrimExpr,
    Select,
    Stmt,
    Sub,
    Var,
    While,
    call_intrin,
    const,
    seq,
)  # fmt: skip

__all__ = ["with_plans"]

_PLAN_NAME, _TURNS_NAME = "relayc_plan", "relayc_turns"
_TOO_LARGE = 1 << 50
"""Bytes that stand for a shape that no tensor can have; no arena or buffer has so many."""
_OPERATORS = {"+": Add, "-": Sub, "*": Mul, "//": FloorDiv, "%": FloorMod, "min": Min, "max": Max}


def with_plans(graph: Graph, entries: EntryFunctions, around: frozenset[str] = frozenset()) -> Graph:
    """The graph, the ones inside of it and its variants with their plans, which are added to `entries`, as entries.

    `around` names the sizes of the graphs around it.
    """
    variants = tuple([(sizes, with_plans(variant, entries, around)) for sizes, variant in graph.variants])
    graph = replace(graph, variants=variants)
    if not graph.is_dynamic:
        return graph
    key = _PLAN_NAME, known_around(graph, around), _code_of(graph)
    name = entries.once(key, lambda: _Plan(PlanFrame.of(graph, around)).add_to(entries, _PLAN_NAME))
    inside = around | set(graph.sizes)
    return replace(graph, entry=name, steps=tuple([_with_plans_inside(s, entries, inside) for s in graph.steps]))


def _code_of(graph: Graph) -> Hashable:
    """What the code of a plan depends on, besides the sizes around the graph: equal for most branches of a model."""
    tensors = [(t.shape, t.dtype, t.storage, t.storage != "param" and t.place, t.is_sequence) for t in graph.tensors]
    steps = [(type(step), _code_fields(type(step))(step)) for step in graph.steps]
    return graph.sizes, graph.inputs, graph.outputs, tuple(tensors), tuple(steps)


@cache
def _code_fields(step: type[Step]) -> attrgetter[Hashable]:
    """The fields of steps without those that are for messages or the executor, and the graphs inside of them."""
    return attrgetter(*[name for name in step._fields if name not in _NOT_IN_CODE])


_NOT_IN_CODE = frozenset(("source", "settings", "graph", "graphs"))


def _with_plans_inside(step: Step, entries: EntryFunctions, around: frozenset[str]) -> Step:
    if isinstance(step, IfStep):
        yes, no = (with_plans(graph, entries, around) for graph in step.graphs)
        return step._replace(graphs=(yes, no))
    if isinstance(step, LoopStep) and step.entry is None:
        body, carried, turns = with_plans(step.graph, entries, around), len(step.carried), None
        plan = PlanFrame.of(body, around)
        if TurnsFrame.can_run(plan, carried):
            turns = _Turns(TurnsFrame(plan, carried)).add_to(entries, _TURNS_NAME)
        return step._replace(graph=body, turns=turns)
    return step


class _Plan:
    """Makes the function of one plan."""

    def __init__(self, frame: PlanFrame) -> None:
        self._frame, self._graph = frame, frame.graph
        self._pointer = Var("frame", HANDLE)
        self._computed: dict[Size, tuple[Var, PrimExpr]] | None = None  # compound sizes of one statement

    def add_to(self, entries: EntryFunctions, kind: str) -> str:
        """Add the function and return its name: ``void name(Ctx*, int64* frame)``."""
        return entries.add(kind, (self._pointer,), self._program())

    def _program(self) -> Stmt:
        return seq([self._piece(number, piece) for number, piece in enumerate(self._frame.pieces)
                    if self._frame.is_compiled(piece)])  # fmt: skip

    def _piece(self, number: int, piece: Piece) -> Stmt:
        """A piece, done if it is the one to go on with."""
        go_on = self._put(self._frame.at, _int(number + 1))
        return IfThenElse(EQ(self._word(self._frame.at), _int(number)), seq([
            self._put(self._frame.is_done, _int(1)), *self._body(piece),
            IfThenElse(NE(self._word(self._frame.is_done), _int(0)), go_on),
        ]))  # fmt: skip

    def _body(self, piece: Piece) -> Iterator[Stmt]:
        if piece.kind == "inputs":
            return self._bind_inputs()
        return self._place(piece.number) if piece.kind == "place" else self._step(self._graph.steps[piece.number])

    # -- words

    def _word(self, index: int, of: str = "int64") -> PrimExpr:
        return call_intrin(of, "load_at", self._pointer, offset_of(index))

    def _put(self, index: int, value: PrimExpr) -> Stmt:
        return store(self._pointer, value, index)

    def _leave_if(self, condition: PrimExpr) -> Stmt:
        """Leave the piece to the executor if the condition holds."""
        return IfThenElse(condition, self._put(self._frame.is_done, _int(0)))

    # -- sizes

    def _size(self, size: Size) -> PrimExpr:
        """The value of a size; division by 0 gives 0."""
        if isinstance(size, int):
            return _int(size)
        if isinstance(size, str):
            return self._word(self._frame.sizes + self._graph.sizes.index(size))
        if self._computed is None:
            return self._compound(size)
        if size not in self._computed:
            value = self._compound(size)  # its parts come first
            self._computed[size] = Var(f"size{len(self._computed)}", value.dtype), value
        return self._computed[size][0]

    def _with_sizes(self, make: Callable[[], Iterable[Stmt]]) -> Stmt:
        """Statements that bind no size variables, with each of their compound sizes computed once, before them."""
        self._computed = {}
        body = seq(list(make()))
        for var, value in reversed(self._computed.values()):
            body = LetStmt(var, value, body)
        self._computed = None
        return body

    def _compound(self, size: tuple[str, Size, Size]) -> PrimExpr:
        op, a, b = size[0], self._size(size[1]), self._size(size[2])
        if op in ("//", "%") and not (isinstance(size[2], int) and size[2]):
            zero = EQ(b, _int(0))
            return Select(zero, _int(0), _OPERATORS[op](a, Select(zero, _int(1), b)))
        return _OPERATORS[op](a, b)

    def _within_range(self, sizes: Sequence[Size]) -> Iterator[Stmt]:
        """Leave the piece if size variables are so large that 64 bits might not be enough for these sizes."""
        compound = [size for size in sizes if isinstance(size, tuple)]
        largest = _int(largest_sizes(compound))
        for name in dict.fromkeys(name for size in compound for name in variables(size)):
            yield self._leave_if(GT(self._size(name), largest))

    def _nbytes(self, shape: Sequence[Size], dtype_name: str) -> PrimExpr:
        """The bytes of a tensor, `_TOO_LARGE` where no tensor can have the shape."""
        limit, one = _int(MAX_ELEMENTS + 1), _int(1)
        fixed = [d for d in shape if isinstance(d, int)]
        open_dims = [d for d in shape if not isinstance(d, int)]
        dims = [self._size(d) for d in open_dims]
        extent: PrimExpr = _int(min(_product([max(d, 1) for d in fixed]), MAX_ELEMENTS + 1))
        for dim in dims:
            extent = Min(Mul(extent, Max(Min(dim, limit), one)), limit)
        count = reduce(Mul, dims, _int(_product(fixed) * nbytes(dtype_name, 1)))
        negative = [LT(self._size(d), _int(0)) for d in open_dims if not isinstance(d, str)]
        bad = reduce(Or, negative, GT(extent, _int(MAX_ELEMENTS)))
        return Select(bad, _int(_TOO_LARGE), count) if dims else count

    # -- pieces

    def _bind_inputs(self) -> Iterator[Stmt]:
        known, graph = set(self._frame.around), self._graph
        words = [(d, first + axis) for i, first in zip(graph.inputs, self._frame.shapes, strict=False)
                 for axis, d in enumerate(graph.tensors[i].shape)]  # fmt: skip
        compared: list[tuple[Size, int]] = []
        for dim, word in words:
            if isinstance(dim, str) and dim not in known:
                known.add(dim)
                yield self._put(self._frame.sizes + graph.sizes.index(dim), self._word(word))
            else:
                compared.append((dim, word))
        yield from self._within_range([dim for dim, _ in compared])
        for dim, word in compared:
            yield self._leave_if(NE(self._size(dim), self._word(word)))

    def _place(self, number: int) -> Iterator[Stmt]:
        """Place the tensors of a stage in its arena, and check that it and the buffers are large enough."""
        frame, stage, tensors = self._frame, self._frame.stages[number], self._graph.tensors
        arena, kinds = frame.arenas[number], frame.arenas[number] + 2
        owned = [tensors[i].shape for i in stage.owners]
        yield from self._within_range([d for shape in (*[s for s, _ in stage.kinds], *owned) for d in shape])
        for k, (shape, dtype_name) in enumerate(stage.kinds):
            yield self._with_sizes(partial(self._put_nbytes, kinds + k, shape, dtype_name))
        yield from self._slots(stage, arena)
        for i in stage.owners:
            yield self._with_sizes(partial(self._check_buffer, i))

    def _put_nbytes(self, index: int, shape: Sequence[Size], dtype_name: str) -> Iterator[Stmt]:
        yield self._put(index, self._nbytes(shape, dtype_name))

    def _slots(self, stage: Stage, arena: int) -> Iterator[Stmt]:
        if not stage.tensors:
            return
        frame, taken = self._frame, self._word(self._frame.offset)
        inside, kinds = _tensors_and_kinds(stage)
        yield self._put(frame.offset, _int(0))
        for tensors, kinds_inside in zip(inside, kinds, strict=True):
            address = Var("address", HANDLE)
            value = call_intrin("handle", "handle_add_byte_offset", self._word(arena, "handle"), taken)
            yield LetStmt(address, value, seq([self._put(i, address) for i in tensors]))
            nbytes = self._word(frame.nbytes)
            yield self._put(frame.nbytes, _int(1))
            yield from [self._put(frame.nbytes, Max(nbytes, self._word(arena + 2 + k))) for k in kinds_inside]
            aligned = Mul(FloorDiv(Add(nbytes, _int(ALIGNMENT - 1)), _int(ALIGNMENT)), _int(ALIGNMENT))
            yield self._put(frame.offset, Min(Add(taken, aligned), _int(_TOO_LARGE)))
        yield self._leave_if(GT(taken, self._word(arena + 1)))

    def _check_buffer(self, tensor: int) -> Iterator[Stmt]:
        """Note the shape of a buffer, and leave the piece unless it serves."""
        home, first = self._graph.tensors[tensor], self._frame.buffers[tensor]
        for axis, dim in enumerate(home.shape):
            yield self._put(first + 1 + axis, self._size(dim))
        yield self._put(self._frame.nbytes, self._nbytes(home.shape, home.dtype))
        nbytes, capacity = self._word(self._frame.nbytes), self._word(first)
        yield self._leave_if(GT(nbytes, capacity))
        yield self._leave_if(GT(capacity, Max(Mul(nbytes, _int(MOST_WASTE)), _int(SMALL_BUFFER))))

    def _step(self, step: Step) -> Iterator[Stmt]:
        if isinstance(step, RunNodes):
            assert step.entry is not None
            sizes = call_intrin("handle", "handle_add_byte_offset", self._pointer, offset_of(self._frame.sizes))
            yield call(step.entry, self._pointer, sizes)
        elif isinstance(step, Check):
            yield from self._within_range([step.left, step.right])
            yield self._leave_if(NE(self._size(step.left), self._size(step.right)))
        elif isinstance(step, Bind):
            yield from self._bind(step)
        else:
            assert isinstance(step, SequenceStep)
            yield from self._element(step)

    def _element(self, step: SequenceStep) -> Iterator[Stmt]:
        """Take the address of an element of a stack if it has one there; negative positions count from the end."""
        source, position = step.inputs
        first = self._frame.shapes[int(self._graph.tensors[source].place)]
        count, at, row = self._word(first + 1), self._word(self._frame.nbytes), self._word(first + 2)
        passed = int_at(self._word(position, "handle"))
        yield self._put(self._frame.nbytes, Add(passed, Select(LT(passed, _int(0)), count, _int(0))))
        yield self._leave_if(Or(LT(at, _int(0)), GE(at, count)))
        address = call_intrin("handle", "handle_add_byte_offset", self._word(first, "handle"), Mul(at, row))
        for i, tensor in enumerate(self._graph.tensors):
            if tensor.storage == "value" and tensor.place == step.output:
                yield self._put(i, address)

    def _bind(self, step: Bind) -> Iterator[Stmt]:
        """Read a size from a tensor, if it has the element."""
        tensor, word = self._graph.tensors[step.tensor], self._frame.sizes + self._graph.sizes.index(step.name)
        yield from self._within_range(tensor.shape)
        address = call_intrin("handle", "handle_add_byte_offset", self._word(step.tensor, "handle"),
                              _int(nbytes(tensor.dtype, step.element)))  # fmt: skip
        value = int_at(address)
        count = self._nbytes(tensor.shape, "uint8")
        yield IfThenElse(
            GT(count, _int(step.element)),
            self._put(word, value),
            self._put(word, _int(-1)),
        )
        bad = Or(LT(self._word(word), _int(0)), GT(self._word(word), _int(MAX_ELEMENTS)))
        yield self._leave_if(bad)


class _Turns(_Plan):
    """Makes the function of a loop whose iterations run a plan: ``void name(Ctx*, int64* frame)``."""

    def __init__(self, loop: TurnsFrame) -> None:
        super().__init__(loop.plan)
        self._loop = loop

    def _program(self) -> Stmt:
        at, end = self._word(self._frame.at), _int(len(self._frame.pieces))
        iteration = int_at(self._word(self._graph.inputs[0], "handle"))
        goes_on = And(LT(iteration, self._word(self._loop.limit)), GT(self._word(self._loop.turns), _int(0)))
        return While(goes_on, seq([
            call(str(self._graph.entry), self._pointer),
            IfThenElse(EQ(at, end), seq(list(self._end_of_turn())), self._leave()),
        ]))  # fmt: skip

    def _leave(self) -> Stmt:
        return self._put(self._loop.turns, _int(0))

    def _end_of_turn(self) -> Iterator[Stmt]:
        """Make the results the next carried values, if there is room for those that are copied."""
        copied = [words for words in self._loop.states if not words.is_written]
        yield self._put(self._frame.is_done, _int(1))
        for words in copied:
            tensor = self._graph.tensors[words.output]
            yield from self._within_range(tensor.shape)
            yield self._leave_if(GT(self._nbytes(tensor.shape, tensor.dtype), self._word(words.result_nbytes)))
        passed = seq([*map(self._copy, copied), *self._count(), *self._pass_on()])
        yield IfThenElse(NE(self._word(self._frame.is_done), _int(0)), passed, self._leave())

    def _copy(self, words: StateWords) -> Stmt:
        tensor = self._graph.tensors[words.output]
        nbytes = self._nbytes(tensor.shape, tensor.dtype)
        return copy_bytes(self._word(words.result, "handle"), self._word(words.output, "handle"), nbytes)

    def _pass_on(self) -> Iterator[Stmt]:
        """The results become the carried values, whose memory takes the results after the next ones."""
        frame, tensors = self._frame, self._graph.tensors
        for words in self._loop.states:
            for axis, dim in enumerate(tensors[words.output].shape):
                yield self._put(words.shape + axis, self._size(dim))
            yield from [self._put(i, self._word(words.result)) for i in words.state]
            lying = [i for i, tensor in enumerate(tensors) if tensor.storage == "output" and words.is_written
                     and owner_of(self._graph, tensor) == words.output]  # fmt: skip
            yield from [self._put(i, self._word(words.spare)) for i in dict.fromkeys([words.result, *lying])]
            yield self._put(words.spare, self._word(words.state[0]))
            yield self._put(frame.nbytes, self._word(words.result_nbytes))
            yield self._put(words.result_nbytes, self._word(words.spare_nbytes))
            yield self._put(words.spare_nbytes, self._word(frame.nbytes))

    def _count(self) -> Iterator[Stmt]:
        """Count the iteration, and end the loop where its condition is false, which may be a carried value."""
        iteration, turns = self._word(self._graph.inputs[0], "handle"), self._loop.turns
        yield store(iteration, Add(int_at(iteration), _int(1)))
        yield self._put(turns, Sub(self._word(turns), _int(1)))
        yield self._put(self._frame.at, _int(0))
        ends = Not(bool_at(self._word(self._graph.outputs[0], "handle")))
        yield IfThenElse(ends, self._put(self._loop.limit, _int(0)))


def _tensors_and_kinds(stage: Stage) -> tuple[list[list[int]], list[list[int]]]:
    """The tensors in each slot of a stage, and the kinds of those that it is as large as."""
    tensors: list[list[int]] = [[] for _ in range(stage.slot_count)]
    kinds: list[list[int]] = [[] for _ in range(stage.slot_count)]
    kind_of, slot_of = stage.kind_of.tolist(), stage.slot_of.tolist()
    for k, (tensor, slot) in enumerate(zip(stage.tensors, slot_of, strict=True)):
        tensors[slot].append(tensor)
        if k < len(kind_of) and kind_of[k] not in kinds[slot]:  # views have no kind
            kinds[slot].append(kind_of[k])
    return tensors, kinds


def _product(numbers: Sequence[int]) -> int:
    return reduce(int.__mul__, numbers, 1)


def _int(value: int) -> PrimExpr:
    return const(value, "int64")
