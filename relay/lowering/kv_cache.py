"""In-place KV caches: a run appends to a cache in the memory that the executor keeps."""

from __future__ import annotations

from relayc.relay.lowering.graph import ExecutionGraph
from relayc.relay.lowering.graph_pass import GraphPass
from relayc.relay.op.cache import Append
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext

__all__ = ["PlaceKVCaches"]


class PlaceKVCaches(GraphPass):
    """The results of `cache.append` alias the caches. Raises CompileError for an input that is no cache."""

    def arrange(self, graph: ExecutionGraph, context: PassContext) -> bool:
        names = {name for name, *_ in graph.attrs.get("caches", ())}
        caches = {number for number in graph.inputs if graph.tensors[number].name in names}
        appends = [node for node in graph.nodes if Append.name in node.workload.operators]
        for node in appends:
            cache, whole = node.inputs[0], node.outputs[0]
            if cache not in caches or whole in graph.outputs:
                source = ", ".join(node.sources)
                raise CompileError(f"cache.append {source} has to write into a cache of the model, for its own kernels")
            graph.tensors[whole].base = cache
            graph.written_in_place.add(whole)
        return bool(appends)
