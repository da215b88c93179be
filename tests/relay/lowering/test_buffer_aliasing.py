"""Concatenations written in place and slices read in place: results, and remaining copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from relayc import relay
from relayc.backend.runtime import ArtifactError, device, graph_executor
from relayc.backend.runtime.artifact import CompiledModel
from relayc.relay import Expr, Function, IRModule, Var, const, var
from relayc.relay.interpreter import evaluate
from relayc.relay.lowering.buffer_aliasing import AliasViews
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.static_memory import place_tensors
from relayc.relay.op import nn
from relayc.te.ir import PassContext
from relayc.te.tir import SizeVar
from tests.effort import lines_run

RANDOM = np.random.default_rng(7)


def weights(outputs: int, inputs: int, size: int = 1) -> relay.Constant:
    return const(RANDOM.standard_normal((outputs, inputs, size, size)).astype("float32") / inputs)


def conv(x: Expr, outputs: int, size: int = 1) -> Expr:
    """A convolution of an NCHW image, which the compiler computes with channels last."""
    return nn.relu(nn.conv2d(x, weights(outputs, int(x.shape[1]), size), padding=size // 2))


def joined_along(*xs: Expr, axis: int) -> Expr:
    return relay.concatenate(xs, axis)


def image(channels: int = 16, side: int = 6, batch: int | SizeVar = 1) -> Var:
    return var("x", (batch, channels, side, side))


def check(parameters: list[Var], *outputs: Expr, threads: int = 2) -> CompiledModel:
    """Compile, and compare a run of what is loaded again, and one node by node, with the operators' references, for
    several batches if their size is symbolic."""
    body = outputs[0] if len(outputs) == 1 else relay.Tuple(tuple(outputs))
    module = IRModule({"main": Function(tuple(parameters), body)})
    compiled = relay.build(module, "llvm")
    loaded = CompiledModel.from_bytes(compiled.to_bytes())
    executor = graph_executor.GraphModule(loaded["default"](device("cpu", 0)), num_threads=threads)
    for batch in (3, 1, 0) if isinstance(parameters[0].shape[0], SizeVar) else (1,):
        shapes = [[d if isinstance(d, int) else batch for d in p.shape] for p in parameters]
        data = [RANDOM.standard_normal(shape).astype("float32") for shape in shapes]
        expected = evaluate(module, data)
        for run in (executor.run, lambda **inputs: executor.profile(repeat=1, **inputs)):
            run(**{p.name: value for p, value in zip(parameters, data, strict=True)})
            for i, value in enumerate(expected if isinstance(expected, tuple) else (expected,)):
                np.testing.assert_allclose(executor.get_output(i).numpy(), value, rtol=1e-4, atol=1e-5)
    return compiled


def kernels(compiled: CompiledModel) -> list[str]:
    return ["+".join(node.ops) for node in compiled.graph.nodes]


def parts(compiled: CompiledModel) -> tuple[int, int]:
    return compiled.build_report.aliasing.aliased, compiled.build_report.aliasing.copied


def test_branches_write_into_the_concatenation():
    x = image()
    squeezed = conv(x, 16)
    concatenated = joined_along(conv(squeezed, 32), conv(squeezed, 48, 3), axis=1)
    compiled = check([x], conv(concatenated, 16))
    assert parts(compiled) == (1, 0)
    assert "concatenate" not in kernels(compiled)
    assert "1 concatenations, slices and splits in place, 0 of their inputs copied" in str(compiled.build_report)


def test_windows_keep_their_steps_where_results_have_gaps():
    x = var("x", (2, 16, 34, 34))
    pooled = [nn.max_pool2d(x, (3, 3), (2, 2)), nn.avg_pool2d(x, (3, 3), (2, 2))]
    compiled = check([x], nn.softmax(joined_along(*pooled, axis=1)))
    assert parts(compiled) == (1, 0)
    assert {t.strides for t in compiled.graph.tensors if t.strides is not None} == {(32 * 16 * 16, 16 * 16, 16, 1)}


def test_a_dense_block_is_one_tensor():
    x = image(32)
    concatenated = conv(x, 32)
    for _ in range(4):
        concatenated = joined_along(concatenated, conv(conv(concatenated, 64), 16, 3), axis=1)
    compiled = check([x], conv(concatenated, 16))
    assert parts(compiled) == (4, 0)
    strided = {t.strides for t in compiled.graph.tensors if t.strides is not None}
    assert strided == {(6 * 6 * 96, 6 * 96, 96, 1)}
    assert "arena 39.4 kB, parameters 215.0 kB" in str(compiled.build_report)


def test_a_dense_block_of_flat_concatenations_is_one_tensor_too():
    x = image(32)
    features = [conv(x, 32)]
    for _ in range(3):
        features.append(conv(joined_along(*features, axis=1) if len(features) > 1 else features[0], 16, 3))
    compiled = check([x], conv(joined_along(*features, axis=1), 16))
    assert parts(compiled) == (3, 0)


def test_an_operand_concatenated_twice_is_copied_once():
    x = image()
    y = conv(x, 32)
    compiled = check([x], conv(joined_along(y, conv(y, 32), y, axis=1), 16))
    assert parts(compiled) == (1, 1)
    assert kernels(compiled).count("concatenate") == 1


def test_an_input_of_the_graph_is_copied():
    x = image()
    compiled = check([x], conv(joined_along(x, conv(x, 64), axis=1), 16))
    assert parts(compiled)[0] == 1


def test_a_concatenation_of_tensors_that_cannot_be_aliased_stays():
    x, y = image(), var("y", (1, 16, 6, 6))
    compiled = check([x, y], joined_along(x, y, axis=1))
    assert parts(compiled) == (0, 0)


@pytest.mark.parametrize(("part", "shared"), [(True, (1, 1)), (False, (0, 0))])
def test_outputs_of_the_graph_stay_where_they_are(part: bool, shared: tuple[int, int]):
    x = var("x", (4, 32))
    y = nn.softmax(x)
    concatenated = joined_along(y, nn.softmax(y), axis=1)
    compiled = check([x], y if part else concatenated, nn.softmax(concatenated))
    assert parts(compiled) == shared


def test_short_contiguous_runs_are_not_aliased():
    x = image()
    compiled = check([x], conv(joined_along(conv(x, 4), conv(x, 60), axis=1), 16))
    assert parts(compiled) == (1, 1)


def test_views_and_recurrences_are_aliased_along_the_outermost_axis():
    x = var("x", (4, 24))
    rows = relay.reshape(nn.softmax(x), (2, 48))
    concatenated = joined_along(rows, nn.softmax(rows, axis=0), axis=0)
    compiled = check([x], relay.cumsum(concatenated, axis=1))
    assert parts(compiled) == (1, 0)
    assert all(t.strides is None for t in compiled.graph.tensors)


def test_splits_are_read_in_place():
    x = image()
    halves = relay.split(conv(x, 64), 2, axis=1)
    compiled = check([x], joined_along(conv(halves[0], 32), conv(halves[1], 32, 3), axis=1))
    assert parts(compiled)[0] >= 1
    assert not any("split" in name or "slice" in name for name in kernels(compiled))


def test_a_concatenation_of_the_slices_of_a_tensor_is_a_view():
    x = image()
    whole = conv(x, 64)
    halves = relay.split(whole, 2, axis=1)
    deeper = conv(halves[1], 32, 3)
    compiled = check([x], conv(joined_along(halves[0], halves[1], deeper, conv(deeper, 32, 3), axis=1), 16))
    assert parts(compiled)[1] == 0
    assert not any("split" in name or "slice" in name or "concat" in name for name in kernels(compiled))


def test_slices_of_slices():
    x = var("x", (6, 128))
    y = nn.softmax(x)
    first = nn.softmax(relay.strided_slice(y, (0,), (64,), (1,), (1,)))
    middle = nn.softmax(relay.strided_slice(y, (32, 1), (96, 5), (1, 1), (1, 0)))
    compiled = check([x], first, middle)
    assert parts(compiled) == (2, 0)


def test_a_strided_slice_is_copied():
    x = var("x", (6, 128))
    compiled = check([x], nn.softmax(relay.strided_slice(nn.softmax(x), (0,), (128,), (2,), (1,))))
    assert parts(compiled) == (0, 0)


def test_nothing_is_aliased_at_low_optimisation_levels():
    x = image()
    with PassContext(opt_level=1):
        compiled = check([x], conv(joined_along(conv(x, 32), conv(x, 32), axis=1), 16))
    assert parts(compiled) == (0, 0)


def test_a_slice_beyond_the_arena_is_rejected():
    x = image()
    compiled = check([x], conv(joined_along(conv(x, 32), conv(x, 32), axis=1), 16))
    record = compiled.graph.to_json()
    strided = next(t for t in record["tensors"] if "strides" in t)
    strided["strides"] = [d * 100 for d in strided["strides"]]
    with pytest.raises(ArtifactError, match="inside an arena of"):
        CompiledModel(record, {}, compiled.module)
    strided["strides"] = [1]
    with pytest.raises(ArtifactError, match="one number for each dimension"):
        CompiledModel(record, {}, compiled.module)


def test_branches_write_into_the_concatenation_of_any_batch():
    x = image(batch=SizeVar("n"))
    squeezed = conv(x, 16)
    concatenated = joined_along(conv(squeezed, 32), conv(squeezed, 48, 3), axis=1)
    compiled = check([x], conv(concatenated, 16))
    assert parts(compiled) == (1, 0)
    assert "concatenate" not in kernels(compiled)


def test_a_dense_block_of_any_batch_is_one_tensor_whose_layers_share_kernels():
    x = image(32, batch=SizeVar("n"))
    concatenated = conv(x, 32)
    for _ in range(4):
        concatenated = joined_along(concatenated, conv(conv(concatenated, 64), 16, 3), axis=1)
    compiled = check([x], conv(concatenated, 16))
    assert parts(compiled) == (4, 0)
    windows = {node.func for node in compiled.graph.nodes if node.ops[0] == "nn.conv2d_nhwc_winograd"}
    windows |= {node.func for node in compiled.graph.nodes if "offset" in str(node.sizes)}
    assert len(windows) <= 1


def test_slices_along_a_symbolic_axis_are_copied():
    x = var("x", (SizeVar("n"), 32))
    y = nn.softmax(x)
    check([x], nn.softmax(joined_along(y, nn.softmax(y), axis=0)))
    z = var("z", (4, SizeVar("n"), 32))
    assert parts(relay.build(IRModule({"main": Function((z,), nn.softmax(
        joined_along(nn.softmax(z), nn.relu(z), axis=2)))}), "llvm"))[0] == 0  # fmt: skip


def test_parts_of_symbolic_lengths_that_are_a_constant_together_are_copied():
    n, k = SizeVar("n"), SizeVar("k")
    x, y = var("x", (n, k, 32)), var("y", (n, 8 - k, 32))
    parts_of_it = nn.softmax(x), nn.softmax(y)
    joined = joined_along(*parts_of_it, axis=1)
    assert joined.shape[1:] == (8, 32)
    compiled = relay.build(IRModule({"main": Function((x, y), nn.softmax(joined))}), "llvm")
    executor = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=1)
    executor.run(x=np.zeros((2, 3, 32), "float32"), y=np.zeros((2, 5, 32), "float32"))
    np.testing.assert_allclose(executor.get_output(0).numpy(), np.full((2, 8, 32), 1 / 32), rtol=1e-6)


def test_a_sequence_of_reshaped_slices_of_any_batch():
    x = var("x", (SizeVar("n"), 4, 48))
    halves = relay.split(nn.softmax(x), 2, axis=1)
    flat = [relay.reshape(nn.softmax(half), (-1, 96)) for half in (halves[0], halves[1])]
    check([x], nn.softmax(joined_along(*flat, axis=1)))


@st.composite
def networks(draw: st.DrawFn, batch: int | SizeVar = 2) -> tuple[Var, list[Expr]]:
    """A random graph of concatenations, slices, products, row statistics and elementwise operators on rank-3 tensors.
    """
    x = var("x", (batch, 3, draw(st.sampled_from([16, 24, 40]))))
    known: list[Expr] = [nn.relu(x)]
    for _ in range(draw(st.integers(3, 10))):
        y = known[draw(st.integers(0, len(known) - 1))]
        kind = draw(st.sampled_from(["join", "cut", "slice", "dense", "softmax", "add", "view"]))
        rank, last = 3, int(y.shape[-1])
        if kind == "join":
            axis = draw(st.integers(0 if isinstance(y.shape[0], int) else 1, 2))
            same = [e for e in known if [d for a, d in enumerate(e.shape) if a != axis]
                    == [d for a, d in enumerate(y.shape) if a != axis]]  # fmt: skip
            chosen = [same[draw(st.integers(0, len(same) - 1))] for _ in range(draw(st.integers(1, 3)))]
            made = [joined_along(y, *chosen, axis=axis)]
        elif kind == "cut" and last % 2 == 0:
            halves = relay.split(y, 2, axis=rank - 1)
            made = [halves[0], halves[1]]
        elif kind == "slice" and int(y.shape[1]) > 1:
            made = [relay.strided_slice(y, (1,), (int(y.shape[1]),), (1,), (1,))]
        elif kind == "dense":
            weight = RANDOM.standard_normal((draw(st.sampled_from([16, 32, 33])), last)).astype("float32") / last
            made = [nn.dense(y, const(weight))]
        elif kind == "softmax":
            made = [nn.softmax(y)]
        elif kind == "view":
            made = [relay.reshape(relay.reshape(y, (-1,)), (-1, *[int(d) for d in y.shape[1:]]))]
        else:
            made = [relay.add(relay.multiply(y, const(0.5)), const(1.0))]
        known += [e for e in made if np.prod([d if isinstance(d, int) else 2 for d in e.shape]) < 20000]
    count = draw(st.integers(1, 2))
    return x, known[-count:]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(networks())
def test_random_networks(network: tuple[Var, list[Expr]]):
    x, outputs = network
    check([x], *outputs)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(networks(SizeVar("n")))
def test_random_networks_of_any_batch(network: tuple[Var, list[Expr]]):
    x, outputs = network
    check([x], *outputs)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(networks())
def test_random_static_networks_beside_one_of_any_batch(network: tuple[Var, list[Expr]]):
    """Kernels without sizes get the offsets of their arguments, too."""
    (x, outputs), other = network, var("y", (SizeVar("n"), 16))
    check([other, x], nn.relu(other), *outputs)


def test_concatenations_of_concatenations_take_linear_work():
    """Each is shared, so none is merged into the next; all become views of the last."""

    def work(count: int) -> int:
        x = var("x", (1, 64))
        joined: Expr = nn.relu(x)
        sums: list[Expr] = []
        for _ in range(count):
            joined = joined_along(joined, x, axis=0)
            sums.append(relay.op.sum(joined, (0, 1)))
        module = relay.optimize(IRModule({"main": Function((x,), relay.Tuple(tuple(sums)))}), "llvm")
        graph = make_graph(module["main"])
        before = lines_run(lambda: AliasViews().arrange(graph, PassContext()))
        aliased = [t for t in graph.tensors if t.begins is not None]
        assert len(aliased) > count
        return before + lines_run(lambda: place_tensors(graph))

    assert work(80) < 3 * work(40)
