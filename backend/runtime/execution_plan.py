"""The execution plan of a graph with dynamic (symbolic) shapes: a list of instructions.

    instruction = run kernels | bind a size variable | check that two sizes are equal | if | loop
                | one sequence operation | one string operation

A graph of static shapes has no instructions: its kernels run in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from relayc.backend.runtime.fields import Record, damaged
from relayc.backend.runtime.host_actions import HOST_ACTIONS
from relayc.backend.runtime.sizes import Size, SizeReader, SizeWriter

__all__ = [
    "SEQUENCE_ACTIONS",
    "Bind",
    "Check",
    "HostStep",
    "IfStep",
    "LoopStep",
    "RunNodes",
    "SequenceStep",
    "Step",
    "read_steps",
    "results_of",
    "step_to_json",
]


class RunNodes(NamedTuple):
    """Run the kernels `first` ... `last` - 1; `entry` names the compiled function for all of them, if there is one."""

    first: int
    last: int
    entry: str | None


class Bind(NamedTuple):
    """Bind the size variable `name` to element `element` of the integer tensor `tensor`, computed by `source`."""

    name: str
    tensor: int
    element: int
    source: str


class Check(NamedTuple):
    """Check that two sizes are equal, as the node `source` of the user's model requires."""

    left: Size
    right: Size
    source: str


class IfStep(NamedTuple):
    """Run the one of two `graphs` that the bool tensor `condition` selects on its `inputs`, for `outputs`."""

    condition: int
    graphs: tuple[Any, Any]
    inputs: tuple[tuple[int, ...], tuple[int, ...]]
    outputs: tuple[int, ...]
    source: str


class LoopStep(NamedTuple):
    """Run `graph` at most `trips` times while the condition, initially `condition`, then its first output, is true.

    Its inputs are the iteration number, the condition, the loop-carried tensors, initially `carried`, and the captured
    tensors `outside`; its outputs after the carried ones are stacked. `entry` names the compiled function of the loop,
    if there is one (`backend.runtime.frames`), and `growing` the size variables whose values its iterations change.
    `turns` names that of a loop whose iterations bind sizes (`backend.runtime.plan_frame`).
    """

    trips: int
    condition: int
    carried: tuple[int, ...]
    outside: tuple[int, ...]
    graph: Any
    outputs: tuple[int, ...]
    source: str
    entry: str | None = None
    growing: tuple[str, ...] = ()
    turns: str | None = None


class SequenceStep(NamedTuple):
    """Apply `action`, one of `SEQUENCE_ACTIONS`, to the sequences and tensors `inputs`; `output` is its result.

    `axis` is the axis of concatenation or splitting; with `new_axis` the elements lack it (stacking).
    """

    action: str
    inputs: tuple[int, ...]
    output: int
    axis: int
    new_axis: bool
    source: str


class HostStep(NamedTuple):
    """Apply `action`, one of `HOST_ACTIONS`, with its `settings` to the tensors `inputs`; `outputs` are its results.

    Strings are passed as positions in the executor's string table.
    """

    action: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    settings: Mapping[str, Any]
    source: str


SEQUENCE_ACTIONS: dict[str, tuple[int, str | None, str]] = {
    "make": (0, None, "l"),
    "insert": (2, "ltt", "l"),
    "erase": (1, "lt", "l"),
    "item": (2, "lt", "t"),
    "get": (1, "l", "*"),
    "length": (1, "l", "t"),
    "join": (1, "l", "t"),
    "cut": (1, "tt", "l"),
}
"""Action -> (minimum inputs, maximum signature, output): "t" tensor, "l" sequence, "*" either; None: any number."""

_MAX_AXES = 64

Step = RunNodes | Bind | Check | IfStep | LoopStep | SequenceStep | HostStep
ReadGraph = Callable[[object, str], Any]


def results_of(step: Step) -> tuple[int, ...]:
    """The tensors that hold an instruction's results; none for kernels, which write to storage of the graph."""
    if isinstance(step, SequenceStep):
        return (step.output,)
    return step.outputs if isinstance(step, IfStep | LoopStep | HostStep) else ()


def step_to_json(step: Step, sizes: SizeWriter) -> dict[str, Any]:
    """Serialize an instruction as JSON values."""
    if isinstance(step, RunNodes):
        return {"step": "run", "first": step.first, "last": step.last, "entry": step.entry}
    if isinstance(step, Bind):
        return {"step": "bind", "name": step.name, "tensor": step.tensor, "element": step.element,
                "source": step.source}  # fmt: skip
    if isinstance(step, IfStep):
        return {"step": "if", "condition": step.condition, "graphs": [g.to_json() for g in step.graphs],
                "inputs": [list(i) for i in step.inputs], "outputs": list(step.outputs),
                "source": step.source}  # fmt: skip
    if isinstance(step, LoopStep):
        return {"step": "loop", "trips": step.trips, "condition": step.condition, "carried": list(step.carried),
                "outside": list(step.outside), "graph": step.graph.to_json(), "outputs": list(step.outputs),
                "source": step.source, "entry": step.entry, "growing": list(step.growing),
                **({} if step.turns is None else {"turns": step.turns})}  # fmt: skip
    if isinstance(step, SequenceStep):
        return {"step": "list", "action": step.action, "inputs": list(step.inputs), "output": step.output,
                "axis": step.axis, "new_axis": step.new_axis, "source": step.source}  # fmt: skip
    if isinstance(step, HostStep):
        settings = {name: list(v) if isinstance(v, tuple) else v for name, v in step.settings.items()}
        return {"step": "text", "action": step.action, "inputs": list(step.inputs), "outputs": list(step.outputs),
                "settings": settings, "source": step.source}  # fmt: skip
    return {"step": "check", "left": sizes.size(step.left), "right": sizes.size(step.right), "source": step.source}


def read_steps(
    records: Sequence[Record], sizes: SizeReader, nodes: int, tensors: int, read_graph: ReadGraph
) -> tuple[Step, ...]:
    """Deserialize instructions. Raises `ArtifactError` naming the first invalid field."""
    return tuple([_step(record, sizes, nodes, tensors, read_graph) for record in records])


def _step(record: Record, sizes: SizeReader, nodes: int, tensors: int, read_graph: ReadGraph) -> Step:
    kind = record.get("step", str)
    if kind in ("if", "loop"):
        return _control(record, kind, tensors - 1, read_graph)
    if kind == "list":
        return _list(record, tensors - 1)
    if kind == "text":
        return _host(record, tensors - 1)
    if kind == "run":
        record.only("step", "first", "last", "entry")
        first = record.number("first", 0, nodes)
        entry = None if record.value.get("entry") is None else record.get("entry", str)
        return RunNodes(first, record.number("last", first, nodes), entry)
    if kind == "bind":
        record.only("step", "name", "tensor", "element", "source")
        name = record.get("name", str)
        if name not in sizes.names:
            raise damaged(f"{record.where}.name", name, f"one of the size variables {list(sizes.names)}")
        tensor = record.number("tensor", 0, tensors - 1)
        return Bind(name, tensor, record.number("element"), record.get("source", str))
    if kind == "check":
        record.only("step", "left", "right", "source")
        left, right = (sizes.size(record.value.get(side), f"{record.where}.{side}") for side in ("left", "right"))
        return Check(left, right, record.get("source", str))
    raise damaged(f"{record.where}.step", kind, '"run", "bind", "check", "if", "loop", "list" or "text"')


def _list(record: Record, last: int) -> SequenceStep:
    record.only("step", "action", "inputs", "output", "axis", "new_axis", "source")
    action = record.get("action", str)
    if action not in SEQUENCE_ACTIONS:
        raise damaged(f"{record.where}.action", action, f"one of {', '.join(SEQUENCE_ACTIONS)}")
    inputs, output = record.numbers("inputs", 0, last), record.number("output", 0, last)
    axis = record.number("axis", 0, _MAX_AXES)
    return SequenceStep(action, inputs, output, axis, record.get("new_axis", bool), record.get("source", str))


def _host(record: Record, last: int) -> HostStep:
    record.only("step", "action", "inputs", "outputs", "settings", "source")
    name = record.get("action", str)
    if name not in HOST_ACTIONS:
        raise damaged(f"{record.where}.action", name, f"one of {', '.join(HOST_ACTIONS)}")
    action, passed = HOST_ACTIONS[name], record.record("settings")
    inputs, outputs = record.numbers("inputs", 0, last), record.numbers("outputs", 0, last)
    if (len(inputs), len(outputs)) != (len(action.takes), len(action.returns)):
        found, expected = f"{len(inputs)} to {len(outputs)} tensors", f"{len(action.takes)} to {len(action.returns)}"
        raise damaged(f"{record.where}.inputs", found, expected)
    passed.only(*action.settings)
    settings = {key: passed.strings(key) if kind is tuple else passed.get(key, kind)
                for key, kind in action.settings.items()}  # fmt: skip
    try:
        action.prepare(settings)
    except (KeyError, ValueError) as error:
        raise damaged(passed.where, str(error), f"settings of the action {name!r}") from error
    return HostStep(name, inputs, outputs, settings, record.get("source", str))


def _control(record: Record, kind: str, last: int, read_graph: ReadGraph) -> Step:
    condition, outputs = record.number("condition", 0, last), record.numbers("outputs", 0, last)
    source = record.get("source", str)
    if kind == "if":
        record.only("step", "condition", "graphs", "inputs", "outputs", "source")
        graphs, inputs = record.get("graphs", list), record.get("inputs", list)
        if len(graphs) != 2 or len(inputs) != 2:
            raise damaged(f"{record.where}.graphs", len(graphs), "two graphs with inputs")
        taken = [Record({"inputs": part}, record.where).numbers("inputs", 0, last) for part in inputs]
        branches = [read_graph(g, f"{record.where}.graphs[{i}]") for i, g in enumerate(graphs)]
        for branch, part in zip(branches, taken, strict=True):
            _check_counts(record, branch, len(part), len(outputs))
        return IfStep(condition, (branches[0], branches[1]), (taken[0], taken[1]), outputs, source)
    record.only(
        "step", "trips", "condition", "carried", "outside", "graph", "outputs", "source", "entry", "growing", "turns"
    )
    carried, outside = record.numbers("carried", 0, last), record.numbers("outside", 0, last)
    graph = read_graph(record.value.get("graph"), f"{record.where}.graph")
    _check_counts(record, graph, 2 + len(carried) + len(outside), 1 + len(outputs))
    entry = None if record.value.get("entry") is None else record.get("entry", str)
    if entry is not None and not _can_be_compiled(graph):
        raise damaged(f"{record.where}.entry", entry, "no compiled function of a loop that the executor has to run")
    growing = record.strings("growing") if "growing" in record.value else ()
    if not set(growing) <= set(graph.sizes):
        raise damaged(f"{record.where}.growing", list(growing), f"some of the sizes {list(graph.sizes)}")
    trips = record.number("trips", 0, last)
    turns = None if record.value.get("turns") is None else record.get("turns", str)
    return LoopStep(trips, condition, carried, outside, graph, outputs, source, entry, growing, turns)


def _can_be_compiled(graph: Any) -> bool:
    """Does a body consist of kernels with entries, checks, branches and loops?"""
    for step in graph.steps:
        if isinstance(step, Bind | SequenceStep | HostStep) or (isinstance(step, RunNodes) and step.entry is None):
            return False
    return all(_can_be_compiled(inside) for inside, _ in graph.bodies())


def _check_counts(record: Record, graph: Any, inputs: int, outputs: int) -> None:
    if len(graph.inputs) != inputs or len(graph.outputs) != outputs:
        found = f"a graph of {len(graph.inputs)} inputs and {len(graph.outputs)} outputs"
        raise damaged(f"{record.where}.graph", found, f"{inputs} inputs and {outputs} outputs")
