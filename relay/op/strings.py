"""Operators on strings: tensors of element type "string".

Strings are moved, selected and compared by the general operators. `EncodeStrings` replaces all strings by integers
before anything is compiled; the remaining string operators are calls of `OnHost`, which the executor runs by
`backend.runtime.string_actions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from relayc.backend.runtime.errors import ArgumentError
from relayc.backend.runtime.string_actions import TEXT_ACTIONS, prepared
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, attributes_of_operator, register_op
from relayc.relay.op.common import Array, require
from relayc.relay.op.host import HostOperator
from relayc.relay.type import TensorType, TupleType, broadcast_shapes, dims_match
from relayc.te.dtype import dtype as parse_dtype
from relayc.te.errors import CompileError

__all__ = ["OnHost", "StringOperator", "concat", "full_match", "index", "rank"]


@attributes_of_operator
class StringOperator(OpDef):
    """Base of the operators that read or make strings; `action` names the executor's function.

    (C1) inputs are strings, or numbers, as the action takes them. An attribute `result` is the type of a result whose
    size depends on the strings.
    """

    mixed_precision = MixedPrecision.NEVER
    action: ClassVar[str]

    def settings(self) -> dict[str, Any]:
        """The attributes that the action takes."""
        return {name: getattr(self, name) for name in TEXT_ACTIONS[self.action].settings}

    def check(self, *types: TensorType) -> None:
        """Raise TypeInferenceError unless inputs are strings where the action takes them."""
        for number, (ty, kind) in enumerate(zip(types, TEXT_ACTIONS[self.action].takes, strict=True)):
            wanted = "strings" if kind == "t" else "numbers"
            require((ty.dtype == "string") == (kind == "t"), f"(C1) input {number} must be {wanted}; got {ty}")

    def reference(self, *arrays: Array) -> Any:
        try:
            results = prepared(self.action, self.settings())(*arrays)
        except ArgumentError as error:
            raise CompileError(str(error)) from error
        return results[0] if len(results) == 1 else results


@register_op("strings.concat", pattern=OpPattern.OPAQUE)
class Concat(StringOperator):
    """a and b concatenated, element by element (ONNX: StringConcat). (C2) the shapes broadcast."""

    action = "concat"

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        self.check(a, b)
        return TensorType(broadcast_shapes(a.shape, b.shape), "string")


@register_op("strings.full_match", pattern=OpPattern.OPAQUE)
class FullMatch(StringOperator):
    """Does the whole of each string match the regular expression, which is RE2's (ONNX: RegexFullMatch)?"""

    action = "full_match"

    expression: str

    def infer(self, x: TensorType) -> TensorType:
        self.check(x)
        return x.with_dtype("bool")


@register_op("strings.split", pattern=OpPattern.OPAQUE)
class Split(StringOperator):
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
class Normalize(StringOperator):
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
class Tokenize(StringOperator):
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
class Parse(StringOperator):
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
class Format(StringOperator):
    """Numbers as strings, floats with so many significant digits (ONNX: Cast)."""

    action = "format"

    digits: int

    def infer(self, x: TensorType) -> TensorType:
        self.check(x)
        return x.with_dtype("string")


@register_op("strings.index", pattern=OpPattern.OPAQUE)
class Index(StringOperator):
    """The position in `table` that each string has first, else the table's length; int64. It is compiled."""

    action = "index"

    table: tuple[str, ...]

    def infer(self, x: TensorType) -> TensorType:
        self.check(x)
        return x.with_dtype("int64")


@register_op("strings.rank", pattern=OpPattern.OPAQUE)
class Rank(StringOperator):
    """The rank of each string among the distinct ones in order of their bytes; int64."""

    action = "rank"

    def infer(self, x: TensorType) -> TensorType:
        self.check(x)
        return x.with_dtype("int64")


@register_op("strings.on_host", pattern=OpPattern.OPAQUE)
class OnHost(HostOperator):
    """An operator on strings run by the executor, with strings encoded as integers.

    `results` are the types of its results, int64 for strings. (C1) it takes as many inputs as the operator.
    """

    has_side_effect = True  # encoded strings mean nothing without the executor's table: not to be folded

    operator: StringOperator
    results: tuple[TensorType, ...]

    def infer(self, *types: TensorType) -> TensorType | TupleType:
        action = TEXT_ACTIONS[self.operator.action]
        require(len(types) == len(action.takes), f"(C1) {len(types)} inputs for {self.operator}")
        for number, (ty, kind) in enumerate(zip(types, action.takes, strict=True)):
            fits = kind == "n" or ty.dtype == parse_dtype("int64")
            require(fits, f"(C1) input {number} must be numbers of strings; got {ty}")
        return self.results[0] if len(self.results) == 1 else TupleType(self.results)


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
