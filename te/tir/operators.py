"""Python's operators on expressions of the loop IR.

Their implementations need the classes of expressions, which inherit the operators: they are looked up by name on use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relayc.te.tir.expr import PrimExpr

__all__ = ["OPERATIONS", "ExprOperators"]

OPERATIONS: dict[str, Callable[..., Any]] = {}
"""The operations on expressions by name: `te.tir.ops` puts arithmetic here, `te.tir.printer` "text"."""


class ExprOperators:
    """Python operators on expressions and axes."""

    __slots__ = ()

    def __add__(self, other: Any) -> PrimExpr:
        return OPERATIONS["add"](self, other)

    def __radd__(self, other: Any) -> PrimExpr:
        return OPERATIONS["add"](other, self)

    def __sub__(self, other: Any) -> PrimExpr:
        return OPERATIONS["sub"](self, other)

    def __rsub__(self, other: Any) -> PrimExpr:
        return OPERATIONS["sub"](other, self)

    def __mul__(self, other: Any) -> PrimExpr:
        return OPERATIONS["mul"](self, other)

    def __rmul__(self, other: Any) -> PrimExpr:
        return OPERATIONS["mul"](other, self)

    def __truediv__(self, other: Any) -> PrimExpr:
        return OPERATIONS["div"](self, other)

    def __rtruediv__(self, other: Any) -> PrimExpr:
        return OPERATIONS["div"](other, self)

    def __floordiv__(self, other: Any) -> PrimExpr:
        return OPERATIONS["floordiv"](self, other)

    def __rfloordiv__(self, other: Any) -> PrimExpr:
        return OPERATIONS["floordiv"](other, self)

    def __mod__(self, other: Any) -> PrimExpr:
        return OPERATIONS["floormod"](self, other)

    def __rmod__(self, other: Any) -> PrimExpr:
        return OPERATIONS["floormod"](other, self)

    def __neg__(self) -> PrimExpr:
        return OPERATIONS["neg"](self)

    def __lshift__(self, other: Any) -> PrimExpr:
        return OPERATIONS["left_shift"](self, other)

    def __rshift__(self, other: Any) -> PrimExpr:
        return OPERATIONS["right_shift"](self, other)

    def __and__(self, other: Any) -> PrimExpr:
        return OPERATIONS["bitwise_and"](self, other)

    def __rand__(self, other: Any) -> PrimExpr:
        return OPERATIONS["bitwise_and"](other, self)

    def __or__(self, other: Any) -> PrimExpr:
        return OPERATIONS["bitwise_or"](self, other)

    def __ror__(self, other: Any) -> PrimExpr:
        return OPERATIONS["bitwise_or"](other, self)

    def __xor__(self, other: Any) -> PrimExpr:
        return OPERATIONS["bitwise_xor"](self, other)

    def __invert__(self) -> PrimExpr:
        return OPERATIONS["bitwise_not"](self)

    def __lt__(self, other: Any) -> PrimExpr:
        return OPERATIONS["less"](self, other)

    def __le__(self, other: Any) -> PrimExpr:
        return OPERATIONS["less_equal"](self, other)

    def __gt__(self, other: Any) -> PrimExpr:
        return OPERATIONS["greater"](self, other)

    def __ge__(self, other: Any) -> PrimExpr:
        return OPERATIONS["greater_equal"](self, other)

    def __eq__(self, other: Any) -> Any:
        return OPERATIONS["equal"](self, other)

    def __ne__(self, other: Any) -> Any:
        return OPERATIONS["not_equal"](self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(
            f"the symbolic expression {self} has no truth value while the program is being built; "
            "use te.if_then_else, te.all or te.any in place of if, and, or"
        )

    def astype(self, to: str) -> PrimExpr:
        """This value cast to type `to`."""
        return OPERATIONS["cast"](to, self)
