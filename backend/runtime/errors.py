"""Errors of the runtime. Messages say what, where, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = [
    "ArgumentError",
    "ArtifactError",
    "DeviceError",
    "IndexRangeError",
    "InternalError",
    "MissingFileError",
    "MissingModelError",
    "ModuleError",
    "RegistryError",
    "RelaycError",
    "RunCancelledError",
    "SizeMismatchError",
    "of_user",
    "raise_if_foreign",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class RelaycError(Exception):
    """Base class of all errors raised while loading and running compiled code."""


class ArgumentError(RelaycError, ValueError):
    """A value passed to the runtime or to a compiled function is invalid."""


class MissingFileError(ArgumentError, FileNotFoundError):
    """There is no file at a path that was passed."""


class IndexRangeError(ArgumentError):
    """A gather or scatter of the model takes an index that is outside of its axis."""


class SizeMismatchError(ArgumentError):
    """The sizes of the inputs contradict each other, or what an operator of the model requires."""


class DeviceError(RelaycError):
    """A device is unknown, absent, out of memory, or lacks an operation."""


class ArtifactError(RelaycError):
    """A compiled-model file is damaged, foreign, of another version, or for another machine."""


class MissingModelError(ArtifactError, FileNotFoundError):
    """There is no file of a compiled model at a path."""


class ModuleError(RelaycError, AttributeError):
    """A module has no function of that name, or can't be saved, loaded or printed in that form."""


class RegistryError(RelaycError, LookupError):
    """A name is missing from a registry or is taken in it already."""


class RunCancelledError(RelaycError):
    """A run that another thread ended (`GraphModule.cancel`)."""


class InternalError(RelaycError):
    """A fault of this package while loading or running a model: an exception that it should not have raised."""


def raise_if_foreign(
    error: Exception, doing: str, own: type[Exception] = RelaycError, internal: type[Exception] = InternalError
) -> None:
    """Raise `internal` from `error` if that is an exception that no code of the package means to raise.

    The last net, in the package's outermost functions, which say what they were `doing` and re-raise any other `error`:
    the package's own (`own` and RelaycError), what a function of the user raised (see `of_user`), and the system's:
    MemoryError, and OSError, as of a full disk or a library that can't be loaded, which notes what they were `doing`.
    """
    if isinstance(error, own | RelaycError | MemoryError) or getattr(error, _OF_USER, False):
        return
    if isinstance(error, OSError):
        error.add_note(doing)
        return
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    raise internal(
        f"{doing}: {type(error).__name__}: {error}{notes}\n  a fault of relayc, not of the model or its inputs; please "
        "report it with the model and the traceback"
    ) from error


_OF_USER = "_raised_by_user"


def of_user(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function of the user, called by the package: its exceptions reach the user as they are."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            setattr(error, _OF_USER, True)
            raise

    return call
