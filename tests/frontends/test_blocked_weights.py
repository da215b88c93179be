"""Weights dequantised in blocks: MatMul and Gemm keep them packed, in models of every 4- and 8-bit type."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.relay.transform import PassContext

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)
TYPES = {
    "int4": (TensorProto.INT4, ml_dtypes.int4, -8, 8), "uint4": (TensorProto.UINT4, ml_dtypes.uint4, 0, 16),
    "int8": (TensorProto.INT8, np.int8, -128, 128), "uint8": (TensorProto.UINT8, np.uint8, 0, 256),
}  # fmt: skip


def model(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], weights: dict[str, Array],
          dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:  # fmt: skip
    values = [helper.make_tensor_value_info(name, dtype if name == "x" else TensorProto.INT64, shape)
              for name, shape in inputs.items()]  # fmt: skip
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "test", values, [helper.make_empty_tensor_value_info("y")], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(made: onnx.ModelProto, values: dict[str, Array], target: str = "llvm", **config: str
        ) -> tuple[Array, list[tuple[str, ...]], Any]:  # fmt: skip
    """The result, the operators of each kernel, and the compiled model."""
    mod, params = from_onnx(made)
    with PassContext(config={f"relay.{name}": value for name, value in config.items()}):
        lib = relay.build(mod, target=target, params=params)
    module = graph_executor.GraphModule(lib["default"](device("cpu" if target == "llvm" else "cuda", 0)))
    for name, value in values.items():
        module.set_input(name, value)
    module.run()
    return module.get_output(0).numpy(), [node.ops for node in lib.graph.nodes], lib


def quantised(
    kind: str, shape: tuple[int, ...], axis: int, block: int, with_zeros: bool
) -> tuple[dict[str, Array], Array]:
    """Initializers w, s and z of a tensor in blocks along `axis`, and its real values."""
    _, numpy_type, low, high = TYPES[kind]
    blocks = list(shape)
    blocks[axis] = -(-shape[axis] // block)
    codes, zeros = RANDOM.integers(low, high, shape), RANDOM.integers(low, high, blocks)
    scales = RANDOM.uniform(0.01, 0.1, blocks).astype(np.float32)

    def spread(x: Array) -> Array:
        return np.repeat(x, block, axis).take(range(shape[axis]), axis)

    real = (codes - (spread(zeros) if with_zeros else 0)) * spread(scales)
    made = {"w": codes.astype(numpy_type), "s": scales}
    if with_zeros:
        made["z"] = zeros.astype(numpy_type)
    return made, real


def dequantize(weights: dict[str, Array], axis: int, block: int) -> onnx.NodeProto:
    return helper.make_node("DequantizeLinear", list(weights), ["r"], axis=axis, block_size=block)


@pytest.mark.parametrize("with_zeros", [False, True])
@pytest.mark.parametrize(("form", "rows"), [("matmul", 1), ("matmul", 7), ("gemm", 3), ("transposed", 2)])
@pytest.mark.parametrize("kind", TYPES)
def test_products_keep_weights_packed(kind, form, rows, with_zeros):
    depth, columns, block = 80, 40, 32  # the last block is used in part
    axis = 0 if form == "matmul" else 1
    shape = (depth, columns) if axis == 0 else (columns, depth)
    weights, real = quantised(kind, shape, axis, block, with_zeros)
    nodes = [dequantize(weights, axis, block)]
    if form == "matmul":
        nodes.append(helper.make_node("MatMul", ["x", "r"], ["y"]))
    elif form == "gemm":
        nodes.append(helper.make_node("Gemm", ["x", "r"], ["y"], transB=1, alpha=0.5))
    else:
        nodes.append(helper.make_node("Transpose", ["r"], ["t"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["x", "t"], ["y"]))
    x = RANDOM.normal(size=(rows, depth)).astype(np.float32)
    result, kernels, _ = run(model(nodes, {"x": x.shape}, weights), {"x": x})
    expected = x @ (real if axis == 0 else real.T) * (0.5 if form == "gemm" else 1)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)
    assert any("nn.dense_blocks" in ops for ops in kernels), kernels


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("chosen", [np.array([2, 0, 2, -1]), np.array(1), None])
@pytest.mark.parametrize(("kind", "axis", "before"), [("int4", 1, False), ("uint4", 2, False), ("uint4", 2, True),
                                                      ("int8", 1, False)])  # fmt: skip
def test_matrices_taken_of_several_stay_packed(kind, axis, before, chosen, constant):
    """Experts of a mixture: (experts, K, N), or (experts, N, K) transposed before or after they are taken; or all."""
    depth, columns, experts = 80, 40, 3
    shape = (experts, depth, columns) if axis == 1 else (experts, columns, depth)
    weights, real = quantised(kind, shape, axis, 32, with_zeros=True)
    steps = [] if chosen is None else [("Gather", ["i"], {"axis": 0})]
    if axis == 2:
        rank = 3 if before or chosen is None or chosen.ndim else 2
        steps.insert(0 if before else len(steps), ("Transpose", [], {"perm": [*range(rank - 2), rank - 1, rank - 2]}))
    nodes, made = [dequantize(weights, axis, 32)], "r"
    for number, (name, others, attrs) in enumerate(steps):
        nodes.append(helper.make_node(name, [made, *others], [f"r{number}"], **attrs))
        made = f"r{number}"
    nodes.append(helper.make_node("MatMul", ["x", made], ["y"]))
    taken = real if chosen is None else real[chosen]
    x = RANDOM.normal(size=(*taken.shape[:-2], 5, depth)).astype(np.float32)
    values, given = {"x": x}, {} if chosen is None else {"i": chosen}
    (weights if constant else values).update(given)
    result, kernels, _ = run(model(nodes, {name: v.shape for name, v in values.items()}, weights), values)
    np.testing.assert_allclose(result, x @ (taken.swapaxes(-1, -2) if axis == 2 else taken), rtol=1e-4, atol=1e-3)
    assert any("nn.dense_blocks" in ops for ops in kernels), kernels
    assert not any("qnn.dequantize_blocks" in ops for ops in kernels), kernels


@pytest.mark.parametrize("axis", [0, 1])
def test_4_bit_weights_with_a_scale_for_each_column_or_row(axis):
    codes, scales = RANDOM.integers(-8, 8, (40, 24)), RANDOM.uniform(0.01, 0.1, (40, 24)[axis]).astype(np.float32)
    weights = {"w": codes.astype(ml_dtypes.int4), "s": scales}
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["r"], axis=axis),
             helper.make_node("MatMul", ["x", "r"], ["y"])]  # fmt: skip
    x = RANDOM.normal(size=(3, 40)).astype(np.float32)
    result, kernels, _ = run(model(nodes, {"x": x.shape}, weights), {"x": x})
    np.testing.assert_allclose(result, x @ (codes * (scales[:, None] if axis == 0 else scales)), rtol=1e-4, atol=1e-4)
    assert any("nn.dense_blocks" in ops for ops in kernels) == (axis == 1)  # scales of rows differ along the reduction


def test_half_precision_and_int8_activations():
    weights, real = quantised("int4", (64, 32), 0, 32, with_zeros=False)
    halves = {**weights, "s": weights["s"].astype(np.float16)}
    nodes = [dequantize(halves, 0, 32), helper.make_node("MatMul", ["x", "r"], ["y"])]
    x = RANDOM.normal(size=(1, 64)).astype(np.float16)
    result, kernels, _ = run(model(nodes, {"x": x.shape}, halves, TensorProto.FLOAT16), {"x": x}, activations="int8")
    assert result.dtype == np.float16 and any("nn.quantize_blocks" in ops for ops in kernels)
    np.testing.assert_allclose(result, x.astype(np.float32) @ real, atol=0.1)


@pytest.mark.parametrize(("shape", "taken", "blocked"), [((2048, 64), 0, 1), ((64, 2048), 1, 0), ((256, 64, 8), 0, 1),
                                                         ((64, 256, 8), 1, 0), ((8, 256, 64), 1, 2)])  # fmt: skip
def test_rows_of_a_table_are_dequantised_after_they_are_taken(shape, taken, blocked, tmp_path: Path):
    weights, real = quantised("int4", shape, blocked, 32, with_zeros=True)
    nodes = [dequantize(weights, blocked, 32), helper.make_node("Gather", ["r", "i"], ["y"], axis=taken)]
    indices = np.array([[3, 255, 0]])
    result, kernels, lib = run(model(nodes, {"i": indices.shape}, weights), {"i": indices})
    np.testing.assert_allclose(result, real.take(indices, taken), rtol=1e-5, atol=1e-6)
    assert len(kernels) == 1
    lib.save(str(tmp_path / "table.relayc"))
    assert os.path.getsize(tmp_path / "table.relayc") < 2048 * (64 // 2 + 2 * 4 + 2) * 1.05 + (64 << 10)


@pytest.mark.parametrize("target", ["llvm", "cuda -arch=sm_90"])
@pytest.mark.parametrize("kind", ["int4", "uint8"])
def test_artifacts_are_as_large_as_the_weights(kind, target, tmp_path: Path, request: pytest.FixtureRequest):
    if target != "llvm":
        request.getfixturevalue("cuda_device")
    weights, _ = quantised(kind, (2048, 2048), 0, 32, with_zeros=True)
    made = model([dequantize(weights, 0, 32), helper.make_node("MatMul", ["x", "r"], ["y"])], {"x": (1, 2048)}, weights)
    _, _, lib = run(made, {"x": np.zeros((1, 2048), np.float32)}, target)
    lib.save(str(tmp_path / "it.relayc"))
    assert os.path.getsize(tmp_path / "it.relayc") <= 1.05 * made.ByteSize()


def tied(*, reshaped: bool = False) -> tuple[onnx.ModelProto, Array]:
    """Rows of a table by GatherBlockQuantized, times the table by MatMulNBits, and its real values.

    With `reshaped` both read one initializer, as genai's builder writes them.
    """
    rows, depth, block = 2048, 256, 32
    codes, scales = RANDOM.integers(0, 16, (rows, depth)), RANDOM.uniform(0.01, 0.1, (rows, depth // block))
    real = (codes - 8) * np.repeat(scales.astype(np.float32), block, 1)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    weights = {"t": packed, "w": packed.reshape(rows, depth // block, -1), "s": scales.astype(np.float32)}
    gather = helper.make_node("GatherBlockQuantized", ["t", "i", "s"], ["x"], domain="com.microsoft", block_size=block,
                              bits=4, quantize_axis=1, gather_axis=0)  # fmt: skip
    multiply = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=depth, N=rows, bits=4,
                                block_size=block)  # fmt: skip
    nodes = [gather, multiply]
    if reshaped:
        gather.input[0], weights["t"] = "rows", np.array(packed.shape)
        nodes.insert(0, helper.make_node("Reshape", ["w", "t"], ["rows"]))
    made = model(nodes, {"i": (2,)}, weights)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made, real


@pytest.mark.parametrize("reshaped", [False, True])
@pytest.mark.parametrize("target", ["llvm", "cuda -arch=sm_90"])
def test_a_table_that_is_multiplied_too_is_stored_once(
    tmp_path: Path, target: str, reshaped: bool, request: pytest.FixtureRequest
):
    if target != "llvm":
        request.getfixturevalue("cuda_device")
    made, real = tied(reshaped=reshaped)
    indices = np.array([5, 2000])
    result, _, lib = run(made, {"i": indices}, target)
    np.testing.assert_allclose(result, real[indices] @ real.T, rtol=1e-4, atol=1e-3)
    lib.save(str(tmp_path / "tied.relayc"))
    stored = {each.name: len(each.raw_data) for each in made.graph.initializer}
    assert os.path.getsize(tmp_path / "tied.relayc") <= 1.05 * (stored["w"] + stored["s"]) + (64 << 10)


@pytest.mark.parametrize("form", ["matmul", "transposed after", "transposed before", "axis"])
@pytest.mark.parametrize(("kind", "rows"), [("int8", 1), ("uint8", 4), ("uint8", "n"), ("int8", 64)])
def test_8_bit_weights_with_one_scale_stay_packed_for_few_rows(form, kind, rows):
    """As in decoders whose head is the quantised table of their embedding; many rows multiply faster as floats."""
    _, numpy_type, low, high = TYPES[kind]
    depth, columns = 60, 40
    stored = (depth, columns) if form in ("matmul", "axis") else (columns, depth)
    codes, count = RANDOM.integers(low, high, stored).astype(numpy_type), (columns,) if form == "axis" else ()
    weights = {"w": codes, "s": RANDOM.uniform(0.01, 0.1, count).astype(np.float32),
               "z": RANDOM.integers(low, high, count).astype(numpy_type)}  # fmt: skip
    turn = {"before": ("w", "s", "z"), "after": ("t", "s", "z")}
    if form == "transposed before":
        nodes = [helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
                 helper.make_node("DequantizeLinear", turn["after"], ["r"])]  # fmt: skip
    else:
        made = "d" if form == "transposed after" else "r"
        nodes = [helper.make_node("DequantizeLinear", turn["before"], [made], axis=1)]
        nodes += [helper.make_node("Transpose", ["d"], ["r"], perm=[1, 0])] if made == "d" else []
    nodes.append(helper.make_node("MatMul", ["x", "r"], ["y"]))
    x = RANDOM.normal(size=(3 if rows == "n" else rows, depth)).astype(np.float32)
    result, kernels, _ = run(model(nodes, {"x": (rows, depth)}, weights), {"x": x})
    real = (codes - weights["z"].astype(np.float32)) * weights["s"]
    np.testing.assert_allclose(result, x @ (real if stored[0] == depth else real.T), rtol=1e-4, atol=1e-3)
    assert any("nn.dense_blocks" in ops for ops in kernels) == (rows != 64)


def test_rows_of_a_table_with_one_scale_are_dequantised_after_they_are_taken(tmp_path: Path):
    codes = RANDOM.integers(0, 256, (20_000, 64)).astype(np.uint8)
    weights = {"w": codes, "s": np.array(0.1, np.float32), "z": np.array(7, np.uint8)}
    nodes = [helper.make_node("DequantizeLinear", list(weights), ["r"]),
             helper.make_node("Gather", ["r", "i"], ["y"], axis=0)]  # fmt: skip
    indices = np.array([[3, 19_999, 0]])
    result, _, lib = run(model(nodes, {"i": indices.shape}, weights), {"i": indices})
    np.testing.assert_array_equal(result, (codes[indices] - np.float32(7)) * np.float32(0.1))
    lib.save(str(tmp_path / "table.relayc"))
    assert os.path.getsize(tmp_path / "table.relayc") < codes.nbytes * 1.1


def test_batches_of_any_size_on_gpus(cuda_device):
    """One kernel for a single row, one for a few, tiles for more; accuracy_level 4 leaves the data floats there."""
    columns, depth, block = 40, 80, 32
    codes = RANDOM.integers(0, 256, (columns, -(-depth // block), block // 2)).astype(np.uint8)
    scales = RANDOM.uniform(0.01, 0.1, (columns, 3)).astype(np.float32)
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=depth, N=columns, bits=4,
                            block_size=block, accuracy_level=4)  # fmt: skip
    made = model([node], {"x": ("b", "n", depth)}, {"w": codes, "s": scales})
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    mod, params = from_onnx(made)
    module = graph_executor.GraphModule(relay.build(mod, "cuda -arch=sm_90", params)["default"](cuda_device))
    fields = np.stack([codes & 15, codes >> 4], -1).reshape(columns, 3, block).astype(np.float32)
    real = ((fields - 8) * scales[..., None]).reshape(columns, -1)[:, :depth]
    for lead in ((1, 1), (2, 3), (1, 20), (3, 3), (1, 1)):
        x = RANDOM.standard_normal((*lead, depth)).astype(np.float32)
        module.run(x=x)
        np.testing.assert_allclose(module.get_output(0).numpy(), x @ real.T, rtol=1e-4, atol=1e-4)
