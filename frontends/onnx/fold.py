"""Constant folding during import, so that converters see the values of shape arithmetic.

Calls on constants are evaluated by the operators' numpy references. Only small results are folded eagerly; weights
are left to the FoldConstant pass, which runs after graph simplification.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

import numpy as np

from relayc.backend.runtime.sizes import MAX_ELEMENTS, extent
from relayc.frontends.onnx.errors import OnnxImportError
from relayc.frontends.onnx.symbolic import KnownElements
from relayc.relay.expr import Call, Constant, Expr, Function, GlobalVar, Tuple, TupleGetItem, Var
from relayc.relay.interpreter import apply_reference
from relayc.relay.op.base import OpDef
from relayc.relay.op.qnn import Dequantize, DequantizeBlocks
from relayc.relay.sizes import size_variables
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.ir import Span

__all__ = ["EAGER_ELEMENTS", "Folder", "graph_inputs_of"]

EAGER_ELEMENTS = 1 << 14
"""Most elements of results that are folded as the graph is built."""

ON_DEMAND_ELEMENTS = 1 << 24
"""Most elements of results that are evaluated when a converter needs their value."""

TOTAL_ELEMENTS = 1 << 27
"""Most elements of all results together that one import evaluates; later ones are left to run time."""


class Folder:
    """Finishes the expressions of a converter: sets their spans and folds constant calls."""

    def __init__(self) -> None:
        self._done: dict[Expr, Expr] = {}
        self._unknown: set[Expr] = set()
        """expressions known to have no constant value"""
        self._left = TOTAL_ELEMENTS
        self.elements = KnownElements()

    def finish(self, expr: Expr, span: Span) -> Expr:
        """Set the span of the new nodes of `expr` and fold small constant calls."""
        for node in _post_order(expr, self._done.__contains__):
            if node.span is None:
                node.span = span  # type: ignore[misc]  # born in this converter and not shared yet
            new = node.rebuild(lambda child: self._done.get(child, child))
            _check_size(new.ty)
            folded = self._counted(self._sizes_or_value(new, min(EAGER_ELEMENTS, self._left)), new)
            self._done[node] = self._done[folded] = folded
        return self._done[expr]

    def value(self, expr: Expr) -> np.ndarray | None:
        """The value of `expr`, if it depends on constants only and is within the size limit; else None."""
        if isinstance(expr, Constant):
            return expr.data
        memo: dict[Expr, Expr] = {}
        for node in _post_order(expr, self._unknown.__contains__):
            new = node.rebuild(lambda child: memo.get(child, child))
            memo[node] = self._counted(_folded(new, min(ON_DEMAND_ELEMENTS, self._left)), new)
        self._unknown.update(node for node, found in memo.items() if not isinstance(found, Constant | Tuple))
        result = memo.get(expr)
        return result.data if isinstance(result, Constant) else None

    def _sizes_or_value(self, node: Expr, limit: int) -> Expr:
        """Fold `node` to a constant or to symbolic sizes if its operands are known; else return `node`."""
        if isinstance(node, Call) and isinstance(node.op, Dequantize | DequantizeBlocks):
            return node  # quantised constants are kept for integer products
        sizes = self.elements.fold(node) if isinstance(node, Call) else None
        if sizes is None:
            return _folded(node, limit)
        return Tuple(sizes, span=node.span) if isinstance(sizes, tuple) else sizes

    def _counted(self, folded: Expr, call: Expr) -> Expr:
        """`folded`, a value of `call`, whose elements are taken from what may still be evaluated."""
        if folded is not call and isinstance(folded, Constant):
            self._left -= folded.data.size
        return folded


def graph_inputs_of(expr: Expr) -> list[str]:
    """Names of the graph inputs that `expr` depends on, in traversal order."""
    return [node.name for node in _post_order(expr, _nowhere) if isinstance(node, Var)]


def free_expressions(root: Expr, around: Container[int]) -> list[Expr]:
    """The expressions under `root` whose id is in `around`, in traversal order; does not descend into them."""
    found: list[Expr] = []
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if id(node) in around:
            found.append(node)
        elif not isinstance(node, Function | GlobalVar):
            stack.extend(child for child in reversed(list(node.node_children())) if isinstance(child, Expr))
    return found


def rewrite_free(root: Expr, replaced: Mapping[int, Expr]) -> Expr:
    """Replace expressions under `root` by id, without descending into them."""
    done: dict[int, Expr] = dict(replaced)
    for node in _post_order(root, lambda node: id(node) in replaced):
        done[id(node)] = node.rebuild(lambda child: done.get(id(child), child))
    return done[id(root)]


def _check_size(ty: Type) -> None:
    if isinstance(ty, TensorType) and extent([d for d in ty.shape if isinstance(d, int)]) > MAX_ELEMENTS:
        count = "too many" if ty.size is None else ty.size
        raise OnnxImportError(f"it makes a tensor of {count} elements, {ty}; expected at most {MAX_ELEMENTS} elements")


def _post_order(root: Expr, stops: Callable[[Expr], bool]) -> list[Expr]:
    """Expressions under `root` in post-order, not descending where `stops` holds, nor into functions."""
    order: list[Expr] = []
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node not in seen and not stops(node):
            seen.add(node)
            stack.append((node, True))
            if not isinstance(node, Function | GlobalVar):
                stack.extend((child, False) for child in node.node_children() if isinstance(child, Expr))
    return order


def _nowhere(_: Expr) -> bool:
    return False


def _folded(node: Expr, limit: int) -> Expr:
    """Fold `node` to a constant (or a tuple of constants) when its operands are constants; else return `node`."""
    if isinstance(node, TupleGetItem):
        return node.tuple_value.fields[node.index] if isinstance(node.tuple_value, Tuple) else node
    if not isinstance(node, Call) or not isinstance(node.op, OpDef) or node.op.has_side_effect:
        return node
    if not _fits(node.ty, limit) or not all(isinstance(arg, Constant) for arg in node.args):
        return node
    if size_variables(node.op.attributes().values()):
        return node
    result = apply_reference(node.op, [arg.data for arg in node.args if isinstance(arg, Constant)], node.ty)
    if isinstance(node.ty, TupleType):
        return Tuple(tuple(Constant(field, span=node.span) for field in result), span=node.span)
    return Constant(result, span=node.span)


def _fits(ty: Type, limit: int) -> bool:
    if isinstance(ty, TensorType):
        return ty.size is not None and ty.size <= limit
    return isinstance(ty, TupleType) and all(_fits(field, limit) for field in ty.fields)
