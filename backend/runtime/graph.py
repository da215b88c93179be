"""The graph of a compiled model: tensors with their storage, and kernel calls in execution order.

String tensors are int64 tensors of positions in a string table; `strings` has the graph's string constants and the
inputs and outputs that are strings to users of the model.

Storage of a tensor is one of `["input", i]` (the i-th graph input), `["output", i]` (the buffer of the i-th output),
`["param", name]` (a weight), `["arena", byte_offset]` (the executor's block of intermediate memory). An output that
aliases an input, a weight or another output is copied when it is fetched. A tensor with `strides` (in elements) is a
strided view of a larger one in the arena.

A graph with `sizes` has dynamic shapes. Its intermediate tensors are stored in `["slot", k]`: slot k is as large as the
largest tensor in it, and the slots are laid out once the sizes are known. Its `steps` are the execution plan: when
kernels run and when size variables are bound. Results of instructions are stored in `["value", i]`, i the tensor's own
number, and arrays that a sequence may reference in `["own", i]`, a fresh buffer in every run. Its `caches` are KV
caches: inputs that the executor keeps between runs, with spare capacity, updated in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from relayc.backend.runtime.dtype import data_type, nbytes as nbytes_of
from relayc.backend.runtime.errors import ArgumentError, ArtifactError
from relayc.backend.runtime.execution_plan import (
    SEQUENCE_ACTIONS,
    Bind,
    Check,
    IfStep,
    LoopStep,
    RunNodes,
    SequenceStep,
    Step,
    read_steps,
    results_of,
    step_to_json,
)
from relayc.backend.runtime.fields import Record, damaged
from relayc.backend.runtime.metadata import ModelMetadata
from relayc.backend.runtime.sizes import Size, SizeReader, SizeWriter, extent, is_static, size_text, variables

__all__ = ["GRAPH_VERSION", "Graph", "GraphKVCache", "GraphNode", "GraphTensor"]

GRAPH_VERSION = 1
_MAX_BYTES = 1 << 48
_STORAGE = ("input", "output", "param", "arena", "slot", "value", "own")


class GraphTensor(NamedTuple):
    """A tensor; `place` is a byte offset (arena), a position (input, output) or a weight's name (param) by `storage`.

    With `is_sequence` it is a sequence of tensors (`backend.runtime.sequences`) of this element type, its shape ().
    """

    name: str
    shape: tuple[Size, ...]
    dtype: str
    storage: str
    place: int | str
    strides: tuple[int, ...] | None = None
    is_sequence: bool = False

    @property
    def is_static(self) -> bool:
        """Is the shape static?"""
        return is_static(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape of a tensor with static dimensions."""
        assert self.is_static, f"{self.name} has the shape {self.shape_text}"
        return self.shape  # type: ignore[return-value]

    @property
    def shape_text(self) -> str:
        """The shape as text, for users."""
        inner = ", ".join(map(size_text, self.shape))
        return f"({inner},)" if len(self.shape) == 1 else f"({inner})"

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.dtype, math.prod(self.static_shape))

    @property
    def span_bytes(self) -> int:
        """Bytes from the first element to past the last one, gaps of strided views included."""
        if self.strides is None or not self.nbytes:
            return self.nbytes
        last = sum((d - 1) * stride for d, stride in zip(self.static_shape, self.strides, strict=True))
        return nbytes_of(self.dtype, last + 1)


class GraphNode(NamedTuple):
    """One kernel call: function `func` of the module on the input, output and scratch tensors, in that order.

    `ops` and `sources` name the operators and the nodes of the imported model that it computes; `flops` and `bytes`
    are its operation count and memory traffic, `multiplied` is the element type of the products among the operations
    ("": there are none). `sizes` are further arguments of the function.
    """

    name: str
    func: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scratch: tuple[int, ...]
    ops: tuple[str, ...]
    sources: tuple[str, ...]
    flops: Size
    bytes: Size
    sizes: tuple[Size, ...] = ()
    multiplied: str = ""


class GraphStrings(NamedTuple):
    """A graph's string constants by number, and the positions of its string inputs and outputs."""

    table: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class GraphKVCache(NamedTuple):
    """A KV cache: an input that the executor keeps, with capacity for rows along `axis`, `length` of them valid.

    `length` is a size variable that no input binds, `added` the number of rows that a run appends.
    """

    position: int
    axis: int
    length: str
    added: Size


@dataclass(frozen=True, slots=True)
class Graph:
    """The graph; `entry` names the compiled function that runs all nodes, None where nodes are called one by one."""

    name: str
    device: str
    target: str
    tensors: tuple[GraphTensor, ...]
    nodes: tuple[GraphNode, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arena_bytes: int
    entry: str | None
    sizes: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    variants: tuple[tuple[Mapping[str, int], Graph], ...] = ()
    """specialisations for certain sizes"""
    strings: GraphStrings | None = None
    maps: Mapping[int, tuple[str | int, ...]] = field(default_factory=dict[int, tuple[str | int, ...]])
    """output position -> keys, for matrices whose rows are maps from the keys to elements (ONNX: ZipMap)"""
    caches: tuple[GraphKVCache, ...] = ()
    metadata: ModelMetadata = field(default_factory=ModelMetadata)

    @property
    def is_dynamic(self) -> bool:
        """Does the graph have dynamic shapes, control flow or sequences?"""
        return bool(self.steps or self.sizes) or any(tensor.is_sequence for tensor in self.tensors)

    @property
    def input_sizes(self) -> frozenset[str]:
        """The size variables that the shapes of the inputs bind."""
        return frozenset([d for i in self.inputs for d in self.tensors[i].shape if isinstance(d, str)])

    def has_own_memory(self, position: int) -> bool:
        """Do kernels write this output to memory of its own? Others alias an input, a weight, a value or an output."""
        tensor = self.tensors[self.outputs[position]]
        return (tensor.storage, tensor.place) == ("output", position)

    @property
    def keeps_no_inputs(self) -> bool:
        """Are inputs read by kernels in a run and by nothing after it, so that their memory may be the caller's?"""
        graphs = (self, *[graph for _, graph in self.variants])
        return self.strings is None and all(map(_is_kernels, graphs))

    def bodies(self, nested: bool = True) -> Iterator[tuple[Graph, str]]:
        """The bodies of control flow, those in bodies included if `nested`, with their places in the user's model."""
        for step in self.steps:
            if not isinstance(step, IfStep | LoopStep):
                continue
            for graph in step.graphs if isinstance(step, IfStep) else (step.graph,):
                yield graph, step.source
                if nested:
                    yield from graph.bodies()

    def parts(self) -> list[Graph]:
        """The graph and the bodies of its control flow."""
        return [self, *[body for body, _ in self.bodies()]]

    def to_json(self) -> dict[str, Any]:
        """Serialize as JSON values, for `from_json`."""
        dynamic: dict[str, Any] = {}
        sizes = SizeWriter()
        if self.is_dynamic:
            dynamic = {"sizes": list(self.sizes), "steps": [step_to_json(s, sizes) for s in self.steps]}
        if self.caches:
            dynamic["caches"] = [
                {"input": c.position, "axis": c.axis, "length": c.length, "added": sizes.size(c.added)}
                for c in self.caches
            ]
        if self.variants:
            dynamic["variants"] = [{"sizes": dict(known), "graph": graph.to_json()} for known, graph in self.variants]
        record = {
            "version": GRAPH_VERSION,
            "name": self.name,
            "device": self.device,
            "target": self.target,
            "tensors": [
                {
                    "name": t.name,
                    "shape": sizes.shape(t.shape),
                    "dtype": t.dtype,
                    "storage": [t.storage, t.place],
                    **({} if t.strides is None else {"strides": list(t.strides)}),
                    **({"is_list": True} if t.is_sequence else {}),
                }
                for t in self.tensors
            ],
            "nodes": [
                {
                    "name": n.name,
                    "func": n.func,
                    "inputs": list(n.inputs),
                    "outputs": list(n.outputs),
                    "scratch": list(n.scratch),
                    "ops": list(n.ops),
                    "sources": list(n.sources),
                    "flops": sizes.size(n.flops),
                    "bytes": sizes.size(n.bytes),
                    **({"sizes": sizes.shape(n.sizes)} if n.sizes else {}),
                    **({"multiplied": n.multiplied} if n.multiplied else {}),
                }
                for n in self.nodes
            ],
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "arena_bytes": self.arena_bytes,
            "entry": self.entry,
            **dynamic,
            **({} if self.strings is None else {"texts": self._strings_json(self.strings)}),
            **({"maps": [[position, list(keys)] for position, keys in self.maps.items()]} if self.maps else {}),
            **({"metadata": self.metadata.to_json()} if self.metadata != ModelMetadata() else {}),
        }
        return {**record, **({"formulas": sizes.formulas} if sizes.formulas else {})}

    @staticmethod
    def _strings_json(strings: GraphStrings) -> dict[str, Any]:
        return {"table": list(strings.table), "inputs": list(strings.inputs), "outputs": list(strings.outputs)}

    @staticmethod
    def from_json(value: object, where: str = "graph") -> Graph:
        """Deserialize a graph. Raises `ArtifactError` naming the first invalid field."""
        graph = Graph._read(value, where)
        _check_sizes(graph, frozenset(), where)
        return graph

    @staticmethod
    def _read(value: object, where: str) -> Graph:
        """A graph, or a body of control flow, whose sizes may be those of the graph around it."""
        record = Record(value, where)
        record.only(
            "version", "name", "device", "target", "tensors", "nodes", "inputs", "outputs", "arena_bytes", "entry",
            "sizes", "formulas", "steps", "variants", "texts", "maps", "caches", "metadata",
        )  # fmt: skip
        version = record.number("version")
        if version != GRAPH_VERSION:
            raise ArtifactError(
                f"{where} has version {version}; this runtime reads version {GRAPH_VERSION}. "
                "Compile the model again, or install the relayc that wrote it"
            )
        arena_bytes = record.number("arena_bytes", 0, _MAX_BYTES)
        sizes = record.strings("sizes") if "sizes" in record.value else ()
        formulas = record.get("formulas", list) if "formulas" in record.value else []
        reader = SizeReader(sizes, formulas, f"{where}.formulas")
        tensors = tuple(_tensor(item, arena_bytes, reader) for item in record.records("tensors"))
        last = len(tensors) - 1
        nodes = tuple(_node(item, last, reader) for item in record.records("nodes"))
        steps = record.records("steps") if "steps" in record.value else []
        caches = record.records("caches") if "caches" in record.value else []
        graph = Graph(
            name=record.get("name", str),
            device=record.get("device", str),
            target=record.get("target", str),
            tensors=tensors,
            nodes=nodes,
            inputs=record.numbers("inputs", 0, last),
            outputs=record.numbers("outputs", 0, last),
            arena_bytes=arena_bytes,
            entry=None if record.value.get("entry") is None else record.get("entry", str),
            sizes=sizes,
            steps=read_steps(steps, reader, len(nodes), len(tensors), Graph._read),
            caches=tuple(_cache(item, reader) for item in caches),
        )
        _check_caches(graph, where)
        _check_places(graph, where)
        _check_sequences(graph, where)
        graph = replace(graph, strings=_strings(graph, record), maps=_maps(graph, record))
        if "metadata" in record.value:
            graph = replace(graph, metadata=ModelMetadata.from_json(record.record("metadata")))
        variants = record.records("variants") if "variants" in record.value else []
        return replace(graph, variants=tuple([_variant(graph, item) for item in variants]))


def _is_kernels(graph: Graph) -> bool:
    """Does compiled code run the whole graph, and is no output an input?"""
    kernels = all(isinstance(step, RunNodes | Bind | Check) for step in graph.steps)
    is_read = any(graph.tensors[index].storage == "input" for index in graph.outputs)
    return graph.entry is not None and kernels and not is_read and not any(t.is_sequence for t in graph.tensors)


def _strings(graph: Graph, record: Record) -> GraphStrings | None:
    if "texts" not in record.value:
        return None
    passed = record.record("texts")
    passed.only("table", "inputs", "outputs")
    table = passed.strings("table")
    if not table or table[0] or len(set(table)) != len(table):
        raise damaged(f"{passed.where}.table", table, "different strings, first the empty one")
    inputs = passed.numbers("inputs", 0, len(graph.inputs) - 1)
    outputs = passed.numbers("outputs", 0, len(graph.outputs) - 1)
    for numbers, places, name in ((graph.inputs, inputs, "inputs"), (graph.outputs, outputs, "outputs")):
        for position in places:
            if graph.tensors[numbers[position]].dtype != "int64":
                raise damaged(f"{passed.where}.{name}", position, "positions of tensors of int64")
    return GraphStrings(table, inputs, outputs)


def _maps(graph: Graph, record: Record) -> dict[int, tuple[str | int, ...]]:
    maps: dict[int, tuple[str | int, ...]] = {}
    for item in record.get("maps", list) if "maps" in record.value else []:
        fits = isinstance(item, list) and len(item) == 2 and isinstance(item[1], list)
        if not fits or item[0] not in range(len(graph.outputs)) or not all(type(k) in (str, int) for k in item[1]):
            raise damaged(f"{record.where}.maps", item, "the position of an output and a list of keys")
        tensor, keys = graph.tensors[graph.outputs[item[0]]], tuple(item[1])
        if tensor.is_sequence or len(tensor.shape) != 2 or tensor.shape[1] != len(keys):
            raise damaged(f"{record.where}.maps", item, f"as many keys as {tensor.name!r} has columns")
        maps[item[0]] = keys
    return maps


def _variant(graph: Graph, record: Record) -> tuple[dict[str, int], Graph]:
    record.only("sizes", "graph")
    passed = record.record("sizes")
    sizes = {name: passed.number(name) for name in passed.value}
    variant = Graph.from_json(record.value.get("graph"), f"{record.where}.graph")
    names = [[g.tensors[i].name for i in g.inputs] for g in (graph, variant)]
    if not set(sizes) <= set(graph.sizes) or names[0] != names[1] or len(variant.outputs) != len(graph.outputs):
        raise damaged(record.where, sizes, f"the graph for certain of the sizes {list(graph.sizes)}")
    return sizes, variant


def _tensor(record: Record, arena_bytes: int, sizes: SizeReader) -> GraphTensor:
    record.only("name", "shape", "dtype", "storage", "strides", "is_list")
    shape = sizes.shape(record.get("shape", list), f"{record.where}.shape")
    dtype = record.get("dtype", str)
    try:
        data_type(dtype)
    except ArgumentError as error:
        raise damaged(f"{record.where}.dtype", dtype, "a dtype") from error
    pair = record.get("storage", list)
    if len(pair) != 2 or pair[0] not in _STORAGE or type(pair[1]) is not (str if pair[0] == "param" else int):
        raise damaged(
            f"{record.where}.storage", pair, '["input", i], ["output", i], ["param", name], ["arena", offset], '
            '["slot", k], ["value", i] or ["own", i]',
        )
    strides = record.numbers("strides", 0, _MAX_BYTES) if "strides" in record.value else None
    if strides is not None and (len(strides) != len(shape) or not is_static(shape) or pair[0] != "arena"):
        raise damaged(f"{record.where}.strides", list(strides), "one number for each dimension of a part of the arena")
    is_sequence = "is_list" in record.value and record.get("is_list", bool)
    if is_sequence and (shape or pair[0] not in ("input", "value")):
        raise damaged(record.where, pair, "a sequence without a shape, an input or the result of an instruction")
    tensor = GraphTensor(record.get("name", str), shape, dtype, pair[0], pair[1], strides, is_sequence)
    if not tensor.is_static:
        if tensor.storage in ("arena", "param"):
            raise damaged(f"{record.where}.storage", pair, "storage that may hold dynamic shapes")
        return tensor
    if nbytes_of(dtype, extent(tensor.static_shape)) > _MAX_BYTES:
        raise damaged(f"{record.where}.shape", list(shape), f"a tensor of at most {_MAX_BYTES} bytes")
    if tensor.storage == "arena" and not 0 <= int(tensor.place) <= arena_bytes - tensor.span_bytes:
        raise damaged(f"{record.where}.storage", pair, f"{tensor.span_bytes} bytes inside an arena of {arena_bytes}")
    return tensor


def _node(record: Record, last: int, sizes: SizeReader) -> GraphNode:
    record.only("name", "func", "inputs", "outputs", "scratch", "ops", "sources", "flops", "bytes", "sizes",
                "multiplied")  # fmt: skip
    taken = record.get("sizes", list) if "sizes" in record.value else []
    return GraphNode(
        name=record.get("name", str),
        func=record.get("func", str),
        inputs=record.numbers("inputs", 0, last),
        outputs=record.numbers("outputs", 0, last),
        scratch=record.numbers("scratch", 0, last),
        ops=record.strings("ops"),
        sources=record.strings("sources"),
        flops=sizes.size(record.value.get("flops"), f"{record.where}.flops"),
        bytes=sizes.size(record.value.get("bytes"), f"{record.where}.bytes"),
        sizes=sizes.shape(taken, f"{record.where}.sizes"),
        multiplied=record.get("multiplied", str) if "multiplied" in record.value else "",
    )


def _check_places(graph: Graph, where: str) -> None:
    """Check that graph inputs are input tensors in order, and that input and output positions exist."""
    for position, index in enumerate(graph.inputs):
        tensor = graph.tensors[index]
        if (tensor.storage, tensor.place) != ("input", position):
            raise damaged(f"{where}.inputs[{position}]", tensor.storage, f'a tensor stored as ["input", {position}]')
    names = [graph.tensors[index].name for index in graph.inputs]
    if len(set(names)) != len(names):
        raise damaged(f"{where}.inputs", names, "distinct names")
    is_dynamic, count = graph.is_dynamic, len(graph.tensors)
    kinds = ("input", "output", "param", *(("slot", "value", "own") if is_dynamic else ("arena",)))
    ranks = {"input": len(graph.inputs), "output": len(graph.outputs), "own": count, "value": count}
    for index, tensor in enumerate(graph.tensors):
        if tensor.storage not in kinds:
            raise damaged(f"{where}.tensors[{index}].storage", tensor.storage, f"among {', '.join(kinds)}")
        if not is_dynamic and not tensor.is_static:
            raise damaged(f"{where}.tensors[{index}].shape", tensor.shape_text, "integers in a graph without sizes")
        rank = ranks.get(tensor.storage)
        if rank is not None and not (isinstance(tensor.place, int) and 0 <= tensor.place < rank):
            raise damaged(f"{where}.tensors[{index}].storage", tensor.place, f"a position below {rank}")
        home = _home(graph, tensor)
        if home is None:
            continue
        if (home.storage, home.place) != (tensor.storage, tensor.place):
            raise damaged(
                f"{where}.tensors[{index}].storage", tensor.place, f"an {tensor.storage} that is stored there"
            )
        if home.is_static and tensor.is_static and home.nbytes != tensor.nbytes:
            raise damaged(f"{where}.tensors[{index}].shape", tensor.shape, f"the {home.nbytes} bytes of its storage")
    for index, node in enumerate(graph.nodes):
        for output in (*node.outputs, *node.scratch):
            kept = any(c.position == graph.tensors[output].place for c in graph.caches)
            if graph.tensors[output].storage == "param" or (graph.tensors[output].storage == "input" and not kept):
                raise damaged(f"{where}.nodes[{index}].outputs", output, "no write to an input or a weight")
        if any(graph.tensors[i].is_sequence for i in (*node.inputs, *node.outputs, *node.scratch)):
            raise damaged(f"{where}.nodes[{index}]", list(node.inputs), "tensors, no sequences")


def _check_sizes(graph: Graph, inherited: frozenset[str], where: str) -> None:
    """Check that inputs, caches, instructions or the graph around bind all size variables, and that values are
    results."""
    results = [index for step in graph.steps for index in results_of(step)]
    bound = {d for i in (*graph.inputs, *results) for d in graph.tensors[i].shape if isinstance(d, str)}
    bound |= {*inherited, *(cache.length for cache in graph.caches)}
    bound |= {step.name for step in graph.steps if isinstance(step, Bind)}
    for index, tensor in enumerate(graph.tensors):
        unbound = [name for dim in tensor.shape for name in variables(dim) if name not in bound]
        if unbound:
            raise damaged(f"{where}.tensors[{index}].shape", tensor.shape_text, f"bound sizes; {unbound[0]!r} is not")
        if tensor.storage == "value" and tensor.place not in results:
            raise damaged(f"{where}.tensors[{index}].storage", tensor.place, "the number of an instruction's result")
    for body, source in graph.bodies(nested=False):
        _check_sizes(body, frozenset(bound), f"{where}: body of {source}")


def _check_sequences(graph: Graph, where: str) -> None:
    """Check number and kinds of the operands of sequence operations."""
    for index, step in enumerate(graph.steps):
        if not isinstance(step, SequenceStep):
            continue
        least, most, result = SEQUENCE_ACTIONS[step.action]
        kinds = "".join("l" if graph.tensors[i].is_sequence else "t" for i in step.inputs)
        passed = "l" if graph.tensors[step.output].is_sequence else "t"
        fits = len(kinds) >= least and (most is None or most.startswith(kinds)) and result in ("*", passed)
        if not fits or graph.tensors[step.output].storage != "value":
            expected = f"{least} or more operands of kinds {most or 'l or t'} and a value of kind {result}"
            raise damaged(f"{where}.steps[{index}]", f"{step.action} of {kinds!r} giving {passed!r}", expected)


def _cache(record: Record, sizes: SizeReader) -> GraphKVCache:
    record.only("input", "axis", "length", "added")
    length, added = record.get("length", str), sizes.size(record.value.get("added"), record.where)
    if length not in sizes.names:
        raise damaged(f"{record.where}.length", length, f"a size variable among {list(sizes.names)}")
    return GraphKVCache(record.number("input", 0), record.number("axis", 0), length, added)


def _check_caches(graph: Graph, where: str) -> None:
    """Check that KV caches are inputs with one growing dimension, the others bound by other inputs."""
    for index, cache in enumerate(graph.caches):
        ok = cache.position < len(graph.inputs)
        tensor = graph.tensors[graph.inputs[cache.position]] if ok else None
        if tensor is None or tensor.is_sequence or cache.axis >= len(tensor.shape):
            raise damaged(f"{where}.caches[{index}]", cache.position, "an input and one of its dimensions")
        if not isinstance(tensor.shape[cache.axis], str):
            raise damaged(f"{where}.caches[{index}].axis", cache.axis, "a symbolic dimension")


def _home(graph: Graph, tensor: GraphTensor) -> GraphTensor | None:
    """The graph input or output whose memory `tensor` aliases; None for others."""
    if tensor.storage == "input":
        return graph.tensors[graph.inputs[int(tensor.place)]]
    if tensor.storage == "output":
        return graph.tensors[graph.outputs[int(tensor.place)]]
    if tensor.storage == "own":
        return graph.tensors[int(tensor.place)]
    return None
