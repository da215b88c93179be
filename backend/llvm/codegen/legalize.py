"""Vector legalisation: splits vectors of any length into the widths that the processor supports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from relayc.backend.llvm.codegen.expr import ExprEmitter

__all__ = ["VectorLegalizer", "word_vector"]


class VectorLegalizer(ExprEmitter):
    """Splits and concatenates vectors. `element` is the type of a lane."""

    def legalize(
        self, lanes: int, widths: Collection[int], operands: Sequence[str], instruction: Callable[..., str],
        element: str = "i32",
    ) -> str:  # fmt: skip
        """Apply ``instruction(width, parts of the operands...)`` to parts, widest first, and concatenate the results.

        All vectors have lanes of type `element`.
        """
        results: list[tuple[str, int]] = []
        begin = 0
        while begin < lanes:
            width = max(w for w in widths if w <= lanes - begin)
            parts = [self.part(v, element, lanes, begin, width) for v in operands]
            results.append((instruction(width, *parts), width))
            begin += width
        return self.concatenate(results, element)

    def part(self, value: str, element: str, lanes: int, begin: int, width: int) -> str:
        """A contiguous part of a vector's lanes."""
        if lanes == width:
            return value
        return self._shuffle(value, "poison", element, lanes, range(begin, begin + width))

    def concatenate(self, parts: Sequence[tuple[str, int]], element: str) -> str:
        """Concatenate (vector, lanes) pairs."""
        value, lanes = parts[0]
        for other, width in parts[1:]:
            both = max(width, lanes)
            widened, before = self._extend(other, element, width, both), self._extend(value, element, lanes, both)
            value = self._shuffle(before, widened, element, both, (*range(lanes), *range(both, both + width)))
            lanes += width
        return value

    def _extend(self, value: str, element: str, lanes: int, width: int) -> str:
        """A vector extended by unspecified lanes."""
        if lanes == width:
            return value
        return self._shuffle(value, "poison", element, lanes, [i if i < lanes else 0 for i in range(width)])

    def _shuffle(self, value: str, other: str, element: str, lanes: int, picks: Sequence[int]) -> str:
        """A shuffle of two vectors with the same number of lanes."""
        kind, places = f"<{lanes} x {element}>", ", ".join([f"i32 {i}" for i in picks])
        return self.text.pure(f"shufflevector {kind} {value}, {kind} {other}, <{len(picks)} x i32> <{places}>")


def word_vector(lanes: int) -> str:
    """The type of a vector of int32."""
    return "i32" if lanes == 1 else f"<{lanes} x i32>"
