"""Models with dynamic shapes, from a relay function to the executor."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor, memory_use
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.errors import ArgumentError, ArtifactError
from relayc.relay import op
from relayc.relay.transform import PassContext
from relayc.te.errors import CompileError
from relayc.te.tir import SizeVar

RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((32, 64), dtype=np.float32)
BIAS = RNG.standard_normal(32, dtype=np.float32)


def network(n):
    x = relay.var("x", (n, 64))
    hidden = op.nn.relu(op.add(op.nn.dense(x, relay.const(WEIGHT)), relay.const(BIAS)))
    return relay.Function((x,), op.nn.softmax(hidden, axis=1))


def expected(x):
    bent = np.maximum(x @ WEIGHT.T + BIAS, 0)
    raised = np.exp(bent - bent.max(1, keepdims=True, initial=0))
    return raised / raised.sum(1, keepdims=True)


def executor(function, target="llvm"):
    lib = relay.build(function, target=target)
    return graph_executor.GraphModule(lib["default"](device(lib.graph.device, 0)))


@pytest.mark.parametrize("target", ["llvm", "c", "interp"])
def test_one_model_runs_at_any_batch_size(target):
    module = executor(network(SizeVar("n")), target)
    for n in (1, 3, 4, 17, 4, 0):
        x = RNG.standard_normal((n, 64), dtype=np.float32)
        module.set_input("x", x)
        module.run()
        result = module.get_output(0).numpy()
        np.testing.assert_allclose(result, expected(x), rtol=1e-4, atol=1e-6)


def test_a_dynamic_model_has_no_output_before_a_run_and_after_a_failed_one():
    n = SizeVar("n")
    x, y = relay.var("x", (n, 64)), relay.var("y", (n, 64))
    module = executor(relay.Function((x, y), op.add(x, y)))
    with pytest.raises(ArgumentError, match=r"output .* of model .* has no value"):
        module.get_output(0)
    ones = np.ones((2, 64), np.float32)
    module.run(x=ones, y=ones)
    np.testing.assert_array_equal(module.get_output(0).numpy(), ones + ones)
    with pytest.raises(ArgumentError, match="axis 0 is 2; expected 3"):
        module.run(x=np.ones((3, 64), np.float32))
    with pytest.raises(ArgumentError, match="its last run failed"):
        module.get_output(0)


def test_outputs_keep_their_values_while_they_are_held():
    module = executor(network(SizeVar("n")))
    x = RNG.standard_normal((2, 64), dtype=np.float32)
    (first,) = module(x)
    module(x + 1)
    module(np.zeros((5, 64), np.float32))
    np.testing.assert_allclose(first.numpy(), expected(x), rtol=1e-4, atol=1e-6)


def test_a_saved_model_keeps_its_sizes():
    lib = relay.build(network(SizeVar("n")))
    again = CompiledModel.from_bytes(lib.to_bytes())
    module = graph_executor.GraphModule(again["default"](device("cpu", 0)))
    assert module.get_input_info()[0] == {"x": ("n", 64)}
    x = RNG.standard_normal((7, 64), dtype=np.float32)
    np.testing.assert_allclose(module(x)[0].numpy(), expected(x), rtol=1e-4, atol=1e-6)


def test_specialised_variants_accompany_the_general_model():
    lib = relay.build(network(SizeVar("n")), specialize={"n": [1, 8]})
    lib = CompiledModel.from_bytes(lib.to_bytes())
    assert [dict(sizes) for sizes, _ in lib.graph.variants] == [{"n": 1}, {"n": 8}]
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for n in (8, 1, 3, 8):
        x = RNG.standard_normal((n, 64), dtype=np.float32)
        (result,) = module(x)
        assert (module._special is not None) == (n in (1, 8))
        np.testing.assert_allclose(result.numpy(), expected(x), rtol=1e-4, atol=1e-6)
    with pytest.raises(CompileError, match="names m; the dynamic sizes"):
        relay.build(network(SizeVar("n")), specialize={"m": [1]})


def test_sizes_that_disagree_are_named():
    n, m = SizeVar("n"), SizeVar("m")
    x, y = relay.var("x", (n, m)), relay.var("y", (m,))
    module = executor(relay.Function((x, y), op.add(x, y)))
    module.set_input("x", np.zeros((2, 3), np.float32))
    with pytest.raises(ArgumentError, match=r"expected shape \(n, m\)"):
        module.set_input("x", np.zeros(3, np.float32))
    module.set_input("y", np.zeros(4, np.float32))
    with pytest.raises(ArgumentError, match=r"'y'.*is 4; expected 3 in \(m,\); m is 3 by input 'x', axis 1"):
        module.run()
    module.set_input("y", np.arange(3, dtype=np.float32))
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), [[0, 1, 2], [0, 1, 2]])


def test_sizes_beyond_the_index_type_are_rejected():
    n = SizeVar("n")
    x = relay.var("x", (n, 1))
    module = executor(relay.Function((x,), op.add(x, op.broadcast_to(relay.const(1.0), (n, 100000)))))
    with pytest.raises(ArgumentError, match="at most 2147483647"):
        module(np.zeros((100000, 1), np.float32))


def test_intermediate_tensors_share_memory():
    n = SizeVar("n")
    x = relay.var("x", (n, 256))
    y = x
    for _ in range(6):
        y = op.nn.softmax(op.nn.softmax(y, axis=0), axis=1)
    lib = relay.build(relay.Function((x,), y))
    slots = {t.place for t in lib.graph.tensors if t.storage == "slot" and not isinstance(t.shape[0], int)}
    assert len(lib.graph.nodes) >= 12 and len(slots) <= 3


def test_memory_of_any_batch_is_about_that_of_a_fixed_one():
    """Later tensors lie where larger ones were, however much smaller they are."""

    def activations(batch: int | SizeVar) -> int:
        x = relay.var("x", (batch, 64))
        y = x
        for width in (192, 1024, 64, 640, 640, 96, 576, 32):
            weight = relay.const(np.ones((width, int(y.shape[1])), np.float32))
            y = op.nn.softmax(op.nn.softmax(op.nn.dense(y, weight), axis=0), axis=1)
        return memory_use(relay.build(relay.Function((x,), y)), {"x": (48, 64)}).activations

    assert activations(SizeVar("n")) <= 1.2 * activations(48)


def test_profiles_node_by_node():
    module = executor(network(SizeVar("n")))
    report = module.profile(repeat=2, x=np.zeros((9, 64), np.float32))
    assert len(report) == len(module._graph.nodes)


@pytest.mark.parametrize("level", [0, 3])
def test_every_level_of_optimisation(level):
    with PassContext(opt_level=level):
        module = executor(network(SizeVar("n")))
    x = RNG.standard_normal((13, 64), dtype=np.float32)
    np.testing.assert_allclose(module(x)[0].numpy(), expected(x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda g: g["tensors"][0].update(shape=["k", 64]), "a size"),
        (lambda g: g["tensors"][0].update(shape=[["^", "n", 1], 64]), "a size"),
        (lambda g: g["steps"][0].update(last=99), "an integer from"),
        (lambda g: g["steps"][0].update(step="jump"), '"run", "bind", "check"'),
        (lambda g: g["nodes"][0].update(sizes=["k"]), "a size: .* one of the names"),
    ],
)
def test_damaged_descriptions_are_rejected(damage, message):
    lib = relay.build(network(SizeVar("n")))
    record = lib.graph.to_json()
    damage(record)
    with pytest.raises(ArtifactError, match=message):
        CompiledModel(record, lib.params, lib.module)


def test_a_dense_layer_of_one_batch_and_any_length():
    s = SizeVar("s")
    x, r = relay.var("x", (1, s, 64)), relay.var("r", (1, s, 32))
    module = executor(relay.Function((x, r), op.add(op.nn.dense(x, relay.const(WEIGHT)), r)))
    for length in (1, 3, 4, 9, 70):
        a, b = (RNG.standard_normal((1, length, n), dtype=np.float32) for n in (64, 32))
        np.testing.assert_allclose(module(a, b)[0].numpy(), a @ WEIGHT.T + b, rtol=1e-4, atol=1e-4)


def test_a_winograd_convolution_of_any_batch():
    weight = RNG.standard_normal((64, 64, 3, 3), dtype=np.float32)
    results = []
    for batch in (SizeVar("n"), 3):
        x = relay.var("x", (batch, 64, 28, 28))
        lib = relay.build(relay.Function((x,), op.nn.conv2d(x, relay.const(weight), padding=(1, 1, 1, 1))))
        assert any("winograd" in name for node in lib.graph.nodes for name in node.ops)
        results.append(graph_executor.GraphModule(lib["default"](device("cpu", 0))))
    general, special = results
    x = RNG.standard_normal((3, 64, 28, 28), dtype=np.float32)
    np.testing.assert_allclose(general(x)[0].numpy(), special(x)[0].numpy(), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(general(x[1:2])[0].numpy(), special(x)[0].numpy()[1:2], rtol=1e-3, atol=1e-3)


def test_models_are_specialised_for_all_of_their_sizes():
    x = relay.var("x", (SizeVar("n"), SizeVar("m")))
    with pytest.raises(CompileError, match="leaves dynamic sizes: m"):
        relay.build(relay.Function([x], -x), specialize={"n": [1]})


@pytest.mark.parametrize("target", ["llvm", "interp"])
@pytest.mark.parametrize("axis", [0, 1])
def test_many_tensors_of_dynamic_size_are_concatenated(axis, target):
    parts = [relay.var(f"x{i}", (SizeVar(f"n{i}"), 3) if axis == 0 else (3, SizeVar(f"n{i}"))) for i in range(40)]
    module = executor(relay.Function(parts, op.nn.relu(op.concatenate(parts, axis))), target)
    sizes = RNG.integers(0, 4, len(parts))
    data = [RNG.standard_normal((n, 3) if axis == 0 else (3, n), dtype=np.float32) for n in sizes]
    np.testing.assert_array_equal(module(*data)[0].numpy(), np.maximum(np.concatenate(data, axis), 0))


@pytest.mark.parametrize("shape", [(3, 0, 5), (0, 5)])
def test_transpositions_of_empty_tensors_at_any_batch_size(shape):
    x = relay.var("x", (SizeVar("n"), *shape))
    module = executor(relay.Function((x,), op.transpose(x)))
    module.set_input("x", np.zeros((2, *shape), np.float32))
    module.run()
    assert module.get_output(0).numpy().shape == (*reversed(shape), 2)
