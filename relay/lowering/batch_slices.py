"""Batch slicing: layers whose activations exceed the caches run one after the other for a slice of the batch.

Which runs of layers, and how many images at a time, says `relay.lowering.image_runs`.

Where the size of the batch is static, the kernels of a slice are those of a smaller batch. Tensors that enter or leave
a run are complete, and slices are views of them; those inside are allocated for each slice, so that the arena holds the
intermediate tensors of a slice, not of the batch.

Where it is symbolic, so is the number of slices: a loop calls the kernels, which serve any number of images, with the
addresses of the slices of tensors that enter or leave the run (`relay.lowering.entry`). Those inside lie at the
beginning of their memory in each slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc.relay.lowering.graph import BatchSlices, ExecutionGraph, GraphNode, GraphTensor
from relayc.relay.lowering.graph_pass import GraphPass
from relayc.relay.lowering.image_runs import ImageFlow, ImageRun
from relayc.relay.type import TensorType
from relayc.te.ir import PassContext
from relayc.te.tir import SizeVar

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["SliceBatches", "SliceOpenBatches"]

PassContext.declare_option(
    "relay.batch_slices", "auto",
    "layers whose activations exceed the caches run for a part of a batch at a time: 'auto' or 'off'",
    choices=("auto", "off"),
)  # fmt: skip


@dataclass(frozen=True)
class SliceBatches(GraphPass):
    """Runs of nodes, whose tensors are not placed yet, are replaced by slices of the batch where that pays, on CPUs."""

    target: Target

    def arrange(self, graph: ExecutionGraph, context: PassContext) -> bool:
        if context.option("relay.batch_slices") == "off":
            return False
        sliced = [_slice_batches(part, self.target) for part in graph.all_graphs() if part.is_placed_statically]
        return any(sliced)


@dataclass(frozen=True)
class SliceOpenBatches(GraphPass):
    """Notes which nodes run for slices of a batch of symbolic size where that pays, on CPUs."""

    target: Target

    def arrange(self, graph: ExecutionGraph, context: PassContext) -> bool:
        batch = _open_batch(graph)
        if context.option("relay.batch_slices") == "off" or batch is None:
            return False
        runs = list(ImageFlow(graph, self.target, batch).runs())
        for run in runs:
            slices = BatchSlices(batch, run.images)
            for node in graph.nodes[run.first : run.last]:
                node.slices = slices
        return bool(runs)


def _open_batch(graph: ExecutionGraph) -> SizeVar | None:
    """The size of the batch if it is symbolic: the first of all inputs that have a symbolic one."""
    firsts = {d for i in graph.inputs for d in graph.tensors[i].shape[:1] if isinstance(d, SizeVar)}
    return firsts.pop() if len(firsts) == 1 and graph.runs_in_order else None


def _slice_batches(graph: ExecutionGraph, target: Target) -> bool:
    """Slice the runs of one graph; are there any?"""
    flow = ImageFlow(graph, target)
    nodes: list[GraphNode] = []
    done = 0
    for run in list(flow.runs()):  # before tensors become smaller
        nodes += [*graph.nodes[done : run.first], *_sliced(flow, run)]
        done = run.last
    graph.nodes = nodes + graph.nodes[done:]
    return done > 0


def _sliced(flow: ImageFlow, run: ImageRun) -> list[GraphNode]:
    """The nodes of the run for the first images, then for the next ones, and so on."""
    made: list[GraphNode] = []
    for index in range(run.batch // run.images):
        piece = _Slice(flow, run, index)
        for node in flow.graph.nodes[run.first : run.last]:
            workload = flow.sliced_workload(node, run.images)
            assert workload is not None
            inputs = [n if flow.graph.is_parameter(n) else piece.tensor(n) for n in node.inputs]
            outputs = [piece.tensor(n) for n in node.outputs]
            made.append(GraphNode(workload, inputs, outputs, node.sources, names=node.names))
    return made


def _stays_inside(flow: ImageFlow, base: int, run: ImageRun) -> bool:
    """Is the tensor written and read only by nodes of the run?"""
    steps = (flow.writer.get(base, -1), *flow.readers.get(base, ()))
    return base not in flow.held and all(run.first <= step < run.last for step in steps)


class _Slice:
    """Slice number `index` of the tensors that a run reads and writes."""

    def __init__(self, flow: ImageFlow, run: ImageRun, index: int) -> None:
        self.flow, self.run, self.index = flow, run, index
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
        ty = TensorType((self.run.images, *whole.tensor_type.shape[1:]), whole.tensor_type.dtype)
        if not _stays_inside(self.flow, base, self.run):
            first = self.index * self.run.images
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
