"""Transposes on CPUs: tiles of both axes where inputs are read along a strided axis, in registers if possible."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused, first_of
from relayc.te.tir import Dim, IntImm, Mul, Var
from relayc.topi.candidates import apply_plan
from relayc.topi.cpu.accesses import only_variable, reads
from relayc.topi.cpu.register_transpose import transposed_vectors
from relayc.topi.cpu.transposes.facts import TransposeFacts
from relayc.topi.cpu.transposes.packed import copied_runs, packed_blocks, packed_matrices
from relayc.topi.cpu.transposes.plan import TransposePlan
from relayc.topi.cpu.transposes.tiles import ordered_tiles, packed_tiles, tiles_along_input, tiles_along_output
from relayc.topi.groups import constant_size
from relayc.topi.registry import operations_behind
from relayc.topi.tag import PAD
from relayc.topi.transform import MOST_INTERLEAVED

if TYPE_CHECKING:
    from relayc.backend.target import Target

__all__ = ["strided_axis", "tile_transposed", "transpose_facts"]


def strided_axis(out: te.Tensor) -> int | None:
    """The axis of `out` along which a large input is contiguous, when it is not the last one; None otherwise.

    All injective operations that feed `out` are assumed to be inlined.
    """
    op = out.op
    if not isinstance(op, te.ComputeOp) or len(op.axis) < 2 or op.reduce_axis:
        return None
    numbers = {axis.var: n for n, axis in enumerate(op.axis)}
    last = len(op.axis) - 1
    strided: set[int] = set()
    parts = max(2, min(constant_size(out.shape[-1:]), MOST_INTERLEAVED))  # each makes up one of them
    for tensor, index in reads(op):
        if constant_size(tensor.shape) * parts < constant_size(out.shape):
            continue
        variable = only_variable(index[-1]) if index else None
        number = None if variable is None else numbers.get(variable)
        if number is None or number == last:
            return None
        strided.add(number)
    return strided.pop() if len(strided) == 1 else None


def transpose_facts(out: te.Tensor, number: int | None, at_once: int, target: Target) -> TransposeFacts | Refused:
    """How to transpose an output with a strided axis `number` in registers, with the longest vectors that fit.

    Dynamic axes are assumed to be long enough. Axes whose lengths are expressions of sizes other than products are
    excluded: it can't always be proved that tiles shifted inwards need no guards, which these do not have.
    """
    if number is None:
        return Refused("no large input is contiguous along another dimension than the last")
    found, rows, columns = _transposable(out, number), out.shape[number], out.shape[-1]
    if found is None or not all(map(_is_product, (rows, columns))) or 0 in out.shape:
        return Refused("strided reads differ, or there is padding, or lengths are expressions")
    fitting = transposed_vectors(target, found[0].dtype, (rows, columns))
    if not fitting:
        return Refused(f"matrices of {rows} x {columns} are smaller than a block")
    return TransposeFacts(out, number, *found, fitting[0], at_once, target)


def _is_product(size: Dim) -> bool:
    """Whether a size is a number, a variable, or a product of such, as of the sides of an image."""
    return all(isinstance(d, int | IntImm | Var | Mul) for d in ([size] if isinstance(size, int) else post_order(size)))


def _transposable(out: te.Tensor, number: int) -> tuple[te.Tensor, int] | None:
    """The input along axis `number` of `out`, and its dimension along the last axis, if it is transposable.

    Strided reads must be the same everywhere in the group, without padding or seams of a concatenation: tiles there
    would reach over what is read.
    """
    op = out.op
    if any(behind.tag == PAD for behind in operations_behind([out])):
        return None
    row, column = op.axis[number].var, op.axis[-1].var
    found: tuple[te.Tensor, int] | None = None
    for tensor, index in reads(op):
        across = bool(index) and only_variable(index[-1]) is row
        if not across or all(e is not column for e in post_order(index)):  # a bias of rows: constant along them
            continue
        along = [i for i, e in enumerate(index[:-1]) if only_variable(e) is column]
        others = [e for i, e in enumerate(index[:-1]) if i not in along]
        mixed = any(v in (row, column) for v in post_order(others) if isinstance(v, Var))
        if len(along) != 1 or mixed or found not in (None, (tensor, along[0])):
            return None
        ends = ((tensor.shape[along[0]], out.shape[-1]), (tensor.shape[-1], out.shape[number]))
        if any(isinstance(d, int) and isinstance(whole, int) and d < whole for d, whole in ends):
            return None
        found = (tensor, along[0])
    return found


Candidate = tuple[str, Callable[[TransposeFacts], TransposePlan | Refused]]
_BEYOND_CACHES: tuple[Candidate, ...] = (
    ("packed blocks", packed_blocks), ("ordered tiles", ordered_tiles), ("packed matrices", packed_matrices),
    ("copied runs", copied_runs), ("packed tiles", packed_tiles),
)  # fmt: skip
_OTHERS: tuple[Candidate, ...] = (
    ("tiles along the output", tiles_along_output), ("tiles along the input", tiles_along_input),
)  # fmt: skip
"""Plans in the order in which they are tried: where the caches hold neither tensor, and then for any."""


def tile_transposed(s: te.Schedule, facts: TransposeFacts) -> list[te.IterVar]:
    """Tiles of the output's two axes that are transposed in registers.

    The axes take up at least a vector and a block; where their extents are dynamic, another schedule covers shorter
    ones. Returns the loops outside of a tile, outermost first.
    """
    held, beyond_caches = Refused("sizes are dynamic, or the caches hold one of the tensors"), facts.are_beyond_caches
    candidates: list[tuple[str, Callable[[], TransposePlan | Refused]]] = [
        *[(name, partial(plan, facts) if beyond_caches else lambda: held) for name, plan in _BEYOND_CACHES],
        *[(name, partial(plan, facts)) for name, plan in _OTHERS],
    ]
    return apply_plan(s, "tiles", first_of("transpose", candidates))
