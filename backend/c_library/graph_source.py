"""C code that runs the graph of a model, or a specialisation of it.

Besides those of its plan it has the functions `bind_<k>`, which checks the shapes of the inputs and sets the sizes that
follow, and `shapes_<k>`, which tells those of the outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from relayc.backend.c_library.naming import quoted
from relayc.backend.c_library.plan_source import PlanSource
from relayc.backend.c_library.shapes import indented
from relayc.backend.runtime.errors import ModuleError
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.sizes import size_text, variables

__all__ = ["GraphSource"]


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
        self._bound = {*graph.input_sizes}
        self._run = self._dynamic() if graph.is_dynamic else self._static()

    @property
    def parameters(self) -> str:
        return f"struct run *run, {self.struct_name} *g, const model_tensor *inputs, model_tensor *outputs"

    def functions(self) -> list[str]:
        """The functions of the graph."""
        return [*self.weight_table(), *self._input_shapes(), *self._bind(), *self._shapes(), *self._run]

    def begin(self, place: str, weights: str) -> list[str]:
        lines = super().begin(place, weights)
        if self._graph.is_dynamic:
            return lines
        return [*lines, f"TRY(reserve(&{place}.arena, {self._graph.arena_bytes}));"]  # all memory that a run needs

    def _input_shapes(self) -> Iterator[str]:
        """The constant table of the static sizes of the inputs."""
        if self._graph.inputs:
            shapes = [[d if isinstance(d, int) else -1 for d in t.shape] for t in self._inputs()]
            rows = [f"{{{', '.join(map(str, shape)) or '0'}}}" for shape in shapes]
            yield f"static const int64_t input_shapes_{self._number}[][MODEL_MAX_RANK] = {{{', '.join(rows)}}};"

    def _bind(self) -> Iterator[str]:
        """The function that sets the sizes that follow from the inputs, and rejects inputs of other shapes."""
        dims = [(p, axis, d) for p, t in enumerate(self._inputs()) for axis, d in enumerate(t.shape)]
        first: dict[str, tuple[int, int]] = {}
        for position, axis, dim in dims:
            if isinstance(dim, str):
                first.setdefault(dim, (position, axis))
        lines = [f"{self._names[name]} = inputs[{p}].shape[{axis}];" for name, (p, axis) in first.items()]
        for position, axis, dim in dims:
            if isinstance(dim, int) or (isinstance(dim, str) and first[dim] == (position, axis)):
                continue
            unknown = [name for name in variables(dim) if name not in first]
            if unknown:
                raise ModuleError(f"model {self._graph.name!r}: no input has the size {unknown[0]!r} as a dimension")
            why = quoted(size_text(dim))
            lines.append(f"TRY(check_size(inputs, {position}, {axis}, {self._size(dim)}, {why}));")
        yield f"static int bind_{self._number}(const model_tensor *inputs, int64_t *s) {{"
        yield "  (void)inputs, (void)s;"
        if self._graph.inputs:
            yield f"  TRY(check_shapes(inputs, input_shapes_{self._number}));"
        yield from indented([*lines, "return MODEL_OK;"])
        yield "}"

    def _shapes(self) -> Iterator[str]:
        """The function that sets the shapes of outputs, sizes that only a run can tell as -1."""
        known = self._graph.input_sizes
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
        for index, tensor in enumerate(self._graph.tensors):
            if tensor.storage == "input":
                lines.append(f"  g->tensors[{index}] = run->inputs[{tensor.place}].address;")
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
