"""Small models of the shapes that C libraries are made for, and inputs for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from relayc import relay
from relayc.backend.runtime import CompiledModel
from relayc.frontends.onnx import from_onnx

TARGET = "llvm -mcpu=haswell -num-cores=2"
"""Valgrind knows AVX2, and no AVX-512."""

Inputs = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Model:
    """An ONNX graph as text, its weights, and functions that give inputs for sizes."""

    text: str
    inputs: Callable[[np.random.Generator], list[Inputs]]
    weights: Callable[[np.random.Generator], Inputs] = lambda rng: {}
    build: Mapping[str, Any] = field(default_factory=dict)

    def onnx(self) -> onnx.ModelProto:
        """The model with its weights."""
        model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{self.text}')
        weights = self.weights(np.random.default_rng(1))
        model.graph.initializer.extend([numpy_helper.from_array(v, name) for name, v in weights.items()])
        return model

    def compiled(self, target: str = TARGET) -> CompiledModel:
        module, params = from_onnx(self.onnx())
        return relay.build(module, target=target, params=params, **self.build)


def floats(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def _attention_weights(rng: np.random.Generator) -> Inputs:
    shapes = {"wq": (32, 32), "wk": (32, 32), "wv": (32, 32), "wo": (32, 32), "w1": (32, 64), "w2": (64, 32)}
    return {**{name: floats(rng, *shape, scale=0.2) for name, shape in shapes.items()},
            "g1": floats(rng, 32), "g2": floats(rng, 32), "b1": floats(rng, 64)}  # fmt: skip


def _bytes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-127, 128, shape).astype(np.int8)


MODELS: dict[str, Model] = {
    "convolutions": Model(
        """conv_net (float[1,3,32,32] image) => (float[1,10] scores) {
          a = Conv <pads = [1,1,1,1], strides = [2,2]> (image, w1, b1)
          b = Relu (a)
          c = Conv <pads = [1,1,1,1], group = 16> (b, w2)
          d = Clip (c, zero, six)
          e = Conv (d, w3)
          f = Add (e, b)
          g = MaxPool <kernel_shape = [2,2], strides = [2,2]> (f)
          h = GlobalAveragePool (g)
          i = Flatten (h)
          scores = Gemm <transB = 1> (i, w4, b4)
        }""",
        lambda rng: [{"image": floats(rng, 1, 3, 32, 32)}],
        lambda rng: {"w1": floats(rng, 16, 3, 3, 3), "b1": floats(rng, 16), "w2": floats(rng, 16, 1, 3, 3),
                     "w3": floats(rng, 16, 16, 1, 1), "w4": floats(rng, 10, 16), "b4": floats(rng, 10),
                     "zero": np.float32(0), "six": np.float32(6)},
    ),
    "attention of any length": Model(
        """block (float[batch,length,32] x, bool[batch,1,1,length] mask) => (float[batch,length,32] y) {
          n = LayerNormalization (x, g1)
          q0 = MatMul (n, wq)   k0 = MatMul (n, wk)   v0 = MatMul (n, wv)
          heads = Constant <value_ints = [0,0,4,8]> ()
          q1 = Reshape (q0, heads)   k1 = Reshape (k0, heads)   v1 = Reshape (v0, heads)
          q = Transpose <perm = [0,2,1,3]> (q1)
          k = Transpose <perm = [0,2,3,1]> (k1)
          v = Transpose <perm = [0,2,1,3]> (v1)
          s0 = MatMul (q, k)
          low = Constant <value_float = -1e9> ()
          s = Where (mask, s0, low)
          p = Softmax <axis = -1> (s)
          o0 = MatMul (p, v)
          o1 = Transpose <perm = [0,2,1,3]> (o0)
          flat = Constant <value_ints = [0,0,32]> ()
          o2 = Reshape (o1, flat)
          o = MatMul (o2, wo)
          r = Add (x, o)
          m = LayerNormalization (r, g2)
          f0 = MatMul (m, w1)   f1 = Add (f0, b1)   f2 = Gelu (f1)   f = MatMul (f2, w2)
          y = Add (r, f)
        }""",
        lambda rng: [{"x": floats(rng, b, n, 32), "mask": rng.random((b, 1, 1, n)) < 0.8}
                     for b, n in ((1, 7), (3, 40), (2, 1), (1, 7))],
        _attention_weights,
    ),
    "recurrence": Model(
        """lstm (float[12,batch,16] x) => (float[12,1,batch,8] y, float[1,batch,8] h, float[1,batch,8] c) {
          y, h, c = LSTM <hidden_size = 8> (x, w, r, b)
        }""",
        lambda rng: [{"x": floats(rng, 12, batch, 16)} for batch in (1, 5)],
        lambda rng: {"w": floats(rng, 1, 32, 16), "r": floats(rng, 1, 32, 8), "b": floats(rng, 1, 64)},
    ),
    "loop": Model(
        """iteration (int64 n, float[4,4] x) => (float[4,4] last, float[k,4,4] all) {
          yes = Constant <value = bool {1}> ()
          last, all = Loop (n, yes, x) <body = step (int64 i, bool go, float[4,4] a)
            => (bool goes_on, float[4,4] b, float[4,4] c) {
              goes_on = Identity (go)
              m = MatMul (a, w)
              b = Tanh (m)
              c = Add (a, b)
            }>
        }""",
        lambda rng: [{"n": np.int64(n), "x": floats(rng, 4, 4)} for n in (5, 0, 30000, 1)],
        lambda rng: {"w": floats(rng, 4, 4)},
    ),
    "a loop of values that grow": Model(
        """growth (int64 n, float[p,2] x, float[2] w) => (float[m,2] y, float[2] z, float[k,2] all) {
          yes = Constant <value = bool {1}> ()
          y, z, all = Loop (n, yes, x, w) <body = step (int64 i, bool go, float[a,2] u, float[2] v)
            => (bool goes_on, float[b,2] t, float[2] r, float[2] q) {
              goes_on = Identity (go)
              total = ReduceSum <keepdims = 0> (u, first)
              r = Sin (total)
              q = Add (r, v)
              row = Unsqueeze (q, first)
              t = Concat <axis = 0> (u, row)
            }>
        }""",
        lambda rng: [{"n": np.int64(n), "x": floats(rng, p, 2), "w": floats(rng, 2)}
                     for n, p in ((3, 3), (100, 1), (0, 2), (40, 0), (1, 5))],
        lambda rng: {"first": np.array([0])},
    ),
    "a loop in which values decide sizes": Model(
        """kept (int64 n, float[p] x, float[2] w, int64[1] size)
           => (float[m] y, float[2] a, float[2] b, float[k,3] found, int64[k] counts, int64 last) {
          yes = Constant <value = bool {1}> ()
          begin = Constant <value_int = 7> ()
          y, a, b, last, found, counts = Loop (n, yes, x, w, w2, begin) <body =
            step (int64 i, bool go, float[q] u, float[2] v1, float[2] v2, int64 before)
            => (bool goes_on, float[r] t, float[2] v3, float[2] v4, int64 number, float[3] few, int64 count) {
              mean = ReduceMean <keepdims = 0> (u)
              above = Greater (u, mean)
              some = Compress <axis = 0> (u, above)
              t = Concat <axis = 0> (some, v1)
              v3 = Identity (v2)
              v4 = Identity (v1)
              number = Identity (i)
              pad = Expand (mean, size)
              padded = Concat <axis = 0> (t, pad)
              few, places = TopK <axis = 0> (padded, three)
              shape = Shape (t)
              count = Squeeze (shape)
              goes_on = Less (count, many)
            }>
        }""",
        lambda rng: [{"n": np.int64(n), "x": floats(rng, p), "w": floats(rng, 2), "size": np.array([k])}
                     for n, p, k in ((3, 30, 4), (100, 5, 3), (0, 2, 3), (4, 300, 9), (1, 5, 3), (7, 31, 3))],
        lambda rng: {"w2": floats(rng, 2), "three": np.array([3]), "many": np.int64(120)},
    ),
    "loops in which values decide sizes, in a branch and in each other": Model(
        """nested (bool c, int64 n, float[p] x) => (float[m] y, float[k,2] all) {
          y, all = If (c) <
            then_branch = yes () => (float[m1] y1, float[k1,2] all1) {
              y1, all1 = Loop (n, c, x) <body = outer (int64 i, bool go, float[q] u)
                => (bool go2, float[r] v, float[2] s) {
                go2 = Identity (go)
                positive = Greater (u, zero)
                some = Compress <axis = 0> (u, positive)
                grown, parts = Loop (i, go, some) <body = inner (int64 j, bool more, float[a] e)
                  => (bool more2, float[b] f, float part) {
                    more2 = Identity (more)
                    g = Sin (e)
                    low = Greater (e, g)
                    h = Compress <axis = 0> (e, low)
                    f = Concat <axis = 0> (h, x, e)
                    part = ReduceSum <keepdims = 0> (f)
                  }>
                v = Concat <axis = 0> (grown, parts)
                total = ReduceSum <keepdims = 1> (v)
                s = Concat <axis = 0> (total, total)
              }>
            },
            else_branch = no () => (float[m2] y2, float[k2,2] all2) {
              y2 = Neg (x)
              all2 = Constant <value = float[1,2] {1.0, 2.0}> ()
            }>
        }""",
        lambda rng: [{"c": np.bool_(c), "n": np.int64(n), "x": floats(rng, p)}
                     for c, n, p in ((1, 3, 4), (0, 3, 4), (1, 5, 2), (1, 0, 3), (1, 4, 0), (1, 1, 9))],
        lambda rng: {"zero": np.float32(0)},
    ),
    "branches": Model(
        """chosen (bool c, bool d, float[n,4] x) => (float[m,4] y, float[n,4] z, float[n,4] same) {
          y, z, same = If (c) <
            then_branch = yes () => (float[j,4] a, float[n,4] b, float[n,4] x1) {
              a = Concat <axis = 0> (x, x)
              h = MatMul (a, w)
              total = ReduceSum <keepdims = 0> (h)
              b = Add (x, total)
              x1 = Identity (x)
            },
            else_branch = no () => (float[k,4] e, float[n,4] f, float[n,4] x2) {
              e, f = If (d) <
                then_branch = then2 () => (float[p,4] e1, float[n,4] f1) {
                  e1 = Neg (x)
                  f1 = MatMul (x, w)
                },
                else_branch = else2 () => (float[q,4] e2, float[n,4] f2) {
                  e2 = Concat <axis = 0> (x, x, x)
                  f2 = Loop (three, c, x) <body = step (int64 i, bool go, float[n,4] u) => (bool g, float[n,4] v) {
                    g = Identity (go)
                    v = Add (u, x)
                  }>
                }>
              x2 = Exp (x)
            }>
        }""",
        lambda rng: [{"c": np.bool_(c), "d": np.bool_(d), "x": floats(rng, n, 4)}
                     for c, d, n in ((1, 0, 3), (0, 1, 3), (0, 0, 5), (1, 1, 1), (0, 0, 0))],
        lambda rng: {"w": floats(rng, 4, 4), "three": np.int64(3)},
    ),
    "int8": Model(
        """quantized (float[batch,64] x) => (float[batch,10] y, uint8[batch,64] codes) {
          codes, scale, zero = DynamicQuantizeLinear (x)
          products = MatMulInteger (codes, w, zero, wz)
          sums = Cast <to = 1> (products)
          y0 = Mul (sums, scale)
          y = Mul (y0, ws)
        }""",
        lambda rng: [{"x": floats(rng, batch, 64)} for batch in (1, 9)],
        lambda rng: {"w": _bytes(rng, 64, 10), "wz": np.int8(0), "ws": np.float32(0.02)},
    ),
    "scalars, empty tensors and results that are inputs": Model(
        """odd (float s, float[0,3] none, int32[4] v, bool[2] flags)
           => (float t, float[0,3] still_none, int32[4] w, int32[4] u, bool[2] neither, float[2] constant) {
          t = Exp (s)
          still_none = Neg (none)
          w = Identity (v)
          u = Add (v, v)
          neither = Not (flags)
          constant = Constant <value = float[2] {1.5, 2.5}> ()
        }""",
        lambda rng: [{"s": np.float32(0.5), "none": np.zeros((0, 3), np.float32),
                      "v": np.arange(4, dtype=np.int32), "flags": np.array([True, False])}],
    ),
    "sizes that values decide": Model(
        """found (float[n] x, int64[2] shape) => (int64[1,m] where, float[a,b] shaped, float[p] some) {
          positive = Greater (x, zero)
          where = NonZero (positive)
          shaped = Expand (one, shape)
          some = Compress <axis = 0> (x, positive)
        }""",
        lambda rng: [{"x": floats(rng, n), "shape": np.array(shape)}
                     for n, shape in ((9, [2, 3]), (0, [0, 1]), (300, [40, 50]))],
        lambda rng: {"zero": np.float32(0), "one": np.float32(1)},
    ),
    "specialised": Model(
        """products (float[batch,48] x) => (float[batch,24] y, float[24] total) {
          h = MatMul (x, w)
          y = Softmax <axis = -1> (h)
          total = ReduceSum <keepdims = 0> (y, axis)
        }""",
        lambda rng: [{"x": floats(rng, batch, 48)} for batch in (1, 8, 5)],
        lambda rng: {"w": floats(rng, 48, 24), "axis": np.array([0])},
        {"specialize": {"batch": [1, 8]}},
    ),
    "branches of other shapes": Model(
        """squeezed (bool c, float[1,width] x) => (float[rows,columns] y) {
          s = If (c) <then_branch = t () => (float[n] a) { a = Squeeze (x, axis) },
                      else_branch = e () => (float[m,k] b) { b = Identity (x) }>
          y = Flatten <axis = 1> (s)
        }""",
        lambda rng: [{"c": np.array(taken), "x": floats(rng, 1, width)} for taken in (True, False) for width in (8, 3)],
        lambda rng: {"axis": np.array([0])},
    ),
    "types of two bytes": Model(
        """half (float16[2,16] x, bfloat16[2,16] z) => (float16[2,16] y, bfloat16[2,16] u) {
          y = Mul (x, x)
          u = Add (z, z)
        }""",
        lambda rng: [{"x": floats(rng, 2, 16).astype(np.float16), "z": floats(rng, 2, 16).astype("bfloat16")}],
    ),
}  # fmt: skip
