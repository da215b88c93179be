"""The nine real architectures that the onnx package carries, with random weights.

Their shipped weights are one repeated constant, from which an engine could profit; here every weight is drawn at random
by its role, from a fixed seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["LIGHT_MODELS", "write_light"]

LIGHT_MODELS = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip

_BATCH_NORM_ROLES = {1: "scale", 2: "bias", 3: "bias", 4: "variance"}
_MEANS = {"scale": 1.0, "share": 0.3}
"""Mean scales; those of residual branches are small, or sixteen of them would overflow float16 and saturate softmax."""


def _path(name: str) -> Path:
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"


def _roles(graph: onnx.GraphProto) -> dict[str, str]:
    """The role of each tensor: "weight", "bias", "scale" (of a residual branch: "share") or "variance"."""
    roles: dict[str, str] = {}
    summands = {name for node in graph.node if node.op_type in ("Add", "Sum") for name in node.input}
    for node in graph.node:
        for position, name in enumerate(node.input):
            if node.op_type == "BatchNormalization" and position in _BATCH_NORM_ROLES:
                roles[name] = _BATCH_NORM_ROLES[position]
                if position == 1 and node.output[0] in summands:
                    roles[name] = "share"
            elif node.op_type in ("Conv", "Gemm") and position in (1, 2):
                roles[name] = "weight" if position == 1 else "bias"
            elif node.op_type == "Mul":
                roles.setdefault(name, "scale")
    return roles


def _draw(random: np.random.Generator, role: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    noise = random.standard_normal(shape, dtype=np.float32)
    if role == "weight":
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        return noise * np.float32(np.sqrt(2.0 / max(fan_in, 1)))
    if role == "variance":
        return random.uniform(0.5, 1.5, shape).astype(np.float32)
    return np.float32(_MEANS.get(role, 0.0)) + np.float32(0.1) * noise


def _set_batch(graph: onnx.GraphProto, batch: int) -> None:
    """Set the leading dimension, 1, of inputs, outputs and shapes of activations to `batch`."""
    weights = {i.name for i in graph.initializer}
    weights |= {node.output[0] for node in graph.node if node.op_type == "ConstantOfShape"}
    for value in [*(i for i in graph.input if i.name not in weights), *graph.output]:
        value.type.tensor_type.shape.dim[0].dim_value = batch
    shapes = {n.input[1] for n in graph.node if n.op_type == "Reshape" and n.input[0] not in weights}
    for tensor in graph.initializer:
        if tensor.name in shapes:
            leading, *rest = (int(d) for d in numpy_helper.to_array(tensor))
            assert leading == 1, f"{tensor.name} reshapes to {leading} first; expected the batch, 1"
            tensor.CopyFrom(numpy_helper.from_array(np.array([batch, *rest], np.int64), tensor.name))


def write_light(name: str, folder: Path, batch: int = 1) -> tuple[Path, Path]:
    """Write light model `name` with random weights, and inputs; returns the paths of model and inputs (npz)."""
    model = onnx.load(_path(name))
    graph = model.graph
    if batch != 1:
        _set_batch(graph, batch)
    random = np.random.default_rng(0)
    roles = _roles(graph)
    shapes = {i.name: tuple(numpy_helper.to_array(i)) for i in graph.initializer if i.data_type == TensorProto.INT64}
    kept: list[onnx.NodeProto] = []
    drawn: list[onnx.TensorProto] = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            kept.append(node)
            continue
        shape = tuple(int(d) for d in shapes[node.input[0]])
        drawn.append(numpy_helper.from_array(_draw(random, roles.get(node.output[0], "bias"), shape), node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(drawn)
    graph.input.extend([helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in drawn])
    weights = {i.name for i in graph.initializer}
    feeds = {
        i.name: random.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(np.float32)
        for i in graph.input
        if i.name not in weights
    }
    stem = f"light_{name}" if batch == 1 else f"light_{name}_b{batch}"
    path, inputs = folder / f"{stem}.onnx", folder / f"{stem}.npz"
    onnx.save(model, path)
    np.savez(inputs, **feeds)
    return path, inputs
