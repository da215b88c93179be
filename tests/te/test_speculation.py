"""`Schedule.speculate`: a cheaper formula first, the exact one where a guard rejects its results."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te
from relayc.backend import build
from relayc.backend.runtime import nd
from relayc.te.errors import ScheduleError
from relayc.te.ir import collect
from relayc.te.schedule import Schedule
from relayc.te.tir import IfThenElse, PrimExpr, PrimFunc
from relayc.te.tir.block_interpreter import BlockInterpreter

ROWS, LENGTH, GROUP = 12, 6, 4
LOW, HIGH = 1e-6, 1e20


def _is_valid(total: PrimExpr) -> PrimExpr:
    return te.all(total >= te.const(LOW, "float32"), total <= te.const(HIGH, "float32"))


def _softmax(group: int | None, wrong: float = 1.0) -> tuple[Schedule, list[te.Tensor]]:
    """Softmax of rows, its sums speculated without the maximum of a row; `wrong`: a factor on the speculated ones."""
    x = te.placeholder((ROWS, LENGTH), name="x")
    k = [te.reduce_axis((0, LENGTH), name="k") for _ in range(3)]
    largest = te.compute((ROWS,), lambda i: te.max(x(i, k[0]), axis=k[0]), name="largest")
    power = te.compute(x.shape, lambda i, j: te.exp(x(i, j) - largest(i)), name="power")
    total = te.compute((ROWS,), lambda i: te.sum(power(i, k[1]), axis=k[1]), name="total")
    y = te.compute(x.shape, lambda i, j: power(i, j) / total(i), name="y")
    s = te.create_schedule(y.op)
    factor = te.const(wrong, "float32")
    unshifted = te.compute(
        x.shape, lambda i, j: te.exp(te.min(x(i, j), te.const(60.0, "float32"))) * factor, name="unshifted"
    )
    approximate = te.compute((ROWS,), lambda i: te.sum(unshifted(i, k[2]), axis=k[2]), name="approximate")
    s.speculate([power, total], [unshifted, approximate], _is_valid)
    if group is not None:
        outer, _ = s[y].split(y.op.axis[0], factor=group)
        for stage in (largest, power, total):
            s[stage].compute_at(s[y], outer)
    return s, [x, y]


def _lowered(group: int | None = GROUP) -> PrimFunc:
    s, args = _softmax(group)
    return te.lower(s, args)["main"]


def _interpreted(func: PrimFunc, x: np.ndarray) -> np.ndarray:
    y = np.full_like(x, np.nan)
    BlockInterpreter({"main": func}, check_uninitialized=True).call(func, (x, y))
    return y


def _reference(x: np.ndarray) -> np.ndarray:
    power = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return power / power.sum(1, keepdims=True)


def _inputs() -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(ROWS, LENGTH)).astype(np.float32)
    x[GROUP + 1] += 500  # too large for the unshifted formula, in the second group
    x[-1] -= 500
    return x


@pytest.mark.parametrize("group", [None, 1, GROUP, 5])
def test_invalid_speculation_is_recomputed(group: int | None) -> None:
    x = _inputs()
    np.testing.assert_allclose(_interpreted(_lowered(group), x), _reference(x), rtol=1e-5)


@pytest.mark.parametrize("group", [None, 1, GROUP])
def test_speculation_as_machine_code(group: int | None) -> None:
    s, args = _softmax(group)
    x = nd.array(_inputs())
    y = nd.empty(x.shape)
    build(s, args, "llvm")(x, y)
    np.testing.assert_allclose(y.numpy(), _reference(x.numpy()), rtol=1e-5)


def test_valid_speculation_is_not_recomputed() -> None:
    """A factor on the speculated exponentials cancels out, unless exact exponentials meet speculated sums."""
    s, args = _softmax(GROUP, wrong=2.0)
    func = te.lower(s, args)["main"]
    x = _inputs()
    np.testing.assert_allclose(_interpreted(func, x), _reference(x), rtol=1e-5)
    conditional = list(collect(func.body, IfThenElse))
    assert len(conditional) == 1
    assert "largest" in str(conditional[0]) and "largest" not in str(func.body).split("if ")[0].split("Allocate")[-1]


def test_producers_with_other_readers_are_computed_once_and_unconditionally() -> None:
    x = te.placeholder((ROWS,), name="x")
    base = te.compute(x.shape, lambda i: x(i) + 1, name="base")
    square = te.compute(x.shape, lambda i: base(i) * base(i), name="square")
    y = te.compute(x.shape, lambda i: square(i) + base(i), name="y")
    s = te.create_schedule(y.op)
    zero = te.compute(x.shape, lambda i: x(i) * 0, name="zero")
    s.speculate([square], [zero], lambda e: e > 0)
    for stage in (base, square):
        s[stage].compute_at(s[y], y.op.axis[0])
    func = te.lower(s, [x, y])["main"]
    (conditional,) = collect(func.body, IfThenElse)
    assert "base[" in str(conditional) and "base[0] =" not in str(conditional)
    data = np.arange(ROWS, dtype=np.float32)
    out = np.full_like(data, np.nan)
    BlockInterpreter({"main": func}, check_uninitialized=True).call(func, (data, out))
    np.testing.assert_array_equal(out, (data + 1) ** 2 + data + 1)


def test_unsupported_speculations_raise() -> None:
    x = te.placeholder((ROWS,), name="x")
    y = te.compute(x.shape, lambda i: x(i) + 1, name="y")
    z = te.compute(x.shape, lambda i: y(i) + 1, name="z")
    other = te.compute((ROWS + 1,), lambda i: te.const(0.0, "float32"), name="other")
    s = te.create_schedule(z.op)
    with pytest.raises(ScheduleError, match=r"\(12,\) of float32 by \(13,\) of float32"):
        s.speculate([y], [other], lambda e: e > 0)
    with pytest.raises(ScheduleError, match="a stage already"):
        s.speculate([z], [y], lambda e: e > 0)
    with pytest.raises(ScheduleError, match="expected one for each"):
        s.speculate([y, z], [other], lambda e: e > 0)
    apart = te.compute(x.shape, lambda i: x(i) * 2, name="apart")
    s.speculate([y], [apart], lambda e: e > 0)
    s[y].compute_inline()
    with pytest.raises(ScheduleError, match="not computed at one loop"):
        te.lower(s, [x, z])
