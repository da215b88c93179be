"""Elementwise kernels, transpositions, softmax and norms, with contiguous dimensions collapsed.

A scale for each channel is a scale for each row of a matrix whose rows are planes; with channels last it is one row,
broadcast over all rows. NCHW to NHWC is a transposition of a matrix of channels by pixels for each image, whatever the
sides of the images: its rows are long, so vectors and often cache lines are full, and fewer indices are computed. Rows
of a softmax are those of a matrix, and planes that it goes across are one run of columns. The memory layout does not
change, so nothing outside of the kernel is affected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relayc.relay.analysis import body_order
from relayc.relay.expr import Call, Constant, Expr, Function, Var
from relayc.relay.op.common import check_axes
from relayc.relay.op.nn.norm import LRN, L2Normalize, LayerNorm, LogSoftmax, RMSNorm, Softmax, Standardize
from relayc.relay.op.transform import Transpose
from relayc.relay.sizes import product
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.type import TensorType
from relayc.te.ir import PassContext
from relayc.te.tir import Dim
from relayc.topi.utils import is_at_most_one

__all__ = ["CollapseDimensions", "rebuilt"]

_NORMS = (Softmax, LogSoftmax, LayerNorm, RMSNorm, L2Normalize, Standardize, LRN)


class CollapseDimensions(FunctionPass):
    """An equivalent primitive function on the same memory, with as few dimensions as possible.

    For transpositions, a softmax or norm of a static shape, elementwise operators before or after them, broadcasts of
    smaller tensors, and elementwise operators of a symbolic shape, whose kernel is then that of their number of
    elements; other functions are returned unchanged: pure elementwise loops are flat already. Bools that are only
    moved are moved as bytes.
    """

    def transform(self, function: Function, context: PassContext) -> Function:
        exprs = body_order(function)
        if "strides" in function.attrs or not all(map(_is_followed, exprs)):
            return function
        norms = [e for e in exprs if isinstance(e, Call) and isinstance(e.op, _NORMS)]
        elementwise = not any(map(_transposes, exprs)) and not norms and not _repeats(exprs)
        if elementwise and function.body.tensor_type.is_static:
            return function
        if len(norms) > 1 or not all(e.tensor_type.is_static for e in norms):
            return function
        tensors = _tensors(exprs, function.body)
        shape = function.body.tensor_type.shape
        rows = {tensors[id(e)].places[a] for e in norms for a in _axes(e)} if tensors else set[int]()
        groups = [] if tensors is None else _groups(shape, list(tensors.values()), rows)
        if norms and not any(group[0] in rows for group in groups):  # rows of one element
            return function
        flags = function.body.tensor_type.dtype.is_bool and all(isinstance(e, Var) or _transposes(e) for e in exprs)
        if tensors is None or not 0 < len(groups) < len(shape) + flags:
            return function
        dtype = "uint8" if flags else None
        return rebuilt(function, exprs, lambda e, made: _merged(e, groups, tensors, made, rows, dtype))


def rebuilt(function: Function, exprs: Sequence[Expr], merged: Callable[[Expr, dict[int, Expr]], Expr]) -> Function:
    """A function of the results of rewriting `exprs`, producers first: `merged` receives the earlier results by their
    ids.

    The original function if a parameter is not used, or nothing is left to compute.
    """
    made: dict[int, Expr] = {}
    for e in exprs:
        made[id(e)] = merged(e, made)
    params = [made[id(p)] for p in function.params if id(p) in made]
    if len(params) < len(function.params) or not isinstance(made[id(function.body)], Call):
        return function
    return Function(tuple([p for p in params if isinstance(p, Var)]), made[id(function.body)], function.attrs)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A value with as many dimensions as the result, at positions `places` of it; padded with leading ones."""

    places: tuple[int, ...]
    sizes: tuple[Dim, ...]

    def size(self, place: int) -> Dim:
        """The size along a dimension of the result."""
        return self.sizes[self.places.index(place)]

    def has_in_order(self, first: int, second: int, lasting: Sequence[int]) -> bool:
        """Are these two dimensions adjacent, ignoring those not in `lasting`, or are both broadcast?"""
        broadcast = [is_at_most_one(self.size(place)) for place in (first, second)]
        if any(broadcast):
            return all(broadcast)
        own = [place for place in self.places if place in lasting]
        return own.index(second) == own.index(first) + 1

    def order(self, groups: Sequence[Sequence[int]]) -> list[int]:
        """The numbers of the groups in the order of this value."""
        return sorted(range(len(groups)), key=lambda g: self.places.index(groups[g][0]))

    def shape(self, groups: Sequence[Sequence[int]]) -> tuple[Dim, ...]:
        """The sizes of the groups, in that order."""
        return tuple([product([self.size(place) for place in groups[g]]) for g in self.order(groups)])


def _transposes(e: Expr) -> bool:
    return isinstance(e, Call) and isinstance(e.op, Transpose)


def _repeats(exprs: Sequence[Expr]) -> bool:
    """Do several shapes occur, other than scalars?"""
    shapes = {e.tensor_type.shape for e in exprs if not isinstance(e, Constant)}
    return len([shape for shape in shapes if any(d != 1 for d in shape)]) > 1


def _is_followed(e: Expr) -> bool:
    if isinstance(e, Constant):
        return e.data.size == 1
    if not isinstance(e, Call):
        return isinstance(e, Var) and isinstance(e.ty, TensorType)
    return e.operator.follows_elements() or _transposes(e) or isinstance(e.op, _NORMS)


def _axes(norm: Call) -> tuple[int, ...]:
    """The dimensions of the rows of a softmax or norm, or the one that a window moves along."""
    ndim, op = norm.tensor_type.ndim, norm.op
    if isinstance(op, L2Normalize | Standardize):
        return check_axes(2, op.axis, ndim)
    if isinstance(op, LayerNorm | RMSNorm):
        return tuple(range(op.axis % ndim, ndim))
    assert isinstance(op, Softmax | LogSoftmax | LRN)
    return (op.axis % ndim,)


def _tensors(exprs: Sequence[Expr], body: Expr) -> dict[int, _Tensor] | None:
    """Every value by its expression's id; None if one is read in two orders."""
    rank = body.tensor_type.ndim
    found = {id(body): _Tensor(tuple(range(rank)), body.tensor_type.shape)}
    for e in reversed(exprs):
        for arg in e.args if isinstance(e, Call) else ():
            places = found[id(e)].places
            if isinstance(e, Call) and isinstance(e.op, Transpose):
                added = rank - len(e.op.axes)
                trailing = [places[added + e.op.axes.index(d)] for d in range(len(e.op.axes))]
                places = (*places[:added], *trailing)
            tensor = _Tensor(places, (*(1,) * (rank - arg.tensor_type.ndim), *arg.tensor_type.shape))
            if found.setdefault(id(arg), tensor).places != tensor.places:
                return None
    return found


def _groups(shape: Sequence[Dim], tensors: Sequence[_Tensor], rows: set[int]) -> list[list[int]]:
    """The dimensions of the result that are not 1, in groups that collapse to one each: all of `rows`, or none.

    A single row keeps a dimension by which it is counted.
    """
    lasting = [d for d, size in enumerate(shape) if size != 1]
    if rows and rows.issuperset(lasting):
        lasting = sorted([*lasting, *[d for d in range(len(shape)) if d not in rows][:1]])
    groups: list[list[int]] = []
    for d in lasting:
        last = groups[-1][-1] if groups else d
        alike = last != d and (last in rows) == (d in rows)
        if alike and all(t.has_in_order(last, d, lasting) for t in tensors):
            groups[-1].append(d)
        else:
            groups.append([d])
    return groups


def _merged(
    e: Expr, groups: list[list[int]], tensors: dict[int, _Tensor], made: dict[int, Expr], rows: set[int],
    dtype: str | None,
) -> Expr:  # fmt: skip
    tensor = tensors[id(e)]
    if isinstance(e, Var):
        shape, padding = tensor.shape(groups), tensor.places[: len(tensor.places) - e.tensor_type.ndim]
        if rows:  # parameters of a norm have the dimensions of rows only
            shape = shape[sum(set(groups[g]) <= {*padding} for g in tensor.order(groups)) :]
        return Var(e.name, TensorType(shape, dtype or e.tensor_type.dtype))
    if isinstance(e, Constant):
        return e if e.data.ndim == 0 else Constant(e.data.reshape(()))
    if not isinstance(e, Call):
        return e
    args = [made[id(a)] for a in e.args]
    if isinstance(e.op, _NORMS):
        of_rows = tuple([n for n, g in enumerate(tensor.order(groups)) if groups[g][0] in rows])
        axis = of_rows if isinstance(e.op, L2Normalize | Standardize) else of_rows[0]
        return Call(e.operator.replace(axis=axis), tuple(args), span=e.span)
    if not isinstance(e.op, Transpose):
        return Call(e.op, tuple(args), span=e.span)
    before = tensors[id(e.args[0])].order(groups)
    axes = tuple([before.index(g) for g in tensor.order(groups)])
    return args[0] if axes == tuple(range(len(axes))) else Transpose(axes=axes)(args[0], span=e.span)
