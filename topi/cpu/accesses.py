"""The reads and conditions of a group of injective operations that are inlined into their result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayc import te
from relayc.te.arith import Analyzer
from relayc.te.ir import post_order
from relayc.te.ir.decisions import Refused
from relayc.te.tir import Call, PrimExpr, ProducerLoad, Select, Var, as_int
from relayc.te.tir.numbering import ValueNumbers
from relayc.te.tir.substitute import substitute
from relayc.topi.cpu.prefetch import is_beyond_caches
from relayc.topi.groups import constant_size, extent_of, is_injective
from relayc.topi.utils import ravel_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from relayc.backend.target import Target

__all__ = [
    "Read", "conditions", "depend_on_data", "large_shape", "only_variable", "read_of_one", "reads", "static_shape",
]  # fmt: skip

_NONE: Mapping[Var, PrimExpr] = {}


def reads(op: te.Operation, at: Mapping[Var, PrimExpr] = _NONE) -> Iterator[tuple[te.Tensor, list[PrimExpr]]]:
    """The tensors that are not inlined and the indices they are read at, in terms of the axes of `op` (or of `at`)."""
    assert isinstance(op, te.ComputeOp)
    for _, e, places in _formulas(op, at, set(), ValueNumbers()):
        if isinstance(e, ProducerLoad):
            yield e.producer, [_placed(i, places) for i in e.indices]


def conditions(op: te.Operation) -> Iterator[tuple[te.ComputeOp, PrimExpr]]:
    """The conditions that decide what is read, such as those of padding and concatenation, with their operations."""
    assert isinstance(op, te.ComputeOp)
    for inlined, e, places in _formulas(op, _NONE, set(), ValueNumbers()):
        if isinstance(e, Select):
            yield inlined, _placed(e.condition, places)
        elif isinstance(e, Call) and e.op == "if_then_else":
            yield inlined, _placed(e.args[0], places)


def _formulas(
    op: te.ComputeOp, at: Mapping[Var, PrimExpr], seen: set[tuple[te.Tensor, tuple[int, ...]]], numbers: ValueNumbers
) -> Iterator[tuple[te.ComputeOp, PrimExpr, Mapping[Var, PrimExpr]]]:
    """The expressions of `op` and of what is inlined into it, with their operations and the values of the axes there.

    Once for each element that is read of an operation, however often it is used: see `te.staging`.
    """
    for e in [e for e in post_order(op.body) if isinstance(e, PrimExpr)]:
        if not isinstance(e, ProducerLoad) or not is_injective(e.producer.op):
            yield op, e, at
            continue
        inlined, index = e.producer.op, [_placed(i, at) for i in e.indices]
        element = e.producer, tuple([numbers(i) for i in index])
        if element not in seen:
            seen.add(element)
            places = {axis.var: i for axis, i in zip(inlined.axis, index, strict=True)}
            yield from _formulas(inlined, places, seen, numbers)


def _placed(index: PrimExpr, at: Mapping[Var, PrimExpr]) -> PrimExpr:
    return substitute(index, at) if at else index


def depend_on_data(expressions: Iterable[PrimExpr]) -> bool:
    """Whether an expression reads an element of a tensor."""
    return any(isinstance(e, ProducerLoad) for e in post_order(tuple(expressions)))


@dataclass(frozen=True, slots=True)
class Read:
    """A tensor, read at `index`, in terms of the `axes` of an output."""

    tensor: te.Tensor
    axes: Sequence[te.IterVar]
    index: tuple[PrimExpr, ...]

    def place(self, at: Sequence[PrimExpr]) -> PrimExpr:
        """The flat offset, in elements, of what is read where the axes have the values `at`."""
        values = {axis.var: value for axis, value in zip(self.axes, at, strict=True)}
        return ravel_index([substitute(i, values) for i in self.index], self.tensor.shape)

    def distance(self, other: Read, at: Sequence[PrimExpr], later: Sequence[PrimExpr]) -> int | None:
        """Elements from what is read `at` some values of the axes to what `other` reads `later`; None if data decide.
        """
        return as_int(Analyzer().simplify(other.place(later) - self.place(at)))

    def later(self, number: int, steps: int) -> Callable[..., list[PrimExpr]]:
        """An index function: where the tensor is read `steps` later along axis `number`, or at its end.

        The order of a `te.Prefetch`.
        """
        last = constant_size([extent_of(self.axes[number])]) - 1

        def place(*first: PrimExpr) -> list[PrimExpr]:
            values = [te.min(e + steps, last) if n == number else e for n, e in enumerate(first)]
            return [substitute(i, {axis.var: e for axis, e in zip(self.axes, values, strict=True)}) for i in self.index]

        return place


def static_shape(out: te.Tensor) -> list[int] | Refused:
    """The sizes of an output whose cache lines a schedule can count: static ones, of whole bytes without strides."""
    shape = [d for d in out.shape if isinstance(d, int)]
    if len(shape) < out.ndim or out.dtype.bits % 8 or out.op.attrs.get("strides") is not None:
        return Refused("sizes are dynamic, elements no whole bytes, or the output has strides")
    return shape


def large_shape(out: te.Tensor, target: Target) -> list[int] | Refused:
    """The sizes of an output larger than the caches whose cache lines a schedule can count: see `static_shape`."""
    shape = static_shape(out)
    if not isinstance(shape, Refused) and (len(shape) < 2 or not is_beyond_caches(out, target)):
        return Refused("the caches hold the output, or it has one dimension")
    return shape


def read_of_one(op: te.Operation) -> Read | Refused:
    """The read of the one large input, of at least half of the output's elements."""
    size = constant_size(op.output(0).shape)
    large = [Read(tensor, op.axis, tuple(i)) for tensor, i in reads(op) if 2 * constant_size(tensor.shape) >= size]
    return large[0] if len(large) == 1 else Refused(f"{len(large)} reads of large inputs, instead of one")


def only_variable(index: PrimExpr) -> Var | None:
    """The only variable of `index`, which may have a constant added; None for other expressions."""
    variables = [e for e in post_order((index,)) if isinstance(e, Var)]
    terms = [e for e in post_order((index,)) if not isinstance(e, Var) and as_int(e) is None]
    plain = all(type(e).__name__ in ("Add", "Sub") for e in terms)
    return variables[0] if len(variables) == 1 and plain else None
