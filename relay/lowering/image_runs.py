"""Runs of layers that map each image of a batch independently, and the cheapest slices of the batch for them.

A layer that maps each image of a batch independently may run for some of the images, then the next layers, and so on,
before the next images enter: the output of a layer is still in the last-level cache when the next layer reads it. On
the other hand weights are read once for each slice, each call has a cost, and many cores share the rows of few images
less evenly; the cost model weighs these and chooses runs of layers and the number of images of a slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc.relay.analysis import body_order
from relayc.relay.errors import TypeInferenceError
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, Var
from relayc.relay.lowering.graph import ExecutionGraph, GraphNode
from relayc.relay.lowering.lower import Workload
from relayc.relay.op.base import OpPattern
from relayc.relay.op.joining import Concatenate
from relayc.relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relayc.relay.op.nn.packed_conv import Conv1DNWCPacked, Conv2DNHWCPacked, Conv3DNDHWCPacked
from relayc.relay.op.nn.pool import AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, LpPool, MaxPool
from relayc.relay.op.nn.winograd import Conv2DNHWCWinograd, Conv3DNDHWCWinograd
from relayc.relay.op.transform import StridedSlice, Transpose
from relayc.relay.sizes import dims_equal, evaluate, product
from relayc.relay.type import TensorType
from relayc.te.tir import Dim, SizeVar
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

__all__ = ["ImageFlow", "ImageRun", "sliced_function"]

_CALL_CYCLES = 4000.0
"""Cycles of one more kernel call: thread synchronisation and loop remainders."""
_LONGEST_RUN = 100
_MOST_SLICES = 64
"""Maximum number of slices, which bounds the search and the size of the graph."""
_OPEN_BATCH = 32
"""Images that slices are chosen for where their number is symbolic: a smaller batch has fewer of the same slices.

Chosen for 8, MobileNet v2 takes 1.09 of a fixed batch's time at 8 and 1.11 at 16, for 32 0.95 and 1.08, without slices
1.17 and 1.32.
"""


@dataclass(frozen=True, slots=True)
class ImageRun:
    """Nodes `first` ... `last` - 1, which map each of `batch` images independently, and run for `images` at a time."""

    first: int
    last: int
    batch: int
    images: int


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


class ImageFlow:
    """The nodes of a graph by position, and the tensors that they read and write.

    `batch` is the size of the batch if it is symbolic: the costs are those of `_OPEN_BATCH` images.
    """

    def __init__(self, graph: ExecutionGraph, target: Target, batch: SizeVar | None = None) -> None:
        self.graph = graph
        self.batch, self._likely = batch, _OPEN_BATCH
        self._sizes = {} if batch is None else {batch.name: self._likely}
        self.cores = target.num_cores
        self.budget = cache_share(target)
        self._operations = 4.0 * vector_lanes(target)
        self.writer: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        for i, node in enumerate(graph.nodes):
            for number in node.outputs:
                self.writer[graph.base_of(number)] = i
            for number in node.inputs:
                self.readers.setdefault(graph.base_of(number), []).append(i)
        self.held = {graph.base_of(number) for number in graph.outputs}
        self._workloads: dict[tuple[str, int], Workload | None] = {}
        self.layers = [self._layer(node) for node in graph.nodes]

    def _layer(self, node: GraphNode) -> _Layer:
        nbytes = {n: self._nbytes(n) for n in (*node.inputs, *node.outputs)}
        reads = tuple([(self.graph.base_of(n), nbytes[n]) for n in node.inputs if not self.graph.is_parameter(n)])
        written = sum(nbytes[n] for n in node.outputs)
        weights = sum(nbytes[n] for n in node.inputs if self.graph.is_parameter(n))
        lines = math.prod((self.graph.tensors[node.outputs[0]].rows or ())[1:-2])
        work = self._flops(node) / self._operations
        return _Layer(reads, sum(size for _, size in reads) + written, weights, work, lines)

    def _nbytes(self, number: int) -> int:
        """The bytes of a tensor; 0 if they are unknown."""
        ty = self.graph.tensors[number].ty
        size = evaluate(product(ty.shape), self._sizes) if isinstance(ty, TensorType) else 0
        return ty.dtype.nbytes * size if isinstance(ty, TensorType) and isinstance(size, int) else 0

    def _flops(self, node: GraphNode) -> int:
        if self.batch is None:
            return node.workload.flops
        workload = self.sliced_workload(node, self._likely) if self._has_batch(node) else None
        return 0 if workload is None else workload.flops

    def runs(self) -> Iterator[ImageRun]:
        """The runs of the nodes that are sliced, in order."""
        if any(layer.moved > self.budget for layer in self.layers):
            for region in self._regions():
                yield from [run for run in _cheapest(self, region) if run.images < run.batch]

    def _regions(self) -> Iterator[ImageRun]:
        """The longest sequences of nodes that can be sliced, from the first to the last node whose traffic exceeds the
        budget."""
        start, batch = 0, 0
        for i in range(len(self.graph.nodes) + 1):
            own = self._images(self.graph.nodes[i]) if i < len(self.graph.nodes) else 0
            if own == batch and batch:
                continue
            large = [k for k in range(start, i) if self.layers[k].moved > self.budget] if batch else []
            if large:
                yield ImageRun(large[0], large[-1] + 1, batch, batch)
            start, batch = i, own

    def _images(self, node: GraphNode) -> int:
        """The number of images, more than one, that a node maps independently; 0 if it does something else."""
        if self.batch is not None:
            can = self._has_batch(node) and self.sliced_workload(node, self._likely) is not None
            return self._likely if can else 0
        batches = {self.graph.tensors[n].shape[:1] for n in node.outputs}
        if len(batches) != 1 or () in batches or not self._can_place(node):
            return 0
        ((batch,),) = batches
        assert isinstance(batch, int)
        return batch if batch > 1 and self.sliced_workload(node, 1) is not None else 0

    def _can_place(self, node: GraphNode) -> bool:
        """Does a node, of static sizes, write and read no memory of the caller?"""
        bases = [self.graph.base_of(n) for n in (*node.inputs, *node.outputs) if not self.graph.is_parameter(n)]
        return not any(self.graph.tensors[b].storage is not None or b in self.held for b in bases)

    def _has_batch(self, node: GraphNode) -> bool:
        """Is the symbolic size of the batch the first of each activation, and the only one that is no constant?"""
        assert self.batch is not None
        tensors = [self.graph.tensors[n] for n in (*node.inputs, *node.outputs) if not self.graph.is_parameter(n)]
        return all(t.rows and not isinstance(t.shape[0], int) and dims_equal(t.shape[0], self.batch) for t in tensors)

    def sliced_workload(self, node: GraphNode, images: int) -> Workload | None:
        """The kernel of a node for so many images; None if it does not map images independently."""
        batched = [not self.graph.is_parameter(n) for n in node.inputs]
        key = f"{node.workload.key} {batched}", images
        if key not in self._workloads:
            function = sliced_function(node.workload.function, batched, images)
            self._workloads[key] = None if function is None else Workload.of(function)
        return self._workloads[key]


def sliced_function(function: Function, batched: Sequence[bool], images: int) -> Function | None:
    """`function` for `images` of the images along the first axis of the parameters that are `batched`.

    None unless each image of its results, along the first axis too, depends only on the same image of those parameters.
    """
    firsts = [p.tensor_type.shape[:1] for p, by_image in zip(function.params, batched, strict=True) if by_image]
    if not all(firsts):
        return None  # a scalar, or no activation
    ((batch,), *_) = firsts or [(0,)]
    made: dict[int, Expr] = {}
    whole: set[int] = set()  # independent of the image
    for param, by_image in zip(function.params, batched, strict=True):
        shape, dtype = param.tensor_type.shape, param.tensor_type.dtype
        if by_image and not dims_equal(shape[0], batch):
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


def _sliced_call(expr: Expr, made: dict[int, Expr], whole: set[int], batch: Dim, images: int) -> Call | None:
    if not isinstance(expr, Call) or not isinstance(expr.ty, TensorType):
        return None
    if not expr.ty.shape or not dims_equal(expr.ty.shape[0], batch):
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


def _cheapest(flow: ImageFlow, region: ImageRun) -> list[ImageRun]:
    """The cheapest partition of the region into runs, including runs that are not sliced."""
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
    runs: list[ImageRun] = []
    end = region.last
    while end > region.first:
        _, start, images = best[end]
        runs.append(ImageRun(start, end, batch, images))
        end = start
    return runs[::-1]


def _cycles(flow: ImageFlow, step: int, first: int, batch: int, images: int) -> float:
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
