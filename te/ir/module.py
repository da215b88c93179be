"""IRModule: functions by global name, of any IR of the project (loop functions, graph functions)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from relayc.te.errors import CompileError

__all__ = ["IRModule"]


class IRModule:
    """An ordered mapping from global name to function, with module attributes.

    Passes treat a module as a value: `with_functions` and `map_functions` give a new one.
    """

    __slots__ = ("attrs", "functions")

    def __init__(self, functions: Mapping[str, Any] | None = None, attrs: Mapping[str, Any] | None = None) -> None:
        for passed in (functions, attrs):
            if passed is not None and not isinstance(passed, Mapping):
                raise CompileError(f"a module of {passed!r}; expected functions by name (from_expr takes one)")
        self.functions: dict[str, Any] = dict(functions or {})
        self.attrs: dict[str, Any] = dict(attrs or {})

    @staticmethod
    def from_expr(function: Any) -> IRModule:
        """The module whose "main" is `function` (TVM: `IRModule.from_expr`)."""
        return IRModule({"main": function})

    def __getitem__(self, name: str) -> Any:
        try:
            return self.functions[name]
        except KeyError:
            known = ", ".join(self.functions) or "none"
            raise CompileError(f"no function {name!r} in this module; it has: {known}") from None

    def __contains__(self, name: str) -> bool:
        return name in self.functions

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)

    def with_functions(self, functions: Mapping[str, Any]) -> IRModule:
        """A module with these functions and the same attributes."""
        return IRModule(functions, self.attrs)

    def with_function(self, name: str, function: Any) -> IRModule:
        """A copy with one function set."""
        return self.with_functions({**self.functions, name: function})

    def with_attr(self, key: str, value: Any) -> IRModule:
        """A copy with one attribute set."""
        return IRModule(self.functions, {**self.attrs, key: value})

    def map_functions(self, f: Callable[[Any], Any]) -> IRModule:
        """A module with `f` applied to every function; this very module when nothing changed."""
        new = {name: f(function) for name, function in self.functions.items()}
        if all(new[name] is old for name, old in self.functions.items()):
            return self
        return self.with_functions(new)

    def structural_equal_to(self, other: Any, equal: Callable[[Any, Any], bool]) -> bool:
        """Whether both modules have the same names and equal functions."""
        return equal(self.functions, other.functions)

    def astext(self) -> str:
        """The functions as text, in order."""
        texts = [f.global_text(n) if hasattr(f, "global_text") else str(f) for n, f in self.functions.items()]
        return "\n\n".join(texts)

    def __repr__(self) -> str:
        return f"<IRModule of {', '.join(self.functions) or 'nothing'}>"

    __str__ = astext
