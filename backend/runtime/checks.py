"""Checks of the plain values that users pass: numbers and positions."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from relayc.backend.runtime.errors import ArgumentError

__all__ = ["as_integer", "check_path", "position_of", "positive"]


def as_integer(value: Any) -> int | None:
    """An integer of Python, numpy or another library as an int; None for anything else, bools and strings too."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def positive(value: Any, what: str) -> int:
    """The integer `value`, of 1 or more. Raises `ArgumentError` naming `what` for anything else."""
    number = as_integer(value)
    if number is None or number < 1:
        raise ArgumentError(f"{what} is {value!r}; expected a positive integer")
    return number


def check_path(value: Any, what: str) -> str:
    """The path `value` as text. Raises `ArgumentError` naming `what` for anything else."""
    text = os.fsdecode(value) if isinstance(value, str | os.PathLike) else None
    if text is None or "\0" in text:
        raise ArgumentError(f"{what} is {value!r}; expected a path")
    return text


def position_of(key: Any, positions: Mapping[str, int]) -> int:
    """The position that `key`, a name or an integer, stands for; -1 for anything else."""
    if isinstance(key, str):
        return positions.get(key, -1)
    number = as_integer(key)
    return -1 if number is None else number
