"""Errors of the graph IR: what, where (operator, shapes, source node), what was expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from relayc.backend.runtime.errors import raise_if_foreign
from relayc.te.errors import CompileError
from relayc.te.ir import Span

__all__ = [
    "GradientError",
    "InternalCompileError",
    "MalformedGraphError",
    "ParseError",
    "TypeInferenceError",
    "UnknownOperatorError",
    "raise_if_internal",
    "reports_internal_errors",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class TypeInferenceError(CompileError):
    """An operator's arguments break one of its constraints.

    Operators raise it with the constraint alone; the call being made adds the operator, the argument types and the
    place. `constraint` is the sentence that was broken.
    """

    def __init__(self, constraint: str, *, op: Any = None, types: Sequence[Any] = (), span: Span | None = None) -> None:
        self.constraint = constraint
        self.op = op
        self.types = tuple(types)
        self.span = span
        super().__init__(self._message())

    def _message(self) -> str:
        if self.op is None:
            return self.constraint
        arguments = ", ".join(map(str, self.types))
        where = f"\n  at {self.span}" if self.span is not None else ""
        return f"{self.op}({arguments}): {self.constraint}{where}"

    def located(self, op: Any, types: Sequence[Any], span: Span | None) -> TypeInferenceError:
        """This error with operator, argument types and source location filled in; unchanged if it has them already."""
        if self.op is not None:
            return self
        return TypeInferenceError(self.constraint, op=op, types=types, span=span)


class UnknownOperatorError(CompileError):
    """No operator is registered under this name."""


class GradientError(CompileError):
    """A program that can't be differentiated: an operator without a rule, control flow, an unknown broadcast."""

    def __init__(self, problem: str, span: Span | None = None) -> None:
        self.problem = problem
        self.span = span
        super().__init__(problem if span is None else f"{problem}\n  at {span}")

    def located(self, span: Span | None) -> GradientError:
        """This error with the source location filled in; unchanged if it has one."""
        return self if self.span is not None else GradientError(self.problem, span)


class MalformedGraphError(CompileError):
    """A graph that breaks an invariant of the IR: a cycle, a free variable, an ill-typed call."""


class ParseError(CompileError):
    """Text that is not a program of the graph IR; the message shows line and column."""


class InternalCompileError(CompileError):
    """A fault of the compiler: an exception that it should not have raised. The cause is that exception."""


def raise_if_internal(error: Exception, doing: str) -> None:
    """Raise InternalCompileError from an exception that no code of the compiler means to raise; `doing` says where."""
    raise_if_foreign(error, doing, CompileError, InternalCompileError)


def reports_internal_errors(doing: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A decorator of the compiler's outermost functions: see `raise_if_internal`. A call with other arguments than the
    function has is a TypeError, as of any function."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if not isinstance(error, TypeError) or _takes(function, args, kwargs):
                    raise_if_internal(error, doing)
                raise

        return call

    return decorate


def _takes(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Has the function parameters for these arguments?"""
    try:
        signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True
