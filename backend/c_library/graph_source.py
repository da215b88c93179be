"""C code that runs the graph of a model, or a specialisation of it.

Besides those of its plan it has the functions `bind_<k>`, which checks the shapes of the inputs and sets the sizes that
follow, and `shapes_<k>`, which tells those of the outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from relayc.backend.c_library.naming import quoted
from relayc.backend.c_library.plan_source import PlanSource
from relayc.backend.c_library.shapes import indented, shape_code
from relayc.backend.runtime.errors import ModuleError
from relayc.backend.runtime.graph import Graph, GraphTensor
from relayc.backend.runtime.sizes import Size, size_text, variables

__all__ = ["GraphSource", "passed_inputs"]


def passed_inputs(graph: Graph) -> list[GraphTensor]:
    """The inputs that callers pass: all but KV caches, which are the last ones.

    Raises `ModuleError` if they are not.
    """
    count = len(graph.inputs) - len(graph.caches)
    if [cache.position for cache in graph.caches] != [*range(count, len(graph.inputs))]:
        raise ModuleError(f"model {graph.name!r} has inputs behind its KV caches; compile it again")
    return [graph.tensors[index] for index in graph.inputs[:count]]


class GraphSource(PlanSource):
    """The code for `graph`, the `number`-th one of a model whose weights lie at `offsets`, by name.

    Of the sizes of outputs, `open_sizes` (output, axis) follow from values, as another graph may run in place of this.
    Raises `ModuleError`, which names the node, for what only the executor can do.
    """

    arguments = "run, g, inputs, outputs"

    def __init__(
        self, graph: Graph, number: int, offsets: Mapping[str, int], open_sizes: Set[tuple[int, int]] = frozenset()
    ) -> None:
        super().__init__(graph, str(number), offsets)
        self._open_sizes = open_sizes
        self._lengths = {cache.length for cache in graph.caches}
        """the sizes that are the number of rows in the KV caches"""
        self._bound = {*graph.input_sizes, *self._lengths}
        if graph.caches:
            self._fields.append("struct caches caches;")
        self._run = self._dynamic() if graph.is_dynamic else self._static()

    @property
    def parameters(self) -> str:
        return f"struct run *run, {self.struct_name} *g, const model_tensor *inputs, model_tensor *outputs"

    def functions(self) -> list[str]:
        """The functions of the graph."""
        return [*self.weight_table(), *self._input_shapes(), *self._bind(), *self._shapes(), *self._run]

    def _inputs(self) -> list[GraphTensor]:
        return passed_inputs(self._graph)

    @property
    def _passed_sizes(self) -> frozenset[str]:
        """The sizes that the inputs which are passed bind."""
        names = [d for t in self._inputs() for d in t.shape if isinstance(d, str)]
        return frozenset(names) - self._lengths

    def end(self, place: str) -> list[str]:
        count = len(self._graph.caches)
        kept = f"for (int k = 0; k < {count}; ++k) release(&{place}.caches.each[k].memory);"
        return [*super().end(place), *([kept] if count else [])]

    def begin(self, place: str, weights: str) -> list[str]:
        lines = super().begin(place, weights)
        if self._graph.is_dynamic:
            return lines
        return [*lines, f"TRY(reserve(&{place}.arena, {self._graph.arena_bytes}));"]  # all memory that a run needs

    def _input_shapes(self) -> Iterator[str]:
        """The constant table of the static sizes of the inputs."""
        if self._inputs():
            shapes = [[d if isinstance(d, int) else -1 for d in t.shape] for t in self._inputs()]
            rows = [f"{{{', '.join(map(str, shape)) or '0'}}}" for shape in shapes]
            yield f"static const int64_t input_shapes_{self._number}[][MODEL_MAX_RANK] = {{{', '.join(rows)}}};"

    def _bind(self) -> Iterator[str]:
        """The function that sets the sizes that follow from the inputs, and rejects inputs of other shapes."""
        dims, first = self._dimensions(), self._binding_dimensions()
        lines = [f"{self._names[name]} = inputs[{p}].shape[{axis}];" for name, (p, axis) in first.items()]
        for position, axis, dim in dims:
            if isinstance(dim, int) or (isinstance(dim, str) and first.get(dim) == (position, axis)):
                continue
            unknown = [name for name in variables(dim) if name not in first and name not in self._lengths]
            if unknown:
                raise ModuleError(f"model {self._graph.name!r}: no input has the size {unknown[0]!r} as a dimension")
            if self._lengths.isdisjoint(variables(dim)):
                lines.append(self._compare(position, axis, dim))
        yield f"static int bind_{self._number}(const model_tensor *inputs, int64_t *s) {{"
        yield "  (void)inputs, (void)s;"
        if self._inputs():
            yield f"  TRY(check_shapes(inputs, input_shapes_{self._number}));"
        yield from indented([*lines, "return MODEL_OK;"])
        yield "}"

    def _dimensions(self) -> list[tuple[int, int, Size]]:
        """The dimensions of the inputs: position, axis, size."""
        return [(p, axis, d) for p, t in enumerate(self._inputs()) for axis, d in enumerate(t.shape)]

    def _binding_dimensions(self) -> dict[str, tuple[int, int]]:
        """The input, by position, and axis whose size each size variable is."""
        first: dict[str, tuple[int, int]] = {}
        for position, axis, dim in self._dimensions():
            if isinstance(dim, str) and dim not in self._lengths:
                first.setdefault(dim, (position, axis))
        return first

    def _compare(self, position: int, axis: int, dim: Size) -> str:
        """The statement that compares a size of an input with `dim`."""
        why = quoted(size_text(dim))
        return f"TRY(check_size(inputs, {position}, {axis}, {self._size(dim)}, {why}));"

    def _bind_caches(self) -> Iterator[str]:
        """Statements that set the sizes which KV caches decide, compare inputs with them, and make room for rows."""
        caches, tensors = self._graph.caches, [self._graph.tensors[i] for i in self._graph.inputs]
        yield from [f"{self._names[name]} = g->caches.length;" for name in sorted(self._lengths)]
        for position, axis, dim in self._dimensions():
            if not self._lengths.isdisjoint(variables(dim)):
                yield self._compare(position, axis, dim)
        rows = [
            [self._size(0 if axis == cache.axis else d) for axis, d in enumerate(tensors[cache.position].shape)]
            for cache in caches
        ]
        shapes = ", ".join(["{" + ", ".join(row) + "}" for row in rows])
        yield f"int64_t shapes[][MODEL_MAX_RANK] = {{{shapes}}};"
        yield f"TRY(lay_out_caches(&g->caches, shapes, {shape_code([c.added for c in caches], self._names)}));"
        capacities = {str(tensors[cache.position].shape[cache.axis]) for cache in caches}
        yield from [f"{self._names[name]} = g->caches.room;" for name in sorted(capacities)]

    def _shapes(self) -> Iterator[str]:
        """The function that sets the shapes of outputs, sizes that only a run can tell as -1."""
        known = self._passed_sizes
        yield f"static int shapes_{self._number}(const model_tensor *inputs, model_tensor *outputs) {{"
        yield f"  int64_t s[{max(len(self._graph.sizes), 1)}] = {{0}};"
        yield f"  TRY(bind_{self._number}(inputs, s));"
        for position, index in enumerate(self._graph.outputs):
            for axis, dim in enumerate(self._graph.tensors[index].shape):
                told = known.issuperset(variables(dim)) and (position, axis) not in self._open_sizes
                value = self._size(dim) if told else "-1"
                yield f"  outputs[{position}].shape[{axis}] = {value};"
        yield "  (void)outputs;"
        yield "  return MODEL_OK;"
        yield "}"

    # -- running

    def _begin_run(self) -> list[str]:
        lines = [
            f"static int run_{self._number}({self.parameters}) {{",
            "  int64_t *const s = g->sizes;",
            "  memset(s, 0, sizeof g->sizes);",
            f"  TRY(bind_{self._number}(inputs, s));",
            "  TRY(take_inputs(run, inputs));",
        ]
        count = len(self._inputs())
        if self._graph.caches:
            lines += indented(self._bind_caches())
        for index, tensor in enumerate(self._graph.tensors):
            if tensor.storage == "input":
                place = int(tensor.place)
                kept = f"g->caches.each[{place - count}].memory.start"
                lines.append(f"  g->tensors[{index}] = {f'run->inputs[{place}].address' if place < count else kept};")
        return lines

    def _end_run(self) -> Iterator[str]:
        """Place the outputs that alias other memory, and copy what the caller expects elsewhere."""
        for position, index in enumerate(self._graph.outputs):
            tensor = self._graph.tensors[index]
            if not self._graph.has_own_memory(position):
                place = f"{position}, {self._dims(tensor)}, &(void *){{0}}"
                yield f"  TRY(place_output(run, inputs, outputs, {place}));"
        for position, index in enumerate(self._graph.outputs):
            yield f"  deliver(run, outputs, {position}, g->tensors[{index}]);"
        if self._graph.caches:
            yield "  g->caches.length += g->caches.added;"
        yield "  return MODEL_OK;"
        yield "}"

    def _place_output(self, index: int) -> Iterator[str]:
        tensor = self._graph.tensors[index]
        yield f"  TRY(place_output(run, inputs, outputs, {tensor.place}, {self._dims(tensor)}, &g->tensors[{index}]));"

    def _static(self) -> list[str]:
        """The function that runs a graph of static shapes: one call of compiled code."""
        self._memories.append("arena")
        entry = self._entry(self._graph.entry, "char *, void **", "the graph")
        lines = self._begin_run()
        lines += self._place_buffers([i for i, t in enumerate(self._graph.tensors) if t.storage == "output"])
        for index in set(self._graph.outputs):
            if self._graph.tensors[index].storage == "arena":
                lines.append(f"  g->tensors[{index}] = g->arena.start + {self._graph.tensors[index].place};")
        lines.append(f"  {entry}(&run->call, g->arena.start, g->tensors);")
        return [*lines, "  TRY(check_call(run));", *self._end_run()]
