"""Layout names such as ``NCHW``, ``NHWC``, ``NCHW16c`` or ``OHWI16o``.

An upper-case letter is an axis of the tensor; a number with a lower-case letter is the inner part of that axis, a block
of so many elements: in ``OHWI16o`` dimension 0 counts blocks of 16 output channels and the last dimension the channels
within a block. The last block is padded with zeros when the size is no multiple.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from relayc.te.errors import CompileError
from relayc.te.tir import Dim, as_dim
from relayc.topi.utils import ceil_div

__all__ = ["Layout"]

_PART = re.compile(r"([A-Z])|(\d+)([a-z])")

Parts = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Layout:
    """A parsed layout name. Raises CompileError for a name that is not a layout."""

    name: str

    def __post_init__(self) -> None:
        _parts(self.name)

    @property
    def parts(self) -> Parts:
        """(letter, block size) of each dimension; the size is 0 for an upper-case letter."""
        return _parts(self.name)

    @property
    def blocks(self) -> Mapping[str, int]:
        """Axis -> size of its block, for the axes that are blocked."""
        return {letter.upper(): size for letter, size in self.parts if letter.islower()}

    @property
    def ndim(self) -> int:
        """Number of dimensions of a tensor in this layout."""
        return len(self.parts)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes, in the order of their (outer) dimensions."""
        return tuple([letter for letter, _ in self.parts if letter.isupper()])

    def index(self, axis: str) -> int:
        """The dimension that axis `axis` (or its outer part) is; -1 when there is none."""
        letters = [letter for letter, _ in self.parts]
        return letters.index(axis) if axis in letters else -1

    def axis_sizes(self, shape: Sequence[Dim]) -> dict[str, Dim]:
        """Axis -> size, of a tensor of `shape` in this layout; blocked axes include their padding."""
        if len(shape) != self.ndim:
            raise CompileError(f"a tensor of {len(shape)} dimensions in the layout {self.name}, which has {self.ndim}")
        sizes = {letter: dim for (letter, _), dim in zip(self.parts, shape, strict=True) if letter.isupper()}
        blocks = self.blocks
        return {a: as_dim(d * blocks[a]) if a in blocks else d for a, d in sizes.items()}

    def shape_of(self, sizes: Mapping[str, Dim]) -> tuple[Dim, ...]:
        """The shape that a tensor with axes of `sizes` has in this layout."""
        return tuple([
            size if size else ceil_div(sizes[letter], self.blocks.get(letter, 1)) for letter, size in self.parts
        ])  # fmt: skip

    def axis_positions(self, index: Sequence[Any]) -> dict[str, Any]:
        """Axis -> position along it, of element `index` of a tensor in this layout."""
        outer = {letter: i for (letter, _), i in zip(self.parts, index, strict=True) if letter.isupper()}
        inner = {letter.upper(): i for (letter, _), i in zip(self.parts, index, strict=True) if letter.islower()}
        return {a: i * self.blocks[a] + inner[a] if a in inner else i for a, i in outer.items()}

    def index_of(self, position: Mapping[str, Any]) -> list[Any]:
        """The index in this layout of the element at `position`."""
        index: list[Any] = []
        for letter, size in self.parts:
            axis = letter.upper()
            block = self.blocks.get(axis, 1)
            if size:
                index.append(position[axis] % size)
            else:
                index.append(position[axis] if block == 1 else position[axis] // block)
        return index


@lru_cache(maxsize=256)
def _parts(name: str) -> Parts:
    """The implementation of `Layout.parts`, cached: a model uses the same few names thousands of times."""
    parts = tuple([(m[1], 0) if m[1] else (m[3], int(m[2])) for m in _PART.finditer(name)])
    axes = [letter for letter, _ in parts if letter.isupper()]
    blocks = [letter.upper() for letter, _ in parts if letter.islower()]
    canonical = "".join(f"{size if letter.islower() else ''}{letter}" for letter, size in parts)
    unique = len(set(axes)) == len(axes) and len(set(blocks)) == len(blocks)
    if canonical != name or not axes or not unique or not set(blocks) <= set(axes):
        raise CompileError(f"{name!r} is not a layout; examples: NCHW, NHWC, NCHW16c, OHWI16o")
    return parts
