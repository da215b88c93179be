"""C code that runs a loop by its compiled function: what `backend.runtime.compiled_loop` and `frames` do in Python.

The frames, one for the body and one for every graph inside of it, are tables of words in the struct of the graph
around. They are laid out anew in each run: the sizes of all tensors are known when the loop begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from relayc.backend.c_library.naming import quoted, size_code
from relayc.backend.c_library.shapes import byte_count, check_rank, indented, matched, slot_lines, wrapped
from relayc.backend.runtime.errors import ModuleError
from relayc.backend.runtime.execution_plan import Check, IfStep, LoopStep
from relayc.backend.runtime.frames import WORD_BYTES, FrameLayout, graphs_inside
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.layouts import Stage

__all__ = ["LoopSource"]

class _Frame:
    """The frame `word` of a graph: that of the body of `loop`, or of a branch if there is none.

    `arguments` are the shapes of what the graph is passed, in C, and `around` the names of the sizes of the graph
    around. Raises `ModuleError` for shapes that the graph can't be passed.
    """

    def __init__(
        self, graph: Graph, loop: LoopStep | None, word: str, arguments: Sequence[Sequence[str]],
        around: Mapping[str, str], source: str,
    ) -> None:  # fmt: skip
        self.graph, self.loop, self.word, self.source = graph, loop, word, source
        self._arguments = arguments
        inside = list(graphs_inside(graph))
        self.layout = FrameLayout(len(graph.tensors), len(graph.sizes), len(graph.outputs), len(inside))
        own = {name: f"{word}[{self.layout.sizes + i}]" for i, name in enumerate(graph.sizes)}
        self.growing = () if loop is None else loop.growing
        self._around, self.names = around, {**around, **own}
        self.capacities = {
            name: f"{word}[{self.layout.capacities + graph.sizes.index(name)}]" for name in self.growing
        }
        self._room = {**self.names, **self.capacities}
        """the sizes that memory is laid out for"""
        self.children = [
            (each.step, _Frame(each.graph, each.loop, f"{word}_{k}", [self.shape(i) for i in each.arguments],
                               self.names, each.step.source))
            for k, each in enumerate(inside)
        ]  # fmt: skip

    def all_frames(self) -> Iterator[_Frame]:
        yield self
        for _, child in self.children:
            yield from child.all_frames()

    def shape(self, tensor: int) -> list[str]:
        """The shape of a tensor of the graph in C."""
        return [size_code(d, self.names) for d in self.graph.tensors[tensor].shape]

    def lines(self, offsets: Mapping[str, int]) -> Iterator[str]:
        """Statements that lay out this frame and those inside: offsets in memory of `end` bytes."""
        graph, layout, word = self.graph, self.layout, self.word
        if self.growing:  # the arguments are those with which the loop begins
            yield from ["if (begins) {", *indented(self._bound_sizes()), "}"]
        else:
            yield from self._bound_sizes()
        yield from [f"{c} = size_add(size_mul(room, {self.names[n]}), room - 1);" for n, c in self.capacities.items()]
        for step in graph.steps:
            if isinstance(step, Check):
                sides = [size_code(side, self.names) for side in (step.left, step.right)]
                yield f"TRY(check_equal({', '.join(sides)}, {quoted(step.source)}));"
        slots = Stage(graph, [i for i, t in enumerate(graph.tensors) if t.storage == "slot"], ())
        if slots.tensors:
            yield "{"
            yield from indented(slot_lines(slots, self._room))
            yield f"  place_slots({word}, slots, COUNT(slots), placed, COUNT(placed), &end);"
            yield "}"
        for i, tensor in enumerate(graph.tensors):
            if tensor.storage in ("own", "value") and tensor.place == i:
                yield from self._placed(i, (i,))
            elif tensor.storage == "param":
                yield f"{word}[{i}] = (int64_t)(intptr_t)(run->weights->start + {offsets[str(tensor.place)]});"
        if self.loop is not None:
            yield from self._loop_lines(self.loop)
        yield f"{word}[{layout.turns}] = (int64_t)(intptr_t)turns;"
        for k, (_, child) in enumerate(self.children):
            yield f"{word}[{layout.children + k}] = (int64_t)(intptr_t){child.word};"
        for step, child in self.children:
            yield from child.lines(offsets)
            yield from self._compared(step, child)

    def _bound_sizes(self) -> Iterator[str]:
        """Set the sizes from the graph around and from the arguments, and compare the others."""
        bound = set(self._around)
        for name in self.graph.sizes:
            if name in bound:
                yield f"{self.names[name]} = {self._around[name]};"
        compared: list[str] = []
        for index, passed in zip(self.graph.inputs, self._arguments, strict=True):
            dims = self.graph.tensors[index].shape
            if len(dims) != len(passed):
                raise ModuleError(f"{self.source}: passes a tensor of rank {len(passed)}; expected {len(dims)}")
            binds, compares = matched(dims, passed, self.names, bound, self.source, self._around)
            yield from binds
            compared += compares
        yield from compared

    def _placed(self, tensor: int, words: Sequence[int]) -> Iterator[str]:
        of = self.graph.tensors[tensor]
        yield f"TRY({byte_count(of.shape, of.dtype, self._room, 'nbytes')});"
        for number in words:
            yield f"place_word(&{self.word}[{number}], &end, nbytes);"

    def _loop_lines(self, loop: LoopStep) -> Iterator[str]:
        """Place what the loop itself writes: iteration, condition, and two buffers for every carried value."""
        graph, layout = self.graph, self.layout
        for number in (*graph.inputs[:2], layout.results):
            yield f"place_word(&{self.word}[{number}], &end, {WORD_BYTES});"
        carried = len(loop.carried)
        for k in range(1, 1 + carried):
            yield from self._placed(graph.outputs[k], (layout.results + k, layout.spares + k))
        for taken, given in zip(graph.inputs[2 : 2 + carried], graph.outputs[1 : 1 + carried], strict=True):
            dims = zip(graph.tensors[taken].shape, self.shape(taken), self.shape(given), strict=True)
            kept = [(a, b) for dim, a, b in dims if dim not in self.growing]
            yield from self._same([a for a, _ in kept], [b for _, b in kept])

    def _compared(self, step: IfStep | LoopStep, child: _Frame) -> Iterator[str]:
        """Compare the shapes of a step's outputs with what the graph inside gives, or with what is stacked."""
        given = child.graph.outputs if child.loop is None else child.graph.outputs[1:]
        for i, own in zip(step.outputs, given, strict=True):
            whole, part = self.shape(i), child.shape(own)
            yield from self._same(whole[len(whole) - len(part) :], part)

    def _same(self, left: Sequence[str], right: Sequence[str]) -> Iterator[str]:
        for a, b in zip(left, right, strict=True):
            if a != b:
                yield f"TRY(check_equal({a}, {b}, {quoted(self.source)}));"

    def located(self) -> list[int]:
        """The words that hold offsets."""
        graph, layout = self.graph, self.layout
        words = [i for i, t in enumerate(graph.tensors)
                 if t.storage == "slot" or (t.storage in ("own", "value") and t.place == i)]  # fmt: skip
        if self.loop is not None:
            carried = range(1, 1 + len(self.loop.carried))
            words += [*graph.inputs[:2], layout.results]
            words += [start + k for k in carried for start in (layout.results, layout.spares)]
        return words


class LoopSource:
    """The code of a loop with the compiled function `step.entry`, in a graph with the struct `struct` whose bound sizes
    have the `names`: the function `name`."""

    def __init__(
        self, step: LoopStep, graph: Graph, name: str, struct: str, names: Mapping[str, str], offsets: Mapping[str, int]
    ) -> None:
        self._step, self._graph, self._struct, self._bound, self._offsets = step, graph, struct, names, offsets
        self.name = name
        passed = [graph.tensors[i].shape for i in (*step.carried, *step.outside)]
        arguments = [[size_code(d, names) for d in shape] for shape in passed]
        self._frame = _Frame(step.graph, step, "frame", [[], [], *arguments], names, step.source)
        self._stacked = range(1 + len(step.carried), len(step.graph.outputs))

    def fields(self) -> list[str]:
        """Fields of the struct of the graph around."""
        frames = self._frame.all_frames()
        return [f"int64_t {self.name}_{frame.word}[{frame.layout.words}];" for frame in frames]

    def memories(self) -> list[str]:
        """Memory in the struct of the graph around."""
        return [f"{self.name}_arena", *[f"{self.name}_stack_{k}" for k in self._stacked]]

    def functions(self, names: Mapping[str, str]) -> Iterator[str]:
        """The functions that lay out the frames and that run the loop; `names` has all sizes of the graph around."""
        yield from self._lay_out()
        if self._step.growing:
            yield from self._grow()
        yield f"static int {self.name}(struct run *run, {self._struct} *g) {{"
        yield "  int64_t *const s = g->sizes;"
        yield f"  int64_t *const frame = g->{self.name}_frame;"
        yield "  (void)s;"
        yield from indented(self._run())
        yield from indented(self._results(names))
        yield "  return MODEL_OK;"
        yield "}"

    def _lay_out(self) -> Iterator[str]:
        """The function that lays out the frames, with memory for sizes that grow by the factor `room`."""
        frames = [*self._frame.all_frames()]
        yield f"static int lay_out_{self.name}(struct run *run, {self._struct} *g, int64_t *turns, int64_t room,"
        yield "    int begins) {"
        yield "  int64_t *const s = g->sizes;"
        yield from [f"  int64_t *const {f.word} = g->{self.name}_{f.word};" for f in frames]
        yield "  size_t end = 0, nbytes = 0;"
        yield "  (void)run, (void)s, (void)nbytes, (void)room, (void)begins;"
        yield from indented(self._frame.lines(self._offsets))
        yield f"  TRY(reserve(&g->{self.name}_arena, end));"
        for frame in frames:
            words = frame.located()
            if words:
                yield f"  static const int32_t in_{frame.word}[] = {{"
                yield from indented(wrapped([str(word) for word in words], 16), 2)
                yield "  };"
                yield f"  locate({frame.word}, in_{frame.word}, COUNT(in_{frame.word}), &g->{self.name}_arena);"
            yield f"  {frame.word}[{frame.layout.stage}] = 0;"
            if frame.loop is not None:
                yield f"  *(uint8_t *)(intptr_t){frame.word}[{frame.graph.inputs[1]}] = 1;"
        yield "  return MODEL_OK;"
        yield "}"

    def _grow(self) -> Iterator[str]:
        """The function that moves the carried values to memory with room for larger ones, if they need it."""
        step, body, layout = self._step, self._step.graph, self._frame.layout
        arena = f"g->{self.name}_arena"
        outgrown = [f"{self._frame.names[name]} > {c}" for name, c in self._frame.capacities.items()]
        yield f"static int grow_{self.name}(struct run *run, void *graph, struct loop *loop) {{"
        yield f"  {self._struct} *g = graph;"
        yield "  int64_t *const frame = loop->frame;"
        yield f"  if (!({' || '.join(outgrown)})) return MODEL_OK;"
        yield "  int64_t done = *(int64_t *)(intptr_t)frame[loop->iteration_word];"
        for k in range(len(step.carried)):
            yield f"  int64_t from_{k} = frame[{body.inputs[2 + k]}];"
            yield f"  int is_moved_{k} = from_{k} == frame[{layout.spares + 1 + k}];"
        yield f"  struct memory before = {arena};"
        yield f"  {arena} = (struct memory){{0}};"
        yield f"  int status = lay_out_{self.name}(run, g, &loop->turns, 2, 0);"
        yield f"  if (status != MODEL_OK) status = lay_out_{self.name}(run, g, &loop->turns, 1, 0);"
        yield "  size_t nbytes;"
        for k in range(len(step.carried)):
            number, spare = body.inputs[2 + k], layout.spares + 1 + k
            yield f"  if (status == MODEL_OK && is_moved_{k}) {{"
            tensor = body.tensors[number]
            yield f"    frame[{number}] = frame[{spare}];"
            yield f"    status = {byte_count(tensor.shape, tensor.dtype, self._frame.names, 'nbytes')};"
            copy = f"memcpy((void *)(intptr_t)frame[{spare}], (void *)(intptr_t)from_{k}, nbytes)"
            yield f"    if (status == MODEL_OK) {copy};"
            yield "  }"
        yield "  release(&before);"
        yield "  if (status == MODEL_OK) *(int64_t *)(intptr_t)frame[loop->iteration_word] = done;"
        yield "  return status;"
        yield "}"

    def _run(self) -> Iterator[str]:
        """Statements that run the loop and set `iterations`."""
        step, body, layout = self._step, self._step.graph, self._frame.layout
        yield f"const int64_t trips = *(const int64_t *)g->tensors[{step.trips}];"
        yield "int64_t iterations = 0;"
        yield f"if (trips > 0 && *(const uint8_t *)g->tensors[{step.condition}]) {{"
        grow = f"grow_{self.name}" if step.growing else "NULL"
        words = f"{body.inputs[0]}, {layout.limit}"
        yield f"  struct stack stacks[{len(self._stacked) + 1}] = {{{{0}}}};"
        yield f"  struct loop loop = {{{step.entry}, frame, {words}, trips, 0, stacks, {len(self._stacked)}, {grow}}};"
        if step.growing:
            yield f"  if (lay_out_{self.name}(run, g, &loop.turns, 2, 1) != MODEL_OK)"
            yield f"    TRY(lay_out_{self.name}(run, g, &loop.turns, 1, 1));"
        else:
            yield f"  TRY(lay_out_{self.name}(run, g, &loop.turns, 1, 1));"
        for number, value in zip(body.inputs[2:], (*step.carried, *step.outside), strict=True):
            yield f"  frame[{number}] = (int64_t)(intptr_t)g->tensors[{value}];"
        for n, k in enumerate(self._stacked):
            yield f"  stacks[{n}].memory = &g->{self.name}_stack_{k};"
            yield f"  stacks[{n}].word = &frame[{layout.results + k}];"
            part = body.tensors[body.outputs[k]]
            yield f"  TRY({byte_count(part.shape, part.dtype, self._frame.names, f'stacks[{n}].nbytes')});"
        yield "  TRY(run_loop(run, g, &loop));"
        yield f"  iterations = *(int64_t *)(intptr_t)frame[{body.inputs[0]}];"
        yield "}"

    def _results(self, names: Mapping[str, str]) -> Iterator[str]:
        """Statements that set the addresses of the results, and bind and compare their sizes."""
        step, body, carried = self._step, self._step.graph, len(self._step.carried)
        known = set(self._bound)
        for k, (output, begin) in enumerate(zip(step.outputs, step.carried, strict=False)):
            last = f"(void *)(intptr_t)frame[{body.inputs[2 + k]}]"
            yield f"g->tensors[{output}] = iterations ? {last} : g->tensors[{begin}];"
            begins = [size_code(d, names) for d in self._graph.tensors[begin].shape]
            ends = self._frame.shape(body.inputs[2 + k]) if step.growing else begins
            yield from self._sizes_of(output, begins, ends, names, known)
        for k in self._stacked:
            output, memory = step.outputs[k - 1], f"g->{self.name}_stack_{k}"
            yield f"if (!iterations) TRY(reserve(&{memory}, 0));"
            yield f"g->tensors[{output}] = {memory}.start;"
            begins = [size_code(d, names) for d in self._graph.tensors[output].shape]  # 0 for those not bound yet
            ends = ["iterations", *self._frame.shape(body.outputs[k])]
            yield from self._sizes_of(output, ["iterations", *begins[1:]], ends, names, known)
        assert len(step.outputs) == carried + len(self._stacked)

    def _sizes_of(
        self, output: int, begins: Sequence[str], ends: Sequence[str], names: Mapping[str, str], known: set[str]
    ) -> list[str]:
        """Statements that bind and compare the sizes of a result, `ends` after iterations and `begins` without any."""
        check_rank(self._graph, output, len(ends), self._step.source)
        values = [a if a == b else f"(iterations ? {b} : {a})" for a, b in zip(begins, ends, strict=True)]
        dims = self._graph.tensors[output].shape
        binds, compares = matched(dims, values, names, known, self._step.source)
        return [*binds, *compares]
