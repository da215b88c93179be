"""Large weights stay in the file, bytes or message until they are compiled; results agree with a model read whole."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import OnnxImportError, from_onnx, model_file, tensors, weights
from relayc.relay.analysis import evaluation_order
from relayc.relay.expr import Constant
from relayc.relay.op.qnn import Dequantize
from relayc.relay.stored import StoredConstant
from relayc.relay.transform import FoldScaleAxis, panels
from relayc.te.ir import IRModule, PassContext, post_order

WIDTH = 48
ROWS = np.random.default_rng(0).standard_normal((4, WIDTH), dtype=np.float32)


@pytest.fixture(autouse=True)
def few_bytes_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the small weights of these tests as large ones, read a few rows at a time."""
    for module in (model_file, tensors):
        monkeypatch.setattr(module, "MANY", 1 << 12)
        monkeypatch.setattr(module, "STORED", 1 << 12)
    monkeypatch.setattr(model_file, "LARGE", 1 << 10)
    monkeypatch.setattr(panels, "_PIECE", 1 << 12)


def fetched(constant: StoredConstant, begin: int, end: int) -> np.ndarray:
    """Some rows of a constant, as they are stored."""
    blank = constant.blank()
    memory = np.zeros(blank.nbytes // constant.rows * (end - begin), np.uint8)
    constant.fetch(memory, begin, end)
    return memory.view(blank.dtype)


def layers() -> ModelProto:
    """Layers stored by rows and by columns, three with one input, and one weight that two of them share."""
    generator = np.random.default_rng(1)
    shapes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "rows": (200, WIDTH), "back": (200, WIDTH)}
    weights = {name: generator.standard_normal(shape, dtype=np.float32) / 7 for name, shape in shapes.items()}
    nodes = [
        *[helper.make_node("MatMul", ["x", name], [f"x{name}"]) for name in "qkv"],
        helper.make_node("Sum", ["xq", "xk", "xv"], ["sum"]),
        helper.make_node("Gemm", ["sum", "rows"], ["wide"], transB=1),
        helper.make_node("MatMul", ["wide", "back"], ["narrow"]),
        helper.make_node("Gemm", ["narrow", "rows"], ["again"], transB=1),
        helper.make_node("Gather", ["back", "picked"], ["lines"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, WIDTH]),
              helper.make_tensor_value_info("picked", TensorProto.INT64, [2])]  # fmt: skip
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("again", "lines")]
    initializers = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "layers", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def results(module: IRModule) -> list[np.ndarray]:
    executor = graph_executor.GraphModule(relay.build(module)["default"](device("cpu", 0)))
    return [y.numpy() for y in executor(ROWS, np.array([3, 199]))]


def stored(module: IRModule) -> dict[str, StoredConstant]:
    found = [e for e in evaluation_order(module["main"].body) if isinstance(e, StoredConstant)]
    return {e.span.name: e for e in found if e.span is not None}


def form_of(model: ModelProto, form: str, folder: Path) -> ModelProto | bytes | Path:
    """The model in one of the forms that are imported."""
    if form == "message":
        return model
    if form == "bytes":
        return model.SerializeToString()
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=form == "external", location="weights.bin", size_threshold=0)
    return path


@pytest.mark.parametrize("form", ["file", "external", "bytes", "message"])
def test_the_results_are_those_of_a_small_model(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as small:
        small.setattr(tensors, "MANY", 1 << 20)
        eager, _ = from_onnx(layers())
    assert not stored(eager)
    expected = results(eager)
    module, _ = from_onnx(form_of(layers(), form, tmp_path))
    assert stored(module).keys() == {"q", "k", "v", "rows", "back"}
    for found in (results(module), results(module), results(pickle.loads(pickle.dumps(module)))):
        for y, whole in zip(found, expected, strict=True):
            np.testing.assert_array_equal(y, whole)


@pytest.mark.parametrize("form", ["file", "bytes", "message"])
def test_a_module_keeps_no_weights_in_memory_that_were_built(tmp_path: Path, form: str) -> None:
    module, _ = from_onnx(form_of(layers(), form, tmp_path))
    results(module)
    assert [name for name, constant in stored(module).items() if constant.is_loaded] == []


def test_weights_are_not_kept_as_they_were_before_they_were_rounded(tmp_path: Path) -> None:
    module, _ = from_onnx(form_of(layers(), "file", tmp_path))
    with PassContext(config={"relay.ToMixedPrecision.dtype": "bfloat16"}):
        results(module)
    assert [name for name, constant in stored(module).items() if constant.is_loaded] == []


def test_a_weight_is_copied_out_of_a_message_once_for_each_use_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[weights.WeightMessage] = []
    copy = weights.WeightMessage._copied

    def counted(self: weights.WeightMessage) -> np.ndarray:
        copied.append(self)
        return copy(self)

    monkeypatch.setattr(weights.WeightMessage, "_copied", counted)
    results(from_onnx(layers())[0])
    uses = Counter(source._tensor.name for source in copied)
    assert uses == {"q": 1, "k": 1, "v": 1, "rows": 1, "back": 2}  # packed, and looked up as it is
    assert not any(source._data is not None for source in copied)


@pytest.mark.parametrize("form", ["file", "external", "bytes", "message"])
def test_equal_weights_are_read_from_one_place(tmp_path: Path, form: str) -> None:
    model = layers()
    q, k, v, *_ = model.graph.initializer
    k.raw_data = q.raw_data
    almost = numpy_helper.to_array(q).copy()
    almost[WIDTH // 3] += 1  # between the samples
    v.raw_data = almost.tobytes()
    found = stored(from_onnx(form_of(model, form, tmp_path))[0])
    assert found["q"].place == found["k"].place != found["v"].place
    np.testing.assert_array_equal(found["v"].data, almost.T)


def test_branches_share_the_weights_that_they_capture() -> None:
    weight = numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "w")
    branches = [
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node(operator, ["p"], ["z"])],
            operator, [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4, WIDTH])],
        )
        for operator in ("Tanh", "Exp")
    ]  # fmt: skip
    node = helper.make_node("If", ["choice"], ["y"], then_branch=branches[0], else_branch=branches[1])
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, WIDTH]),
              helper.make_tensor_value_info("choice", TensorProto.BOOL, [])]  # fmt: skip
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, WIDTH])
    graph = helper.make_graph([node], "branches", inputs, [output], [weight])
    model = relay.build(from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))[0])
    assert [values.nbytes for values in model.params.values()] == [WIDTH * WIDTH * 4]
    executor = graph_executor.GraphModule(model["default"](device("cpu", 0)))
    np.testing.assert_allclose(executor(ROWS, np.array(False))[0].numpy(), np.exp(ROWS), rtol=1e-5)


def test_a_message_must_not_change_before_it_is_compiled() -> None:
    model = layers()
    module, _ = from_onnx(model)
    (rows,) = [w for w in model.graph.initializer if w.name == "rows"]
    rows.raw_data = numpy_helper.to_array(rows).T.tobytes()
    with pytest.raises(OnnxImportError, match="layers: initializer 'rows': its data was changed after the import"):
        relay.build(module)


def test_values_are_read_on_demand_and_again_after_release(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(layers(), path)
    (rows,) = [w for w in layers().graph.initializer if w.name == "rows"]
    constant = stored(from_onnx(path)[0])["rows"]
    first = constant.data
    np.testing.assert_array_equal(first, numpy_helper.to_array(rows))
    assert constant.data is first and not first.flags.writeable
    assert first.ctypes.data % 64 == 0
    constant.release()
    assert not constant.is_loaded and constant.data is not first
    transposed = constant.transposed((1, 0))
    np.testing.assert_array_equal(transposed.data, first.T)
    assert isinstance(constant.replace(span=None), Constant)


def test_files_may_be_removed_or_replaced_but_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(layers(), path)
    expected = results(from_onnx(path)[0])
    module, _ = from_onnx(path)
    path.rename(tmp_path / "moved.onnx")
    np.testing.assert_array_equal(results(module)[0], expected[0])
    module, _ = from_onnx(tmp_path / "moved.onnx")
    before = os.stat(tmp_path / "moved.onnx")
    os.utime(tmp_path / "moved.onnx", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(OnnxImportError, match=r"moved\.onnx: weights can't be read .*: it was changed"):
        relay.build(module)
    module, _ = from_onnx(tmp_path / "moved.onnx")
    os.truncate(tmp_path / "moved.onnx", 100)
    with pytest.raises(OnnxImportError, match="it became shorter"):
        relay.build(module)


def test_unfrozen_parameters_are_read_eagerly(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(layers(), path)
    module, params = from_onnx(path, freeze_params=False)
    assert not stored(module) and params.keys() == {"q", "k", "v", "rows", "back"}
    for weight in layers().graph.initializer:
        np.testing.assert_array_equal(params[weight.name], numpy_helper.to_array(weight))


def test_a_file_that_can_not_be_opened_is_a_fault_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, with_symbolic_dims = tmp_path / "model.onnx", os.open
    onnx.save(layers(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)

    def denied(name: str | Path, flags: int) -> int:
        if Path(name).name == "weights.bin":
            raise PermissionError(13, "Permission denied")
        return with_symbolic_dims(name, flags)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(OnnxImportError, match=r"external data file 'weights.bin' can't be read: .*Permission denied"):
        from_onnx(path)


@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
@pytest.mark.parametrize("axis", [0, 1])
def test_weights_times_factors_are_multiplied_as_they_are_fetched(tmp_path: Path, axes, axis: int) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(layers(), path)
    weight = stored(from_onnx(path)[0])["rows"].transposed(axes)
    factors = np.arange(weight.shape[axis], dtype=np.float32) / 8
    scaled = StoredConstant.scaled(weight, factors, axis)
    expected = np.array(weight.data) * np.expand_dims(factors, 1 - axis)
    weight.release()
    for constant in (scaled, StoredConstant.scaled(Constant(weight.data), factors, axis)):
        np.testing.assert_array_equal(constant.data, expected)
        rows = expected if constant.rows == len(expected) else expected.T
        np.testing.assert_array_equal(fetched(constant, 7, 12).reshape(5, -1), rows[7:12])
    twice = StoredConstant.scaled(scaled, factors, axis)
    np.testing.assert_array_equal(twice.data, expected * np.expand_dims(factors, 1 - axis))
    halves = expected.astype(np.float16)
    rounded_once = (halves * np.expand_dims(factors.astype(np.float64), 1 - axis)).astype(np.float16)
    found = StoredConstant.scaled(Constant(halves), factors, axis).data
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, rounded_once)


def test_scales_of_channels_are_multiplied_into_weights_when_those_are_packed(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    rows, scale = generator.standard_normal((200, WIDTH), dtype=np.float32), generator.uniform(0.5, 2, 200)
    x = relay.var("x", (4, WIDTH))
    y = relay.op.multiply(relay.op.nn.dense(x, relay.const(rows)), relay.const(scale.astype(np.float32)))
    module = FoldScaleAxis()(IRModule({"main": relay.Function((x,), y)}))
    (folded,) = [e for e in evaluation_order(module["main"].body) if isinstance(e, Constant)]
    assert isinstance(folded, StoredConstant)
    executor = graph_executor.GraphModule(relay.build(module)["default"](device("cpu", 0)))
    (found,) = executor(ROWS)
    assert not folded.is_loaded
    np.testing.assert_allclose(found.numpy(), (ROWS @ rows.T) * scale.astype(np.float32), rtol=1e-5, atol=1e-5)


def kept(array: np.ndarray, axes: tuple[int, ...]) -> StoredConstant:
    """`array` with its dimensions permuted, kept as it is."""

    def fill(into: np.ndarray, start: int) -> None:
        into[...] = array.reshape(-1)[start : start + into.size].reshape(into.shape)

    return StoredConstant(array.shape, array.dtype, fill, axes)


@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (2, 0, 1)])
def test_rows_of_weights_that_were_put_together(axes: tuple[int, int, int]) -> None:
    lengths = (3, 5, 4)
    shapes = [[length if a == axes[0] else 6 for a in range(3)] for length in lengths]
    arrays = [np.random.default_rng(0).standard_normal(shape, dtype=np.float32) for shape in shapes]
    whole = StoredConstant.concatenated([kept(array, axes) for array in arrays])
    assert whole is not None
    expected = np.concatenate(arrays, axes[0])
    np.testing.assert_array_equal(whole.data, expected.transpose(axes))
    blank = whole.blank()
    assert (blank.shape, blank.strides) == (whole.data.shape, whole.data.strides) and whole.rows == len(expected)
    for begin in range(whole.rows):
        for end in range(begin + 1, whole.rows + 1):
            values = fetched(whole, begin, end).reshape(-1, *expected.shape[1:])
            np.testing.assert_array_equal(values, expected[begin:end])


def quantized_layers() -> ModelProto:
    """Products with weights of 8 bits (MatMulInteger), twice with the same, of 4 bits in blocks (MatMulNBits), and of 8
    bits behind DequantizeLinear."""
    generator = np.random.default_rng(2)
    weights = {
        "bytes": generator.integers(-127, 128, (WIDTH, 400)).astype(np.int8),
        "codes": generator.integers(0, 256, (64, 25, 8)).astype(np.uint8),
        "scales": generator.uniform(0.1, 1, (64, 25)).astype(np.float32),
        "pairs": generator.integers(-127, 128, (64, 300)).astype(np.int8),
        "step": np.float32(1e3), "half": np.uint8(128), "fine": np.float32(0.01),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "bytes", "zero"], ["sums"]),
        helper.make_node("MatMulInteger", ["q", "bytes"], ["others"]),
        helper.make_node("Add", ["sums", "others"], ["both"]),
        helper.make_node("Cast", ["both"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("MatMulNBits", ["floats", "codes", "scales"], ["z"], domain="com.microsoft", K=400, N=64,
                         bits=4, block_size=16),
        helper.make_node("QuantizeLinear", ["z", "step", "half"], ["zq"]),
        helper.make_node("DequantizeLinear", ["zq", "step", "half"], ["zd"]),
        helper.make_node("DequantizeLinear", ["pairs", "fine"], ["w"]),
        helper.make_node("MatMul", ["zd", "w"], ["y"]),
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, WIDTH])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 300])
    initializers = [numpy_helper.from_array(np.asarray(w), name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "quantized", [x], [y], initializers)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets)


def test_quantized_weights_are_not_kept_as_integers_of_more_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def result(model: ModelProto) -> np.ndarray:
        with PassContext(config={"relay.FoldConstant.max_bytes": 1 << 10}):
            built = relay.build(from_onnx(model)[0])
        return graph_executor.GraphModule(built["default"](device("cpu", 0)))(ROWS)[0].numpy()

    with monkeypatch.context() as small:
        small.setattr(tensors, "MANY", 1 << 30)
        expected = result(quantized_layers())
    made: list[StoredConstant] = []
    initialise = StoredConstant.__init__

    def noted(self: StoredConstant, *args: Any, **options: Any) -> None:
        initialise(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(StoredConstant, "__init__", noted)
    np.testing.assert_array_equal(result(quantized_layers()), expected)
    assert {str(constant.dtype) for constant in made} >= {"int8", "int32", "uint8"}
    assert [constant.ty for constant in made if constant.is_loaded] == []


@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
@pytest.mark.parametrize("is_stored", [True, False])
def test_weights_in_a_larger_type_are_converted_as_they_are_fetched(axes: tuple[int, int], is_stored: bool) -> None:
    values = np.arange(-60, 60, dtype=np.int8).reshape(10, 12)
    source = kept(values, axes) if is_stored else Constant(values.transpose(axes))
    wide = [StoredConstant.widened(source, np.dtype(np.int32)) for _ in range(2)]
    assert wide[0].place == wide[1].place and wide[0].dtype == "int32"
    rows = fetched(wide[0], 2, 5)
    np.testing.assert_array_equal(rows.reshape(3, -1), (values if is_stored else values.transpose(axes))[2:5])
    np.testing.assert_array_equal(wide[0].transposed((1, 0)).data, values.transpose(axes).T)
    assert not wide[0].is_loaded


@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_dequantised_weights_are_computed_as_they_are_fetched(axes, axis: int | None) -> None:
    codes = np.arange(-60, 60, dtype=np.int8).reshape(12, 10)

    def fill(array: np.ndarray, start: int) -> None:
        array.reshape(-1)[...] = codes.reshape(-1)[start : start + array.size]

    source = StoredConstant(codes.shape, codes.dtype, fill, axes)
    shape = () if axis is None else (source.shape[axis],)
    scale = np.linspace(0.1, 1, max(shape, default=1), dtype=np.float32).reshape(shape)
    zero = np.arange(max(shape, default=1), dtype=np.int8).reshape(shape)
    expected = Dequantize(axis=axis or 0).reference(codes.transpose(axes), scale, zero)
    for constant in (source, Constant(codes.transpose(axes))):
        found = StoredConstant.dequantized(constant, scale, zero, axis or 0)
        np.testing.assert_array_equal(found.data, expected)
        found.release()
        rows = expected if found.rows == len(expected) else expected.T
        np.testing.assert_array_equal(fetched(found, 3, 8).reshape(5, -1), rows[3:8])
    assert not source.is_loaded


@pytest.mark.parametrize("bits", [4, 8])
def test_block_quantised_weights_are_packed_as_they_are_stored(tmp_path: Path, bits: int) -> None:
    """Once, though the model is converted twice, and the table of the head is also that of the embedding."""
    rows, depth, block, random = 1003, 256, 32, np.random.default_rng(bits)
    codes = random.integers(0, 256, (rows, depth // block, block * bits // 8), dtype=np.uint8)
    scales = random.uniform(0.01, 0.1, (rows, depth // block)).astype(np.float32)
    shape = np.array([rows, depth * bits // 8])
    attrs = {"domain": "com.microsoft", "bits": bits, "block_size": block}
    nodes = [
        helper.make_node("Reshape", ["codes", "shape"], ["table"]),
        helper.make_node("GatherBlockQuantized", ["table", "i", "scales"], ["x"], quantize_axis=1, **attrs),
        helper.make_node("MatMulNBits", ["x", "codes", "scales"], ["y"], K=depth, N=rows, **attrs),
    ]
    named = {"codes": codes, "scales": scales, "shape": shape}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", rows])],
        [numpy_helper.from_array(value, name) for name, value in named.items()],
    )  # fmt: skip
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=9
    )
    path = tmp_path / "m.onnx"
    onnx.save(made, path, save_as_external_data=True, size_threshold=1024)
    module, _ = from_onnx(path)
    packed = [e for e in post_order(module["main"].body) if isinstance(e, StoredConstant) and e.dtype == "int32"]
    assert len({e.place for e in packed}) == 1 and not any(e.is_loaded for e in packed)
    indices = np.array([5, 1002, -1])
    executor = graph_executor.GraphModule(relay.build(module)["default"](device("cpu", 0)))
    fields = [codes >> shift & np.uint8(15) for shift in (0, 4)] if bits == 4 else [codes]
    real = np.stack(fields, -1).reshape(rows, depth // block, block).astype(np.float32) - (1 << bits - 1)
    real = (real * scales[..., None]).reshape(rows, depth)
    np.testing.assert_allclose(executor(indices)[0].numpy(), real[indices] @ real.T, rtol=1e-4, atol=1e-2)
    assert not any(e.is_loaded for e in packed)
