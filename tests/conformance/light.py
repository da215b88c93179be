"""The ONNX project's light models with random weights.

The package ships them with one repeated constant as weights, so that all classes get the same score and a wrong
convolution goes unnoticed. Here each of those weights is drawn at random, by the role it plays, and the logits become a
second output. `light_random.npz` holds what torch gives for these models in float64, as "<case>/<output>".
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

__all__ = ["LIGHT_MODELS", "light_model", "random_input", "recorded_outputs", "with_random_weights"]

_FOLDER = Path(onnx.backend.test.__file__).parent / "data" / "light"
_RECORDED = Path(__file__).with_name("light_random.npz")
LIGHT_MODELS = sorted(path.stem.removeprefix("light_") for path in _FOLDER.glob("light_*.onnx"))

Array = np.ndarray[Any, Any]


def light_model(name: str) -> ModelProto:
    return onnx.load(_FOLDER / f"light_{name}.onnx")


def random_input(model: ModelProto) -> Array:
    """The only input of a light model."""
    weights = {tensor.name for tensor in model.graph.initializer}
    (value,) = [value for value in model.graph.input if value.name not in weights]
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    return np.random.RandomState(0).standard_normal(shape).astype(np.float32)


def recorded_outputs(name: str) -> list[Array]:
    """Probabilities and, where the model ends in a Softmax, logits."""
    table = np.load(_RECORDED)
    return [table[key] for key in sorted(table.files) if key.startswith(f"test_{name}/")]


def with_random_weights(model: ModelProto) -> ModelProto:
    """Replace each constant weight by random values seeded by the weight's name."""
    graph = model.graph
    readers: dict[str, list[tuple[NodeProto, int]]] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, position))
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    result = ModelProto()
    result.CopyFrom(model)
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    drawn = [
        numpy_helper.from_array(_draw(node.output[0], shapes[node.input[0]].tolist(), readers), node.output[0])
        for node in graph.node
        if node.op_type == "ConstantOfShape"
    ]
    _replace(result.graph.node, kept)
    read = {name for node in kept for name in node.input}
    _replace(result.graph.initializer, [t for t in [*graph.initializer, *drawn] if t.name in read])
    _replace(result.graph.input, [value for value in graph.input if value.name in read])
    if kept[-1].op_type == "Softmax":
        result.graph.output.append(helper.make_tensor_value_info(kept[-1].input[0], TensorProto.FLOAT, None))
    return result


def _replace(field: Any, values: list[Any]) -> None:
    copies = [type(value).FromString(value.SerializeToString()) for value in values]
    del field[:]
    field.extend(copies)


def _draw(name: str, shape: list[int], readers: dict[str, list[tuple[NodeProto, int]]]) -> Array:
    """Random weights that keep the activations of a deep model in range."""
    node, position = readers[name][0]
    while node.op_type in ("Unsqueeze", "Reshape"):
        node, position = readers[node.output[0]][0]
    random = np.random.RandomState(zlib.crc32(name.encode()))
    if node.op_type in ("Conv", "Gemm") and position == 1:
        transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        fan_in = shape[0] if node.op_type == "Gemm" and not transposed else int(np.prod(shape[1:]))
        return (random.standard_normal(shape) * np.sqrt(2.0 / fan_in)).astype(np.float32)
    if node.op_type == "Mul" or (node.op_type == "BatchNormalization" and position in (1, 4)):
        scale = random.uniform(0.5, 1.5, shape)
        into_sum = any(reader.op_type == "Sum" for reader, _ in readers.get(node.output[0], ()))
        return (scale * (0.25 if position == 1 and into_sum else 1.0)).astype(np.float32)
    return (random.standard_normal(shape) * 0.1).astype(np.float32)
