"""C code for the shapes and the memory of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from relayc.backend.c_library.naming import size_code
from relayc.backend.runtime.dtype import nbytes
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.sizes import Size

__all__ = ["counted", "indented", "shape_code", "slot_lines", "wrapped"]


def shape_code(shape: Sequence[Size], names: Mapping[str, str]) -> str:
    """A shape as an array in C; `names` are those of the size variables."""
    return f"(const int64_t[]){{{', '.join([size_code(d, names) for d in shape]) or '0'}}}"


def counted(graph: Graph, tensor: int, names: Mapping[str, str], result: str) -> str:
    """The statement that sets `result` to the bytes of a tensor."""
    of = graph.tensors[tensor]
    return f"TRY(count_bytes({shape_code(of.shape, names)}, {len(of.shape)}, {nbytes(of.dtype, 1)}, &{result}));"


def slot_lines(graph: Graph, owners: Iterable[int], views: Iterable[int], names: Mapping[str, str]) -> Iterator[str]:
    """Statements that define `placed`, the slots of the tensors `owners` and of the `views` of them, and `slots`, the
    bytes of each slot, and set `nbytes`."""
    owners = list(owners)
    places = {i: int(graph.tensors[i].place) for i in (*owners, *views)}
    numbers = {place: n for n, place in enumerate(sorted(set(places.values())))}
    rows = [f"{{{tensor}, {numbers[place]}}}" for tensor, place in places.items()]
    yield "static const struct in_slot placed[] = {"
    yield from indented(wrapped(rows))
    yield "};"
    yield f"size_t slots[{len(numbers)}] = {{{', '.join(['1'] * len(numbers))}}};"
    kinds: dict[tuple[tuple[Size, ...], int], list[int]] = {}
    for index in owners:
        tensor = graph.tensors[index]
        kinds.setdefault((tensor.shape, nbytes(tensor.dtype, 1)), []).append(index)
    for indices in kinds.values():  # tensors of one shape are counted once
        yield counted(graph, indices[0], names, "nbytes")
        yield from [f"widen(&slots[{slot}], nbytes);" for slot in sorted({numbers[places[i]] for i in indices})]


def indented(lines: Iterable[str], levels: int = 1) -> list[str]:
    """Lines, so many levels of two blanks deeper."""
    return [f"{'  ' * levels}{line}" for line in lines]


def wrapped(items: Sequence[str], width: int = 8) -> list[str]:
    """The items of an initialiser, so many in a line."""
    return [", ".join(items[at : at + width]) + "," for at in range(0, len(items), width)]
