"""Einsum, lowered to transposes and batched matrix products."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import counted, reshape_to, transposed
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr, const
from relayc.relay.sizes import dims_match, product
from relayc.te.tir import Dim


@dataclass(frozen=True, slots=True)
class _Term:
    """A tensor with one label per axis."""

    value: Expr
    labels: str

    def extent(self, label: str) -> Dim:
        return self.value.shape[self.labels.index(label)]


@converter("Einsum", since=12)
def einsum(node: OnnxNode) -> Expr:
    """Contracts from left to right, summing each label as early as possible."""
    inputs, output = _parse(node)
    terms = [_diagonal(node, _Term(node[i], labels)) for i, labels in enumerate(inputs)]
    total = terms[0]
    for index, term in enumerate(terms[1:], start=1):
        needed = set(output).union(*[t.labels for t in terms[index + 1 :]])
        total = _product(node, total, term, needed)
    total = _summed(total, set(output))
    return transposed(total.value, [total.labels.index(label) for label in output])


def _parse(node: OnnxNode) -> tuple[list[str], str]:
    """Labels of the operands and of the result, ellipses expanded to fresh labels."""
    equation = node.attr_str("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    inputs = left.split(",")
    node.all_inputs()
    if len(inputs) != len(node):
        raise node.error(f"the equation {equation!r} has {len(inputs)} operands")
    spare = [c for c in string.ascii_letters if c not in equation]
    widest = max(node.rank(i) - len(labels.replace("...", "")) for i, labels in enumerate(inputs))
    if widest > len(spare) or equation.count(".") > 3 * (len(inputs) + 1):
        raise node.error(f"the equation {equation!r} can't be read")
    expanded: list[str] = []
    for i, labels in enumerate(inputs):
        hidden = node.rank(i) - len(labels.replace("...", ""))
        covered = "".join(spare[widest - hidden : widest]) if hidden > 0 else ""
        full = labels.replace("...", covered, 1)
        if len(full) != node.rank(i) or not (full == "" or full.isalpha()):
            raise node.error(f"{labels!r} in the equation {equation!r} does not fit rank {node.rank(i)} of input {i}")
        expanded.append(full)
    everything = "".join(expanded)
    if arrow:
        output = right.replace("...", "".join(spare[:widest]), 1)
    else:  # labels met once, in alphabetical order, after the ellipsis
        once = sorted(c for c in set(everything) if everything.count(c) == 1 and c not in spare[:widest])
        output = "".join(spare[:widest]) + "".join(once)
    if len(set(output)) != len(output) or any(label not in everything for label in output):
        raise node.error(f"the result {right!r} of the equation {equation!r} can't be made from its operands")
    return expanded, output


def _diagonal(node: OnnxNode, term: _Term) -> _Term:
    """`term` with axes of the same label reduced to their diagonal."""
    for label in dict.fromkeys(term.labels):
        while term.labels.count(label) > 1:
            first = term.labels.index(label)
            second = term.labels.index(label, first + 1)
            rows, columns = term.value.shape[first], term.value.shape[second]
            if not dims_match(rows, columns):
                raise node.error(f"the label {label!r} stands for {rows} and for {columns}")
            rank = len(term.labels)
            lines = [op.reshape(counted(n), [n if i == axis else 1 for i in range(rank)])
                     for axis, n in ((first, rows), (second, columns))]  # fmt: skip
            diagonal = op.where(op.equal(*lines), term.value, const(0, term.value.dtype))
            value = op.sum(diagonal, axis=(second,), keepdims=False)
            term = _Term(value, term.labels[:second] + term.labels[second + 1 :])
    return term


def _summed(term: _Term, needed: set[str]) -> _Term:
    """`term` summed over the labels that are not needed."""
    axes = tuple(i for i, label in enumerate(term.labels) if label not in needed)
    if not axes:
        return term
    kept = "".join(label for label in term.labels if label in needed)
    return _Term(op.sum(term.value, axis=axes, keepdims=False), kept)


def _product(node: OnnxNode, a: _Term, b: _Term, needed: set[str]) -> _Term:
    """The product of two terms, summed over the labels that are not needed afterwards."""
    a, b = _without_broadcasts(a, b), _without_broadcasts(b, a)
    a, b = _summed(a, needed | set(b.labels)), _summed(b, needed | set(a.labels))
    shared = [label for label in a.labels if label in b.labels]
    for label in shared:
        extents = a.extent(label), b.extent(label)
        if all(isinstance(d, int) for d in extents) and extents[0] != extents[1]:
            raise node.error(f"the label {label!r} stands for {extents[0]} and for {extents[1]}")
    a, b = _broadcast(node, a, b), _broadcast(node, b, a)
    batch = [label for label in shared if label in needed]
    inner = [label for label in shared if label not in needed]
    rows = [label for label in a.labels if label not in b.labels]
    columns = [label for label in b.labels if label not in a.labels]
    left, left_transposed = _matrices(a, batch, rows, inner)
    right, right_transposed = _matrices(b, batch, inner, columns)
    shape = [*(a.extent(n) for n in batch), *(a.extent(n) for n in rows), *(b.extent(n) for n in columns)]
    product_ = op.nn.matmul(left, right, transpose_a=left_transposed, transpose_b=right_transposed)
    return _Term(reshape_to(product_, shape), "".join([*batch, *rows, *columns]))


def _without_broadcasts(a: _Term, b: _Term) -> _Term:
    """`a` without the axes of extent 1 that `b` has longer."""
    shared = [(i, n) for i, n in enumerate(a.labels) if n in b.labels]
    axes = tuple(i for i, n in shared if _is_one(a.extent(n)) and not _is_one(b.extent(n)))
    if not axes:
        return a
    return _Term(op.squeeze(a.value, axis=axes), "".join(n for i, n in enumerate(a.labels) if i not in axes))


def _broadcast(node: OnnxNode, a: _Term, b: _Term) -> _Term:
    """`a` repeated along the axes that may be shorter than those of `b`."""
    return _Term(node.broadcast(a.value, [b.extent(n) if n in b.labels else 1 for n in a.labels])[0], a.labels)


def _is_one(d: Dim) -> bool:
    return isinstance(d, int) and d == 1


def _matrices(
    term: _Term, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]
) -> tuple[Expr, bool]:
    """`term` as a batch of matrices, and whether they are transposed, which is done to avoid data movement."""
    swapped = term.labels != "".join([*batch, *rows, *columns]) and term.labels == "".join([*batch, *columns, *rows])
    if swapped and not isinstance(term.value, Constant):
        return _grouped(term, batch, columns, rows), True
    return _grouped(term, batch, rows, columns), False


def _grouped(term: _Term, *groups: Sequence[str]) -> Expr:
    """`term` transposed to the order of `groups`, with each group collapsed to one axis."""
    order = [term.labels.index(label) for group in groups for label in group]
    extents = [product([term.extent(label) for label in group]) for group in groups]
    return reshape_to(transposed(term.value, order), extents)
