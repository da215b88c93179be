"""Expressions of the loop IR.

    expr = Var | IntImm | FloatImm | StringImm | Cast(dtype, expr)
         | Add | Sub | Mul | Div | Mod | FloorDiv | FloorMod | Min | Max     (both operands of one type)
         | EQ | NE | LT | LE | GT | GE | And | Or | Not                      (bool)
         | Select(condition, true_value, false_value)                        (both sides may be evaluated)
         | BufferLoad(buffer, indices, predicate)
         | Ramp(base, stride, lanes) | Broadcast(value, lanes) | Shuffle(vectors, indices)
         | Call(op, args) | Let(var, value, body)
         | ProducerLoad(tensor, indices) | Reduce(...)                       (tensor expressions only)

`Div` and `Mod` truncate towards zero on integers (C's), `FloorDiv` and `FloorMod` round down (Python's). Integer
arithmetic wraps. A value with `lanes > 1` is a vector and every operator applies lane by lane. Build expressions with
Python operators or with the functions of `te.tir.ops`, which fold constants and check types; the classes check nothing.
"""
# A node's field `dtype` stands for the read-only property that its base promises.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from relayc.te.dtype import BOOL, DType, dtype
from relayc.te.ir.node import Node, node
from relayc.te.ir.span import Span
from relayc.te.ir.structural import StructuralEqual
from relayc.te.tir.operators import OPERATIONS, ExprOperators

if TYPE_CHECKING:
    from relayc.te.tir.buffer import Buffer

__all__ = [
    "EQ", "GE", "GT", "LE", "LT", "NE", "Add", "And", "Binary", "Broadcast", "BufferLoad", "Call", "Cast",
    "CommReducer", "Compare", "Dim", "Div", "FloatImm", "FloorDiv", "FloorMod", "IntImm", "IterVar", "Let",
    "Logical", "Max", "Min", "Mod", "Mul", "Not", "Or", "PrimExpr", "ProducerLoad", "Ramp", "Range", "Reduce",
    "Select", "Shuffle", "SizeVar", "StringImm", "Sub", "Var",
]  # fmt: skip


@node
class PrimExpr(ExprOperators, Node):
    """Base of expressions. Every expression has a `dtype`."""

    span: Span | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:

        @property
        def dtype(self) -> DType: ...

    def __str__(self) -> str:
        return OPERATIONS["text"](self)

    __repr__ = __str__
    __eq__ = ExprOperators.__eq__
    __hash__ = object.__hash__


Dim = int | PrimExpr
"""A size: a Python int when known, an int32/int64 expression otherwise."""


class _Remembering(PrimExpr):
    """A node with `memory`, where users cache facts about it; copies of the node start without it."""

    __slots__ = ("memory",)

    memory: Any

    def __getstate__(self) -> Any:
        _, state = super().__getstate__()  # type: ignore[misc]
        state.pop("memory", None)
        return None, state


@node
class Var(_Remembering):
    """A variable; its identity is the object, its name only for reading."""

    name: str
    dtype: DType = dtype("int32")

    def structural_equal_to(self, other: Any, equal: StructuralEqual) -> bool:
        """Whether `other` is this variable, or one of its type bound at the same place."""
        return self.dtype == other.dtype and equal.same_definition(self, other)


@node
class SizeVar(Var):
    """A variable known to be at least 0, and at most `most` if that is given: a symbolic size."""

    most: int | None = None


@node
class IntImm(PrimExpr):
    """An integer (or bool) constant."""

    dtype: DType
    value: int

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return self.value

    def __index__(self) -> int:
        return self.value


@node
class FloatImm(PrimExpr):
    """A floating-point constant."""

    dtype: DType
    value: float

    def __float__(self) -> float:
        return self.value


@node
class StringImm(PrimExpr):
    """A string: names of functions and messages, never data."""

    value: str
    dtype: DType = dtype("handle")


@node
class Cast(PrimExpr):
    """`value` converted to `dtype`: float to int truncates, int to narrower int wraps, anything to bool is `!= 0`."""

    dtype: DType
    value: PrimExpr


@node
class Binary(PrimExpr):
    """An arithmetic operator whose operands and result have one type."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)
    sign: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.dtype = self.a.dtype  # type: ignore[misc]


@node
class Add(Binary):
    """a + b"""

    sign: ClassVar[str] = "+"


@node
class Sub(Binary):
    """a - b"""

    sign: ClassVar[str] = "-"


@node
class Mul(Binary):
    """a * b"""

    sign: ClassVar[str] = "*"


@node
class Div(Binary):
    """Division; on integers truncated towards zero."""

    sign: ClassVar[str] = "/"


@node
class Mod(Binary):
    """C remainder: the sign of the dividend."""

    sign: ClassVar[str] = "%"


@node
class FloorDiv(Binary):
    """Division rounded down: Python's ``//``."""

    sign: ClassVar[str] = "//"


@node
class FloorMod(Binary):
    """Python remainder: the sign of the divisor."""

    sign: ClassVar[str] = "%"


@node
class Min(Binary):
    """The smaller operand; on floats NaN if either is NaN."""


@node
class Max(Binary):
    """The larger operand; on floats NaN if either is NaN."""


@node
class Compare(PrimExpr):
    """A comparison; bool with the operands' lanes."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)
    sign: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.dtype = BOOL.with_lanes(self.a.dtype.lanes)  # type: ignore[misc]


@node
class EQ(Compare):
    """Equality. Its Python truth value is identity of the operands, so that expressions work as dictionary keys."""

    sign: ClassVar[str] = "=="

    def __bool__(self) -> bool:
        return self.a is self.b


@node
class NE(Compare):
    """a != b"""

    sign: ClassVar[str] = "!="

    def __bool__(self) -> bool:
        return self.a is not self.b


@node
class LT(Compare):
    """a < b"""

    sign: ClassVar[str] = "<"


@node
class LE(Compare):
    """a <= b"""

    sign: ClassVar[str] = "<="


@node
class GT(Compare):
    """a > b"""

    sign: ClassVar[str] = ">"


@node
class GE(Compare):
    """a >= b"""

    sign: ClassVar[str] = ">="


@node
class Logical(PrimExpr):
    """A connective of two bool values. Scalars evaluate `b` only when `a` does not decide."""

    a: PrimExpr
    b: PrimExpr
    dtype: DType = field(init=False)
    sign: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.dtype = self.a.dtype  # type: ignore[misc]


@node
class And(Logical):
    """a and b"""

    sign: ClassVar[str] = "and"


@node
class Or(Logical):
    """a or b"""

    sign: ClassVar[str] = "or"


@node
class Not(PrimExpr):
    """not a"""

    a: PrimExpr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = self.a.dtype  # type: ignore[misc]


@node
class Select(PrimExpr):
    """`true_value` where `condition`, else `false_value`. Both may be evaluated: neither may fault.

    The lazy form, which evaluates one side, is ``Call("if_then_else", (condition, a, b))``.
    """

    condition: PrimExpr
    true_value: PrimExpr
    false_value: PrimExpr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = self.true_value.dtype  # type: ignore[misc]


@node
class BufferLoad(PrimExpr):
    """An element of a buffer. After flattening there is one index; a vector index (Ramp) loads a vector.

    `predicate`, a bool vector of the index's lanes, masks lanes off: they are not touched and read as 0.
    """

    buffer: Buffer
    indices: tuple[PrimExpr, ...]
    predicate: PrimExpr | None = None
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        lanes = self.indices[-1].dtype.lanes if self.indices else 1
        self.dtype = self.buffer.dtype if lanes == 1 else self.buffer.dtype.with_lanes(lanes)  # type: ignore[misc]


@node
class ProducerLoad(PrimExpr):
    """An element of a tensor (`te.Tensor`); tensor expressions only."""

    producer: Any
    indices: tuple[PrimExpr, ...]
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = self.producer.dtype  # type: ignore[misc]


@node
class Ramp(PrimExpr):
    """The vector base, base + stride, ..., `lanes` long."""

    base: PrimExpr
    stride: PrimExpr
    lanes: int
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = self.base.dtype.with_lanes(self.lanes)  # type: ignore[misc]


@node
class Broadcast(PrimExpr):
    """The vector value, value, ..., `lanes` long."""

    value: PrimExpr
    lanes: int
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = self.value.dtype.with_lanes(self.lanes)  # type: ignore[misc]


@node
class Shuffle(PrimExpr):
    """Lanes of the concatenated `vectors`, picked by constant positions."""

    vectors: tuple[PrimExpr, ...]
    indices: tuple[int, ...]
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = self.vectors[0].dtype.with_lanes(len(self.indices))  # type: ignore[misc]


@node
class Call(PrimExpr):
    """An intrinsic or an external function: `op` is a row of `te.tir.intrinsics`."""

    dtype: DType
    op: str
    args: tuple[PrimExpr, ...]


@node
class Let(PrimExpr):
    """`body` with `var` standing for `value`."""

    binders: ClassVar[tuple[str, ...]] = ("var",)

    var: Var
    value: PrimExpr
    body: PrimExpr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = self.body.dtype  # type: ignore[misc]


class Range:
    """The integers from `min`, `extent` of them."""

    __slots__ = ("extent", "min")

    def __init__(self, min: Dim, extent: Dim) -> None:
        self.min = min
        self.extent = extent

    def __repr__(self) -> str:
        return f"range({self.min}, extent={self.extent})"


class IterVar(ExprOperators):
    """An axis of an operation or a thread axis: a variable with its range and kind.

    `kind`: "data" (parallel), "reduce", "thread" (a hardware axis, `thread_tag` says which), "scan" (ordered),
    "opaque". `dom` is None for a thread axis whose extent the schedule decides.
    """

    __slots__ = ("dom", "kind", "thread_tag", "var")

    def __init__(self, dom: Range | None, var: Var, kind: str = "data", thread_tag: str = "") -> None:
        self.dom = dom
        self.var = var
        self.kind = kind
        self.thread_tag = thread_tag

    @property
    def dtype(self) -> DType:
        """The type of the variable."""
        return self.var.dtype

    @property
    def extent(self) -> Dim:
        """The number of values it takes. Only for an axis whose range is known."""
        assert self.dom is not None, f"{self} has no range yet"
        return self.dom.extent

    def structural_equal_to(self, other: Any, equal: StructuralEqual) -> bool:
        """Whether both axes have the same kind and equal ranges; binds the two variables."""
        if self is other:
            return True
        equal.bind(self.var, other.var)
        same_range = (self.dom is None) == (other.dom is None)
        if same_range and self.dom is not None:
            same_range = equal((self.dom.min, self.dom.extent), (other.dom.min, other.dom.extent))
        return same_range and self.kind == other.kind and self.thread_tag == other.thread_tag

    def __repr__(self) -> str:
        return f"iter_var({self.var.name}, {self.dom}, {self.thread_tag or self.kind})"


class CommReducer:
    """An associative and commutative combination of tuples.

    `lhs` and `rhs` are the variables of the two operands, `result` the combined tuple in terms of them, `identity`
    the tuple that leaves the other operand unchanged.
    """

    __slots__ = ("identity", "lhs", "result", "rhs")

    def __init__(
        self, lhs: Sequence[Var], rhs: Sequence[Var], result: Sequence[PrimExpr], identity: Sequence[PrimExpr]
    ) -> None:
        self.lhs, self.rhs = tuple(lhs), tuple(rhs)
        self.result, self.identity = tuple(result), tuple(identity)

    def structural_equal_to(self, other: Any, equal: StructuralEqual) -> bool:
        """Whether combination and identity are equal, with operand variables matched pairwise."""
        if self is other:
            return True
        if len(self.lhs) != len(other.lhs):
            return False
        for a, b in zip((*self.lhs, *self.rhs), (*other.lhs, *other.rhs), strict=True):
            equal.bind(a, b)
        return equal(self.result, other.result) and equal(self.identity, other.identity)


@node
class Reduce(PrimExpr):
    """The combination of `source` over `axis` where `condition` holds; component `value_index` of the tuple.

    Tensor expressions only; the top of a compute body. `init`, when given, replaces the identity as the start.
    """

    combiner: CommReducer
    source: tuple[PrimExpr, ...]
    axis: tuple[IterVar, ...]
    condition: PrimExpr
    value_index: int = 0
    init: tuple[PrimExpr, ...] = ()
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = self.source[self.value_index].dtype  # type: ignore[misc]
