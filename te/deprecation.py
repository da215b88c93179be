"""Old public names that keep working, with a warning, until 1.0."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

__all__ = ["deprecated_alias", "deprecated_names"]

_Result = TypeVar("_Result")


def deprecated_alias(old: str, new: str, function: Callable[..., _Result], **renamed: str) -> Callable[..., _Result]:
    """A function that warns that `old` is now called `new` (DeprecationWarning), then calls `function`.

    Works for methods too, as an attribute of the class. `renamed`: keyword parameters, old name to new name.
    """

    def alias(*args: Any, **kwargs: Any) -> _Result:
        warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=2)
        return function(*args, **{renamed.get(key, key): value for key, value in kwargs.items()})

    alias.__name__ = alias.__qualname__ = old.rpartition(".")[2]
    alias.__doc__ = f"Deprecated alias of `{new}`; it will be removed in 1.0."
    return alias


def deprecated_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of `module`: gives what an old name is called today, with a DeprecationWarning.

    `names`: old name to new name. Raises AttributeError for all others.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is deprecated; use {module}.{names[name]}", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return find
