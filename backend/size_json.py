"""Serialisation of symbolic sizes in compiled models; `backend.runtime.sizes` evaluates them at run time."""

from __future__ import annotations

from collections.abc import Callable

from relayc.backend.runtime.sizes import Size
from relayc.te.errors import CompileError
from relayc.te.tir import Add, Cast, Dim, Div, FloorDiv, FloorMod, IntImm, Max, Min, Mod, Mul, Sub, Var

__all__ = ["size_to_json"]

_OPERATORS: dict[type, str] = {
    Add: "+", Sub: "-", Mul: "*", FloorDiv: "//", FloorMod: "%", Div: "//", Mod: "%", Min: "min", Max: "max",
}  # fmt: skip
"""Size operators by expression class. Sizes are not negative, so floor and truncating division agree."""


def _own_name(var: Var) -> str:
    return var.name


def size_to_json(size: Dim, name: Callable[[Var], str] = _own_name) -> Size:
    """A size as an int, a name (`name` of a variable) or (operator, size, size).

    Raises CompileError for expressions that can't be evaluated at run time.
    """
    if isinstance(size, int | IntImm):
        return int(size)
    if isinstance(size, Var):
        return name(size)
    if isinstance(size, Cast):
        return size_to_json(size.value, name)
    operator = _OPERATORS.get(type(size))
    if operator is None:
        raise CompileError(f"the size {size} can't be computed at run time: expected sums, products and quotients")
    return (operator, size_to_json(size.a, name), size_to_json(size.b, name))  # type: ignore[attr-defined]
