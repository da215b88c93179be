"""The weights of a library: one block of bytes, in the library or in a file beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

__all__ = ["WeightLayout", "lay_out_weights", "write_weights"]

_ALIGN = 64
_MAGIC = b"relayc weights 1"
"""Together with the digest the first 64 bytes of the file; the weights follow."""


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Where each weight begins, in bytes from the first one; the bytes of all; the SHA-256 of the block where
    it is a file, which is checked, else nothing."""

    offsets: Mapping[str, int]
    nbytes: int
    digest: bytes


def lay_out_weights(weights: Mapping[str, npt.NDArray[Any]], in_file: bool) -> WeightLayout:
    """Place the weights one after another, each aligned to 64 bytes; `in_file`: in a file of their own."""
    offsets: dict[str, int] = {}
    nbytes, hashed = 0, hashlib.sha256()
    for name, piece in _pieces(weights):
        offsets.setdefault(name, nbytes)
        nbytes += len(piece)
        if in_file:
            hashed.update(piece)
    return WeightLayout(offsets, nbytes, hashed.digest() if in_file else b"")


def write_weights(file: BinaryIO, weights: Mapping[str, npt.NDArray[Any]], layout: WeightLayout) -> None:
    """Write magic, digest and weights."""
    file.write((_MAGIC + layout.digest).ljust(_ALIGN, b"\0"))
    for _, piece in _pieces(weights):
        file.write(piece)


def _pieces(weights: Mapping[str, npt.NDArray[Any]]) -> Iterator[tuple[str, memoryview | bytes]]:
    """The bytes of each weight, then the padding after it."""
    for name, values in weights.items():
        flat = np.ascontiguousarray(values, values.dtype.newbyteorder("=")).reshape(-1).view(np.uint8)
        yield name, flat.data
        yield name, bytes(-flat.nbytes % _ALIGN)
