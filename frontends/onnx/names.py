"""Strings picked when the model runs: a table known when compiling, and computed positions in it.

A classifier's names of classes are such strings. The compiled model gives the positions; the caller looks them up
(`frontends.onnx.containers`).
"""

from __future__ import annotations

import numpy as np

from relay import op
from relay.expr import Call, Constant, Expr
from relay.op.base import OpDef

__all__ = ["picked_strings"]

_MOVES = ("broadcast_to", "copy", "expand_dims", "gather", "repeat", "reshape", "squeeze", "strided_slice", "take",
          "tile", "transpose")  # fmt: skip
"""Operators that give elements of their first input, at other places."""


def picked_strings(x: Expr) -> tuple[np.ndarray, Expr] | None:
    """A vector of strings and int64 positions in it that give the tensor `x` of strings; None for other strings."""
    if isinstance(x, Constant):
        flat = x.data.reshape(-1)
        return flat, Constant(np.arange(flat.size, dtype=np.int64).reshape(x.data.shape))
    if not isinstance(x, Call) or not isinstance(x.op, OpDef):
        return None
    if x.op.name in _MOVES:
        found = picked_strings(x.args[0])
        return None if found is None else (found[0], x.op(found[1], *x.args[1:]))
    if x.op.name == "where":
        both = picked_strings(x.args[1]), picked_strings(x.args[2])
        if both[0] is None or both[1] is None:
            return None
        (table, first), (more, second) = both[0], both[1]
        moved = op.add(second, Constant(np.array(table.size, np.int64)))
        return np.concatenate([table, more]), op.where(x.args[0], first, moved)
    return None
