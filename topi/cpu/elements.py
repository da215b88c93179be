"""Elementwise operations on CPUs: the cost of an element, and the vectors that are computed together."""

from __future__ import annotations

from collections.abc import Sequence

from relayc import te
from relayc.backend.vector_math import EXPANSIONS
from relayc.te.ir import post_order
from relayc.te.tir import Call
from relayc.topi.registry import operations_after

__all__ = [
    "CALL_COST", "VECTORS", "element_cost", "elements_per_step", "functions_behind", "vectorize_elements",
    "vectors_per_step",
]  # fmt: skip

CALL_COST = 16
"""Operations that a transcendental function is counted as."""
VECTORS, _VECTORS_OF_CHAINS = 2, 4
"""Vectors that are computed together, in general and for mathematical functions: independent chains fill the scheduler
of the processor. Four took 5 to 20 % less time than two for most functions, one took more."""


def element_cost(ops: Sequence[te.Operation]) -> float:
    """Scalar operations for one output element of injective operations computed together, roughly."""
    cost = 0.0
    for op in ops:
        if isinstance(op, te.ComputeOp):
            nodes = list(post_order(op.body))
            cost += sum(CALL_COST if isinstance(e, Call) else 1 for e in nodes)
    return cost


def vectors_per_step(ops: Sequence[te.Operation]) -> int:
    """Number of vectors that are computed together."""
    return _VECTORS_OF_CHAINS if _has_chains(ops) else VECTORS


def _has_chains(ops: Sequence[te.Operation]) -> bool:
    """Whether a mathematical function, a chain of many operations, is computed, but no power (too many)."""
    bodies = [op.body for op in ops if isinstance(op, te.ComputeOp)]
    called = {e.op for body in bodies for e in post_order(body) if isinstance(e, Call)}
    return "pow" not in called and not called.isdisjoint(EXPANSIONS)


def functions_behind(out: te.Tensor, anchor: te.Operation) -> set[str]:
    """The mathematical functions that are applied to the result of `anchor`, on the way to `out`."""
    bodies = [op.body for op in operations_after(anchor, [out]) if isinstance(op, te.ComputeOp)]
    return {e.op for body in bodies for e in post_order(body) if isinstance(e, Call) and e.op in EXPANSIONS}


def elements_per_step(extent: te.Dim, lanes: int, vectors: int = VECTORS) -> int:
    """Elements of an axis, at least a vector, that `vectorize_elements` takes together."""
    if not isinstance(extent, int):
        return lanes
    if extent >= 8 * vectors * lanes or extent % (vectors * lanes) == 0:
        return vectors * lanes
    return 2 * lanes if extent >= 4 * lanes else lanes


def vectorize_elements(
    s: te.Schedule, tensor: te.Tensor, axis: te.IterVar, extent: te.Dim, lanes: int, vectors: int = VECTORS
) -> te.IterVar:
    """Vectorise `axis` of `tensor`, several vectors at a time where it is long; returns the outer loop.

    A last partial group of a long axis is shifted inwards: it computes a few elements twice instead of testing each.
    """
    if not isinstance(extent, int):
        outer, inner = s[tensor].split(axis, factor=lanes)
    elif extent >= lanes:
        outer, inner = s[tensor].split(axis, factor=elements_per_step(extent, lanes, vectors), tail="shift")
    else:
        outer, inner = s[tensor].split(axis, nparts=1)
    s[tensor].vectorize(inner)
    return outer
