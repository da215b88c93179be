"""The faults that the checker reports, and declarations of external functions' accesses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayc.te.errors import VerifyError

__all__ = ["ExternAccess", "SimtFault"]


class SimtFault(VerifyError):
    """A kernel whose result may be wrong on some GPU. `kind` is "race", "divergence", "bounds" or "uninitialized"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


Offset = Callable[[np.ndarray, list[Any]], np.ndarray]


@dataclass(frozen=True, slots=True)
class ExternAccess:
    """The access of an external device function to the memory behind one of its address arguments.

    Every thread touches `nbytes` bytes from the address on, or from `offset` bytes further: a function of the thread's
    lane and of the values of the other arguments. `warp`: the function is an operation of a whole warp.
    """

    argument: int
    nbytes: int
    reads: bool = True
    writes: bool = False
    offset: Offset | None = None
    warp: bool = True
