"""If whose branches do not fit together: each has a version of the model, which runs where it is taken."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import ArgumentError, device, graph_executor
from relayc.backend.runtime.artifact import load_model
from relayc.frontends.onnx import OnnxImportError, from_onnx

make = helper.make_node
RNG = np.random.default_rng(3)
F32, INT64, BOOL = 1, 7, 9


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def branch(node):
    return helper.make_graph([node], node.output[0], [], [helper.make_tensor_value_info(node.output[0], F32, None)])


def model(nodes, inputs, weights):
    """A model with the output y; inputs as (name, type, shape)."""
    graph = helper.make_graph(
        nodes, "branches", [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info("y", F32, None)],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def maybe(then, other):
    """If on c, then Relu."""
    return [
        make("If", ["c"], ["z"], then_branch=branch(then), else_branch=branch(other), name="maybe"),
        make("Relu", ["z"], ["y"]),
    ]


def executor_of(mod):
    return graph_executor.GraphModule(relay.build(mod)["default"](device("cpu", 0)))


AXIS = {"axis": np.array([1])}
SUM_OR_ALL = maybe(make("ReduceSum", ["x", "axis"], ["t"], keepdims=0), make("Identity", ["x"], ["e"]))


def test_branches_of_two_ranks(tmp_path):
    mod, _ = from_onnx(model(SUM_OR_ALL, [("x", F32, ["a", "b"]), ("c", BOOL, [])], AXIS))
    assert mod.attrs["versions"] == ("branches_0",)
    lib = relay.build(mod)
    lib.save(tmp_path / "model.rlc")
    x = floats(3, 4)
    for compiled in (lib, load_model(tmp_path / "model.rlc")):
        executor = graph_executor.GraphModule(compiled["default"](device("cpu", 0)))
        for condition in (True, False, False, True):
            (y,) = executor(x, np.array(condition))
            wanted = np.maximum(x.sum(1) if condition else x, 0)
            assert y.shape == wanted.shape
            np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_a_branch_inside_of_a_loop_has_a_version():
    """What the condition is in one iteration it must be in all, since a version is of the whole model."""
    body = helper.make_graph(
        [
            make("If", ["c"], ["z"], then_branch=branch(make("ReduceSum", ["v", "axis"], ["t"], keepdims=0)),
                 else_branch=branch(make("Identity", ["v"], ["e"])), name="maybe"),
            make("ReduceMax", ["z"], ["m"], keepdims=0),
            make("Add", ["v", "m"], ["w"]),
            make("Identity", ["go"], ["on"]),
        ],
        "body",
        [helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("go", BOOL, []),
         helper.make_tensor_value_info("v", F32, None)],
        [helper.make_tensor_value_info("on", BOOL, []), helper.make_tensor_value_info("w", F32, None)],
    )  # fmt: skip
    nodes = [make("Loop", ["n", "", "x"], ["y"], body=body, name="loop")]
    proto = model(nodes, [("x", F32, ["a", 2]), ("c", BOOL, []), ("n", INT64, [])], AXIS)
    executor = executor_of(from_onnx(proto)[0])
    x = floats(3, 2)
    for condition in (True, False):
        wanted = x
        for _ in range(2):
            wanted = wanted + (wanted.sum(1) if condition else wanted).max()
        np.testing.assert_allclose(executor(x, np.array(condition), np.array(2))[0].numpy(), wanted, rtol=1e-5)


RATES = {
    "rate": np.array(16000), "long": np.array([1, 512]), "short": np.array([1, 256]), "w": floats(512, 4) / 16,
    "u": floats(256, 4) / 16,
}  # fmt: skip


def detector():
    """A voice detector's network for each of two sampling rates, which take windows of different lengths."""

    def network(shape, weight):
        nodes = [make("Reshape", ["x", shape], [f"{shape}_x"]), make("MatMul", [f"{shape}_x", weight], [f"{shape}_y"])]
        return helper.make_graph(nodes, shape, [], [helper.make_tensor_value_info(f"{shape}_y", F32, None)])

    return [
        make("Equal", ["sr", "rate"], ["c"]),
        make("If", ["c"], ["y"], then_branch=network("long", "w"), else_branch=network("short", "u"), name="rates"),
    ]


def test_what_a_branch_requires_of_sizes_is_not_required_where_the_other_one_is_taken():
    mod, _ = from_onnx(model(detector(), [("x", F32, ["batch", "n"]), ("sr", INT64, [])], RATES))
    executor = executor_of(mod)
    for n, rate, weight in ((512, 16000, RATES["w"]), (256, 8000, RATES["u"]), (512, 16000, RATES["w"])):
        x = floats(1, n)
        np.testing.assert_allclose(executor(x, np.array(rate))[0].numpy(), x @ weight, rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match="rates"):
        executor(floats(1, 512), np.array(8000))


def test_a_branch_that_contradicts_the_sizes_is_an_error_when_it_is_taken():
    mod, _ = from_onnx(model(detector(), [("x", F32, [1, 512]), ("sr", INT64, [])], RATES))
    assert list(mod) == ["main"]
    executor = executor_of(mod)
    x = floats(1, 512)
    np.testing.assert_allclose(executor(x, np.array(16000))[0].numpy(), x @ RATES["w"], rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match=r"'rates' \(If\).*compiled for True as the condition \(.*512 elements"):
        executor(x, np.array(8000))


def test_inputs_of_undeclared_rank_have_a_version_for_each():
    """A product with a matrix rules out rank 0; the convolution all ranks but one."""
    weight = floats(4, 2)
    proto = model([make("MatMul", ["x", "w"], ["y"])], [("x", F32, None)], {"w": weight})
    executor = executor_of(from_onnx(proto)[0])
    for shape in ((4,), (3, 4), (2, 3, 4), (1, 4)):
        x = floats(*shape)
        np.testing.assert_allclose(executor(x)[0].numpy(), x @ weight, rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match="input 'x'"):
        executor(floats(2, 2, 2, 2, 4))
    proto = model([make("Conv", ["x", "k"], ["y"])], [("x", F32, None)], {"k": floats(5, 3, 1, 1)})
    mod, _ = from_onnx(proto)
    assert list(mod) == ["main"] and mod["main"].ret_type.shape[1] == 5


def pooled(rate):
    """The largest of `rate` samples; an axis of size 1 is squeezed, and what follows takes no other."""
    name = "r{}_{}".format(rate, "{}").format
    squeezed = branch(make("Squeeze", [name("p"), "last"], [name("t")]))
    kept = branch(make("Identity", [name("p")], [name("e")]))
    return [
        make("MaxPool", ["x"], [name("p")], kernel_shape=[rate], strides=[rate]),
        make("Shape", [name("p")], [name("shape")]),
        make("Gather", [name("shape"), "last"], [name("size")], axis=0),
        make("Equal", [name("size"), "one"], [name("c")]),
        make("If", [name("c")], [name("s")], then_branch=squeezed, else_branch=kept, name=name("squeeze")),
        make("Gemm", [name("s"), "w"], [name("y")], name=name("gemm")),
    ]  # fmt: skip


POOLED = {"last": np.array([-1]), "one": np.array([1]), "w": floats(4, 3), "rate": np.array(16)}
WAVE = ("x", F32, ["batch", 4, "n"])


def test_a_branch_that_a_later_node_refuses_is_not_taken():
    """Without its squeeze, the tensor is of a rank that Gemm does not take."""
    nodes = [*pooled(16)[:-1], make("Gemm", ["r16_s", "w"], ["y"], name="gemm")]
    executor = executor_of(from_onnx(model(nodes, [WAVE], POOLED))[0])
    for batch, n in ((1, 16), (3, 31)):
        x = floats(batch, 4, n)
        np.testing.assert_allclose(executor(x)[0].numpy(), x[:, :, :16].max(2) @ POOLED["w"], rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match="sizes n // 16 of 1"):
        executor(floats(1, 4, 32))


def test_branches_inside_of_branches_that_later_nodes_refuse_are_not_taken():
    def network(rate):
        result = helper.make_tensor_value_info(f"r{rate}_y", F32, None)
        return helper.make_graph(pooled(rate), f"of{rate}", [], [result])

    nodes = [
        make("Equal", ["sr", "rate"], ["c"]),
        make("If", ["c"], ["y"], then_branch=network(16), else_branch=network(8), name="rates"),
    ]
    executor = executor_of(from_onnx(model(nodes, [WAVE, ("sr", INT64, [])], POOLED))[0])
    for batch, rate, n in ((1, 16, 16), (2, 8, 8), (2, 16, 20), (1, 8, 9)):
        x = floats(batch, 4, n)
        wanted = x[:, :, :rate].max(2) @ POOLED["w"]
        np.testing.assert_allclose(executor(x, np.array(rate))[0].numpy(), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError):
        executor(floats(1, 4, 16), np.array(8))


def test_a_model_that_no_branch_fits_is_refused_for_what_the_first_one_lacks():
    nodes = [*pooled(16), make("Gemm", ["x", "w", "r16_y"], ["y"], name="after")]
    with pytest.raises(OnnxImportError, match="r16_gemm"):
        from_onnx(model(nodes, [WAVE], POOLED))
