"""C code for the shapes and the memory of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from relayc.backend.c_library.naming import quoted, size_code
from relayc.backend.runtime.dtype import nbytes
from relayc.backend.runtime.errors import ModuleError
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.layouts import Stage
from relayc.backend.runtime.sizes import Size, variables

__all__ = ["byte_count", "check_rank", "indented", "matched", "shape_code", "slot_lines", "wrapped"]


def shape_code(shape: Sequence[Size], names: Mapping[str, str]) -> str:
    """A shape as an array in C; `names` are those of the size variables."""
    return f"(const int64_t[]){{{', '.join([size_code(d, names) for d in shape]) or '0'}}}"


def byte_count(shape: Sequence[Size], dtype: str, names: Mapping[str, str], result: str) -> str:
    """The call that sets `result` to the bytes of a tensor; its value is a status."""
    return f"count_bytes({shape_code(shape, names)}, {len(shape)}, {nbytes(dtype, 1)}, &{result})"


def matched(
    dims: Sequence[Size], values: Sequence[str], names: Mapping[str, str], known: set[str], source: str,
    around: Mapping[str, str] | None = None,
) -> tuple[list[str], list[str]]:  # fmt: skip
    """Statements that bind the sizes among `dims` that are not `known`, which become known, and statements that compare
    the other dimensions with the `values`, a shape in C.

    `around` are further names of known sizes: no comparison is needed with a value in terms of these.
    """
    bound: list[str] = []
    compared: list[str] = []
    for dim, value in zip(dims, values, strict=True):
        code = size_code(dim, names)
        if isinstance(dim, str) and dim not in known:
            known.add(dim)
            bound.append(f"{code} = {value};")
            continue
        other = size_code(dim, around) if around is not None and around.keys() >= {*variables(dim)} else code
        if value not in (code, other):
            compared.append(f"TRY(check_equal({code}, {value}, {quoted(source)}));")
    return bound, compared


def check_rank(graph: Graph, tensor: int, rank: int, source: str) -> None:
    """Raise `ModuleError` unless a tensor, a result of `source`, has this rank."""
    expected = len(graph.tensors[tensor].shape)
    if rank != expected:
        raise ModuleError(f"model {graph.name!r}: {source} gives rank {rank}; expected {expected}")


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
