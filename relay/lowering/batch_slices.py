"""Batch slicing: layers whose activations exceed the caches run one after the other for a slice of the batch.

A layer that maps each image of a batch independently may run for some of the images, then the next layers, and so on,
before the next images enter: the output of a layer is still in the last-level cache when the next layer reads it, and
the arena holds the intermediate tensors of a slice, not of the batch. On the other hand weights are read once for each
slice, each call has a cost, and many cores share the rows of few images less evenly; the cost model below weighs these
and chooses runs of layers and the number of images of a slice.

The kernels of a slice are those of a smaller batch. Tensors that enter or leave a run are complete, and slices are
views of them; those inside are allocated for each slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc.relay.analysis import body_order
from relayc.relay.errors import TypeInferenceError
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, Var
from relayc.relay.lowering.graph import ExecutionGraph, GraphNode, GraphTensor
from relayc.relay.lowering.graph_pass import GraphPass
from relayc.relay.lowering.lower import Workload
from relayc.relay.op.base import OpPattern
from relayc.relay.op.joining import Concatenate
from relayc.relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relayc.relay.op.nn.packed_conv import Conv1DNWCPacked, Conv2DNHWCPacked, Conv3DNDHWCPacked
from relayc.relay.op.nn.pool import AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, LpPool, MaxPool
from relayc.relay.op.nn.winograd import Conv2DNHWCWinograd, Conv3DNDHWCWinograd
from relayc.relay.op.transform import StridedSlice, Transpose
from relayc.relay.type import TensorType
from relayc.te.ir import PassContext
from relayc.topi.cpu.tiling import (
    CACHE_BYTES_PER_CYCLE,
    CORES_OF_MEMORY,
    MEMORY_BYTES_PER_CYCLE,
    cache_share,
    largest_partition,
    vector_lanes,
)

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["SliceBatches", "sliced_function"]

PassContext.declare_option(
    "relay.batch_slices", "auto",
    "layers whose activations exceed the caches run for a part of a batch at a time: 'auto' or 'off'",
    choices=("auto", "off"),
)  # fmt: skip

_CALL_CYCLES = 4000.0
"""Cycles of one more kernel call: thread synchronisation and loop remainders."""
_LONGEST_RUN = 100
_MOST_SLICES = 64
"""Maximum number of slices, which bounds the search and the size of the graph."""


@dataclass(frozen=True)
class SliceBatches(GraphPass):
    """Runs of nodes, whose tensors are not placed yet, are replaced by slices of the batch where that pays, on CPUs."""

    target: Target

    def arrange(self, graph: ExecutionGraph, context: PassContext) -> bool:
        if context.option("relay.batch_slices") == "off":
            return False
        sliced = [_slice_batches(part, self.target) for part in graph.all_graphs() if part.is_placed_statically]
        return any(sliced)


def _slice_batches(graph: ExecutionGraph, target: Target) -> bool:
    """Slice the runs of one graph; are there any?"""
    flow = _Flow(graph, target)
    if not any(layer.moved > flow.budget for layer in flow.layers):
        return False
    slices = False
    nodes: list[GraphNode] = []
    done = 0
    for region in flow.regions():
        nodes += graph.nodes[done : region.first]
        done = region.first
        for last, images in _runs(flow, region):
            run = _Region(done, last, region.batch)
            whole = images == region.batch
            nodes += graph.nodes[done:last] if whole else flow.sliced(run, images)
            slices |= not whole
            done = last
    graph.nodes = nodes + graph.nodes[done:]
    return slices


@dataclass(frozen=True, slots=True)
class _Region:
    """Nodes `first` ... `last` - 1, which map each of `batch` images independently."""

    first: int
    last: int
    batch: int


@dataclass(frozen=True, slots=True)
class _Layer:
    """Memory traffic of a node in bytes: activations by the tensor that owns the memory, all activations, constants.

    `work` is its cycles on one core, `lines` the rows of an image of its result, over which cores are distributed.
    """

    reads: tuple[tuple[int, int], ...]
    moved: int
    weights: int
    work: float
    lines: int


class _Flow:
    """The nodes of a graph by position, the tensors that they read and write, and their slices."""

    def __init__(self, graph: ExecutionGraph, target: Target) -> None:
        self.graph = graph
        self.cores = target.num_cores
        self.budget = cache_share(target)
        self.operations = 4.0 * vector_lanes(target)
        self.writer: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        for i, node in enumerate(graph.nodes):
            for number in node.outputs:
                self.writer[graph.base_of(number)] = i
            for number in node.inputs:
                self.readers.setdefault(graph.base_of(number), []).append(i)
        self.held = {graph.base_of(number) for number in graph.outputs}
        self.layers = [self._layer(node) for node in graph.nodes]
        self.workloads: dict[tuple[str, int], Workload] = {}

    def _layer(self, node: GraphNode) -> _Layer:
        tensors = self.graph.tensors
        reads = tuple([(self.graph.base_of(n), tensors[n].nbytes) for n in node.inputs if not self._is_constant(n)])
        written = sum(tensors[n].nbytes for n in node.outputs)
        weights = sum(tensors[n].nbytes for n in node.inputs if self._is_constant(n))
        result = tensors[node.outputs[0]].ty
        assert isinstance(result, TensorType)
        lines = math.prod(result.static_shape[1:-2])
        work = node.workload.flops / self.operations
        return _Layer(reads, sum(size for _, size in reads) + written, weights, work, lines)

    def _is_constant(self, number: int) -> bool:
        storage = self.graph.tensors[self.graph.base_of(number)].storage
        return storage is not None and storage[0] == "param"

    def regions(self) -> Iterator[_Region]:
        """The longest sequences of nodes that can be sliced, from the first to the last node whose traffic exceeds the
        budget."""
        start, batch = 0, 0
        for i in range(len(self.graph.nodes) + 1):
            own = self._batch(i) if i < len(self.graph.nodes) else 0
            if own == batch and batch:
                continue
            large = [k for k in range(start, i) if self.layers[k].moved > self.budget] if batch else []
            if large:
                yield _Region(large[0], large[-1] + 1, batch)
            start, batch = i, own

    def _batch(self, position: int) -> int:
        """The number of images that the node maps independently; 0 if it does something else or writes memory of the
        caller."""
        node, graph = self.graph.nodes[position], self.graph
        activations = [n for n in node.inputs if not self._is_constant(n)]
        bases = [graph.base_of(n) for n in (*activations, *node.outputs)]
        is_placed = any(graph.tensors[b].storage is not None or b in self.held for b in bases)
        batches = {graph.tensors[n].tensor_type.shape[:1] for n in node.outputs}
        if is_placed or len(batches) != 1 or () in batches or not activations:
            return 0
        ((batch,),) = batches
        assert isinstance(batch, int)
        return batch if batch > 1 and self._sliced_workload(node, batch, 1) is not None else 0

    def _sliced_workload(self, node: GraphNode, batch: int, images: int) -> Workload | None:
        batched = [not self._is_constant(n) for n in node.inputs]
        key = f"{node.workload.key} {batched}", images
        if key not in self.workloads:
            function = sliced_function(node.workload.function, batched, batch, images)
            if function is None:
                return None
            self.workloads[key] = Workload.of(function)
        return self.workloads[key]

    def sliced(self, run: _Region, images: int) -> list[GraphNode]:
        """The nodes of the run for the first `images` images, then for the next ones, and so on."""
        made: list[GraphNode] = []
        for index in range(run.batch // images):
            piece = _Slice(self, run, images, index)
            for node in self.graph.nodes[run.first : run.last]:
                workload = self._sliced_workload(node, run.batch, images)
                assert workload is not None
                inputs = [n if self._is_constant(n) else piece.tensor(n) for n in node.inputs]
                outputs = [piece.tensor(n) for n in node.outputs]
                made.append(GraphNode(workload, inputs, outputs, node.sources, names=node.names))
        return made

    def stays_inside(self, base: int, run: _Region) -> bool:
        """Is the tensor written and read only by nodes of the run?"""
        steps = (self.writer.get(base, -1), *self.readers.get(base, ()))
        return base not in self.held and all(run.first <= step < run.last for step in steps)


class _Slice:
    """Slice number `index` of the tensors that a run reads and writes."""

    def __init__(self, flow: _Flow, run: _Region, images: int, index: int) -> None:
        self.flow, self.run, self.images, self.index = flow, run, images, index
        self.made: dict[int, int] = {}

    def tensor(self, number: int) -> int:
        """The number of the slice of tensor `number`: a view of it, or inside the run a tensor of its own.

        The first slice of a tensor inside the run replaces the tensor.
        """
        if number not in self.made:
            self.made[number] = self._make(number)
        return self.made[number]

    def _make(self, number: int) -> int:
        tensors, base = self.flow.graph.tensors, self.flow.graph.base_of(number)
        whole = tensors[number]
        ty = TensorType((self.images, *whole.tensor_type.shape[1:]), whole.tensor_type.dtype)
        if not self.flow.stays_inside(base, self.run):
            first = self.index * self.images
            begins = tuple([first if axis == 0 else 0 for axis in range(len(ty.shape))])
            tensors.append(GraphTensor(whole.name, ty, None, number, begins))
        elif self.index == 0:
            whole.ty = ty
            return number
        elif base == number:
            tensors.append(GraphTensor(whole.name, ty))
        else:
            tensors.append(GraphTensor(whole.name, ty, None, self.tensor(base)))
        return len(tensors) - 1


def sliced_function(function: Function, batched: Sequence[bool], batch: int, images: int) -> Function | None:
    """`function` for `images` of the `batch` images along the first axis of the parameters that are `batched`.

    None unless each image of its results, along the first axis too, depends only on the same image of those parameters.
    """
    made: dict[int, Expr] = {}
    whole: set[int] = set()  # independent of the image
    for param, by_image in zip(function.params, batched, strict=True):
        shape, dtype = param.tensor_type.shape, param.tensor_type.dtype
        if by_image and (not shape or shape[0] != batch):
            return None
        made[id(param)] = Var(param.name, TensorType((images, *shape[1:]), dtype)) if by_image else param
        if not by_image:
            whole.add(id(param))
    for expr in body_order(function):
        if id(expr) in made:
            continue
        if isinstance(expr, Constant) or (isinstance(expr, Call) and all(id(a) in whole for a in expr.args)):
            made[id(expr)] = expr
            whole.add(id(expr))
            continue
        if isinstance(expr, Tuple) and expr is function.body and not any(id(f) in whole for f in expr.fields):
            made[id(expr)] = Tuple(tuple([made[id(f)] for f in expr.fields]))
            continue
        call = _sliced_call(expr, made, whole, batch, images)
        if call is None:
            return None
        made[id(expr)] = call
    if id(function.body) in whole:
        return None
    return Function(tuple([made[id(p)] for p in function.params]), made[id(function.body)], function.attrs)  # type: ignore[misc]


def _sliced_call(expr: Expr, made: dict[int, Expr], whole: set[int], batch: int, images: int) -> Call | None:
    if not isinstance(expr, Call) or not isinstance(expr.ty, TensorType) or expr.ty.shape[:1] != (batch,):
        return None
    if not _maps_images(expr, [id(a) not in whole for a in expr.args]):
        return None
    try:
        call = Call(expr.op, tuple([made[id(a)] for a in expr.args]), span=expr.span)
    except TypeInferenceError:  # an attribute or a constant has the size of the batch
        return None
    return call if call.ty == TensorType((images, *expr.ty.shape[1:]), expr.ty.dtype) else None


def _maps_images(call: Call, batched: Sequence[bool]) -> bool:
    """Does each image of the result depend only on the same image of the arguments that are `batched`?"""
    match call.op:
        case Conv1D() | Conv2D() | Conv3D() as op:
            return op.data_layout[0] == "N" and list(batched) == [True, False]
        case Conv1DNWCPacked() | Conv2DNHWCPacked() | Conv3DNDHWCPacked():
            return list(batched) == [True, False]
        case Conv2DNHWCWinograd() | Conv3DNDHWCWinograd():
            return list(batched) == [True, False]
        case MaxPool() | AvgPool() | LpPool() | AdaptiveAvgPool() | AdaptiveMaxPool() as op:
            return op.layout[0] == "N"
        case Concatenate() as op:
            return all(batched) and op.axis % len(call.shape) != 0
        case Transpose() as op:
            return op.axes[0] == 0
        case StridedSlice() as op:
            return all(axis % len(call.shape) for axis in op.axes)
        case op:
            if call.operator.pattern > OpPattern.BROADCAST or call.operator.has_side_effect:
                return False
            rank = len(call.shape)
            along = [(a.shape, b) for a, b in zip(call.args, batched, strict=True)]
            return all(len(shape) == rank if b else len(shape) < rank or shape[0] == 1 for shape, b in along)


def _runs(flow: _Flow, region: _Region) -> list[tuple[int, int]]:
    """The cheapest partition of the region into runs: (end, images of a slice) of each, including runs that are not
    sliced."""
    batch = region.batch
    sizes = [c for c in range(batch, 0, -1) if batch % c == 0 and batch // c <= _MOST_SLICES]
    best: dict[int, tuple[float, int, int]] = {region.first: (0.0, region.first, batch)}  # cost, start, images
    for first in range(region.first, region.last):
        before = best[first][0]
        for images in sizes:
            cost = before
            for step in range(first, min(region.last, first + _LONGEST_RUN)):
                cost += _cycles(flow, step, first, batch, images)
                if step + 1 not in best or cost < best[step + 1][0]:
                    best[step + 1] = cost, first, images
    runs: list[tuple[int, int]] = []
    end = region.last
    while end > region.first:
        _, start, images = best[end]
        runs.append((end, images))
        end = start
    return runs[::-1]


def _cycles(flow: _Flow, step: int, first: int, batch: int, images: int) -> float:
    """The cost of a node in a run from `first` on in slices of `images`.

    Writing a tensor is counted where it is read: both are fast if all data accessed in between fits into the cache.
    """
    layer, slices = flow.layers[step], batch // images
    cache, memory = flow.cores * CACHE_BYTES_PER_CYCLE, min(flow.cores, CORES_OF_MEMORY) * MEMORY_BYTES_PER_CYCLE
    cycles = layer.work * largest_partition(images * layer.lines, flow.cores) + slices * _CALL_CYCLES
    cycles += (slices - 1) * layer.weights / (cache if layer.weights <= flow.budget else memory)
    for base, nbytes in layer.reads:
        inside = first <= flow.writer.get(base, -1)
        moved = layer.moved // slices if inside else layer.moved
        cycles += 2 * nbytes / (cache if moved <= flow.budget else memory)
    return cycles
