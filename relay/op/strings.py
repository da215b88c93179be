"""Operators on strings: tensors of element type "string".

Strings are moved, selected and compared by the general operators. `EncodeStrings` replaces all strings by integers
before anything is compiled; the remaining string operators are calls of `relay.op.host.OnHost`, which the executor runs
by `backend.runtime.string_actions`.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import OpPattern, register_op
from relayc.relay.op.common import require
from relayc.relay.op.host import ActionOperator
from relayc.relay.type import TensorType, TupleType, broadcast_shapes, dims_match

__all__ = ["concat", "full_match", "index", "rank"]


@register_op("strings.concat", pattern=OpPattern.OPAQUE)
class Concat(ActionOperator):
    """a and b concatenated, element by element (ONNX: StringConcat). (C2) the shapes broadcast."""

    action = "concat"

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        self.check(a, b)
        return TensorType(broadcast_shapes(a.shape, b.shape), "string")


@register_op("strings.full_match", pattern=OpPattern.OPAQUE)
class FullMatch(ActionOperator):
    """Does the whole of each string match the regular expression, which is RE2's (ONNX: RegexFullMatch)?"""

    action = "full_match"

    expression: str

    def infer(self, x: TensorType) -> TensorType:
        self.check(x)
        return x.with_dtype("bool")


@register_op("strings.split", pattern=OpPattern.OPAQUE)
class Split(ActionOperator):
    """Each string cut at a delimiter, `most` times or, below 0, as often as it occurs (ONNX: StringSplit).

    The parts are along a new last axis, padded with empty strings; the second result says how many there are.
    Without a delimiter strings are cut at white space. (C2) `result` is the input's shape with another axis.
    """

    action = "split"

    delimiter: str = ""
    most: int = -1
    result: TensorType

    def infer(self, x: TensorType) -> TupleType:
        self.check(x)
        require(self.result.ndim == x.ndim + 1, f"(C2) parts of {x} as {self.result}")
        return TupleType([self.result, x.with_dtype("int64")])


@register_op("strings.normalize", pattern=OpPattern.OPAQUE)
class Normalize(ActionOperator):
    """Stop words left out, the case of the others changed to "LOWER", "UPPER" or not, "NONE" (ONNX: StringNormalizer).

    Where nothing is left there is one empty string. (C2) input and `result` are a vector, or one row.
    """

    action = "normalize"

    case: str = "NONE"
    is_case_sensitive: bool = False
    stop_words: tuple[str, ...] = ()
    result: TensorType

    def infer(self, x: TensorType) -> TensorType:
        self.check(x)
        fits = x.ndim == self.result.ndim and (x.ndim == 1 or (x.ndim == 2 and dims_match(x.shape[0], 1)))
        require(fits, f"(C2) words {x} as {self.result}; expected [C] or [1, C]")
        return self.result


@register_op("strings.tokenize", pattern=OpPattern.OPAQUE)
class Tokenize(ActionOperator):
    """Each string cut into tokens along a new last axis, padded with `fill` (onnxruntime: Tokenizer).

    Tokens are what matches `token`, or what is between matches of the `separators`, of `least` characters or more;
    characters for ``separators=("",)``. With `mark` there is a start (U+0002) and an end (U+0003). (C2) `result` is the
    input's shape with another axis.
    """

    action = "tokenize"

    separators: tuple[str, ...] = ()
    token: str = ""
    mark: bool = False
    least: int = 1
    fill: str = ""
    result: TensorType

    def infer(self, x: TensorType) -> TensorType:
        self.check(x)
        require(self.result.ndim == x.ndim + 1, f"(C2) tokens of {x} as {self.result}")
        return self.result


@register_op("strings.parse", pattern=OpPattern.OPAQUE)
class Parse(ActionOperator):
    """The numbers that strings represent, as float64 or int64; "inf" and "nan" among floats (ONNX: Cast).

    (C2) `dtype` is one of these.
    """

    action = "parse"

    dtype: str

    def infer(self, x: TensorType) -> TensorType:
        self.check(x)
        require(self.dtype in ("float64", "int64"), f"(C2) strings as {self.dtype}; expected float64 or int64")
        return x.with_dtype(self.dtype)


@register_op("strings.format", pattern=OpPattern.OPAQUE)
class Format(ActionOperator):
    """Numbers as strings, floats with so many significant digits (ONNX: Cast)."""

    action = "format"

    digits: int

    def infer(self, x: TensorType) -> TensorType:
        self.check(x)
        return x.with_dtype("string")


@register_op("strings.index", pattern=OpPattern.OPAQUE)
class Index(ActionOperator):
    """The position in `table` that each string has first, else the table's length; int64. It is compiled."""

    action = "index"

    table: tuple[str, ...]

    def infer(self, x: TensorType) -> TensorType:
        self.check(x)
        return x.with_dtype("int64")


@register_op("strings.rank", pattern=OpPattern.OPAQUE)
class Rank(ActionOperator):
    """The rank of each string among the distinct ones in order of their bytes; int64."""

    action = "rank"

    def infer(self, x: TensorType) -> TensorType:
        self.check(x)
        return x.with_dtype("int64")


def concat(a: Expr, b: Expr) -> Call:
    """The strings of `a` followed by those of `b`."""
    return Concat()(a, b)


def full_match(x: Expr, expression: str) -> Call:
    """Does a regular expression of RE2's match the whole of each string?"""
    return FullMatch(expression=expression)(x)


def index(x: Expr, table: Sequence[str]) -> Call:
    """The position of each string in `table`, the table's length for others."""
    return Index(table=tuple(table))(x)


def rank(x: Expr) -> Call:
    """The rank of each string among the distinct ones in order of their bytes."""
    return Rank()(x)
