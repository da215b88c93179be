"""Memory-bound kernels against copies of as many bytes, interleaved in the same run.

    python -m benchmarks.bandwidth [--threads 1] [--megabytes 8,128] [--only softmax] [--rounds 9] [--target llvm]
                                   [--results FILE]

Every case reads and writes about `megabytes` in all: by default a size beyond L2 and one beyond L3. Bytes are counted
once for each input and output. The share is relative to a copy of as many bytes by as many threads: with one thread
numpy's (the C library's, which can use non-temporal stores). Tensors that fit into a cache can give
shares above 100 %. Results are checked against numpy. FILE gets a record of each case (`benchmarks.records`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.records import append, origin
from relayc import relay
from relayc.backend.llvm.ceilings import StreamingCopy
from relayc.backend.runtime import device, graph_executor
from relayc.relay.expr import Expr, Var
from relayc.relay.interpreter import evaluate
from relayc.relay.lowering.lower import tensor_types
from relayc.relay.op import qnn
from relayc.relay.op.common import numpy_dtype

nn = relay.nn
_CHANNELS = 64
_FRAME = ((0, 0), (0, 0), (1, 1), (1, 1))
_ROW = 1024


@dataclass(frozen=True)
class Case:
    """A kernel: a function that reads and writes `nbytes`."""

    name: str
    function: relay.Function

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs and results."""
        types = [*[p.ty for p in self.function.params], self.function.body.ty]
        return sum(t.nbytes for ty in types for t in tensor_types(ty))


def _side(elements: int, channels: int = _CHANNELS) -> int:
    """The side of a square image with about so many elements; no power of two, to avoid cache-set conflicts."""
    return max(int((elements / channels) ** 0.5) // 4 * 4 + 4, 8)


def cases(nbytes: int) -> Iterator[Case]:
    """Every case, reading and writing about `nbytes`."""
    one = nbytes // 8  # elements of each of two tensors of the same size

    def case(name: str, build: Callable[..., Expr], *shapes: Sequence[int], dtype: str = "float32") -> Case:
        inputs = tuple([Var(f"x{i}", relay.TensorType(tuple(shape), dtype)) for i, shape in enumerate(shapes)])
        return Case(name, relay.Function(inputs, build(*inputs)))

    def weight(*shape: int) -> Expr:
        return relay.const(np.linspace(0.5, 1.5, int(np.prod(shape)), dtype=np.float32).reshape(shape))

    rows = (one // _ROW, _ROW)
    side, more = _side(one), _side(2 * one)
    image, nchw = (1, side, side, _CHANNELS), (1, _CHANNELS, side, side)
    yield case("relu", nn.relu, (one,))
    yield case("a + b", relay.add, (one * 2 // 3,), (one * 2 // 3,))
    yield case("chain of 8", _chain, (one,))
    yield case("sigmoid", relay.sigmoid, (one,))
    yield case("gelu", nn.gelu, (one,))
    yield from _elementwise(case, one)
    yield case("bias of 3, float16", relay.add, (2 * one // 3, 3), (3,), dtype="float16")
    yield case("swiglu, halves of rows", _swiglu, (one * 4 // 3 // 2000, 2000))
    yield case("where, a row's mask", lambda x: relay.where(_mask(), x, relay.const(np.float32(0))), rows)
    yield case("bias, NHWC", lambda x: relay.add(x, weight(_CHANNELS)), image)
    yield case("bias, NCHW", lambda x: relay.add(x, weight(_CHANNELS, 1, 1)), nchw)
    yield case("softmax", nn.softmax, rows)
    yield case("softmax, rows of 1000", nn.softmax, (one // 1000, 1000))
    yield case("softmax, rows of 128256", nn.softmax, (one // 128256, 128256))
    yield case("softmax, masked", lambda x: nn.softmax(relay.where(_mask(), x, relay.const(np.float32(-1e9)))), rows)
    yield case("softmax, first axis", lambda x: nn.softmax(x, axis=0), (256, one // 256))
    yield case("softmax, 21 classes", lambda x: nn.softmax(x, axis=0), (21, one // 21))
    yield case("softmax, 19 planes", lambda x: nn.softmax(x, axis=1), (1, 19, one // 19 // 1024, 1024))
    yield case("softmax, 150 planes", lambda x: nn.softmax(x, axis=1), (max(one // 150 // 16384, 1), 150, 128, 128))
    yield case("layer norm", lambda x: nn.layer_norm(x, weight(_ROW), weight(_ROW)), rows)
    yield case("layer norm, rows of 100", lambda x: nn.layer_norm(x, weight(100), weight(100)), (one // 100, 100))
    yield case("layer norm, rows of 24", lambda x: nn.layer_norm(x, weight(24), weight(24)), (one // 24 // 64 * 64, 24))
    yield case("softmax, rows of 49", nn.softmax, (one // 49 // 64 * 64, 49))
    yield case("log softmax, rows of 49", nn.log_softmax, (one // 49 // 64 * 64, 49))
    yield case("softmax, rows of 49, float16", nn.softmax, (2 * one // 49 // 64 * 64, 49), dtype="float16")
    yield case("softmax, rows of 10", nn.softmax, (one // 10 // 64 * 64, 10))
    yield case("layer norm, NCHW channels", lambda x: nn.standardize(x, 1), nchw)
    odd = (one // 192 // 3025, 192, 55, 55)
    yield case("layer norm, channels of planes of 55x55", lambda x: nn.standardize(x, 1), odd)
    small = (one // 384 // 196, 384, 14, 14)
    yield case("layer norm, channels of planes of 14x14", lambda x: nn.standardize(x, 1), small)
    yield case("group norm, planes of 14x14", lambda x: nn.group_norm(x, weight(384), weight(384), 48), small)
    odd = (one // 256 // 729, 256, 27, 27)
    yield case("group norm, planes of 27x27", lambda x: nn.group_norm(x, weight(256), weight(256), 32), odd)
    planes = (1, 96, *[_side(one, 96)] * 2)
    yield case("layer norm between transpositions", lambda x: _normed_channels(x, weight(96)), planes)
    batch = (8, _CHANNELS, *[_side(one // 8)] * 2)
    yield case("mean and variance of a batch", lambda x: nn.standardize(x, (0, 2, 3)), batch)
    yield case("rms norm", lambda x: nn.rms_norm(x, weight(_ROW)), rows)
    yield case("l2 norm", lambda x: nn.l2_normalize(x, axis=-1), rows)
    yield case("dynamic quantisation", _quantised, (one * 8 // 5,))
    yield case("cumulative sum", lambda x: relay.cumsum(x, axis=1), rows)
    yield case("batch norm", lambda x: _batch_norm(x, weight), nchw)
    scale, shift = weight(_CHANNELS), weight(_CHANNELS)
    yield case("instance norm", lambda x: nn.instance_norm(x, scale, shift), nchw)
    yield case("group norm", lambda x: nn.group_norm(x, scale, shift, 8), nchw)
    yield case("group norm, NHWC", lambda x: nn.group_norm(x, scale, shift, 8, axis=3), image)
    yield case("instance norm, NHWC", lambda x: nn.instance_norm(x, scale, shift, axis=3), image)
    few, own = (1, *[_side(one, 24)] * 2, 24), weight(24)
    yield case("instance norm, NHWC, 24 channels", lambda x: nn.instance_norm(x, own, own, axis=3), few)
    for name, axis, shape in (("NCHW", 1, (1280, 16, 16)), ("NHWC", 3, (16, 16, 1280))):
        norm = lambda x, axis=axis: nn.silu(nn.group_norm(x, weight(1280), weight(1280), 32, axis=axis))  # noqa: E731
        yield case(f"group norm and silu, {name}", norm, (one // 1280 // 256, *shape))
    yield case("variance", lambda x: relay.variance(x, axis=-1), (2 * one // _ROW, _ROW))
    yield case("variance, NHWC image", lambda x: relay.variance(x, axis=(1, 2)), (1, more, more, _CHANNELS))
    prime = (1, 521, max(2 * one // 521 // _CHANNELS, 1) | 1, _CHANNELS)
    yield case("variance, NHWC image of odd sides", lambda x: relay.variance(x, axis=(1, 2)), prime)
    yield case("variance, all", relay.variance, (2 * one // _ROW, _ROW))
    yield case("sum, last axis", lambda x: relay.sum(x, axis=-1), (2 * one // _ROW, _ROW))
    yield case("max, rows of 1000", lambda x: relay.max(x, axis=-1), (2 * one // 1000, 1000))
    yield case("max, rows of 7", lambda x: relay.max(x, axis=-1), (2 * one // 7, 7))
    yield case("mean, planes of 7x7", lambda x: relay.mean(x, axis=(2, 3)), (2 * one // 49 // 512, 512, 7, 7))
    yield case("sum, first axis", lambda x: relay.sum(x, axis=0), (2 * one // _ROW, _ROW))
    yield case("max, channels of planes", lambda x: relay.max(x, axis=1), (1, _CHANNELS, more, more))
    half = (4 * one // _ROW, _ROW)
    yield case("sum, first axis, float16", lambda x: relay.sum(x, axis=0), half, dtype="float16")
    yield case("max, first axis, float16", lambda x: relay.max(x, axis=0), half, dtype="float16")
    yield case("sum, middle axis", lambda x: relay.sum(x, axis=1), (32, 2 * one // 32 // 256, 256))
    yield case("sum, all", relay.sum, (2 * one // _ROW, _ROW))
    yield case("mean, NHWC image", lambda x: relay.mean(x, axis=(1, 2)), (1, more, more, _CHANNELS))
    for length in (49, 1000, 50257):
        several = (2 * one // length, length)
        yield case(f"log-sum-exp, rows of {length}", lambda x: relay.log_sum_exp(x, axis=-1), several)
    yield case("argmax, last axis", lambda x: relay.argmax(x, axis=-1), (2 * one // _ROW, _ROW))
    yield case("argmax, rows of 10", lambda x: relay.argmax(x, axis=-1), (2 * one // 10, 10))
    tiny = (max(2 * one // 255 // 169, 1), 255, 13, 13)
    yield case("argmax, channels of planes of 13x13", lambda x: relay.argmax(x, axis=1), tiny)
    yield case("argmax, all", relay.argmax, (2 * one // _ROW, _ROW))
    yield case("argmax, 21 classes", lambda x: relay.argmax(x, axis=0), (21, 2 * one // 21))
    yield case("transpose", relay.transpose, (one // _ROW, _ROW))
    for dtype, size in (("int8", 1), ("float16", 2), ("float64", 8)):
        yield case(f"transpose, {dtype}", relay.transpose, (one * 4 // size // 2500, 2500), dtype=dtype)
    yield case("NCHW to NHWC", lambda x: relay.transpose(x, (0, 2, 3, 1)), nchw)
    yield case("NHWC to NCHW", lambda x: relay.transpose(x, (0, 3, 1, 2)), image)
    yield case("BSHD to BHSD", lambda x: relay.transpose(x, (0, 2, 1, 3)), (4, one // 4 // 12 // 64, 12, 64))
    yield case("concat, channels", lambda a, b: relay.concatenate([a, b], axis=3), *[_halved(image)] * 2)
    yield case("concat, first axis", lambda a, b: relay.concatenate([a, b], axis=0), *[(one // 2,)] * 2)
    yield case("split, channels", lambda x: relay.Tuple(relay.split(x, 2, axis=3)), image)
    yield case("split, rows of 9 in three", lambda x: relay.Tuple(relay.split(x, 3, axis=1)), (one // 9, 9))
    yield case("pad, first axis", lambda x: nn.pad(x, ((1, 1), (0, 0))), (7, one // 8))
    yield case("pad", lambda x: nn.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), image)
    for mode in ("constant", "reflect"):
        yield case(f"pad, NCHW, {mode}", lambda x, mode=mode: nn.pad(x, _FRAME, pad_mode=mode), nchw)
    yield case("stack, last axis", lambda a, b: relay.stack([a, b], axis=2), *[(one // 2 // _ROW, _ROW)] * 2)
    yield case("concat, 3 and 1 columns", lambda a, b: relay.concatenate([a, b], axis=1), (one // 4, 3), (one // 4, 1))
    joined = [(2 * one // 500, 500), (2 * one // 500, 501)]
    yield case("concat, 500 and 501 bytes", lambda a, b: relay.concatenate([a, b], axis=1), *joined, dtype="int8")
    flags = [(4 * one // 7, 7), (4 * one // 7, 1)]
    yield case("and, rows of 7 with a column", relay.logical_and, *flags, dtype="bool")
    pixels, small = (1, *[_side(4 * one, 3)] * 2, 3), (4 * one // 64 // 784, 64, 28, 28)
    frame = ((0, 0), (1, 1), (1, 1), (0, 0))
    yield case("pad, 3 channels last, uint8", lambda x: nn.pad(x, frame), pixels, dtype="uint8")
    yield case("pad, planes of 28x28, int8", lambda x: nn.pad(x, _FRAME), small, dtype="int8")
    length = one // 32 // 128
    heads, angles = (1, 64, length, 128), (length, 64)
    rotary = lambda x, c, s: nn.rotary_embedding(x, c, s, True)  # noqa: E731
    yield case("rotary embedding, interleaved, float16", rotary, heads, angles, angles, dtype="float16")
    planes = (one // 256 // 784, 256, 28, 28)
    yield case("pad, planes of 28x28, reflect", lambda x: nn.pad(x, _FRAME, pad_mode="reflect"), planes)
    yield case("reverse, rows of 1000 bytes", lambda x: relay.reverse(x, 1), (4 * one // 1000, 1000), dtype="uint8")
    windows = (one // 96 // 56 // 56, 56, 56, 96)
    yield case("roll, two axes, NHWC", lambda x: relay.roll(x, (-3, -3), (1, 2)), windows)
    yield case("roll, rows of 1000", lambda x: relay.roll(x, 7, 1), (one // 1000, 1000))
    yield case("tile", lambda x: relay.tile(x, (1, 3)), (one // 2 // 1000, 1000))
    yield case("gather rows", lambda x: relay.take(x, relay.const(_shuffled(one // 256)), axis=0), (one // 256, 256))
    yield case("resize 2x, nearest", lambda x: _repeated(_repeated(x, 1), 2), _small(nbytes))
    yield case("resize 2x, linear", lambda x: _resized(_resized(x, 1), 2), _small(nbytes))
    planes = _small(nbytes, channels_first=True)
    yield case("resize 2x, nearest, NCHW", lambda x: _repeated(_repeated(x, 2), 3), planes)
    yield case("resize 2x, linear, NCHW", lambda x: _resized(_resized(x, 2), 3), planes)
    yield case("max pool 3x3 by 2", lambda x: _pool(nn.max_pool2d, x, 3), (1, *[_side(one * 8 // 5)] * 2, _CHANNELS))
    pooled = (1, _CHANNELS, *[_side(one * 8 // 5)] * 2)
    yield case("max pool 3x3 by 2, NCHW", lambda x: nn.max_pool2d(x, (3, 3), (2, 2), padding=(1, 1, 1, 1)), pooled)
    yield case("max pool 3x3 by 1, NCHW", lambda x: nn.max_pool2d(x, (3, 3), (1, 1), padding=(1, 1, 1, 1)), nchw)
    halves = (1, *[_side(one * 16 // 5)] * 2, _CHANNELS)
    yield case("max pool 3x3 by 2, float16", lambda x: _pool(nn.max_pool2d, x, 3), halves, dtype="float16")
    yield case("max pool 5x5 by 1", lambda x: _pool(nn.max_pool2d, x, 5, 1), image)
    yield case("max pool 5x5 by 1, NCHW", lambda x: nn.max_pool2d(x, (5, 5), (1, 1), padding=(2, 2, 2, 2)), nchw)
    yield case("avg pool 2x2 by 2", lambda x: _pool(nn.avg_pool2d, x, 2), (1, *[_side(one * 8 // 5)] * 2, _CHANNELS))
    yield case("global avg pool", lambda x: nn.global_avg_pool2d(x, "NHWC"), (1, more, more, _CHANNELS))
    yield case("lrn, NHWC", lambda x: nn.lrn(x, 5, 3), image)
    yield case("lrn, NCHW", lambda x: nn.lrn(x, 5, 1), nchw)


def _elementwise(case: Callable[..., Case], one: int) -> Iterator[Case]:
    """Elementwise operators with more arithmetic than a load and a store, or of other types than float32.

    Logarithms and powers are taken of absolute values.
    """
    functions = (relay.exp, relay.tanh, relay.sin, relay.atan, relay.sinh, nn.silu, nn.mish, nn.softplus, nn.hard_swish)
    for function in functions:
        yield case(function.__name__, function, (one,))
    yield case("gelu by tanh", lambda x: nn.gelu(x, True), (one,))
    for function in (relay.log, relay.log1p):
        yield case(function.__name__, lambda x, function=function: function(relay.abs(x)), (one,))
    third = one * 2 // 3
    yield case("sine and cosine", lambda x: relay.Tuple((relay.sin(x), relay.cos(x))), (third,))
    yield case("x ** 0.3", lambda x: relay.power(relay.abs(x), relay.const(np.float32(0.3))), (one,))
    yield case("x ** 3", lambda x: relay.power(x, relay.const(np.float32(3))), (one,))
    yield case("x ** y", lambda x, y: relay.power(relay.abs(x), y), (third,), (third,))
    yield case("a / b", relay.divide, (third,), (third,))
    yield case("remainder", relay.trunc_mod, (third,), (third,))
    yield case("a / b, int32", relay.divide, (third,), (third,), dtype="int32")
    yield case("a / b, int64", relay.divide, (third // 2,), (third // 2,), dtype="int64")
    yield case("a + b, int64", relay.add, (third // 2,), (third // 2,), dtype="int64")
    yield case("where a < b", lambda a, b: relay.where(relay.less(a, b), a, b), (third,), (third,))
    yield case("x > 0, bool", lambda x: relay.greater(x, relay.const(np.float32(0))), (one * 8 // 5,))
    for source, target, size in (("float32", "float16", 6), ("bfloat16", "float32", 6), ("int64", "float32", 12)):
        yield case(f"{source} to {target}", lambda x, t=target: relay.cast(x, t), (8 * one // size,), dtype=source)
    for function in (nn.relu, relay.exp, relay.sigmoid):
        yield case(f"{function.__name__}, float16", function, (2 * one,), dtype="float16")
    for function in (relay.exp, nn.gelu):
        yield case(f"{function.__name__}, bfloat16", function, (2 * one,), dtype="bfloat16")
    scale, zero = relay.const(np.float32(0.05)), relay.const(np.uint8(3))
    quantize, dequantize = relay.op.qnn.quantize, relay.op.qnn.dequantize
    yield case("quantize", lambda x: quantize(x, scale, zero, 0), (one * 8 // 5,))
    fake = lambda x: quantize(nn.relu(dequantize(x, scale, zero, 0)), scale, zero, 0)  # noqa: E731
    yield case("relu of uint8", fake, (4 * one,), dtype="uint8")
    table = lambda x: quantize(nn.silu(dequantize(x, scale, zero, 0)), scale, zero, 0)  # noqa: E731
    yield case("silu of uint8", table, (4 * one,), dtype="uint8")


def _chain(x: Expr) -> Expr:
    for i in range(8):
        x = relay.multiply(x, relay.const(np.float32(1.01))) if i % 2 else relay.add(x, relay.const(np.float32(0.1)))
    return x


def _normed_channels(x: Expr, weight: Expr) -> Expr:
    return relay.transpose(nn.layer_norm(relay.transpose(x, (0, 2, 3, 1)), weight, weight), (0, 3, 1, 2))


def _batch_norm(x: Expr, weight: Callable[..., Expr]) -> Expr:
    return nn.batch_norm(x, weight(_CHANNELS), weight(_CHANNELS), weight(_CHANNELS), weight(_CHANNELS))[0]


def _quantised(x: Expr) -> Expr:
    scale, zero = qnn.choose_qparams(x)
    return qnn.quantized(relay.divide(x, scale), zero, "uint8")


def _swiglu(x: Expr) -> Expr:
    gate, data = relay.split(x, 2, axis=1)
    return relay.multiply(nn.silu(gate), data)


def _mask() -> Expr:
    return relay.const(np.random.default_rng(0).random(_ROW) < 0.5)


def _halved(image: tuple[int, ...]) -> tuple[int, ...]:
    return (*image[:3], image[3] // 2)


def _shuffled(count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).permutation(count).astype(np.int64)


def _resized(x: Expr, axis: int) -> Expr:
    """Linear upsampling by 2 along an axis, as the ONNX importer decomposes Resize."""
    size = x.ty.shape[axis]  # type: ignore[union-attr]
    at = (np.arange(2 * size) + 0.5) / 2 - 0.5
    low = np.floor(at).astype(np.int64)
    shape = [-1 if a == axis else 1 for a in range(4)]
    share = (at - low).astype(np.float32).reshape(shape)
    near, far = (relay.take(x, relay.const(np.clip(i, 0, size - 1)), axis=axis) for i in (low, low + 1))
    return relay.add(relay.multiply(near, relay.const(1 - share)), relay.multiply(far, relay.const(share)))


def _repeated(x: Expr, axis: int) -> Expr:
    return relay.take(x, relay.const(np.arange(2 * x.ty.shape[axis]) // 2), axis=axis)  # type: ignore[union-attr]


def _small(nbytes: int, channels_first: bool = False) -> tuple[int, ...]:
    """The shape of an image that takes about `nbytes` together with its upsampling by 2 x 2."""
    sides = [_side(nbytes // 20)] * 2
    return (1, _CHANNELS, *sides) if channels_first else (1, *sides, _CHANNELS)


def _pool(operator: Callable[..., Expr], x: Expr, window: int, stride: int = 2) -> Expr:
    padding = (window // 2,) * 4 if window % 2 else (0, 0, 0, 0)
    return operator(x, (window, window), (stride, stride), padding=padding, layout="NHWC")


def _values(random: np.random.Generator, of: relay.TensorType) -> np.ndarray[Any, Any]:
    if not of.dtype.is_float:
        return random.integers(1, 100, of.static_shape).astype(str(of.dtype))
    return random.standard_normal(of.static_shape, dtype=np.float32).astype(numpy_dtype(str(of.dtype)))


def compiled(case: Case, threads: int, target: str = "llvm") -> graph_executor.GraphModule:
    """The compiled case with inputs set and results checked."""
    random = np.random.default_rng(0)
    feeds = [_values(random, p.tensor_type) for p in case.function.params]
    module = graph_executor.GraphModule(relay.build(case.function, target)["default"](device("cpu", 0)), threads)
    for param, array in zip(case.function.params, feeds, strict=True):
        module.set_input(param.name, array)
    module.run()
    expected = evaluate(case.function, feeds)
    for i, wanted in enumerate(expected if isinstance(expected, tuple) else (expected,)):
        got, finite = module.get_output(i).numpy().astype(np.float64), np.isfinite(wanted)
        np.testing.assert_array_equal(got[~finite], wanted[~finite], err_msg=case.name)
        bound = 2e-3 * max(1.0, np.abs(wanted[finite]).max(initial=0))
        np.testing.assert_allclose(got[finite], wanted[finite], rtol=0, atol=bound, err_msg=case.name)
    return module


def measure(case: Case, threads: int, rounds: int, target: str = "llvm") -> tuple[float, float]:
    """GB/s of the case and of copies of as many bytes, interleaved: the best run of each, as STREAM reports.

    One thread is timed by its CPU time, which does not count preemption by other programs.
    """
    module, source = compiled(case, threads, target), np.ones(case.nbytes // 8, np.float32)
    copy, into = StreamingCopy(threads, case.nbytes // 2), np.zeros_like(source)
    seconds: list[float] = []
    copied: list[float] = []
    for _ in range(rounds * max(1, 16_000_000 // case.nbytes)):
        if threads == 1:
            copied.append(case.nbytes / _seconds(time.thread_time, lambda: np.copyto(into, source)) / 1e9)
            seconds.append(_seconds(time.thread_time, module.run))
        else:
            copied.append(copy.gbs())
            seconds.append(_seconds(time.perf_counter, module.run))
    return case.nbytes / min(seconds) / 1e9, max(copied)


def _seconds(clock: Callable[[], float], work: Callable[[], object]) -> float:
    start = clock()
    work()
    return clock() - start


def run_program(program: str, cases: Callable[[int], Iterator[Case]], doc: str, megabytes: str, rounds: int) -> None:
    """Measure the cases that the command line selects, print a table of them, and store records where wanted."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--megabytes", default=megabytes, help="comma-separated sizes")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--target", default="llvm", help="a target that this machine can run")
    parser.add_argument("--results", type=Path, help="file to append a record of each case to")
    args = parser.parse_args()
    sizes = [int(float(size) * 1e6) for size in args.megabytes.split(",")]
    print("| kernel |" + "".join(f" {size / 1e6:.0f} MB, GB/s | copy | share |" for size in sizes))
    print("|---|" + "---|---|---|" * len(sizes))
    for alike in zip(*[cases(size) for size in sizes], strict=True):
        if args.only in alike[0].name:
            figures = [measure(case, args.threads, args.rounds, args.target) for case in alike]
            for size, (rate, copy) in zip(sizes, figures, strict=True) if args.results else ():
                append(args.results, {
                    **origin(program), "case": alike[0].name, "threads": args.threads, "megabytes": round(size / 1e6),
                    "gb_per_s": round(rate, 1), "copy_gb_per_s": round(copy, 1),
                    "percent_of_copy": round(100 * rate / copy),
                })  # fmt: skip
            cells = "".join([f" {rate:.1f} | {copy:.1f} | {100 * rate / copy:.0f} % |" for rate, copy in figures])
            print(f"| {alike[0].name} |{cells}", flush=True)


if __name__ == "__main__":
    run_program("bandwidth", cases, __doc__ or "", "8,128", 9)
