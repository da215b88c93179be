"""C code that runs one graph: what the executor does in Python (`backend.runtime.static`, `dynamic`), for one graph.

A graph has a struct `graph_<k>` in the context, with the addresses of its tensors, its sizes and its memory, and the
functions `bind_<k>`, which checks the shapes of the inputs and sets the sizes that follow, `shapes_<k>`, `run_<k>`, and
`place_<k>_<n>`, which gives the tensors of a stage their memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from relayc.backend.c_library.loop_source import LoopSource
from relayc.backend.c_library.naming import quoted, size_code
from relayc.backend.c_library.shapes import counted, indented, shape_code, slot_lines, wrapped
from relayc.backend.runtime.dtype import nbytes
from relayc.backend.runtime.errors import ModuleError
from relayc.backend.runtime.execution_plan import Bind, Check, HostStep, IfStep, LoopStep, RunNodes, SequenceStep, Step
from relayc.backend.runtime.graph import Graph, GraphTensor
from relayc.backend.runtime.layouts import FROM_INPUTS, owner_of, stages_of
from relayc.backend.runtime.sizes import Size, size_text, variables

__all__ = ["GraphSource"]

_INTEGERS = {"int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t", "bool": "uint8_t",
             "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t"}  # fmt: skip


class GraphSource:
    """The code for `graph`, the `number`-th one of a model whose weights lie at `offsets`, by name.

    Raises `ModuleError`, which names the node, for what only the executor can do.
    """

    def __init__(self, graph: Graph, number: int, offsets: Mapping[str, int]) -> None:
        self._graph, self._number, self._offsets = graph, number, offsets
        self._names = {name: f"s[{i}]" for i, name in enumerate(graph.sizes)}
        self._bound: set[str] = set()
        """the size variables that have a value at this point of the code"""
        self._fields = [f"void *tensors[{max(len(graph.tensors), 1)}];", f"int64_t sizes[{max(len(graph.sizes), 1)}];"]
        self._memories: list[str] = []
        self._declared: dict[str, str] = {}
        self._loops: list[LoopSource] = []
        self._run = self._dynamic() if graph.is_dynamic else self._static()

    # -- what the context of the model has to know

    def struct(self) -> list[str]:
        """The definition of the graph's struct."""
        memories = [f"struct memory {name};" for name in self._memories]
        return [f"struct graph_{self._number} {{", *indented([*self._fields, *memories]), "};"]

    def declarations(self) -> list[str]:
        """Declarations of the functions of compiled code that the graph calls."""
        return [f"extern void {name}({parameters});" for name, parameters in self._declared.items()]

    def begin(self, weights: str) -> list[str]:
        """Statements that set the struct up, with the address of the weights."""
        k, count = self._number, len(self._weights())
        lines = [f"place_weights(context->graph_{k}.tensors, {weights}, weights_{k}, {count});"] if count else []
        if not self._graph.is_dynamic:  # all memory that a run needs
            lines.append(f"TRY(reserve(&context->graph_{k}.arena, {self._graph.arena_bytes}));")
        return lines

    def end(self) -> list[str]:
        """Statements that free the graph's memory."""
        return [f"release(&context->graph_{self._number}.{name});" for name in self._memories]

    def functions(self) -> list[str]:
        """The functions of the graph."""
        return [*self._tables(), *self._bind(), *self._shapes(), *self._run]

    # -- sizes and shapes

    def _size(self, size: Size) -> str:
        return size_code(size, self._names)

    def _dims(self, tensor: GraphTensor) -> str:
        """The shape of a tensor as an array."""
        return shape_code(tensor.shape, self._names)

    def _is_known(self, size: Size) -> bool:
        return all(name in self._bound for name in variables(size))

    def _inputs(self) -> list[GraphTensor]:
        return [self._graph.tensors[index] for index in self._graph.inputs]

    def _weights(self) -> list[tuple[int, int]]:
        tensors = enumerate(self._graph.tensors)
        return [(i, self._offsets[str(t.place)]) for i, t in tensors if t.storage == "param"]

    def _tables(self) -> Iterator[str]:
        """Constant tables: where the weights lie, and the static sizes of the inputs."""
        if rows := self._weights():
            yield f"static const struct placed_weight weights_{self._number}[] = {{"
            yield from indented(wrapped([f"{{{tensor}, {offset}}}" for tensor, offset in rows]))
            yield "};"
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
        known = {d for t in self._inputs() for d in t.shape if isinstance(d, str)}
        yield f"static int shapes_{self._number}(const model_tensor *inputs, model_tensor *outputs) {{"
        yield f"  int64_t s[{max(len(self._graph.sizes), 1)}] = {{0}};"
        yield f"  TRY(bind_{self._number}(inputs, s));"
        for position, index in enumerate(self._graph.outputs):
            for axis, dim in enumerate(self._graph.tensors[index].shape):
                value = self._size(dim) if known.issuperset(variables(dim)) else "-1"
                yield f"  outputs[{position}].shape[{axis}] = {value};"
        yield "  (void)outputs;"
        yield "  return MODEL_OK;"
        yield "}"

    # -- running

    def _begin_run(self) -> list[str]:
        k = self._number
        lines = [
            f"static int run_{k}(struct run *run, struct graph_{k} *g, const model_tensor *inputs, "
            "model_tensor *outputs) {",
            "  int64_t *const s = g->sizes;",
            "  memset(s, 0, sizeof g->sizes);",
            f"  TRY(bind_{k}(inputs, s));",
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
            if not self._is_own(position):
                place = f"{position}, {self._dims(tensor)}, &(void *){{0}}"
                yield f"  TRY(place_output(run, inputs, outputs, {place}));"
        for position, index in enumerate(self._graph.outputs):
            yield f"  deliver(run, outputs, {position}, g->tensors[{index}]);"
        yield "  return MODEL_OK;"
        yield "}"

    def _is_own(self, position: int) -> bool:
        """Do kernels write this output to memory of its own?"""
        tensor = self._graph.tensors[self._graph.outputs[position]]
        return (tensor.storage, tensor.place) == ("output", position)

    def _place_buffers(self, indices: Iterable[int]) -> Iterator[str]:
        """Place outputs, tensors with memory of their own, and those that alias them, at the numbers `indices`."""
        tensors, aliases = self._graph.tensors, list[str]()
        for index in indices:
            owner = owner_of(self._graph, tensors[index])
            if owner != index:
                aliases.append(f"  g->tensors[{index}] = g->tensors[{owner}];")
            elif tensors[index].storage == "output":
                arguments = f"{tensors[index].place}, {self._dims(tensors[index])}, &g->tensors[{index}]"
                yield f"  TRY(place_output(run, inputs, outputs, {arguments}));"
            else:
                self._memories.append(f"own_{index}")
                yield f"  {{ size_t nbytes; {counted(self._graph, index, self._names, 'nbytes')}"
                yield f"    TRY(reserve(&g->own_{index}, nbytes)); g->tensors[{index}] = g->own_{index}.start; }}"
        yield from aliases

    def _entry(self, name: str | None, parameters: str, what: str) -> str:
        """The name of a compiled function, declared."""
        if name is None:
            raise ModuleError(f"model {self._graph.name!r}: {what} has no compiled function; compile the model again")
        self._declared[name] = f"struct call_context *, {parameters}"
        return name

    def _static(self) -> list[str]:
        self._memories.append("arena")
        entry = self._entry(self._graph.entry, "char *, void **", "the graph")
        lines = self._begin_run()
        lines += self._place_buffers([i for i, t in enumerate(self._graph.tensors) if t.storage == "output"])
        for index in set(self._graph.outputs):
            if self._graph.tensors[index].storage == "arena":
                lines.append(f"  g->tensors[{index}] = g->arena.start + {self._graph.tensors[index].place};")
        lines.append(f"  {entry}(&run->call, g->arena.start, g->tensors);")
        return [*lines, "  TRY(check_call(run));", *self._end_run()]

    # -- graphs with size variables

    def _dynamic(self) -> list[str]:
        self._bound = {d for t in self._inputs() for d in t.shape if isinstance(d, str)}
        stages, places, lines = stages_of(self._graph), list[str](), self._begin_run()

        def place(stage: int) -> None:
            tensors, views = stages.pop(stage, ((), ()))
            if any(self._graph.tensors[i].storage in ("slot", "output", "own") for i in (*tensors, *views)):
                name = f"place_{self._number}_{len(self._memories)}"
                places.extend(self._place(name, tensors, views))
                lines.append(f"  TRY({name}(run, g, inputs, outputs));")

        place(FROM_INPUTS)
        for position, step in enumerate(self._graph.steps):
            if isinstance(step, RunNodes):
                place(position)
            lines += self._step(step)
        place(len(self._graph.steps))
        loops = [line for loop in self._loops for line in loop.functions(self._names)]
        return [*places, *loops, *lines, *self._end_run()]

    def _step(self, step: Step) -> Iterator[str]:
        if isinstance(step, RunNodes):
            nodes = self._graph.nodes[step.first : step.last]
            what = ", ".join(dict.fromkeys(source for node in nodes for source in node.sources))
            entry = self._entry(step.entry, "void **, int64_t *", what)
            yield f"  {entry}(&run->call, g->tensors, s);"
            yield "  TRY(check_call(run));"
        elif isinstance(step, Bind):
            yield from self._bind_step(step)
        elif isinstance(step, Check):
            sides = f"{self._size(step.left)}, {self._size(step.right)}"
            yield f"  TRY(check_equal({sides}, {quoted(step.source)}));"
        elif isinstance(step, LoopStep) and step.entry is not None and not step.growing:
            yield from self._loop(step, step.entry)
        else:
            raise ModuleError(f"model {self._graph.name!r}: {step.source} is {_kind(step)}, which {_ADVICE}")

    def _loop(self, step: LoopStep, entry: str) -> Iterator[str]:
        bound = {name: self._names[name] for name in self._graph.sizes if name in self._bound}
        loop = LoopSource(step, self._graph, f"{self._number}_{len(self._loops)}", bound, self._offsets)
        self._loops.append(loop)
        self._declared[entry] = "struct call_context *, int64_t *"
        self._fields += loop.fields()
        self._memories += loop.memories()
        yield f"  TRY({loop.name}(run, g));"
        for index, tensor in enumerate(self._graph.tensors):
            if tensor.storage == "value" and tensor.place in step.outputs and tensor.place != index:
                yield f"  g->tensors[{index}] = g->tensors[{tensor.place}];"
        self._bound |= {d for i in step.outputs for d in self._graph.tensors[i].shape if isinstance(d, str)}

    def _bind_step(self, step: Bind) -> Iterator[str]:
        tensor = self._graph.tensors[step.tensor]
        kind = _INTEGERS.get(tensor.dtype)
        if kind is None:
            raise ModuleError(f"model {self._graph.name!r}: {step.source} computes a size as {tensor.dtype}")
        value, source = f"((const {kind} *)g->tensors[{step.tensor}])[{step.element}]", quoted(step.source)
        if not tensor.is_static or nbytes(tensor.dtype, 1) * step.element >= tensor.nbytes:
            count = f"TRY(count_bytes({self._dims(tensor)}, {len(tensor.shape)}, 1, &count));"
            yield f"  {{ size_t count; {count} if (count <= {step.element}) return fail(MODEL_SIZE_MISMATCH, "
            yield f'    "%s gives %zu sizes, expected over {step.element}", {source}, count); }}'
        yield f"  TRY(bind_size(&{self._names[step.name]}, (int64_t){value}, {source}));"
        self._bound.add(step.name)

    def _place(self, name: str, tensors: Sequence[int], views: Sequence[int]) -> Iterator[str]:
        """The function that places the tensors of a stage, and those that alias its slots under later shapes."""
        memory = f"arena_{len(self._memories)}"
        self._memories.append(memory)
        owners = [i for i in tensors if self._graph.tensors[i].storage == "slot"]
        lines = [
            f"static int {name}(struct run *run, struct graph_{self._number} *g, const model_tensor *inputs, "
            "model_tensor *outputs) {",
            "  int64_t *const s = g->sizes;",
            "  (void)run, (void)inputs, (void)outputs, (void)s;",
        ]
        if owners or views:
            lines += ["  size_t nbytes;", *indented(slot_lines(self._graph, owners, views, self._names))]
            lines.append(f"  TRY(lay_out(&g->{memory}, slots, COUNT(slots), g->tensors, placed, COUNT(placed)));")
        buffers = [i for i in tensors if self._graph.tensors[i].storage in ("output", "own")]
        yield from [*lines, *self._place_buffers(buffers), "  return MODEL_OK;", "}"]


_ADVICE = "only the executor in Python can run; run the model by relayc.runtime, or change it"


def _kind(step: IfStep | LoopStep | SequenceStep | HostStep) -> str:
    """What a step is, for errors."""
    if isinstance(step, HostStep):
        return f"the host operation {step.action!r}"
    if isinstance(step, SequenceStep):
        return f"the sequence operation {step.action!r}"
    if isinstance(step, IfStep):
        return "a branch outside of a loop"
    return "a loop of values that grow" if step.growing else "a loop that is not one compiled function"
