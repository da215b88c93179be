"""C code for the shapes and the memory of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from relayc.backend.c_library.naming import size_code
from relayc.backend.runtime.dtype import nbytes
from relayc.backend.runtime.layouts import Stage
from relayc.backend.runtime.sizes import Size

__all__ = ["byte_count", "indented", "shape_code", "slot_lines", "wrapped"]


def shape_code(shape: Sequence[Size], names: Mapping[str, str]) -> str:
    """A shape as an array in C; `names` are those of the size variables."""
    return f"(const int64_t[]){{{', '.join([size_code(d, names) for d in shape]) or '0'}}}"


def byte_count(shape: Sequence[Size], dtype: str, names: Mapping[str, str], result: str) -> str:
    """The call that sets `result` to the bytes of a tensor; its value is a status."""
    return f"count_bytes({shape_code(shape, names)}, {len(shape)}, {nbytes(dtype, 1)}, &{result})"


def slot_lines(stage: Stage, names: Mapping[str, str]) -> Iterator[str]:
    """Statements that define `placed`, the slots of a stage's tensors, and `slots`, the bytes of each slot, and set
    `nbytes`."""
    slot_of = stage.slot_of.tolist()
    yield "static const struct in_slot placed[] = {"
    yield from indented(wrapped([f"{{{tensor}, {slot}}}" for tensor, slot in zip(stage.tensors, slot_of, strict=True)]))
    yield "};"
    yield f"size_t slots[{stage.slot_count}] = {{{', '.join(['1'] * stage.slot_count)}}};"
    slots: list[set[int]] = [set() for _ in stage.kinds]
    for kind, slot in zip(stage.kind_of.tolist(), slot_of, strict=False):  # views have no kind
        slots[kind].add(slot)
    for (shape, dtype), wide in zip(stage.kinds, slots, strict=True):
        yield f"TRY({byte_count(shape, dtype, names, 'nbytes')});"
        yield from [f"widen(&slots[{slot}], nbytes);" for slot in sorted(wide)]


def indented(lines: Iterable[str], levels: int = 1) -> list[str]:
    """Lines, so many levels of two blanks deeper."""
    return [f"{'  ' * levels}{line}" for line in lines]


def wrapped(items: Sequence[str], width: int = 8) -> list[str]:
    """The items of an initialiser, so many in a line."""
    return [", ".join(items[at : at + width]) + "," for at in range(0, len(items), width)]
