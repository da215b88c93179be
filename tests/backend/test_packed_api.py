"""Argument checks of built functions: each error names the argument and both values."""

from __future__ import annotations

import functools
import operator
import shutil
import sys

import numpy as np
import pytest

from relayc import te
from relayc.backend.driver import build
from relayc.backend.packed_api import make_host_function, make_kernel
from relayc.backend.runtime import ArgumentError, nd, register_device_kind
from relayc.te.dtype import dtype
from relayc.te.errors import VerifyError
from relayc.te.ir import IRModule
from relayc.te.tir import (
    Buffer,
    BufferLoad,
    BufferStore,
    Cast,
    For,
    ForKind,
    PrimFunc,
    SizeVar,
    Var,
    const,
    convert,
    decl_buffer,
    product,
)

TARGETS = ["llvm", pytest.param("c -opt-level=1", marks=pytest.mark.skipif(not shutil.which("cc"), reason="needs cc"))]


@pytest.fixture(scope="module", params=TARGETS, ids=["llvm", "c"])
def target(request):
    return request.param


def elementwise(shape, scalars=(), name="add", **attrs):
    """c[i] = a[i] + b[i] + sum of the scalars, over flat views of arguments of the given shape."""
    a, b, c = (decl_buffer(shape, "float32", buffer_name) for buffer_name in "ABC")
    flat = [Buffer(x.name, (product(shape),), "float32", data=x.data) for x in (a, b, c)]
    i = Var("i")
    value = BufferLoad(flat[0], (i,)) + BufferLoad(flat[1], (i,))
    for scalar in scalars:
        value = value + Cast(value.dtype, scalar)
    body = For(i, const(0), convert(product(shape)), ForKind.SERIAL, BufferStore(flat[2], value, (i,)))
    params = (a.data, b.data, c.data, *scalars)
    return PrimFunc(params, body, {x.data: x for x in (a, b, c)}, {"global_symbol": name, **attrs})


@pytest.fixture(scope="module")
def fixed(target):
    return build(elementwise((4, 3)), target=target)


@pytest.fixture(scope="module")
def symbolic(target):
    return build(elementwise((SizeVar("n"), 3)), target=target)


def arrays(*shape, dtype="float32"):
    a = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    return nd.array(a), nd.array(2 * a), nd.array(np.zeros(shape, dtype))


def strided(*shape):
    """An NDArray over every second element of a longer array."""
    return nd.from_dlpack(np.zeros((*shape[:-1], 2 * shape[-1]), "float32")[..., ::2])


def misaligned(*shape):
    memory = np.zeros(4 * int(np.prod(shape)) + 1, "uint8")
    return nd.from_dlpack(memory[1:].view("float32").reshape(shape))


def test_alignment_of_the_elements_is_enough(fixed):
    memory = nd.empty((40,))
    a, b, c = (memory._create_view((4, 3), byte_offset=52 * k + 4) for k in range(3))
    a[:], b[:] = 2, 3
    fixed(a, b, c)
    np.testing.assert_array_equal(c.numpy(), np.full((4, 3), 5))


def test_valid_arguments(fixed, symbolic):
    for function, rows in ((fixed, 4), (symbolic, 4), (symbolic, 1), (symbolic, 0)):
        a, b, c = arrays(rows, 3)
        function(a, b, c)
        np.testing.assert_array_equal(c.numpy(), 3 * a.numpy())


WRONG = {
    "count": (lambda a, b, c: (a, b), "add: expected 3 arguments (A, B, C), got 2"),
    "kind": (
        lambda a, b, c: (a, 2, c),
        "argument 1 (B): expected a float32 tensor of 2 dimensions, got a value of kind int",
    ),
    "none": (
        lambda a, b, c: (a, None, c),
        "argument 1 (B): expected a float32 tensor of 2 dimensions, got a value of kind None",
    ),
    "dtype": (
        lambda a, b, c: (a, b, arrays(4, 3, dtype="float64")[0]),
        "argument 2 (C): dtype is float64, expected float32",
    ),
    "rank": (lambda a, b, c: (a, arrays(12)[0], c), "argument 1 (B): has 1 dimensions, expected 2: shape"),
    "shape": (lambda a, b, c: (a, arrays(4, 5)[0], c), "argument 1 (B): shape[1] is 5, expected 3"),
    "strides": (lambda a, b, c: (a, b, strided(4, 3)), "argument 2 (C): strides[1] is 2, expected 1 (contiguous"),
    "alignment": (lambda a, b, c: (misaligned(4, 3), b, c), "expected a multiple of 4; copy it with nd.array"),
    "overlap": (lambda a, b, c: (a, b, a), "argument 2 (C) at"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("symbolic_size", [False, True], ids=["fixed", "symbolic"])
def test_invalid_argument(case, symbolic_size, fixed, symbolic):
    function = symbolic if symbolic_size else fixed
    change, message = WRONG[case]
    with pytest.raises(ArgumentError) as caught:
        function(*change(*arrays(4, 3)))
    assert message in str(caught.value)


def test_symbolic_size_must_agree(symbolic):
    (a, b, _), (_, _, c) = arrays(4, 3), arrays(5, 3)
    with pytest.raises(ArgumentError, match=r"argument 2 \(C\): shape\[0\] is 5, expected 4 \(n\)"):
        symbolic(a, b, c)


def test_inputs_may_be_one_array(fixed):
    a, _, c = arrays(4, 3)
    fixed(a, a, c)
    np.testing.assert_array_equal(c.numpy(), 2 * a.numpy())


def test_function_that_allows_overlap(target):
    function = build(elementwise((4, 3), noalias=False), target=target)
    a, b, _ = arrays(4, 3)
    expected = a.numpy() + b.numpy()
    function(a, b, a)
    np.testing.assert_array_equal(a.numpy(), expected)


def test_scalars_are_checked_and_converted(target):
    k, x = Var("k", dtype("int8")), Var("x", dtype("float32"))
    function = build(elementwise((4,), (k, x)), target=target)
    a, b, c = arrays(4)
    function(a, b, c, 3, 0.5)
    np.testing.assert_array_equal(c.numpy(), 3 * a.numpy() + 3.5)
    function(a, b, c, -3, 2)  # an int is a number too
    np.testing.assert_array_equal(c.numpy(), 3 * a.numpy() - 1)
    with pytest.raises(ArgumentError, match=r"argument 3 \(k\): value 128 does not fit int8"):
        function(a, b, c, 128, 0.5)
    with pytest.raises(
        ArgumentError, match=r"argument 3 \(k\): expected an integer of type int8, got a value of kind float"
    ):
        function(a, b, c, 1.5, 0.5)
    with pytest.raises(
        ArgumentError, match=r"argument 4 \(x\): expected a number of type float32, got a value of kind tensor"
    ):
        function(a, b, c, 1, a)


def test_size_given_as_argument_too(target):
    n = SizeVar("n")
    function = build(elementwise((n,), (n,)), target=target)
    a, b, c = arrays(4)
    function(a, b, c, 4)
    np.testing.assert_array_equal(c.numpy(), 3 * a.numpy() + 4)
    with pytest.raises(ArgumentError, match=r"argument 0 \(A\): shape\[0\] is 4, expected 5 \(n\)"):
        function(a, b, c, 5)


def test_computed_size(target):
    n = SizeVar("n")
    a, b = decl_buffer((n,), "float32", "A"), decl_buffer((n * 2,), "float32", "B")
    i = Var("i")
    body = For(i, const(0), n, ForKind.SERIAL, BufferStore(b, BufferLoad(a, (i,)), (i * 2,)))
    function = build(
        PrimFunc((b.data, a.data), body, {b.data: b, a.data: a}, {"global_symbol": "spread"}), target=target
    )
    source, target = nd.array(np.ones(3, "float32")), nd.array(np.zeros(6, "float32"))
    function(target, source)
    assert target.numpy().tolist() == [1, 0, 1, 0, 1, 0]
    with pytest.raises(ArgumentError, match=r"argument 0 \(B\): shape\[0\] is 6, expected 8"):
        function(target, nd.array(np.ones(4, "float32")))


def test_a_size_unbound_by_arguments_is_an_error(target):
    n = SizeVar("n")
    b = decl_buffer((n * 2,), "float32", "B")
    function = PrimFunc((b.data,), BufferStore(b, const(0.0), (const(0),)), {b.data: b}, {"global_symbol": "f"})
    with pytest.raises(VerifyError, match=r"symbolic size 'n' is not an extent of any shape.*add 'n' to the arguments"):
        build(function, target=target)


def test_device_is_checked(fixed):
    register_device_kind("elsewhere", 4001)
    a, b, c = arrays(4, 3)
    b.tensor.device_type = 4001
    with pytest.raises(ArgumentError, match=r"argument 1 \(B\): is on device elsewhere, expected cpu"):
        fixed(a, b, c)


def test_function_without_host_function(target):
    module = build(elementwise((4,), packed_api=False), target=target)
    a, b, c = arrays(4)
    module["add"](a, b, c)
    np.testing.assert_array_equal(c.numpy(), 3 * a.numpy())
    with pytest.raises(ArgumentError, match="expected 3"):
        module["add"](a, b)


def test_messages_follow_the_order_of_the_checks():
    host = make_host_function(make_kernel(elementwise((2,))), "cpu", remote=False)
    assert host.name == "add__packed" and host.attrs["messages"][0].startswith("expected 3 arguments")
    text = str(host)
    places = [text.index(message.split("{")[0]) for message in host.attrs["messages"] if "argument 1" in message]
    assert places == sorted(places) and len(places) > 4


def test_every_function_of_a_module_is_reachable(target):
    module = build(IRModule({"one": elementwise((2,)), "other.name": elementwise((3,))}), target=target)
    for name, size in (("one", 2), ("other.name", 3)):
        a, b, c = arrays(size)
        module[name](a, b, c)
        np.testing.assert_array_equal(c.numpy(), 3 * a.numpy())
    assert module.function_names() == ["one", "other.name"]


def test_functions_of_many_arguments(target):
    """Each argument is checked inside the checks of those before it: the nesting exceeds Python's recursion limit."""
    limit = sys.getrecursionlimit()
    inputs = [te.placeholder((4,), name=f"x{i}") for i in range(60)]
    total = te.compute((4,), lambda i: functools.reduce(operator.add, [x[i] for x in inputs]), name="total")
    function = build(te.create_schedule(total.op), [*inputs, total], target)
    arrays = [nd.array(np.full(4, i, np.float32)) for i in range(60)]
    result = nd.empty((4,), "float32")
    function(*arrays, result)
    np.testing.assert_array_equal(result.numpy(), np.full(4, 59 * 60 / 2, np.float32))
    assert sys.getrecursionlimit() == limit
