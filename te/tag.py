"""Tags mark operations for schedules to recognise: "broadcast", "conv2d_nhwc", ..."""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar, Token

__all__ = ["current_tag", "tag_scope"]

_current: ContextVar[str] = ContextVar("relayc_te_tag", default="")


class tag_scope(ContextDecorator):
    """Operations made inside have this tag unless they name one: ``with te.tag_scope("injective")``, or a decorator."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self._tokens: list[Token[str]] = []

    def __enter__(self) -> tag_scope:
        self._tokens.append(_current.set(self.tag))
        return self

    def __exit__(self, *exc_info: object) -> None:
        _current.reset(self._tokens.pop())


def current_tag() -> str:
    """The tag of the innermost `tag_scope`, or an empty one."""
    return _current.get()
