"""Strings, which are computed when compiling: their operators run on the host, in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.regex import Pattern, PatternError
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Constant, Expr

__all__ = ["strings"]

Strings = np.ndarray[Any, np.dtype[np.object_]]


def strings(node: OnnxNode, index: int) -> Strings:
    """The strings of input `index`, a tensor of Python's str."""
    value = node.constant(index, "the strings")
    if value.dtype.kind not in "OSUT":
        raise node.error(f"input {index} is {value.dtype.name}", expected="strings")
    return _each(value, lambda s: s.decode("utf-8") if isinstance(s, bytes) else str(s))


def _each(x: np.ndarray, function: Callable[[Any], Any]) -> Strings:
    result = np.empty(x.size, object)
    result[:] = [function(s) for s in x.reshape(-1)]
    return result.reshape(x.shape)


@converter("Equal", since=19)
def equal(node: OnnxNode) -> Expr:
    """From opset 19 on strings can be compared, too."""
    if node.dtype(0) != "string":
        return op.equal(node[0], node[1])
    return Constant(np.asarray(strings(node, 0) == strings(node, 1), dtype=bool))


@converter("StringConcat", since=20)
def string_concat(node: OnnxNode) -> Expr:
    return Constant(np.asarray(strings(node, 0) + strings(node, 1), dtype=object))


@converter("RegexFullMatch", since=20)
def regex_full_match(node: OnnxNode) -> Expr:
    """Does the whole of each string match? Patterns are RE2's."""
    try:
        pattern = Pattern(node.attr_str("pattern"))
    except PatternError as error:
        raise node.unsupported(f"a pattern that is not supported: {error}") from error
    return Constant(_each(strings(node, 0), pattern.matches).astype(bool))


@converter("StringSplit", since=20)
def string_split(node: OnnxNode) -> list[Expr]:
    """The parts of each string along a new last axis, filled with empty ones, and how many they are."""
    delimiter = node.attr_str("delimiter", "") or None
    most = node.attr_int("maxsplit", -1)
    parts = _each(strings(node, 0), lambda s: s.split(delimiter, most))
    counts = _each(parts, len).astype(np.int64)
    width = int(counts.max(initial=0))
    table = np.full((parts.size, width), "", object)
    for row, words in zip(table, parts.reshape(-1), strict=True):
        row[: len(words)] = words
    return [Constant(table.reshape((*parts.shape, width))), Constant(counts)]


@converter("StringNormalizer", since=10)
def string_normalizer(node: OnnxNode) -> Expr:
    """Stop words taken out of [C] or [1, C], the case of the rest changed; where nothing is left, one empty string."""
    node.attrs.ignore("locale")
    words = strings(node, 0)
    if words.ndim not in (1, 2) or (words.ndim == 2 and words.shape[0] != 1):
        raise node.error(f"strings of shape {list(words.shape)}", expected="[C] or [1, C]")
    action = node.attr_choice("case_change_action", ("NONE", "LOWER", "UPPER"), "NONE")
    compared: Callable[[str], str] = str if node.attr_bool("is_case_sensitive", False) else str.lower
    stop = {compared(word) for word in node.attrs.get_strings("stopwords") or ()}
    kept: Sequence[str] = [word for word in words.reshape(-1) if compared(word) not in stop] or [""]
    change = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[action]
    result = _each(np.array(kept, object), change)
    return Constant(result if words.ndim == 1 else result[None, :])
