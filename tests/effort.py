"""Measuring the work of Python code by counting executed lines instead of time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

__all__ = ["growth", "lines_run"]


def lines_run(action: Callable[[], object]) -> int:
    """The number of Python lines executed by a call."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines


def growth(action: Callable[[int], object], first: int, few: int, many: int) -> float:
    """How many times as many lines `action(many)` executes as `action(few)`; what `action(first)` makes once is not
    counted."""
    action(first)
    before, after = (lines_run(partial(action, count)) for count in (few, many))
    return after / before
