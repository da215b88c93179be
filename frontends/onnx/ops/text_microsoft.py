"""String operators of com.microsoft."""

from __future__ import annotations

from typing import Any

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import MICROSOFT, require_rank
from relayc.frontends.onnx.ops.strings import require_pattern, sized_by_strings
from relayc.frontends.onnx.registry import converter
from relayc.relay.expr import Expr
from relayc.relay.op.strings import Tokenize


@converter("Tokenizer", domain=MICROSOFT)
def tokenizer(node: OnnxNode) -> list[Expr]:
    """Tokens of each string of [C] or [N, C] along a new last axis, padded.

    Tokens are matches of an expression, or the substrings between separators.
    """
    require_rank(node, 0, 1, 2)
    separators, token = node.attrs.get_strings("separators"), node.attr_str("tokenexp", "")
    if separators:
        token = ""
    elif not token:
        raise node.error("neither separators nor an expression of tokens", expected="one of them")
    least = node.attr_int("mincharnum")
    if least < 1:
        raise node.error(f"mincharnum is {least}", expected="1 or more")
    for text in (*(separators or ()), token):
        require_pattern(node, text)
    how: dict[str, Any] = {
        "separators": separators or (), "token": token, "mark": node.attr_bool("mark", False), "least": least,
        "fill": node.attr_str("pad_value"),
    }  # fmt: skip
    rank = node.rank(0)
    return sized_by_strings(node, (*node.type(0).shape, 0), rank, "tokens", lambda ty: Tokenize(result=ty, **how))
