"""Vectors of any length by instructions for vectors of the lengths that the processor has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from relayc.backend.llvm.codegen.expr import ExprEmitter

__all__ = ["VectorLegalizer", "word_vector"]


class VectorLegalizer(ExprEmitter):
    """Takes vectors apart and puts them together. `element` is the type of a lane."""

    def by_parts(
        self, lanes: int, widths: Collection[int], operands: Sequence[str], instruction: Callable[..., str],
        element: str = "i32",
    ) -> str:  # fmt: skip
        """The results of ``instruction(width, parts of the operands...)`` as one vector, the widest parts first.

        All are vectors of `element`.
        """
        results: list[tuple[str, int]] = []
        begin = 0
        while begin < lanes:
            width = max(w for w in widths if w <= lanes - begin)
            parts = [self.part(v, element, lanes, begin, width) for v in operands]
            results.append((instruction(width, *parts), width))
            begin += width
        return self.joined(results, element)

    def part(self, value: str, element: str, lanes: int, begin: int, width: int) -> str:
        """Some lanes of a vector."""
        if lanes == width:
            return value
        return self._picked(value, "poison", element, lanes, range(begin, begin + width))

    def joined(self, parts: Sequence[tuple[str, int]], element: str) -> str:
        """Vectors, of so many lanes each, as one."""
        value, lanes = parts[0]
        for other, width in parts[1:]:
            both = max(width, lanes)
            widened, before = self._spread(other, element, width, both), self._spread(value, element, lanes, both)
            value = self._picked(before, widened, element, both, (*range(lanes), *range(both, both + width)))
            lanes += width
        return value

    def _spread(self, value: str, element: str, lanes: int, width: int) -> str:
        """A vector with more lanes, of any value."""
        if lanes == width:
            return value
        return self._picked(value, "poison", element, lanes, [i if i < lanes else 0 for i in range(width)])

    def _picked(self, value: str, other: str, element: str, lanes: int, picks: Sequence[int]) -> str:
        """Lanes of two vectors of as many."""
        kind, places = f"<{lanes} x {element}>", ", ".join([f"i32 {i}" for i in picks])
        return self.text.pure(f"shufflevector {kind} {value}, {kind} {other}, <{len(picks)} x i32> <{places}>")


def word_vector(lanes: int) -> str:
    """The type of a vector of int32."""
    return "i32" if lanes == 1 else f"<{lanes} x i32>"
