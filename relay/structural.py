"""Structural equality of graphs, iterative: see `te.ir.structural_equal`.

Two graphs are equal when they have the same structure *and the same sharing*: a value used twice on one side must be
one value used twice on the other (variables and constants excepted, whose duplicates cost nothing).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relayc.relay.arrays import Jobs
from relayc.te.ir import Node
from relayc.te.ir.structural import StructuralEqual

__all__ = ["bind_definitions", "equal_graphs", "same_array"]


def equal_graphs(left: Any, right: Any, equal: StructuralEqual) -> bool:
    """Compare two expressions under `equal`, which holds the variables bound so far."""
    forward: dict[int, Any] = {}
    backward: dict[int, Any] = {}
    pending: list[tuple[Any, Any, str]] = [(left, right, "")]
    while pending:
        a, b, path = pending.pop()
        if a.__class__ is not b.__class__:
            return _fail(equal, path)
        if id(a) in forward or id(b) in backward:
            if forward.get(id(a)) is not b or backward.get(id(b)) is not a:
                return _fail(equal, path)
            continue
        if not a.same_data(b, equal):
            return _fail(equal, path)
        if not a.child_fields:
            continue
        forward[id(a)], backward[id(b)] = b, a
        for name in reversed(a.child_fields):
            if not _push(pending, getattr(a, name), getattr(b, name), f"{path}.{name}", equal):
                return _fail(equal, f"{path}.{name}")
    return True


def _fail(equal: StructuralEqual, path: str) -> bool:
    if not equal.path:
        equal.path = path or "<root>"
    return False


def _push(pending: list[tuple[Any, Any, str]], a: Any, b: Any, path: str, equal: StructuralEqual) -> bool:
    """Schedule the comparison of two child fields; False when they differ in an obvious way."""
    if isinstance(a, tuple):
        if not isinstance(b, tuple) or len(a) != len(b):
            return False
        pending.extend((x, y, f"{path}[{i}]") for i, (x, y) in reversed(list(enumerate(zip(a, b, strict=True)))))
        return True
    if isinstance(a, Node):
        pending.append((a, b, path))
        return isinstance(b, Node)
    return equal(a, b)


def bind_definitions(a: Any, b: Any, equal: StructuralEqual) -> bool:
    """Declare that the variables `a` of the left side stand for `b` of the right; False when their types differ."""
    if isinstance(a, tuple):
        return len(a) == len(b) and all(bind_definitions(x, y, equal) for x, y in zip(a, b, strict=True))
    equal.bind(a, b)
    return equal(a.ty, b.ty)


def same_array(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Same shape, element type and bits (so that NaN equals itself and 0.0 differs from -0.0)."""
    if a is b:
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "OSUT":
        return bool((a == b).all())
    if a.ndim == 0:
        return a.tobytes() == b.tobytes()
    return all(a[some].tobytes() == b[some].tobytes() for some in Jobs.pieces(a))
