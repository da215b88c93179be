"""Vectorisation of injective GPU kernels: how many adjacent elements a thread should compute at once.

A warp moves most bytes per instruction when each thread reads and writes 128 bits. That requires inputs that are read
contiguously (or at one element) along the output index, and vectors that begin at aligned addresses. Both are derived
from the indices: for an output index that begins at a multiple of the lanes, each index expression has a step from lane
to lane and a divisor.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

from relayc import te
from relayc.te.ir import post_order
from relayc.te.tir import Call, PrimExpr, ProducerLoad, Var, as_int, product
from relayc.te.tir.expr import Add, FloorDiv, FloorMod, Mul, Sub
from relayc.te.tir.substitute import substitute
from relayc.topi.cuda.cost import VECTOR_BYTES
from relayc.topi.groups import constant_size, is_injective

__all__ = ["flat_lanes", "is_flat", "reads_of", "row_lanes"]


class _Lane(NamedTuple):
    """An index expression in a vector of lanes: its step from lane to lane, and a divisor of its first value."""

    step: int
    multiple: int


def is_flat(out: te.Tensor) -> bool:
    """Does element i of `out` depend on element i of every input only, so that shapes don't matter?"""
    assert isinstance(out.op, te.ComputeOp)
    here = [axis.var for axis in out.op.axis]
    for tensor, index in reads_of(out):
        same = len(index) == len(here) and all(a is b for a, b in zip(index, here, strict=True))
        if constant_size(tensor.shape) != 1 and not (same and tuple(tensor.shape) == tuple(out.shape)):
            return False
    return not any(isinstance(e, Var) for e in post_order(_branches(out)))


def widest_lanes(out: te.Tensor) -> int:
    """Lanes of 128 bits of the widest large tensor among `out` and its inputs."""
    size = constant_size(out.shape)
    large = [t.dtype.nbytes for t, _ in reads_of(out) if 2 * constant_size(t.shape) >= size]
    return max(1, VECTOR_BYTES // max([out.dtype.nbytes, *large]))


def flat_lanes(out: te.Tensor) -> int:
    """Lanes for a group where shapes don't matter (see `is_flat`): the widest that divide the number of elements."""
    size = as_int(product(out.shape))
    return 1 if size is None else math.gcd(widest_lanes(out), size)


def row_lanes(out: te.Tensor) -> int:
    """Lanes along the last axis of `out`; 1 when some large input would not be read contiguously."""
    op = out.op
    if not isinstance(op, te.ComputeOp) or not op.axis:
        return 1
    extent = as_int(out.shape[-1])
    lanes = 1 if extent is None else math.gcd(widest_lanes(out), extent)
    while lanes > 1 and not _in_order(out, op.axis[-1].var, lanes):
        lanes //= 2
    return lanes


def _in_order(out: te.Tensor, last: Var, lanes: int) -> bool:
    """Is every large input read at aligned contiguous elements, or at one element, by `lanes` lanes?"""
    if any(e is last for e in post_order(_branches(out))):
        return False
    size = constant_size(out.shape)
    for tensor, index in reads_of(out):
        steps = [_lane(i, last, lanes) for i in index]
        if any(lane is None or lane.step != 0 for lane in steps[:-1]):
            return False
        innermost = steps[-1] if steps else _Lane(0, 0)
        if innermost is None or innermost.step not in (0, 1):
            return False
        width = as_int(tensor.shape[-1]) if index else 0
        aligned = width is not None and width % lanes == 0 and innermost.multiple % lanes == 0
        if innermost.step == 1 and not aligned and 2 * constant_size(tensor.shape) >= size:
            return False
    return True


def _lane(index: PrimExpr, last: Var, lanes: int) -> _Lane | None:
    """Step and divisor of an index expression; None when the step is not constant."""
    known = as_int(index)
    if known is not None:
        return _Lane(0, abs(known))
    if isinstance(index, Var):
        return _Lane(1, lanes) if index is last else _Lane(0, 1)
    if isinstance(index, Add | Sub | Mul | FloorDiv | FloorMod):
        a, b = _lane(index.a, last, lanes), _lane(index.b, last, lanes)
        return None if a is None or b is None else _combined(index, a, b, lanes)
    return None if any(e is last for e in post_order((index,))) else _Lane(0, 1)


def _combined(index: Add | Sub | Mul | FloorDiv | FloorMod, a: _Lane, b: _Lane, lanes: int) -> _Lane | None:
    if isinstance(index, Add | Sub):
        step = a.step + b.step if isinstance(index, Add) else a.step - b.step
        return _Lane(step, math.gcd(a.multiple, b.multiple))
    constant = as_int(index.b)
    if constant is None:
        return _Lane(0, a.multiple * b.multiple if isinstance(index, Mul) else 1) if a.step == b.step == 0 else None
    if isinstance(index, Mul):
        return _Lane(a.step * constant, a.multiple * abs(constant))
    whole = constant > 0 and constant % lanes == 0 and a.multiple % lanes == 0
    if a.step != 0 and not (a.step == 1 and whole):
        return None
    if isinstance(index, FloorMod):
        return _Lane(a.step, math.gcd(a.multiple, constant))
    return _Lane(0, a.multiple // constant if a.multiple % constant == 0 else 1)


def reads_of(out: te.Tensor) -> list[tuple[te.Tensor, list[PrimExpr]]]:
    """The tensors that `out` reads, through inlined injective producers, and the indices that they are read at."""
    found: list[tuple[te.Tensor, list[PrimExpr]]] = []
    for load, index in _inlined(out, ProducerLoad):
        if not is_injective(load.producer.op):
            found.append((load.producer, index))
    return found


def _branches(out: te.Tensor) -> list[PrimExpr]:
    """The conditions of selects in the value, in terms of the axes of `out`."""
    return [operands[0] for call, operands in _inlined(out, Call) if call.op == "if_then_else"]


_Node = TypeVar("_Node", ProducerLoad, Call)


def _inlined(out: te.Tensor, kind: type[_Node]) -> list[tuple[_Node, list[PrimExpr]]]:
    """Nodes of `out`'s formula with all injective producers inlined.

    Each comes with its indices (of a load) or arguments (of a call) in terms of the axes of `out`.
    """
    found: list[tuple[_Node, list[PrimExpr]]] = []
    pending: list[tuple[te.Operation, dict[Var, PrimExpr]]] = [(out.op, {})]
    seen: set[tuple[int, str]] = set()
    while pending:
        op, mapping = pending.pop()
        if not isinstance(op, te.ComputeOp):
            continue
        for node in post_order(op.body):
            if not isinstance(node, ProducerLoad | Call):
                continue
            operands = node.indices if isinstance(node, ProducerLoad) else node.args
            places = [substitute(e, mapping) if mapping else e for e in operands]
            if isinstance(node, kind):
                found.append((node, places))
            if isinstance(node, ProducerLoad) and is_injective(node.producer.op):
                producer, key = node.producer.op, (id(node.producer.op), str(places))
                if key not in seen:
                    seen.add(key)
                    pending.append((producer, {a.var: i for a, i in zip(producer.axis, places, strict=True)}))
    return found
