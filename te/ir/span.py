"""Where a node came from: the name an error shows to the user."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Span"]


@dataclass(frozen=True, slots=True)
class Span:
    """A place in the user's program: `source` is a file or model name, `name` the node in it (an ONNX node's name)."""

    source: str
    name: str = ""
    op: str = ""

    def __str__(self) -> str:
        parts = [p for p in (self.source, self.name, f"({self.op})" if self.op else "") if p]
        return " ".join(parts)
