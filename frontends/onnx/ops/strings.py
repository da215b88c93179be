"""String operators, which process contents on the host, in Python; data movement of strings is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relayc.backend.runtime.regex import Pattern, PatternError
from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import require_rank
from relayc.frontends.onnx.ops.flow import fields_of
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.relay.op.host import ActionOperator
from relayc.relay.op.strings import Normalize, Split
from relayc.relay.type import TensorType, TupleType
from relayc.te.tir import Dim

__all__ = ["require_pattern", "sized_by_strings"]


def sized_by_strings(
    node: OnnxNode, shape: tuple[Dim, ...], axis: int, what: str, make: Callable[[TensorType], ActionOperator]
) -> list[Expr]:
    """Results of a string operator on input 0; the first has `shape`, with a data-dependent size along `axis`.

    `make` returns the operator for the type of its first result; `what` names the elements along the axis.
    """
    known = node.known_value(0)
    ty = TensorType([0 if a == axis else d for a, d in enumerate(shape)], "string")
    if known is None:
        result = make(node.fresh_sizes(ty, [axis], f"#result_{what}"))(node[0])
        return fields_of(result) if isinstance(result.ty, TupleType) else [result]
    operator = make(ty)
    operator.check(node.type(0))
    found = operator.reference(known)
    return [Constant(x) for x in (found if isinstance(found, tuple) else (found,))]


def require_pattern(node: OnnxNode, text: str) -> str:
    """Check that `text` is a supported regular expression."""
    try:
        Pattern(text)
    except PatternError as error:
        raise node.unsupported(f"a pattern that is not supported: {error}") from error
    return text


@converter("Equal", since=19)
def equal(node: OnnxNode) -> Expr:
    """Strings since opset 19."""
    return op.equal(node[0], node[1])


@converter("StringConcat", since=20)
def string_concat(node: OnnxNode) -> Expr:
    return op.strings.concat(node[0], node[1])


@converter("RegexFullMatch", since=20)
def regex_full_match(node: OnnxNode) -> Expr:
    """Does the whole string match an RE2 pattern?"""
    return op.strings.full_match(node[0], require_pattern(node, node.attr_str("pattern")))


@converter("StringSplit", since=20)
def string_split(node: OnnxNode) -> list[Expr]:
    """Parts of each string along a new last axis, padded, and their number."""
    how: dict[str, Any] = {"delimiter": node.attr_str("delimiter", ""), "most": node.attr_int("maxsplit", -1)}
    rank = node.rank(0)
    return sized_by_strings(node, (*node.type(0).shape, 0), rank, "parts", lambda ty: Split(result=ty, **how))


@converter("StringNormalizer", since=10)
def string_normalizer(node: OnnxNode) -> list[Expr]:
    """Removes stop words from [C] or [1, C] and changes case; an empty result is one empty string."""
    node.attrs.ignore("locale")
    require_rank(node, 0, 1, 2)
    shape = node.type(0).shape
    if len(shape) == 2 and shape[0] != 1:
        if isinstance(shape[0], int):
            raise node.error(f"{shape[0]} rows of strings", expected="[C] or [1, C]")
        node.check_equal(shape[0], 1, "the rows of strings")
    how: dict[str, Any] = {
        "case": node.attr_choice("case_change_action", ("NONE", "LOWER", "UPPER"), "NONE"),
        "is_case_sensitive": node.attr_bool("is_case_sensitive", False),
        "stop_words": node.attrs.get_strings("stopwords") or (),
    }
    return sized_by_strings(node, shape, len(shape) - 1, "words", lambda ty: Normalize(result=ty, **how))
