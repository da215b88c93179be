"""The package's logger, "relayc": silent unless a program configures logging.

Warnings say what makes the package slower or less useful than it could be (a cache that can't be used), information
what it did that takes time (a model compiled, or found in the cache), debug messages the steps of that.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

__all__ = ["logger", "warn_once"]


@cache
def logger() -> Logger:
    """The logger "relayc"; parts of the package have children of it. With the standard library's last resort off:
    nothing reaches stderr before a program adds a handler."""
    import logging  # takes a millisecond, which loading and running a model does without

    found = logging.getLogger("relayc")
    found.addHandler(logging.NullHandler())
    return found


@lru_cache(maxsize=256)
def warn_once(text: str, part: str = "") -> None:
    """Log a warning, the first time that this process has it, of the package or of a `part` of it ("torch")."""
    (logger().getChild(part) if part else logger()).warning("%s", text)
