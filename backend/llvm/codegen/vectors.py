"""Vectors: lanes and parts of them, and vectors split into the widths that the processor supports (legalisation).

The `element` of a vector is the LLVM type of a lane.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.types import register_type, suffix
from relayc.te.dtype import DType

__all__ = [
    "call_overloaded", "concatenate", "extend", "extract_lane", "extract_part", "flags_text", "known_flags", "legalize",
    "pack_lanes", "permute", "shuffle", "slice_lanes", "splat", "value_of_branches", "word_vector",
]  # fmt: skip


def splat(text: FunctionText, value: str, of: DType) -> str:
    """The vector of type `of` with the scalar operand `value` in every lane."""
    kind, vector = register_type(of.element), register_type(of)
    if value[0] != "%":
        return "zeroinitializer" if value == "0" else f"splat ({kind} {value})"
    one = text.pure(f"insertelement {vector} poison, {kind} {value}, i64 0")
    return text.pure(f"shufflevector {vector} {one}, {vector} poison, <{of.lanes} x i32> zeroinitializer")


def extract_lane(text: FunctionText, value: str, of: DType, i: int) -> str:
    """Lane `i` of a vector operand; a scalar has only itself."""
    return value if of.lanes == 1 else text.pure(f"extractelement {register_type(of)} {value}, i64 {i}")


def pack_lanes(text: FunctionText, lanes: list[str], of: DType) -> str:
    """The vector of these scalar operands."""
    kind, element, vector = register_type(of), register_type(of.element), "poison"
    for i, value in enumerate(lanes):
        vector = text.pure(f"insertelement {kind} {vector}, {element} {value}, i64 {i}")
    return vector


def call_overloaded(text: FunctionText, name: str, of: DType, *operands: str, flags: str = "") -> str:
    """An LLVM intrinsic whose operands and result all have type `of`."""
    kind, full = register_type(of), f"llvm.{name}.{suffix(of)}"
    text.module.declare(full, kind, ", ".join([kind] * len(operands)))
    return text.pure(f"call {flags}{kind} @{full}({', '.join([f'{kind} {x}' for x in operands])})")


def value_of_branches(
    text: FunctionText,
    condition: str,
    kind: str,
    then: Callable[[], str],
    otherwise: Callable[[], str],
    *,
    likely: bool = False,
) -> str:
    """A value computed on only one side of a branch."""
    labels, done = (text.label("then"), text.label("else")), text.label("join")
    text.branch(condition, *labels, likely=likely)
    arms: list[str] = []
    for label, side in zip(labels, (then, otherwise), strict=True):
        text.place(label)
        with text.region():
            value = side()
        arms.append(f"[ {value}, %{text.block} ]")
        text.goto(done)
    text.place(done)
    return text.value(f"phi {kind} {', '.join(arms)}")


def legalize(
    text: FunctionText, lanes: int, widths: Collection[int], operands: Sequence[str], instruction: Callable[..., str],
    element: str = "i32",
) -> str:  # fmt: skip
    """Apply ``instruction(width, parts of the operands...)`` to parts, widest first, and concatenate the results.

    All vectors have lanes of type `element`.
    """
    results: list[tuple[str, int]] = []
    begin = 0
    while begin < lanes:
        width = max(w for w in widths if w <= lanes - begin)
        parts = [extract_part(text, v, element, lanes, begin, width) for v in operands]
        results.append((instruction(width, *parts), width))
        begin += width
    return concatenate(text, results, element)


def slice_lanes(text: FunctionText, value: str, of: DType, start: int, count: int) -> str:
    """`count` contiguous lanes, a scalar if it is one."""
    if count == 1:
        return extract_lane(text, value, of, start)
    return extract_part(text, value, register_type(of.element), of.lanes, start, count)


def extract_part(text: FunctionText, value: str, element: str, lanes: int, begin: int, width: int) -> str:
    """A contiguous part of a vector's lanes."""
    if lanes == width:
        return value
    return shuffle(text, value, "poison", element, lanes, range(begin, begin + width))


def concatenate(text: FunctionText, parts: Sequence[tuple[str, int]], element: str) -> str:
    """Concatenate (vector, lanes) pairs."""
    value, lanes = parts[0]
    for other, width in parts[1:]:
        both = max(width, lanes)
        widened, before = extend(text, other, element, width, both), extend(text, value, element, lanes, both)
        value = shuffle(text, before, widened, element, both, (*range(lanes), *range(both, both + width)))
        lanes += width
    return value


def extend(text: FunctionText, value: str, element: str, lanes: int, width: int) -> str:
    """A vector extended by unspecified lanes."""
    if lanes == width:
        return value
    return shuffle(text, value, "poison", element, lanes, [i if i < lanes else 0 for i in range(width)])


def shuffle(text: FunctionText, value: str, other: str, element: str, lanes: int, picks: Sequence[int]) -> str:
    """A shuffle of two vectors with the same number of lanes."""
    kind = f"<{lanes} x {element}>"
    return text.pure(f"shufflevector {kind} {value}, {kind} {other}, <{len(picks)} x i32> <{_lane_numbers(*picks)}>")


@lru_cache(maxsize=1024)
def _lane_numbers(*picks: int) -> str:
    return ", ".join([f"i32 {i}" for i in picks])


def permute(text: FunctionText, first: str, second: str | None, picks: list[int], of: DType) -> str:
    """The elements at `picks` of one or two vectors of type `of`."""
    kind = register_type(of)
    other = second or "poison"
    return text.pure(f"shufflevector {kind} {first}, {kind} {other}, <{len(picks)} x i32> <{_lane_numbers(*picks)}>")


def word_vector(lanes: int) -> str:
    """The type of a vector of int32."""
    return "i32" if lanes == 1 else f"<{lanes} x i32>"


def flags_text(flags: Sequence[bool]) -> str:
    """A constant vector of bools."""
    if len(set(flags)) == 1:
        return "splat (i1 true)" if flags[0] else "zeroinitializer"
    return f"<{', '.join([f'i1 {str(flag).lower()}' for flag in flags])}>"


def known_flags(value: str) -> list[bool] | None:
    """The bools of a constant that `flags_text` wrote with differing values; None for any other value."""
    return ["true" in flag for flag in value.split(",")] if value.startswith("<") else None
