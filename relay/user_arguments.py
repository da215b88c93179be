"""Checks of the arguments that users pass to the import and to the build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relayc.te.errors import CompileError

__all__ = ["check_names", "check_text", "named_values"]


def named_values(passed: Any, what: str, example: str) -> Mapping[str, Any]:
    """The argument `what`, values by name; empty for None. Raises CompileError for anything but a dictionary."""
    if passed is None:
        return {}
    if not isinstance(passed, Mapping):
        raise CompileError(f"{what}= is {passed!r}; expected a dictionary such as {example}")
    for name in passed:
        check_text(name, f"a name in {what}=")
    return passed


def check_names(passed: Any, what: str) -> Sequence[str]:
    """The argument `what`, a list of names. Raises CompileError for anything else."""
    if not isinstance(passed, Sequence) or isinstance(passed, str | bytes):
        raise CompileError(f"{what}= is {passed!r}; expected a list of names")
    for name in passed:
        check_text(name, f"a name in {what}=")
    return passed


def check_text(passed: Any, what: str) -> str:
    """The string `what`. Raises CompileError for anything else, and for characters that UTF-8 does not have."""
    if not isinstance(passed, str):
        raise CompileError(f"{what} is {passed!r}; expected a string")
    if passed.encode(errors="ignore").decode() != passed:
        raise CompileError(f"{what} is {passed!r}; expected characters that UTF-8 has")
    return passed
