"""Transformations of an execution graph before its kernels are lowered."""

from __future__ import annotations

from relayc.backend.target import Target
from relayc.relay.lowering.batch_slices import slice_batches
from relayc.relay.lowering.buffer_aliasing import AliasReport, alias_views
from relayc.relay.lowering.graph import ExecutionGraph
from relayc.relay.lowering.share_kernels import share_kernels, share_slices

__all__ = ["arrange"]


def arrange(graph: ExecutionGraph, target: Target) -> AliasReport:
    """Decide which kernels the nodes run, and which tensors are slices or views of others; memory is planned later."""
    share_kernels(graph)
    for part in graph.all_graphs():
        slice_batches(part, target)
    report = alias_views(graph, target)
    share_slices(graph)
    return report
