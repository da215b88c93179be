"""Small whole models in ONNX: a transformer of open batch and length, and a network of convolutions of open batch.

Their layers with weights come in several forms: "floats", "qdq" (8 bits between QuantizeLinear and DequantizeLinear),
"run time" (8 bits, scales of the data computed at run time), "qoperator" (QLinearConv) and "4 bits" (MatMulNBits).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

__all__ = ["convolutions", "transformer"]

Array = np.ndarray[Any, Any]
WIDTH, HEADS, HIDDEN, WORDS, LAYERS = 96, 4, 200, 50, 2
_NO_ZERO, _ZERO, _SCALE = np.array(0, np.int8), np.array(120, np.uint8), np.array(1 / 24, np.float32)


class _Graph:
    """Nodes and weights, with names counted up."""

    def __init__(self, form: str) -> None:
        self.form, self.random = form, np.random.default_rng(3)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        made = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), made, **attributes))
        return made[0]

    def constant(self, value: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def floats(self, *shape: int, scale: float = 1.0) -> Array:
        return (scale * self.random.standard_normal(shape)).astype(np.float32)

    def bytes(self, weight: Array) -> tuple[Array, Array]:
        """A weight in int8, and its scale."""
        scale = np.float32(np.abs(weight).max() / 127)
        return np.rint(weight / scale).astype(np.int8), np.array(scale)

    def through_bytes(self, x: str) -> str:
        scale, zero = self.constant(_SCALE), self.constant(_ZERO)
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, scale, zero), scale, zero)

    def of_bytes(self, weight: Array) -> str:
        codes, scale = self.bytes(weight)
        return self.node("DequantizeLinear", self.constant(codes), self.constant(scale), self.constant(_NO_ZERO))

    def dense(self, x: str, depth: int, columns: int) -> str:
        weight = self.floats(depth, columns, scale=depth**-0.5)
        if self.form == "run time":
            q, s, z = (f"{x}_{part}" for part in "qsz")
            if not any(q in n.output for n in self.nodes):
                self.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], [q, s, z]))
            codes, scale = self.bytes(weight)
            product = self.node("Cast", self.node("MatMulInteger", q, self.constant(codes), z), to=TensorProto.FLOAT)
            y = self.node("Mul", product, self.node("Mul", s, self.constant(scale)))
        elif self.form == "4 bits" and depth % 32 == 0:
            codes = self.random.integers(0, 256, (columns, depth // 32, 16), np.uint8)
            scales = self.random.uniform(0.1, 0.3, (columns, depth // 32)).astype(np.float32) * depth**-0.5
            how = {"K": depth, "N": columns, "bits": 4, "block_size": 32, "accuracy_level": 4}
            y = self.node("MatMulNBits", x, *map(self.constant, (codes, scales)), domain="com.microsoft", **how)
        elif self.form == "qdq":
            y = self.node("MatMul", self.through_bytes(x), self.of_bytes(weight))
        else:
            y = self.node("MatMul", x, self.constant(weight))
        return self.node("Add", y, self.constant(self.floats(columns, scale=0.1)))

    def convolution(self, x: str, inputs: int, outputs: int, kernel: int, stride: int) -> str:
        """A convolution, then ReLU."""
        weight = self.floats(outputs, inputs, kernel, kernel, scale=(2 / inputs / kernel**2) ** 0.5)
        pads, bias = [kernel // 2] * 4, self.floats(outputs, scale=0.1)
        how = {"strides": [stride] * 2, "pads": pads}
        if self.form == "qoperator":
            codes, scale = self.bytes(weight)
            data = [self.constant(_SCALE), self.constant(_ZERO)]
            whole = np.rint(bias / scale / _SCALE).astype(np.int32)
            operands = [*data, *map(self.constant, (codes, scale, _NO_ZERO)), *data, self.constant(whole)]
            y = self.node("QLinearConv", self.node("QuantizeLinear", x, *data), *operands, **how)
            return self.node("Relu", self.node("DequantizeLinear", y, *data))
        if self.form == "qdq":
            return self.node("Relu", self.node(
                "Conv", self.through_bytes(x), self.of_bytes(weight), self.constant(bias), **how))  # fmt: skip
        return self.node("Relu", self.node("Conv", x, self.constant(weight), self.constant(bias), **how))

    def normalised(self, x: str) -> str:
        parts = self.constant(1 + self.floats(WIDTH, scale=0.1)), self.constant(self.floats(WIDTH, scale=0.1))
        return self.node("LayerNormalization", x, *parts, axis=-1, epsilon=1e-5)

    def heads(self, x: str) -> str:
        split = self.node("Reshape", x, self.constant(np.array([0, 0, HEADS, WIDTH // HEADS])))
        return self.node("Transpose", split, perm=[0, 2, 1, 3])

    def attention(self, x: str) -> str:
        q, k, v = (self.heads(self.dense(x, WIDTH, WIDTH)) for _ in range(3))
        scores = self.node("MatMul", q, self.node("Transpose", k, perm=[0, 1, 3, 2]))
        scaled = self.node("Mul", scores, self.constant(np.float32((WIDTH // HEADS) ** -0.5)))
        mixed = self.node("MatMul", self.node("Softmax", scaled, axis=-1), v)
        flat = self.node("Reshape", self.node("Transpose", mixed, perm=[0, 2, 1, 3]), self.constant([0, 0, WIDTH]))
        return self.dense(flat, WIDTH, WIDTH)

    def model(self, name: str, kind: int, shape: tuple[str | int, ...], result: str) -> ModelProto:
        self.nodes.append(helper.make_node("Identity", [result], ["y"]))
        inputs = [helper.make_tensor_value_info(name, kind, shape)]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "model", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def transformer(form: str) -> ModelProto:
    """Two layers with attention; "ids" (batch, length), below `WORDS`."""
    g = _Graph(form)
    x = g.node("Gather", g.constant(g.floats(WORDS, WIDTH)), "ids")
    for _ in range(LAYERS):
        x = g.node("Add", x, g.attention(g.normalised(x)))
        hidden = g.node("Gelu", g.dense(g.normalised(x), WIDTH, HIDDEN))
        x = g.node("Add", x, g.dense(hidden, HIDDEN, WIDTH))
    return g.model("ids", TensorProto.INT64, ("batch", "length"), g.dense(g.normalised(x), WIDTH, WORDS))


def convolutions(form: str) -> ModelProto:
    """Convolutions with a residual connection; images "x" (batch, 3, 29, 37)."""
    g = _Graph(form)
    x = g.convolution("x", 3, 24, 7, 2)
    y = g.convolution(g.convolution(x, 24, 16, 1, 1), 16, 24, 3, 1)
    x = g.convolution(g.node("Add", x, y), 24, 40, 3, 2)
    pooled = g.node("Flatten", g.node("GlobalAveragePool", x))
    return g.model("x", TensorProto.FLOAT, ("batch", 3, 29, 37), g.dense(pooled, 40, 10))
