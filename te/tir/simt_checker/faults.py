"""What the checker reports, and what it has to be told of external functions."""

from __future__ import annotations

from dataclasses import dataclass

from te.errors import VerifyError

__all__ = ["ExternAccess", "SimtFault"]


class SimtFault(VerifyError):
    """A kernel that is wrong on some GPU, on some day. `kind` is "race", "divergence", "bounds" or "uninitialized"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ExternAccess:
    """What an external device function does with the memory behind one of its address arguments.

    Every thread touches `count` elements (of the buffer whose address it is given) from there on. `warp`: the function
    is an operation of a whole warp.
    """

    argument: int
    count: int
    reads: bool = True
    writes: bool = False
    warp: bool = True
