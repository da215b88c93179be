"""What is done to an execution graph before its kernels are lowered, in order."""

from __future__ import annotations

from relayc.backend.target import Target
from relayc.relay.build.batch_slices import slice_batches
from relayc.relay.build.graph import ExecutionGraph
from relayc.relay.build.parts import PartsReport, share_parts
from relayc.relay.build.share_kernels import share_kernels

__all__ = ["arrange"]


def arrange(graph: ExecutionGraph, target: Target) -> PartsReport:
    """Decide which kernels the nodes run, on which slices and parts of tensors; memory is planned later."""
    share_kernels(graph)
    for part in graph.all_graphs():
        slice_batches(part, target)
    return share_parts(graph, target)
