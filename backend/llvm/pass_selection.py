"""Which of LLVM's passes an emitted module needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["is_scheduled", "is_sequence_of_calls"]

_RUNS_MANY_TIMES = re.compile(r" = phi (?!i1 )|  store (?!ptr |i64 )")
"""Loops, and stores of elements, in emitted assembly; addresses and sizes are stored for tasks of a parallel region."""
_LOOP = re.compile(r"\nfor\d+:\n")
_STORE = re.compile(r"  store (<?)(\w).*, ptr (%[vp]\d+)")
_DEFINED = re.compile(r"  (%v\d+) = ")
_ALLOCATED = re.compile(r"(%v\d+) = alloca ")
_COMPUTED = re.compile(r" = getelementptr [^,]+, ptr (%v\d+), i64 %")
_CONSTANT = re.compile(r"(%v\d+) = getelementptr [^,]+, ptr (%v\d+), i64 -?\d")


def is_sequence_of_calls(text: str) -> bool:
    """Does an emitted module only call kernels, as the entry of a graph does?

    Passes would find little to improve there: each instruction runs once in a run. But they and register allocation
    would take 0.4 ms for each of the calls, of which a graph may have thousands.
    """
    return _RUNS_MANY_TIMES.search(text) is None


def is_scheduled(text: str) -> bool:
    """Are the innermost loops of an emitted module vectorised, with their sums at constant places of local buffers?

    Then the sums become registers, and most of LLVM's passes, half of its time, would change next to nothing. Other
    loops gain from LLVM's vectoriser, as scalar sums of integers do, or from moving loads and stores out of them.
    """
    return all(map(_is_function_scheduled, text.split("\ndefine ")))


def _is_function_scheduled(text: str) -> bool:
    buffers = {buffer: buffer for buffer in _ALLOCATED.findall(text)}
    buffers |= {place: base for place, base in _CONSTANT.findall(text) if base in buffers}
    indexed = set(_COMPUTED.findall(text))
    for body in _innermost_loops(text):
        computed = set(_DEFINED.findall(body))
        for vector, kind, address in _STORE.findall(body):
            is_register = address in buffers and buffers[address] not in indexed
            if vector and not is_register and (address in buffers or address not in computed):
                return False
            if not vector and (not is_register or kind == "i"):
                return False
    return True


def _innermost_loops(text: str) -> Iterator[str]:
    """The bodies of loops without loops inside: no other one begins before they end."""
    for body in _LOOP.split(text)[1:]:
        end = body.find("\nlatch")
        if end >= 0:
            yield body[:end]
