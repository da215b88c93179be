"""Injective groups on CPUs: borders are partitioned off, `tile` has its period as lines, repeats are loaded once."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.target import Target
from relayc.te.arith import Analyzer
from relayc.te.ir import collect
from relayc.te.tir import BufferStore, For, ForKind, Var, as_int
from relayc.te.tir.substitute import substitute
from relayc.topi.registry import schedule_for
from tests.topi.small_caches import PROCESSORS, lowered, result

TARGET = Target("llvm")


def run(out: te.Tensor, x: te.Tensor, a: np.ndarray) -> tuple[np.ndarray, str, str]:
    """The result for x = a, the loops, and the code for LLVM."""
    module = te.lower(schedule_for([out], TARGET), [x, out])
    built = backend.build(module, target=TARGET)
    result = backend.nd.empty(out.shape, out.dtype)
    built(backend.nd.array(a), result)
    return result.numpy(), str(module), built.get_source("ll")


def values(*shape: int) -> tuple[te.Tensor, np.ndarray]:
    return te.placeholder(shape, "float32", "x"), np.arange(np.prod(shape), dtype="float32").reshape(shape)


@pytest.mark.parametrize("before", [(0, 0, 1, 1), (0, 1, 0, 3), (0, 0, 2, 0), (1, 0, 0, 20)])
@pytest.mark.parametrize("after", [(0, 0, 1, 1), (0, 0, 3, 0), (0, 0, 0, 18)])
@pytest.mark.parametrize("width", [33, 64, 5])
def test_borders(before, after, width) -> None:
    x, a = values(2, 3, 5, width)
    got, text, _ = run(topi.nn.relu(topi.nn.pad(x, before, after, -1.5)), x, a)
    wide = np.pad(a, list(zip(before, after, strict=True)), constant_values=-1.5)
    assert np.array_equal(got, np.maximum(wide, 0))
    if before == (0, 0, 1, 1) and width == 64:  # no bounds checks in the middle of a line
        assert any("x[ramp" in line and "where=" not in line and "select" not in line for line in text.splitlines())


def test_a_broadcast_computed_element_is_not_buffered() -> None:
    """A tensor of one element is not a line to buffer."""
    x, a = values(1, 1)
    one = te.compute((1, 1), lambda i, j: (x[i, j] - 3.0) * 2.0 + 5.0, name="one", tag="elemwise")
    got, _, _ = run(topi.broadcast_to(one, (1, 3)), x, a)
    assert np.array_equal(got, np.broadcast_to((a - 3) * 2 + 5, (1, 3)))


def test_concatenation_with_padding_selects_lane_by_lane() -> None:
    x, a = values(3, 70)
    got, _, _ = run(topi.concatenate([topi.nn.pad(x, (0, 1), (0, 0), 7.0), topi.nn.relu(x)], 1), x, a)
    assert np.array_equal(got, np.concatenate([np.pad(a, ((0, 0), (1, 0)), constant_values=7.0), a], 1))


@pytest.mark.parametrize(
    ("shape", "times"), [((4, 33), (1, 3)), ((5, 100), (2, 2)), ((2, 3), (3, 7)), ((6, 1), (1, 40))]
)
def test_tiles_are_lines_of_their_period(shape, times) -> None:
    x, a = values(*shape)
    got, _, code = run(topi.tile(x, times), x, a)
    assert np.array_equal(got, np.tile(a, times))
    if shape[1] > 32:
        assert "masked.gather" not in code


@pytest.mark.parametrize("repeats", [2, 3, 4, 16, 40])
@pytest.mark.parametrize("width", [7, 16, 50, 96])
def test_repeated_elements_are_not_gathered(repeats, width) -> None:
    x, a = values(3, width)
    got, _, code = run(topi.repeat(x, repeats, 1), x, a)
    assert np.array_equal(got, np.repeat(a, repeats, 1))
    if repeats in (2, 4, 16) and width == 96:
        assert "masked.gather" not in code


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("borders", [((1, 2), (2, 1)), ((0, 3), (4, 0)), ((0, 0), (0, 5)), ((2, 4), (39, 40))])
def test_mirrored_padding(mode, borders) -> None:
    x, a = values(2, 5, 40)
    before, after = zip((0, 0), *borders, strict=True)
    got, _, _ = run(topi.nn.mirror_pad(x, before, after, mode), x, a)
    assert np.array_equal(got, np.pad(a, list(zip(before, after, strict=True)), mode=mode))


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64-v2"] if platform.machine() == "x86_64" else ["llvm"])
@pytest.mark.parametrize("kind", ["float32", "float64", "float16"])
@pytest.mark.parametrize("count", [1, 16, 41])
def test_maximum_and_minimum_propagate_nan(count, kind, target) -> None:
    values = [np.nan, np.inf, -np.inf, 1.0, -2.0, 3e4, 0.0]
    a = np.resize(np.repeat(values, len(values)), count).astype(kind)
    b = np.resize(values * len(values), count).astype(kind)[::-1].copy()
    x, y = (te.placeholder((count,), kind, n) for n in "xy")
    for ours, theirs in ((topi.maximum, np.maximum), (topi.minimum, np.minimum)):
        out = ours(x, y)
        built = backend.build(te.lower(schedule_for([out], Target(target)), [x, y, out]), target=Target(target))
        result = backend.nd.empty(out.shape, kind)
        built(backend.nd.array(a), backend.nd.array(b), result)
        np.testing.assert_array_equal(result.numpy(), theirs(a, b))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("widths", [(1, 1), (3, 0), (0, 2), (5, 9)], ids=str)
def test_padding_of_dynamic_lines(mode, widths):
    n = te.size_var("n")
    before, after = widths
    x = te.placeholder((2, n), "float32", "x")
    if mode == "constant":
        out = topi.nn.pad(x, (0, before), (0, after), 7.0)
    else:
        out = topi.nn.mirror_pad(x, (0, before), (0, after), mode)
    module = backend.build(te.lower(schedule_for([out], TARGET), [x, out]), target=TARGET)
    for size in (1, 2, 4, 9, 31, 40, 64, 77):
        a = np.random.default_rng(size).standard_normal((2, size)).astype("float32")
        result = backend.nd.empty((2, before + size + after), "float32")
        module(backend.nd.array(a), result)
        expected = np.pad(a, ((0, 0), widths), mode=mode, **({"constant_values": 7.0} if mode == "constant" else {}))
        np.testing.assert_array_equal(result.numpy(), expected)


def test_lines_of_a_dynamic_batch_of_one_are_shared_by_threads() -> None:
    n, h = te.size_var("n"), te.size_var("h")
    x, scale = te.placeholder((n, h, 96), "float32", "x"), te.placeholder((n, 1, 96), "float32", "scale")
    out = topi.multiply(x, scale)
    module = te.lower(schedule_for([out], TARGET), [x, scale, out])
    (loop,) = [loop for loop in collect(module["main"].body, For) if loop.kind is ForKind.PARALLEL]
    sizes = {v: te.const(1 if v.name == "n" else 3136, v.dtype) for v in collect(loop.extent, Var)}
    parts = as_int(Analyzer().simplify(substitute(loop.extent, sizes)))
    assert parts is not None and 16 <= parts <= 3136 // 16, "few divisions of the index, and enough for threads"
    built = backend.build(module, target=TARGET)
    for size in ((1, 1), (1, 3136), (2, 7), (40, 33), (3, 171)):
        a, b = (np.random.default_rng(0).standard_normal((k, m, 96), "float32") for k, m in (size, (size[0], 1)))
        result = backend.nd.empty(a.shape, "float32")
        built(backend.nd.array(a), backend.nd.array(b), result)
        np.testing.assert_array_equal(result.numpy(), a * b)


def test_resampled_lines_are_buffered():
    x, a = values(2, 3, 9, 40)
    table = (np.arange(60) * 40 // 60).astype("int64")
    places = te.placeholder((60,), "int64", "places")
    shape = (2, 3, 8, 40)
    halves = te.compute(shape, lambda n, c, y, w: x[n, c, y, w] * 0.5 + x[n, c, y + 1, w] * 0.5, tag="injective")
    near = topi.take(halves, places, 3, mode="fast")
    next_one = te.compute((60,), lambda i: te.min(places[i] + 1, te.const(39, "int64")), tag="injective")
    far = topi.take(halves, next_one, 3, mode="fast")
    out = te.compute(near.shape, lambda *i: near[i] * 0.25 + far[i] * 0.75, tag="elemwise")
    module = te.lower(schedule_for([out], TARGET), [x, places, out])
    assert "allocate([40]" in str(module), "a line of the halves"
    result = backend.nd.empty(out.shape, "float32")
    backend.build(module, target=TARGET)(backend.nd.array(a), backend.nd.array(table), result)
    lines = (a[:, :, :-1] + a[:, :, 1:]) / 2
    expected = lines[..., table] * 0.25 + lines[..., np.minimum(table + 1, 39)] * 0.75
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)
    copied = topi.take(te.compute(x.shape, lambda *i: x[i], tag="injective"), places, 3, mode="fast")
    text = str(te.lower(schedule_for([copied], TARGET), [x, places, copied]))
    assert "allocate" not in text, "what is only moved is read where it is"


def _lowered(out, arguments) -> str:
    return str(te.lower(schedule_for([out], Target("llvm -mcpu=skylake-avx512")), [*arguments, out]))


def test_data_movement_uses_vectors_of_its_own_type() -> None:
    x = te.placeholder((50, 1024), "int8", "x")
    assert "1, 128)] = " in _lowered(topi.flip(x, (1,)), [x]).splitlines()[-1]
    assert "1, 32)] = " in _lowered(topi.add(topi.flip(x, (1,)), x), [x]).splitlines()[-1]


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("kind", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("share", [1, 2], ids=["the LLC", "half of it"])
def test_nontemporal_stores_of_narrow_results_are_whole_lines(share: int, kind: str, processor: str) -> None:
    """Results of at least half of the last-level cache get non-temporal stores; others have shorter vectors."""
    x, a = values(4099)
    out, nbytes = topi.cast(topi.abs(x), kind), np.dtype(kind).itemsize

    def stored(caches: str) -> int:
        function = lowered(out, [x], PROCESSORS[processor], caches=caches)["main"]
        stores = [s for s in collect(function.body, BufferStore) if s.buffer.data in function.params]
        return max(s.indices[-1].dtype.lanes for s in stores) * nbytes

    small = f"-l3-bytes={share * 4099 * nbytes}"
    assert stored(small) % 64 == 0
    assert kind != "uint8" or stored("-l3-bytes=33554432") < 64
    np.testing.assert_array_equal(result(out, [x], [a], caches=small), a.astype("i8").astype(kind))


@pytest.mark.parametrize("kind", ["int8", "float16", "float32"])
@pytest.mark.parametrize("count", [2, 3])
def test_tensors_are_interleaved_without_masks(count, kind) -> None:
    inputs = [te.placeholder((40, 100), kind, f"x{i}") for i in range(count)]
    out = topi.stack(inputs, 2)
    text = _lowered(out, inputs)
    assert "where=" not in text and "fused.outer" in text
    arrays = [np.random.default_rng(i).integers(-100, 100, (40, 100)).astype(kind) for i in range(count)]
    function = backend.build(te.lower(schedule_for([out], Target("llvm")), [*inputs, out]), target=Target("llvm"))
    found = backend.nd.empty((40, 100, count), kind)
    function(*[backend.nd.array(a) for a in arrays], found)
    np.testing.assert_array_equal(found.numpy(), np.stack(arrays, 2))


@pytest.mark.parametrize("join", [topi.logical_and, topi.logical_or])
def test_logical_operators_load_both_operands(join) -> None:
    """Short-circuited by the first, the second would be loaded element by element: 100 times slower for rows of 7."""
    x, y = te.placeholder((1000, 7), "bool", "x"), te.placeholder((1000, 1), "bool", "y")
    out = join(x, y)
    assert "where=" not in _lowered(out, [x, y]).splitlines()[-1]
    function = backend.build(te.lower(schedule_for([out], TARGET), [x, y, out]), target=TARGET)
    first, second = (np.random.default_rng(n).random((1000, count)) < 0.5 for n, count in ((0, 7), (1, 1)))
    result = backend.nd.empty((1000, 7), "bool")
    function(backend.nd.array(first), backend.nd.array(second), result)
    expected = np.logical_and(first, second) if join is topi.logical_and else np.logical_or(first, second)
    np.testing.assert_array_equal(result.numpy(), expected)
