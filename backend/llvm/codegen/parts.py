"""Vectors of int32 of any length by instructions for vectors of the lengths that the processor has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from backend.llvm.codegen.permuted import PermutedLoadEmitter

__all__ = ["PartEmitter", "word_vector"]


class PartEmitter(PermutedLoadEmitter):
    """Takes vectors of int32 apart and puts them together."""

    def by_parts(
        self, lanes: int, widths: Collection[int], operands: Sequence[str], instruction: Callable[..., str]
    ) -> str:
        """The results of ``instruction(width, parts of the operands...)`` as one vector, the widest parts first."""
        results: list[tuple[str, int]] = []
        begin = 0
        while begin < lanes:
            width = max(w for w in widths if w <= lanes - begin)
            parts = [self.part(v, lanes, begin, width) for v in operands]
            results.append((instruction(width, *parts), width))
            begin += width
        return self.joined(results)

    def part(self, value: str, lanes: int, begin: int, width: int) -> str:
        """Some lanes of a vector of int32."""
        if lanes == width:
            return value
        kind, picks = word_vector(lanes), ", ".join([f"i32 {i}" for i in range(begin, begin + width)])
        return self.text.pure(f"shufflevector {kind} {value}, {kind} poison, <{width} x i32> <{picks}>")

    def joined(self, parts: list[tuple[str, int]]) -> str:
        """Vectors of int32 as one."""
        value, lanes = parts[0]
        for other, width in parts[1:]:
            widened = self._spread(other, width, max(width, lanes))
            before = self._spread(value, lanes, max(width, lanes))
            both = max(width, lanes)
            picks = ", ".join([f"i32 {i}" for i in (*range(lanes), *range(both, both + width))])
            kind = word_vector(both)
            value = self.text.pure(
                f"shufflevector {kind} {before}, {kind} {widened}, <{lanes + width} x i32> <{picks}>"
            )
            lanes += width
        return value

    def _spread(self, value: str, lanes: int, width: int) -> str:
        """A vector with more lanes, of any value."""
        if lanes == width:
            return value
        kind, picks = word_vector(lanes), ", ".join([f"i32 {i if i < lanes else 0}" for i in range(width)])
        return self.text.pure(f"shufflevector {kind} {value}, {kind} poison, <{width} x i32> <{picks}>")


def word_vector(lanes: int) -> str:
    """The type of a vector of int32."""
    return "i32" if lanes == 1 else f"<{lanes} x i32>"
