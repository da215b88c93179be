"""Kernels in a row as one parallel region, and kernels that don't need each other as one step of it.

To call the threads for a region and to hear of its end costs a few hundred cycles more than to have them meet between
two steps, which matters to kernels of a few microseconds: runs of those become one region. Branches of a model
(Inception's convolutions of different sizes, the two sides of a residual block) are kernels that could run in any
order. They become one step, in which no thread waits between them: shares are even where those of the single kernels
are not, which counts on many cores.

Nodes stay what they are, each with a kernel of its own, which is compiled once and can be called by itself (a profile
does); `relay.lowering.entry` calls the functions of their steps (`relay.lowering.kernel_steps`) where they share a
region.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from relayc.backend.target import Target
from relayc.relay.lowering.graph import ExecutionGraph, GraphNode, moments, plan_arena
from relayc.relay.lowering.kernel_steps import KernelStep
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext
from relayc.topi.cpu.tiling import CACHE_BYTES_PER_CYCLE, cache_share, vector_lanes

__all__ = ["plan_regions"]

PassContext.declare_option(
    "relay.shared_regions", "auto",
    "small kernels in a row, and branches, share the threads' region, on CPUs: 'auto' or 'off'",
)  # fmt: skip

_OPT_LEVEL = 2
"""Optimisation level from which on this is done."""
_WINDOW = 12
"""How many nodes ahead one is looked for that could run beside another: more would keep tensors alive for longer."""
_SMALL_CYCLES, _REGION_CYCLES = 100_000, 400_000
"""Kernels of more cycles don't gain from a shared region. A region is soon over, since only when one begins and ends is
it decided which workers take part (`backend.llvm.worker_placement`)."""
_GROWTH = 1.02
"""How much larger the arena may be for it, where it doesn't stay in the last cache."""

Steps = Mapping[str, Sequence[KernelStep]]
"""The steps of kernels by their names; none of those that can't share a region."""


def plan_regions(graph: ExecutionGraph, steps: Steps, target: Target) -> None:
    """Note which nodes share a region and which run at the same time; changes their order. Places are given later."""
    context = PassContext.current()
    option = context.option("relay.shared_regions")
    if option not in ("auto", "off"):
        raise CompileError(f"option relay.shared_regions is {option!r}; expected 'auto' or 'off'")
    if option == "off" or context.opt_level < _OPT_LEVEL or not graph.is_placed_now or not any(steps.values()):
        return
    for node in graph.nodes:
        node.cycles = _cycles(node, target)
    _put_beside(graph, steps, target)
    _join(graph, steps, target)


def _cycles(node: GraphNode, target: Target) -> float:
    """About what a kernel takes on one core; many take more than that."""
    operations = 4.0 * vector_lanes(target)
    return max(node.workload.flops / operations, node.workload.nbytes / CACHE_BYTES_PER_CYCLE)


def _join(graph: ExecutionGraph, steps: Steps, target: Target) -> None:
    """Number the regions: runs of small kernels that want about as many threads, and branches with what is beside."""
    region, total, threads = 0, 0.0, 0
    for _, pairs in groupby(moments(graph.nodes), lambda pair: pair[0]):
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


def _put_beside(graph: ExecutionGraph, steps: Steps, target: Target) -> None:
    """Let nodes that don't need each other run at the same time, where that takes hardly more memory."""
    before, nodes = plan_arena(graph).arena_bytes, graph.nodes
    graph.nodes = []
    for together in _moments_of(nodes, _needs(graph, nodes), steps):
        for i in together:
            nodes[i].beside = i != together[0]
            graph.nodes.append(nodes[i])
    if plan_arena(graph).arena_bytes > max(_GROWTH * before, cache_share(target)):
        graph.nodes = nodes
        for node in nodes:
            node.beside = False


def _moments_of(nodes: Sequence[GraphNode], needs: Sequence[int], steps: Steps) -> Iterator[list[int]]:
    """The positions of the nodes that run at the same time, in order of time."""
    left, done = list(range(len(nodes))), 0
    while left:
        together = [left[0]]
        if steps[nodes[left[0]].workload.name]:
            ready = [i for i in left[1 : 1 + _WINDOW] if needs[i] & ~done == 1 << i]
            together += [i for i in ready if steps[nodes[i].workload.name]]
        done |= sum([1 << i for i in together])
        left = [i for i in left if not done >> i & 1]
        yield together


def _needs(graph: ExecutionGraph, nodes: Sequence[GraphNode]) -> list[int]:
    """What has to run before each node, directly or not, and itself: a bit for each position.

    A node needs those before it that write what it reads, and those that read what it overwrites (a cache). Parts of a
    tensor that are written by several don't overlap.
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
