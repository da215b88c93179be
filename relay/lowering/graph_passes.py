"""The passes of `relay.build` over the execution graph, behind those of `relay.transform.default_pipeline`."""

from __future__ import annotations

from relayc.backend.target import Target
from relayc.relay.lowering.batch_slices import SliceBatches, SliceOpenBatches
from relayc.relay.lowering.buffer_aliasing import AliasViews
from relayc.relay.lowering.graph import ExecutionGraph
from relayc.relay.lowering.kv_cache import PlaceKVCaches
from relayc.relay.lowering.share_extents import ShareExtents
from relayc.relay.lowering.share_kernels import ShareKernels, ShareSlices
from relayc.relay.lowering.share_positions import SharePositions
from relayc.relay.lowering.space_rows import SpaceRows
from relayc.te.ir import IRModule, Pass, Sequential

__all__ = ["arrange", "graph_passes"]


def graph_passes(target: Target) -> tuple[Pass, ...]:
    """The passes over an execution graph before its kernels are lowered, in order.

    They decide which kernels the nodes run, and which tensors are slices or views of others. Memory is planned later.
    """
    return (
        PlaceKVCaches(),  # first: the results of appends have their memory already, and are never placed elsewhere
        ShareKernels(),  # before batches are sliced, so that the kernels of slices are shared as well
        *((SliceBatches(target),) if "cpu" in target.keys else ()),  # before views are chosen: a slice is one, too
        *((AliasViews(),) if target.device_kind == "cpu" else ()),
        *((SliceOpenBatches(target),) if "cpu" in target.keys else ()),  # behind views, which take nodes away
        ShareSlices(),  # only slices that have not become views are kernels
        *((SharePositions(),) if target.device_kind == "cpu" else ()),
        *((SpaceRows(), ShareExtents()) if "avx512f" in target.features else ()),  # whose masks cost little
    )


def arrange(graph: ExecutionGraph, target: Target) -> None:
    """Run `graph_passes` over a graph, which they change in place."""
    Sequential(graph_passes(target), "arrange")(IRModule({"main": graph}))
