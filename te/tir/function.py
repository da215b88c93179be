"""PrimFunc: a function of the loop IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from relayc.te.ir.node import Node, node
from relayc.te.ir.span import Span
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import Var
from relayc.te.tir.operators import OPERATIONS
from relayc.te.tir.stmt import Stmt

__all__ = ["PrimFunc"]


@node
class PrimFunc(Node):
    """Parameters, the buffers that handle parameters stand for, and a body.

    `attrs`: "global_symbol" (the name it is linked by), "target" (once bound), "noalias" (buffers don't overlap;
    default True), "overlapping" (positions of those parameters that do, where it is False; default all), "recomputes"
    (elements of the results may be computed twice, so that no result may take the memory of an input), "packed_api"
    (False: a raw kernel without argument checks), "calling_convention" of host and device parts. Scalar parameters are
    variables without an entry in `buffer_map`.
    """

    params: tuple[Var, ...]
    body: Stmt
    buffer_map: Mapping[Var, Buffer] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    span: Span | None = field(default=None, kw_only=True)

    binders = ("params", "buffer_map")

    @property
    def name(self) -> str:
        """The name the function is linked by, "main" when none was given."""
        return self.attrs.get("global_symbol", "main")

    def with_body(self, body: Stmt) -> PrimFunc:
        """A copy with another body; the function itself when the body is the same object."""
        return self if body is self.body else self.replace(body=body)

    def with_attr(self, key: str, value: Any) -> PrimFunc:
        """A copy with one attribute set; the function itself where it was set already."""
        return self if self.attrs.get(key) is value else self.replace(attrs={**self.attrs, key: value})

    def __str__(self) -> str:
        return OPERATIONS["text"](self)

    __repr__ = __str__
