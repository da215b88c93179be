"""Tensor expressions: operations, their axes and inputs, and errors."""

from __future__ import annotations

import pytest

from relayc import te
from relayc.te.errors import CompileError
from relayc.te.tir import ProducerLoad, Reduce


def test_compute_knows_its_axes_inputs_and_body():
    a = te.placeholder((4, 5), name="a")
    b = te.placeholder((5,), name="b")
    c = te.compute((4, 5), lambda i, j: a[i, j] * b[j] + a[i, j], name="c", tag="broadcast", attrs={"k": 1})
    assert [iv.var.name for iv in c.op.axis] == ["i", "j"]
    assert c.op.input_tensors == (a, b)
    assert (c.shape, c.dtype, c.op.name, c.op.tag, c.op.attrs) == ((4, 5), "float32", "c", "broadcast", {"k": 1})
    assert c.op.output(0) is c


def test_reduction_and_symbolic_shape():
    n = te.var("n")
    a = te.placeholder((n, 8), name="a")
    k = te.reduce_axis((0, 8), name="k")
    s = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="s")
    assert s.shape[0] is n
    assert s.op.reduce_axis == (k,)
    assert isinstance(s.op.body[0], Reduce)


def test_several_outputs_and_tuple_reduction():
    a = te.placeholder((4, 8), name="a")
    twice, half = te.compute((4, 8), lambda i, j: (a[i, j] * 2.0, a[i, j] * 0.5), name="both")
    assert twice.op is half.op and half.value_index == 1
    argmax = te.comm_reducer(
        lambda x, y: (te.select(x[1] >= y[1], x[0], y[0]), te.select(x[1] >= y[1], x[1], y[1])),
        lambda i, v: (te.const(-1, i), te.min_value(v)),
        name="argmax",
    )
    k = te.reduce_axis((0, 8), name="k")
    index, value = te.compute((4,), lambda i: argmax((k.var, a[i, k]), axis=k), name="arg")
    assert (index.dtype, value.dtype) == ("int32", "float32")


def test_variable_number_of_indices():
    a = te.placeholder((2, 3, 4), name="a")
    b = te.compute(a.shape, lambda *i: a(*i) + 1, name="b")
    assert [iv.var.name for iv in b.op.axis] == ["i0", "i1", "i2"]
    scalar = te.compute((), lambda: a[0, 0, 0], name="scalar")
    assert isinstance(scalar[()], ProducerLoad)


def test_tuple_reduction_combines_two_values():
    x = te.var("x", "float32")
    assert str(type(te.max(x, 1.0)).__name__) == "Max"


def test_tag_scope_marks_operations():
    a = te.placeholder((4,))
    with te.tag_scope("injective"):
        b = te.compute((4,), lambda i: a[i])
    assert b.op.tag == "injective"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda a, k: te.compute((4, 5), lambda i: a[i, 0]), "takes 1 indices .* shape has 2 dimensions"),
        (lambda a, k: te.compute((4,), lambda i: a[i]), "has 2 dimensions .* read with 1 indices"),
        (lambda a, k: te.compute((4,), lambda i: te.sum(a[i, k], axis=k) + 1), "must be the whole body"),
        (lambda a, k: te.compute((4,), lambda i: te.sum(a[i, k], axis=[k, k])), "given twice"),
        (lambda a, k: te.compute((4,), lambda i: te.sum(a[i, i], axis=i)), "axis=i is no axis; expected one made by"),
        (lambda a, k: te.compute((4,), lambda i: te.sum(a[i, k])), "axis=None is no axis"),
        (lambda a, k: te.compute((4,), lambda i: te.sum(a[i, k], k, a[i, 0] > 0)), "given by name"),
        (lambda a, k: te.compute((4,), lambda i: a), "index it"),
        (lambda a, k: te.compute((-4,), lambda i: a[i, 0]), "negative dimension"),
        (lambda a, k: te.compute((4,), lambda i: a[i, 0.5]), "expected an integer"),
        (lambda a, k: te.thread_axis("warpIdx.q"), "unknown; known are"),
    ],
)
def test_invalid_expressions_raise(make, message):
    a = te.placeholder((4, 5), name="a")
    with pytest.raises(CompileError, match=message):
        make(a, te.reduce_axis((0, 5), name="k"))
