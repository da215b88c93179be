"""C code that runs the plan of a graph: what the executor does in Python (`backend.runtime.static`, `dynamic`).

A graph has a struct `graph_<k>` in the context, with the addresses of its tensors, its sizes and its memory, a function
`run_<k>`, and functions `place_<k>_<n>`, which give the tensors of a stage their memory.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence

from relayc.backend.c_library.loop_source import LoopSource
from relayc.backend.c_library.naming import quoted, size_code
from relayc.backend.c_library.shapes import (
    byte_count,
    check_rank,
    indented,
    matched,
    shape_code,
    slot_lines,
    wrapped,
)
from relayc.backend.runtime.dtype import nbytes
from relayc.backend.runtime.errors import ModuleError
from relayc.backend.runtime.execution_plan import Bind, Check, HostStep, IfStep, LoopStep, RunNodes, SequenceStep, Step
from relayc.backend.runtime.graph import Graph, GraphTensor
from relayc.backend.runtime.layouts import FROM_INPUTS, Stage, owner_of, stages_of
from relayc.backend.runtime.sizes import Size

__all__ = ["PlanSource"]

_INTEGERS = {"int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t", "bool": "uint8_t",
             "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t"}  # fmt: skip


class PlanSource(abc.ABC):
    """The code for `graph`, whose functions have the `number` in their names, and whose weights lie at `offsets`, by
    name.

    Raises `ModuleError`, which names the node, for what only the executor can do.
    """

    arguments: str
    """What functions of the graph are passed, beginning with ``run``; `parameters` declares it."""

    def __init__(self, graph: Graph, number: str, offsets: Mapping[str, int]) -> None:
        self._graph, self._number, self._offsets = graph, number, offsets
        self._names = {name: f"s[{i}]" for i, name in enumerate(graph.sizes)}
        self._bound: set[str] = set()
        """the size variables that have a value at this point of the code"""
        self._fields = [f"void *tensors[{max(len(graph.tensors), 1)}];", f"int64_t sizes[{max(len(graph.sizes), 1)}];"]
        self._memories: list[str] = []
        self._declared: dict[str, str] = {}
        self._loops: list[LoopSource] = []
        self._branches: list[BranchSource] = []

    @property
    @abc.abstractmethod
    def parameters(self) -> str:
        """The parameters of functions of the graph."""

    @abc.abstractmethod
    def _begin_run(self) -> list[str]:
        """The beginning of the function that runs the graph: it sets the sizes and addresses of the inputs."""

    @abc.abstractmethod
    def _end_run(self) -> Iterator[str]:
        """The end of that function."""

    @abc.abstractmethod
    def _place_output(self, index: int) -> Iterator[str]:
        """Statements that set the address of the tensor `index`, which is an output."""

    # -- what the graph around, or the context of the model, has to know

    @property
    def struct_name(self) -> str:
        return f"struct graph_{self._number}"

    def struct(self) -> list[str]:
        """The definition of the graph's struct, behind those of its branches."""
        inside = [line for branch in self._branches for line in branch.struct()]
        memories = [f"struct memory {name};" for name in self._memories]
        return [*inside, f"{self.struct_name} {{", *indented([*self._fields, *memories]), "};"]

    def declarations(self) -> list[str]:
        """Declarations of the functions of compiled code that the graph calls."""
        inside = [line for branch in self._branches for line in branch.declarations()]
        return [*inside, *[f"extern void {name}({parameters});" for name, parameters in self._declared.items()]]

    def begin(self, place: str, weights: str) -> list[str]:
        """Statements that set up the struct `place`, with the address of the weights."""
        count = len(self._weights())
        lines = [f"place_weights({place}.tensors, {weights}, weights_{self._number}, {count});"] if count else []
        inside = [branch.begin(f"{place}.{branch.field}", weights) for branch in self._branches]
        return [*lines, *[line for each in inside for line in each]]

    def end(self, place: str) -> list[str]:
        """Statements that free the memory of the struct `place`."""
        inside = [branch.end(f"{place}.{branch.field}") for branch in self._branches]
        return [*[f"release(&{place}.{name});" for name in self._memories], *[line for each in inside for line in each]]

    def _weights(self) -> list[tuple[int, int]]:
        tensors = enumerate(self._graph.tensors)
        return [(i, self._offsets[str(t.place)]) for i, t in tensors if t.storage == "param"]

    def weight_table(self) -> Iterator[str]:
        """The constant table of where the weights lie."""
        if rows := self._weights():
            yield f"static const struct placed_weight weights_{self._number}[] = {{"
            yield from indented(wrapped([f"{{{tensor}, {offset}}}" for tensor, offset in rows]))
            yield "};"

    # -- sizes and memory

    def _size(self, size: Size) -> str:
        return size_code(size, self._names)

    def _dims(self, tensor: GraphTensor) -> str:
        """The shape of a tensor as an array."""
        return shape_code(tensor.shape, self._names)

    def _inputs(self) -> list[GraphTensor]:
        return [self._graph.tensors[index] for index in self._graph.inputs]

    def _place_buffers(self, indices: Iterable[int]) -> Iterator[str]:
        """Place outputs, tensors with memory of their own, and those that alias them, at the numbers `indices`."""
        tensors, aliases = self._graph.tensors, list[str]()
        for index in indices:
            owner = owner_of(self._graph, tensors[index])
            if owner != index:
                aliases.append(f"  g->tensors[{index}] = g->tensors[{owner}];")
            elif tensors[index].storage == "output":
                yield from self._place_output(index)
            else:
                yield from self._place_own(index)
        yield from aliases

    def _place_own(self, index: int) -> Iterator[str]:
        """Statements that give a tensor memory of its own."""
        self._memories.append(f"own_{index}")
        tensor = self._graph.tensors[index]
        yield f"  {{ size_t nbytes; TRY({byte_count(tensor.shape, tensor.dtype, self._names, 'nbytes')});"
        yield f"    TRY(reserve(&g->own_{index}, nbytes)); g->tensors[{index}] = g->own_{index}.start; }}"

    def _entry(self, name: str | None, parameters: str, what: str) -> str:
        """The name of a compiled function, declared."""
        if name is None:
            raise ModuleError(f"model {self._graph.name!r}: {what} has no compiled function; compile the model again")
        self._declared[name] = f"struct call_context *, {parameters}"
        return name

    # -- graphs with size variables

    def _dynamic(self) -> list[str]:
        """The functions that place the tensors and that run the graph, step by step."""
        stages, places, lines = stages_of(self._graph), list[str](), self._begin_run()

        def place(number: int) -> None:
            stage = stages.get(number)
            if stage is not None and (stage.tensors or stage.buffers):
                name = f"place_{self._number}_{len(self._memories)}"
                places.extend(self._place(name, stage))
                lines.append(f"  TRY({name}({self.arguments}));")

        place(FROM_INPUTS)
        for position, step in enumerate(self._graph.steps):
            if isinstance(step, RunNodes):
                place(position)
            lines += self._step(step)
        place(len(self._graph.steps))
        loops = [line for loop in self._loops for line in loop.functions(self._names)]
        branches = [line for branch in self._branches for line in branch.functions]
        return [*places, *loops, *branches, *lines, *self._end_run()]

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
        elif isinstance(step, LoopStep):
            yield from self._turns(step) if step.entry is None else self._loop(step, step.entry)
        elif isinstance(step, IfStep):
            yield from self._branch(step)
        else:
            raise ModuleError(f"model {self._graph.name!r}: {step.source} is {_kind(step)}, which {_ADVICE}")

    def _loop(self, step: LoopStep, entry: str) -> Iterator[str]:
        bound = {name: self._names[name] for name in self._graph.sizes if name in self._bound}
        name = f"loop_{self._number}_{len(self._loops)}"
        loop = LoopSource(step, self._graph, name, self.struct_name, bound, self._offsets)
        self._loops.append(loop)
        self._declared[entry] = "struct call_context *, int64_t *"
        self._fields += loop.fields()
        self._memories += loop.memories()
        yield f"  TRY({loop.name}(run, g));"
        yield from self._show(step)

    def _turns(self, step: LoopStep) -> Iterator[str]:
        """Run a loop without a compiled function, one iteration after another."""
        body = LoopBodySource(step, self)
        self._add(body)
        yield f"  TRY({body.loop_name}(run, g, &g->{body.field}));"
        yield from indented(self._take(step, body.results(), set(self._bound)))
        yield from self._show(step)

    def _branch(self, step: IfStep) -> Iterator[str]:
        """Run the graph that a condition selects."""
        bound = set(self._bound)
        for which, (graph, passed) in enumerate(zip(step.graphs, step.inputs, strict=True)):
            branch = BranchSource(graph, self, passed)
            self._add(branch)
            yield "  } else {" if which else f"  if (*(const uint8_t *)g->tensors[{step.condition}]) {{"
            yield f"    TRY(run_{branch._number}(run, g, &g->{branch.field}));"
            yield from indented(self._take(step, branch.results(), set(bound)), 2)
        yield "  }"
        yield from self._show(step)

    def _add(self, inside: BranchSource) -> None:
        self._branches.append(inside)
        self._fields.append(f"{inside.struct_name} {inside.field};")

    def _take(self, step: IfStep | LoopStep, results: Iterable[_Passed], known: set[str]) -> Iterator[str]:
        """Set the addresses of a step's outputs, and bind and compare their sizes; `known` are bound before."""
        for output, (address, shape) in zip(step.outputs, results, strict=True):
            yield f"g->tensors[{output}] = {address};"
            check_rank(self._graph, output, len(shape), step.source)
            dims = self._graph.tensors[output].shape
            binds, compares = matched(dims, shape, self._names, known, step.source)
            yield from [*binds, *compares]

    def _show(self, step: IfStep | LoopStep) -> Iterator[str]:
        """Set the addresses of what aliases the results of a step, whose sizes are bound now."""
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

    def _place(self, name: str, stage: Stage) -> Iterator[str]:
        """The function that places the tensors of a stage, and those that alias its slots under later shapes."""
        memory = f"arena_{len(self._memories)}"
        self._memories.append(memory)
        lines = [
            f"static int {name}({self.parameters}) {{",
            "  int64_t *const s = g->sizes;",
            f"  {', '.join([f'(void){word}' for word in (*self.arguments.split(', '), 's')])};",
        ]
        if stage.tensors:
            lines += ["  size_t nbytes;", *indented(slot_lines(stage, self._names))]
            lines.append(f"  TRY(lay_out(&g->{memory}, slots, COUNT(slots), g->tensors, placed, COUNT(placed)));")
        yield from [*lines, *self._place_buffers(stage.buffers), "  return MODEL_OK;", "}"]


_Passed = tuple[str, list[str]]
"""The address of a tensor and its shape, in C."""


class BranchSource(PlanSource):
    """The code for a graph that a step in the graph of `outer` runs, whose tensors `passed` are its inputs."""

    arguments = "run, outer, g"

    def __init__(self, graph: Graph, outer: PlanSource, passed: Sequence[int]) -> None:
        super().__init__(graph, f"{outer._number}_{len(outer._branches)}", outer._offsets)
        self._outer, self._passed = outer, passed
        self._around = {name: f"outer->sizes[{i}]" for i, name in enumerate(outer._graph.sizes) if name in outer._bound}
        """sizes of the graph around"""
        self.field = f"branch_{self._number}"
        self.functions = [*self.weight_table(), *self._dynamic()]

    @property
    def parameters(self) -> str:
        return f"struct run *run, const {self._outer.struct_name} *outer, {self.struct_name} *g"

    def results(self) -> Iterator[_Passed]:
        """The outputs, for the graph around."""
        names = {name: f"g->{self.field}.sizes[{i}]" for i, name in enumerate(self._graph.sizes)}
        for index in self._graph.outputs:
            shape = [size_code(d, names) for d in self._graph.tensors[index].shape]
            yield f"g->{self.field}.tensors[{index}]", shape

    def _argument(self, position: int) -> _Passed:
        """The input at a position, as it is passed."""
        passed = self._passed[position]
        shape = [size_code(d, self._around) for d in self._outer._graph.tensors[passed].shape]
        return f"outer->tensors[{passed}]", shape

    def _begin_run(self) -> list[str]:
        lines = [f"static int run_{self._number}({self.parameters}) {{", "  int64_t *const s = g->sizes;"]
        lines += ["  (void)run, (void)outer;", "  memset(s, 0, sizeof g->sizes);"]
        self._bound = {name for name in self._graph.sizes if name in self._around}
        lines += [f"  {self._names[name]} = {self._around[name]};" for name in self._graph.sizes if name in self._bound]
        compared: list[str] = []
        for position, tensor in enumerate(self._inputs()):
            _, shape = self._argument(position)
            if len(shape) != len(tensor.shape):
                raise ModuleError(f"model {self._graph.name!r}: a graph inside takes {tensor.name!r} of another rank")
            binds, compares = matched(tensor.shape, shape, self._names, self._bound, tensor.name, self._around)
            lines += indented(binds)
            compared += indented(compares)
        for index, tensor in enumerate(self._graph.tensors):
            if tensor.storage == "input":
                compared.append(f"  g->tensors[{index}] = {self._argument(int(tensor.place))[0]};")
        return [*lines, *compared]

    def _end_run(self) -> Iterator[str]:
        yield "  return MODEL_OK;"
        yield "}"

    def _place_output(self, index: int) -> Iterator[str]:
        return self._place_own(index)


class LoopBodySource(BranchSource):
    """The code for the body of a loop without a compiled function, and the function `loop_name` that repeats it.

    Carried values lie in the struct of the body, from which an iteration reads them. Its results are copied there.
    """

    def __init__(self, step: LoopStep, outer: PlanSource) -> None:
        self._loop_step, graph = step, step.graph
        self._carried, self._stacked = range(len(step.carried)), range(len(step.carried), len(step.outputs))
        super().__init__(graph, outer, (step.trips, step.condition, *step.carried, *step.outside))
        self.loop_name = f"loop_{self._number}"
        self._fields += ["int64_t iteration;", "uint8_t goes_on;", f"struct state states[{len(step.carried) + 1}];"]
        self._fields += [f"int64_t shape_{k}[{self._rank(k) + 1}];" for k in range(len(step.outputs))]
        self._memories += [f"stack_{k}" for k in self._stacked]
        self.functions += self._loop_function()

    def _rank(self, k: int) -> int:
        """The rank of the result `k` of an iteration, those that are stacked included."""
        return len(self._graph.tensors[self._graph.outputs[1 + k]].shape)

    def end(self, place: str) -> list[str]:
        states = [f"{place}.states[{k}].{memory}" for k in self._carried for memory in ("held", "spare")]
        return [*super().end(place), *[f"release(&{state});" for state in states]]

    def results(self) -> Iterator[_Passed]:
        place = f"g->{self.field}"
        for k in self._carried:
            yield f"{place}.states[{k}].address", [f"{place}.shape_{k}[{i}]" for i in range(self._rank(k))]
        for k in self._stacked:
            shape = [f"{place}.iteration", *[f"{place}.shape_{k}[{i}]" for i in range(self._rank(k))]]
            yield f"{place}.stack_{k}.start", shape

    def _argument(self, position: int) -> _Passed:
        if position < 2:
            return f"&g->{('iteration', 'goes_on')[position]}", []
        k = position - 2
        if k not in self._carried:
            return super()._argument(position)
        return f"g->states[{k}].address", [f"g->shape_{k}[{i}]" for i in range(self._rank(k))]

    def _loop_function(self) -> Iterator[str]:
        step, source, outputs = self._loop_step, quoted(self._loop_step.source), self._graph.outputs
        shapes = [self._graph.tensors[index] for index in outputs[1:]]
        yield f"static int {self.loop_name}({self.parameters}) {{"
        yield "  int64_t *const s = g->sizes;"
        yield f"  const int64_t trips = *(const int64_t *)outer->tensors[{step.trips}];"
        yield f"  int goes_on = *(const uint8_t *)outer->tensors[{step.condition}];"
        yield "  size_t nbytes;"
        yield "  (void)s, (void)nbytes;"
        yield "  g->goes_on = 1;"
        yield from indented(self._begin_loop())
        yield "  for (g->iteration = 0; goes_on && g->iteration < trips; ++g->iteration) {"
        yield f"    TRY(run_{self._number}({self.arguments}));"
        yield f"    goes_on = *(const uint8_t *)g->tensors[{outputs[0]}];"
        for k, tensor in enumerate(shapes):
            result, of = f"g->tensors[{outputs[1 + k]}]", self._dims(tensor)
            yield f"    TRY({byte_count(tensor.shape, tensor.dtype, self._names, 'nbytes')});"
            if k in self._carried:
                yield f"    TRY(carry(&g->states[{k}], {result}, nbytes));"
            else:
                yield f"    if (g->iteration) TRY(check_stacked(g->shape_{k}, {of}, {self._rank(k)}, {source}));"
                yield f"    stack_{k}.nbytes = nbytes;"
                yield f"    TRY(push(&stack_{k}, {result}, g->iteration, trips));"
            yield f"    memcpy(g->shape_{k}, {of}, sizeof(int64_t) * {self._rank(k)});"
        yield "  }"
        yield "  return MODEL_OK;"
        yield "}"

    def _begin_loop(self) -> Iterator[str]:
        """Statements that set the carried values and the stacks as they are before the first iteration."""
        outer = self._outer._graph
        names = {name: f"outer->sizes[{i}]" for i, name in enumerate(outer.sizes)}
        for k, begin in enumerate(self._loop_step.carried):
            check_rank(self._graph, self._graph.outputs[1 + k], len(outer.tensors[begin].shape), self._loop_step.source)
            yield f"g->states[{k}].address = outer->tensors[{begin}];"
            yield from [f"g->shape_{k}[{i}] = {size_code(d, names)};" for i, d in enumerate(outer.tensors[begin].shape)]
        for k in self._stacked:
            dims = outer.tensors[self._loop_step.outputs[k]].shape[1:]  # 0 for those not bound yet
            yield from [f"g->shape_{k}[{i}] = {size_code(d, names)};" for i, d in enumerate(dims)]
            yield f"int64_t end_{k} = 0;"
            yield f"struct stack stack_{k} = {{&g->stack_{k}, 0, &end_{k}, 0}};"
            yield f"TRY(reserve(&g->stack_{k}, 0));"


_ADVICE = "only the executor in Python can run; run the model by relayc.runtime, or change it"


def _kind(step: SequenceStep | HostStep) -> str:
    """What a step is, for errors."""
    if isinstance(step, HostStep):
        return f"the host operation {step.action!r}"
    return f"the sequence operation {step.action!r}"
