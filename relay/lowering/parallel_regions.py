"""Parallel regions (fork-join) of several kernels, and independent kernels that run concurrently in them.

To fork and join the threads for a region costs a few hundred cycles more than a barrier between two steps, which
matters for kernels of a few microseconds: sequences of those become one region. Branches of a model (Inception's
convolutions of different sizes, the two sides of a residual block) are kernels that could run in any order. They become
one step without a barrier in between: the load is balanced even if that of the single kernels is not, which matters on
many cores.

Nodes keep a kernel each, which is compiled once and can be called by itself (a profile does); `relay.lowering.entry`
calls the functions of their steps (`relay.lowering.kernel_steps`) if they share a region.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from relayc.backend.target import Target
from relayc.relay.lowering.graph import ExecutionGraph, GraphNode, plan_arena, time_steps
from relayc.relay.lowering.graph_pass import GraphPass
from relayc.relay.lowering.kernel_steps import KernelStep
from relayc.te.ir import PassContext
from relayc.topi.cpu.tiling import CACHE_BYTES_PER_CYCLE, cache_share, vector_lanes

__all__ = ["PlanRegions"]

PassContext.declare_option(
    "relay.shared_regions", "auto",
    "small kernels in a row, and branches, share the threads' region, on CPUs: 'auto' or 'off'",
    choices=("auto", "off"),
)  # fmt: skip

_WINDOW = 12
"""Number of following nodes considered to run concurrently with a node: more would extend the lifetimes of tensors."""
_SMALL_CYCLES, _REGION_CYCLES = 100_000, 400_000
"""Maximum cycles of a kernel that gains from a shared region, and of a region.

Regions are short, since which workers take part is decided only when one begins and ends
(`backend.llvm.worker_placement`).
"""
_GROWTH = 1.02
"""Maximum factor by which the arena may grow for concurrency, if it exceeds the last-level cache."""

Steps = Mapping[str, Sequence[KernelStep]]
"""The steps of kernels by their names; empty for those that can't share a region."""


@dataclass(frozen=True)
class PlanRegions(GraphPass):
    """Notes which nodes of one graph share a region and which run concurrently; changes their order.

    Kernels are lowered, and have these `steps`; tensors are placed later.
    """

    target: Target
    steps: Steps
    opt_level: ClassVar[int] = 2

    def arrange(self, graph: ExecutionGraph, context: PassContext) -> bool:
        option, steps = context.option("relay.shared_regions"), self.steps
        if option == "off" or not graph.is_placed_statically or not any(steps.values()):
            return False
        for node in graph.nodes:
            node.cycles = _cycles(node, self.target)
        _run_concurrently(graph, steps, self.target)
        _join(graph, steps, self.target)
        return True


def _cycles(node: GraphNode, target: Target) -> float:
    """Estimated cycles of a kernel on one core; many kernels take more than the estimate."""
    operations = 4.0 * vector_lanes(target)
    return max(node.own_workload.flops / operations, node.own_workload.nbytes / CACHE_BYTES_PER_CYCLE)


def _join(graph: ExecutionGraph, steps: Steps, target: Target) -> None:
    """Number the regions: runs of small kernels that use about as many threads, and branches with their concurrent
    nodes."""
    region, total, threads = 0, 0.0, 0
    for _, pairs in groupby(time_steps(graph.nodes), lambda pair: pair[0]):
        nodes = [node for _, node in pairs]
        cycles = sum(node.cycles for node in nodes)
        wanted = min(max([s.most_threads for n in nodes for s in steps[n.workload.name]], default=0), target.num_cores)
        if total + cycles > _REGION_CYCLES or not threads / 2 <= wanted <= 2 * threads:
            region, total, threads = region + 1, 0.0, wanted
        if wanted and (cycles <= _SMALL_CYCLES or len(nodes) > 1):
            total += cycles
            for node in nodes:
                node.region = region
        else:
            region, total, threads = region + 1, 0.0, 0


def _run_concurrently(graph: ExecutionGraph, steps: Steps, target: Target) -> None:
    """Let independent nodes run concurrently, if that hardly increases the memory."""
    before, nodes = plan_arena(graph).arena_bytes, graph.nodes
    graph.nodes = []
    for concurrent_nodes in _time_steps_of(nodes, _needs(graph, nodes), steps):
        for i in concurrent_nodes:
            nodes[i].concurrent = i != concurrent_nodes[0]
            graph.nodes.append(nodes[i])
    if plan_arena(graph).arena_bytes > max(_GROWTH * before, cache_share(target)):
        graph.nodes = nodes
        for node in nodes:
            node.concurrent = False


def _time_steps_of(nodes: Sequence[GraphNode], needs: Sequence[int], steps: Steps) -> Iterator[list[int]]:
    """The positions of the nodes that run concurrently, in order of time."""
    left, done = deque(range(len(nodes))), 0
    while left:
        first = left.popleft()
        concurrent_nodes = [first]
        if steps[nodes[first].workload.name]:
            window = [left.popleft() for _ in range(min(_WINDOW, len(left)))]
            ready = [i for i in window if needs[i] & ~done == 1 << i]
            concurrent_nodes += [i for i in ready if steps[nodes[i].workload.name]]
            left.extendleft(i for i in reversed(window) if i not in concurrent_nodes)
        for i in concurrent_nodes:
            done |= 1 << i
        yield concurrent_nodes


def _needs(graph: ExecutionGraph, nodes: Sequence[GraphNode]) -> list[int]:
    """The transitive dependencies of each node, including itself: a bit for each position.

    A node depends on earlier ones that write what it reads, and on those that read what it overwrites (a KV cache).
    Slices of a tensor that are written by several nodes don't overlap.
    """
    needs: list[int] = []
    writers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        reads, writes = ([graph.base_of(number) for number in numbers] for numbers in (node.inputs, node.outputs))
        needed = 1 << i
        for k in (*[k for base in reads for k in writers.get(base, ())],
                  *[k for base in writes for k in readers.get(base, ())]):  # fmt: skip
            needed |= needs[k]
        needs.append(needed)
        for base in reads:
            readers.setdefault(base, []).append(i)
        for base in writes:
            writers.setdefault(base, []).append(i)
    return needs
