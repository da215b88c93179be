"""Checks of arguments by annotations: a value that its annotation does not accept is an error that names both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from reprlib import repr
from types import UnionType
from typing import Any, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from relayc.relay.errors import TypeInferenceError

__all__ = ["check_attributes", "checked", "checked_call"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_CLASSES: dict[type, tuple[type, ...]] = {
    bool: (bool, np.bool_), int: (int, np.integer), float: (float, int, np.number),
}  # fmt: skip
_TEXTS = {
    "Expr": "an expression (relay.const makes one of a number or an array)", "NoneType": "None",
    "PrimExpr": "an expression of sizes", "bool": "a bool", "float": "a number", "int": "an integer", "str": "a string",
}  # fmt: skip


class _Hint(NamedTuple):
    """An annotation: does it accept a value, and what it says."""

    accepts: Callable[[Any], bool]
    text: str


def checked(build: Callable[_P, _R], name: str | None = None) -> Callable[_P, _R]:
    """The function `build`, by its own name or `name` in errors, with its arguments checked: see `checked_call`."""
    shown = name or build.__name__

    @wraps(build)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return checked_call(build, shown, args, kwargs)

    return call


def checked_call(build: Callable[..., _R], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _R:
    """``build(*args, **kwargs)`` of a function or class, called `name` in errors.

    Raises TypeInferenceError for a value that the annotation of its parameter does not accept, and for arguments that
    are missing or unknown.
    """
    hints = _hints(build)
    args = [_plain(value) for value in args]
    kwargs = {parameter: _plain(value) for parameter, value in kwargs.items()}
    _check(name, hints, zip(hints, args, strict=False))
    _check(name, hints, kwargs.items())
    try:
        return build(*args, **kwargs)
    except TypeInferenceError as error:
        raise error.located(name, [getattr(value, "ty", value) for value in args], None) from None
    except TypeError:
        _check_binding(name, build, args, kwargs)
        raise


def check_attributes(operator: Any) -> None:
    """Raise TypeInferenceError for an attribute of an operator whose annotation does not accept its value."""
    _check(operator.name, _hints(type(operator)), operator.attributes().items())


def _check(name: str, hints: Mapping[str, _Hint], passed: Iterable[tuple[str, Any]]) -> None:
    for parameter, value in passed:
        hint = hints.get(parameter)
        if hint is not None and not hint.accepts(value):
            raise TypeInferenceError(f"{parameter} is {repr(value)}; expected {hint.text}", op=name)


def _plain(value: Any) -> Any:
    """Integers of numpy as Python's, of which attributes of operators are made."""
    return int(value) if isinstance(value, np.integer) else value


def _check_binding(name: str, build: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeInferenceError if `build` does not take arguments of this number and these names."""
    signature = inspect.signature(build)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeInferenceError(f"{error}; expected {', '.join(signature.parameters)}", op=name) from error


@cache
def _hints(of: Any) -> dict[str, _Hint]:
    """The annotations of the parameters of a function, or of the fields of a class, in order."""
    return {name: _hint(annotation) for name, annotation in get_type_hints(of).items() if name != "return"}


def _is_tuple(value: Any) -> bool:
    return isinstance(value, tuple)


def _is_sequence(value: Any) -> bool:
    """Is the value a sequence, which a string is not, or a vector?"""
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, tuple | list | Sequence) and not isinstance(value, str | bytes)


@cache
def _hint(annotation: Any) -> _Hint:
    """What the annotation accepts: everything if it names no class or container of classes."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        parts = [_hint(part) for part in arguments]
        return _Hint(lambda value: any(p.accepts(value) for p in parts), " or ".join(p.text for p in parts))
    if origin is tuple and arguments[-1] is not Ellipsis:
        fields = [_hint(field) for field in arguments]
        return _Hint(
            lambda value: (
                _is_tuple(value)
                and len(value) == len(fields)
                and all(field.accepts(part) for field, part in zip(fields, value, strict=True))
            ),
            f"a tuple of {', '.join(field.text for field in fields)}",
        )
    if origin in (tuple, Sequence):
        element = _hint(arguments[0])
        is_list = _is_tuple if origin is tuple else _is_sequence
        return _Hint(
            lambda value: is_list(value) and all(map(element.accepts, value)),
            f"a {origin.__name__.lower()} whose elements are each {element.text}",
        )
    kind = annotation if origin is None else origin
    if annotation is Any or not isinstance(kind, type):
        return _Hint(lambda value: True, "any value")
    classes = _CLASSES.get(kind, kind)
    return _Hint(lambda value: isinstance(value, classes), _TEXTS.get(kind.__name__, f"a {kind.__name__}"))
