"""If, Loop and Scan run by the executor, from ONNX to results."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import compiled_loop, device, dynamic, frames, graph_executor, runners
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.errors import ArgumentError
from relayc.backend.target import Target
from relayc.frontends.onnx import from_onnx
from relayc.relay.expr import Function
from relayc.relay.lowering import driver

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def compiled(nodes, inputs, outputs, initializers=(), target="llvm", shape=None):
    graph = helper.make_graph(nodes, "control", inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    mod, _ = from_onnx(model, shape=shape)
    lib = CompiledModel.from_bytes(relay.build(mod, target=target).to_bytes())
    return graph_executor.GraphModule(lib["default"](device("cpu", 0)))


def constant(name, value):
    kind = {"f": FLOAT, "i": INT64, "b": BOOL}[value.dtype.kind]
    return helper.make_tensor(name, kind, value.shape, value.reshape(-1))


def test_a_computed_condition_selects_a_branch():
    then = helper.make_graph([helper.make_node("Add", ["x", "x"], ["t"])], "then", [], [info("t", None)])
    other = helper.make_graph([helper.make_node("Mul", ["x", "x"], ["e"])], "else", [], [info("e", None)])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other, name="choose")
    module = compiled([node], [info("c", [], BOOL), info("x", ["n"])], [info("y", None)])
    for n in (3, 5):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(module(np.array(True), x)[0].numpy(), x + x)
        np.testing.assert_array_equal(module(np.array(False), x)[0].numpy(), x * x)


def test_branches_of_two_shapes():
    then = helper.make_graph([helper.make_node("Concat", ["x", "x"], ["t"], axis=0)], "then", [], [info("t", None)])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "else", [], [info("e", None)])
    nodes = [
        helper.make_node("If", ["c"], ["z"], then_branch=then, else_branch=other, name="choose"),
        helper.make_node("Exp", ["z"], ["y"]),
    ]
    module = compiled(nodes, [info("c", [], BOOL), info("x", [3])], [info("y", None)])
    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_allclose(module(np.array(True), x)[0].numpy(), np.exp(np.tile(x, 2)), rtol=1e-5)
    np.testing.assert_allclose(module(np.array(False), x)[0].numpy(), np.exp(-x), rtol=1e-5)


@pytest.mark.parametrize("copied", [False, True])
def test_values_that_a_loop_passes_on_unchanged_are_those_outside(copied):
    """As in TensorFlow's loops; a constant among them may be what an operator needs when compiling."""
    nodes = [helper.make_node("ReduceMax", ["held", "by"], ["part"], keepdims=0),
             helper.make_node("Add", ["total", "part"], ["next"])]  # fmt: skip
    nodes += [helper.make_node("Identity", ["by"], ["same"])] if copied else []
    body = helper.make_graph(
        nodes, "body",
        [info("i", [], INT64), info("goes_on", [], BOOL), info("by", [1], INT64), info("total", None),
         info("held", None)],
        [info("goes_on", [], BOOL), info("same" if copied else "by", [1], INT64), info("next", None),
         info("held", None), info("held", None)],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["count", "", "axis", "start", "x"], ["by", "y", "", "stack"], body=body, name="l")
    module = compiled(
        [loop, helper.make_node("Neg", ["by"], ["negated"])],
        [info("count", [], INT64), info("start", [4]), info("x", ["n", 4])],
        [info("y", None), info("stack", None), info("negated", None, INT64)], [constant("axis", np.array([0]))],
    )  # fmt: skip
    x, start = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones(4, np.float32)
    for count in (0, 3):
        y, stack, negated = module(np.array(count), start, x)
        np.testing.assert_array_equal(y.numpy(), 1 + count * x.max(0))
        np.testing.assert_array_equal(stack.numpy(), np.broadcast_to(x, (count, 3, 4)))
        np.testing.assert_array_equal(negated.numpy(), [0])


def accumulate(limit=None):
    """total += x; stacked totals; goes on while the total of the first element is below `limit`."""
    nodes = [
        helper.make_node("Add", ["total", "x"], ["next"]),
        helper.make_node("Identity", ["next"], ["seen"]),
    ]
    if limit is None:
        nodes.append(helper.make_node("Identity", ["goes_on"], ["goes_on_next"]))
    else:
        nodes += [
            helper.make_node("ReduceMax", ["next"], ["largest"], keepdims=0),
            helper.make_node("Less", ["largest", "limit"], ["goes_on_next"]),
        ]
    return helper.make_graph(
        nodes, "body", [info("i", [], INT64), info("goes_on", [], BOOL), info("total", None)],
        [info("goes_on_next", [], BOOL), info("next", None), info("seen", None)],
        [] if limit is None else [constant("limit", np.array(limit, np.float32))],
    )  # fmt: skip


def test_a_loop_of_a_thousand_iterations():
    node = helper.make_node("Loop", ["trips", "", "start"], ["end", "stack"], body=accumulate(), name="sum")
    inputs = [info("trips", [], INT64), info("start", ["n"]), info("x", ["n"])]
    module = compiled([node], inputs, [info("end", None), info("stack", None)])
    x = np.array([1, 2], np.float32)
    for trips in (1000, 3, 0):
        end, stack = module(np.array(trips), np.zeros(2, np.float32), x)
        np.testing.assert_array_equal(end.numpy(), trips * x)
        np.testing.assert_array_equal(stack.numpy(), np.arange(1, trips + 1)[:, None] * x)


def test_a_loop_ends_when_its_condition_does():
    node = helper.make_node("Loop", ["", "go", "start"], ["end", "stack"], body=accumulate(10.0), name="sum")
    inputs = [info("go", [], BOOL), info("start", [2]), info("x", [2])]
    module = compiled([node], inputs, [info("end", None), info("stack", None)])
    end, stack = module(np.array(True), np.zeros(2, np.float32), np.array([3, 1], np.float32))
    np.testing.assert_array_equal(end.numpy(), [12, 4])
    assert stack.shape == (4, 2)
    end, stack = module(np.array(False), np.ones(2, np.float32), np.array([3, 1], np.float32))
    np.testing.assert_array_equal(end.numpy(), [1, 1])
    assert stack.shape == (0, 2)


def test_a_carried_value_may_change_its_size():
    nodes = [
        helper.make_node("Concat", ["list", "x"], ["longer"], axis=0),
        helper.make_node("Identity", ["goes_on"], ["goes_on_next"]),
    ]
    body = helper.make_graph(
        nodes, "body", [info("i", [], INT64), info("goes_on", [], BOOL), info("list", None)],
        [info("goes_on_next", [], BOOL), info("longer", None)],
    )  # fmt: skip
    loop = [helper.make_node("Loop", ["trips", "", "x"], ["all"], body=body), helper.make_node("Neg", ["all"], ["y"])]
    module = compiled(loop, [info("trips", [], INT64), info("x", [2, 3])], [info("y", None)])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for trips in (4, 0, 20):
        np.testing.assert_array_equal(module(np.array(trips), x)[0].numpy(), -np.tile(x, (trips + 1, 1)))


def test_loops_in_loops():
    inner = helper.make_node("Loop", ["j", "", "sum"], ["after", "unused"], body=accumulate())
    body = helper.make_graph(
        [inner, helper.make_node("Identity", ["going"], ["going_next"])], "outer",
        [info("j", [], INT64), info("going", [], BOOL), info("sum", None)],
        [info("going_next", [], BOOL), info("after", None)],
    )  # fmt: skip
    module = compiled(
        [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)],
        [info("trips", [], INT64), info("x", [2])], [info("y", None)],
    )  # fmt: skip
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(module(np.array(6), x)[0].numpy(), 16 * x)  # 1 + 0 + 1 + ... + 5


@pytest.mark.parametrize("rows", [1000, 7])
def test_a_scan_over_a_thousand_rows(rows):
    nodes = [helper.make_node("Add", ["state", "row"], ["next"]), helper.make_node("Mul", ["next", "w"], ["out"])]
    body = helper.make_graph(
        nodes, "body", [info("state", [3]), info("row", [3])], [info("next", [3]), info("out", [3])],
    )  # fmt: skip
    node = helper.make_node("Scan", ["start", "x"], ["end", "y"], body=body, num_scan_inputs=1, name="scan")
    module = compiled([node], [info("start", [3]), info("x", ["t", 3]), info("w", [3])],
                      [info("end", None), info("y", None)])  # fmt: skip
    x = np.random.default_rng(0).integers(0, 5, (rows, 3)).astype(np.float32)
    w = np.array([1, 2, 3], np.float32)
    end, y = module(np.zeros(3, np.float32), x, w)
    np.testing.assert_array_equal(end.numpy(), x.sum(0))
    np.testing.assert_array_equal(y.numpy(), np.cumsum(x, 0) * w)


def growing(first, step_nodes, inputs, outputs, shape=None, initializers=()):
    """A loop that carries one value, `list` -> `longer`, and stacks nothing."""
    body = helper.make_graph(
        [*step_nodes, helper.make_node("Identity", ["goes_on"], ["goes_on_next"])], "body",
        [info("i", [], INT64), info("goes_on", [], BOOL), info("list", None)],
        [info("goes_on_next", [], BOOL), info("longer", None)], list(initializers),
    )  # fmt: skip
    loop = helper.make_node("Loop", ["trips", "", first], ["all"], body=body, name="grow")
    return compiled([loop, helper.make_node("Neg", ["all"], ["y"])], inputs, outputs, shape=shape)


def test_a_carried_value_of_size_1_broadcasts():
    """[1] + [n] is [n]: in the first iteration the carried value is laid out, later it is added as it is."""
    module = growing(
        "start", [helper.make_node("Add", ["list", "x"], ["longer"])],
        [info("trips", [], INT64), info("start", [1]), info("x", ["n"])], [info("y", None)],
    )  # fmt: skip
    for n, trips in ((5, 3), (1, 4), (4, 0), (0, 2)):
        start, x = np.array([7], np.float32), np.arange(n, dtype=np.float32)
        expected = -(start + trips * x) if trips else -start
        np.testing.assert_array_equal(module(np.array(trips), start, x)[0].numpy(), expected)


def test_sizes_of_an_iteration_are_checked_in_the_body():
    """The body adds its first i + 1 elements to a carried value: right only where there are as many, or one."""
    one = constant("one", np.array([1], np.int64))
    nodes = [
        helper.make_node("Unsqueeze", ["i", "zero"], ["at"]),
        helper.make_node("Add", ["at", "one"], ["end"]),
        helper.make_node("Slice", ["x", "zero", "end"], ["part"]),
        helper.make_node("Add", ["list", "part"], ["longer"]),
    ]
    module = growing(
        "start", nodes, [info("trips", [], INT64), info("start", ["m"]), info("x", [6])], [info("y", None)],
        initializers=[one, constant("zero", np.array([0], np.int64))],
    )  # fmt: skip
    x = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(module(np.array(1), np.ones(1, np.float32), x)[0].numpy(), [-1])
    np.testing.assert_array_equal(module(np.array(2), np.ones(2, np.float32), x)[0].numpy(), [-1, -2])
    np.testing.assert_array_equal(module(np.array(2), np.ones(1, np.float32), x)[0].numpy(), [-1, -2])
    with pytest.raises(ArgumentError, match="grow"):
        module(np.array(2), np.ones(3, np.float32), x)


def test_branches_of_which_one_gives_size_1_broadcast():
    then = helper.make_graph([helper.make_node("Exp", ["x"], ["t"])], "then", [], [info("t", None)])
    other = helper.make_graph(
        [helper.make_node("ReduceSum", ["x"], ["e"], keepdims=1)], "else", [], [info("e", None)]
    )
    nodes = [
        helper.make_node("If", ["c"], ["z"], then_branch=then, else_branch=other, name="choose"),
        helper.make_node("Sub", ["x", "z"], ["y"]),
    ]
    module = compiled(nodes, [info("c", [], BOOL), info("x", ["n"])], [info("y", None)])
    for n in (4, 1):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_allclose(module(np.array(True), x)[0].numpy(), x - np.exp(x), rtol=1e-5)
        np.testing.assert_array_equal(module(np.array(False), x)[0].numpy(), x - x.sum())


def test_an_inner_loop_carries_what_the_outer_one_carries():
    """Both sequences grow: a size of the outer loop is not one of the inner loop, although both change."""
    inner_body = helper.make_graph(
        [helper.make_node("Concat", ["inner", "x"], ["longer"], axis=0), helper.make_node("Identity", ["g"], ["h"])],
        "inner", [info("j", [], INT64), info("g", [], BOOL), info("inner", None)],
        [info("h", [], BOOL), info("longer", None)],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["i", "", "list"], ["longer"], body=inner_body)]
    module = growing("x", nodes, [info("trips", [], INT64), info("x", ["n"])], [info("y", None)])
    x = np.array([1, 2], np.float32)
    for trips in (4, 0, 1):
        times = 1 + trips * (trips - 1) // 2
        np.testing.assert_array_equal(module(np.array(trips), x)[0].numpy(), -np.tile(x, times))


def test_a_loop_of_a_condition_alone_collects_as_many_results_as_there_are():
    nodes = [
        helper.make_node("Mul", ["v", "two"], ["w"]),
        helper.make_node("Less", ["w", "limit"], ["goes_on_next"]),
        helper.make_node("Identity", ["v"], ["seen"]),
    ]
    body = helper.make_graph(
        nodes, "body", [info("i", [], INT64), info("goes_on", [], BOOL), info("v", [])],
        [info("goes_on_next", [], BOOL), info("w", []), info("seen", [])],
        [constant("two", np.array(2, np.float32))],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["", "go", "start"], ["end", "all"], body=body, name="double")
    module = compiled([loop, helper.make_node("Neg", ["all"], ["y"])],
                      [info("go", [], BOOL), info("start", []), info("limit", [])],
                      [info("end", None), info("y", None)])  # fmt: skip
    for limit, seen in ((100, [1, 2, 4, 8, 16, 32, 64]), (2, [1])):
        end, y = module(np.array(True), np.array(1, np.float32), np.array(limit, np.float32))
        np.testing.assert_array_equal(y.numpy(), -np.array(seen, np.float32))
        assert end.numpy() == 2 * seen[-1]
    end, y = module(np.array(False), np.array(3, np.float32), np.array(9, np.float32))
    assert end.numpy() == 3 and y.shape == (0,)


def test_a_body_whose_results_depend_on_its_values():
    """Each iteration appends the positions of nonzero elements, of data-dependent number."""
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["row"]),
        helper.make_node("NonZero", ["row"], ["found"]),
        helper.make_node("Concat", ["list", "found"], ["longer"], axis=1),
    ]
    module = growing("start", nodes, [info("trips", [], INT64), info("start", [1, 0], INT64), info("x", ["t", "n"])],
                     [info("y", None, INT64)])  # fmt: skip
    x = np.array([[0, 1, 1], [0, 0, 0], [2, 0, 5]], np.float32)
    y = module(np.array(3), np.zeros((1, 0), np.int64), x)[0].numpy()
    np.testing.assert_array_equal(y, [[-1, -2, 0, -2]])


@pytest.mark.parametrize("trips", [50, 1000])
def test_an_iteration_allocates_and_copies_the_same_however_many_there_are(monkeypatch, trips):
    """Counted: bytes that the executor allocates for results and copies, and graphs that it makes runners of."""
    counted = {"bytes": 0, "runners": 0}
    make, init = dynamic.empty, dynamic.DynamicRunner.__init__

    def counting(shape, *args):
        made = make(shape, *args)
        counted["bytes"] += made.nbytes
        return made

    def counting_init(self, *args):
        counted["runners"] += 1
        init(self, *args)

    for module in (dynamic, runners, frames, compiled_loop):
        monkeypatch.setattr(module, "empty", counting)
    monkeypatch.setattr(dynamic.DynamicRunner, "__init__", counting_init)
    node = helper.make_node("Loop", ["trips", "", "start"], ["end", "stack"], body=accumulate(), name="sum")
    module = compiled([node], [info("trips", [], INT64), info("start", ["n"]), info("x", ["n"])],
                      [info("end", None), info("stack", None)])  # fmt: skip
    x = np.ones(256, np.float32)
    module(np.array(trips), np.zeros(256, np.float32), x)
    assert counted["runners"] == 1  # the loop is compiled code
    assert counted["bytes"] <= 3 * (trips + 10) * x.nbytes


def test_growing_loop_values_are_reallocated_seldom(monkeypatch):
    arenas: list[int] = []
    make = dynamic.empty

    def counting(shape, dtype, *args):
        arenas.extend([shape[0]] if dtype == "uint8" else [])
        return make(shape, dtype, *args)

    monkeypatch.setattr(frames, "empty", counting)
    nodes = [helper.make_node("Concat", ["list", "x"], ["twice"], axis=0),
             helper.make_node("CumSum", ["twice", "axis"], ["sums"]),
             helper.make_node("Neg", ["sums"], ["longer"])]  # fmt: skip
    module = growing("x", nodes, [info("trips", [], INT64), info("x", [64])], [info("y", None)],
                     initializers=[constant("axis", np.array(0, np.int64))])  # fmt: skip
    module(np.array(200), np.zeros(64, np.float32))
    assert 0 < len(arenas) < 40


def test_the_profile_counts_the_kernels_of_loops():
    node = helper.make_node("Loop", ["trips", "", "start"], ["end", "stack"], body=accumulate(), name="sum")
    nodes = [node, helper.make_node("Exp", ["end"], ["y"], name="last")]
    module = compiled(nodes, [info("trips", [], INT64), info("start", ["n"]), info("x", ["n"])], [info("y", None)])
    x = np.ones(8, np.float32)
    report = module.profile(repeat=2, trips=np.array(7), start=x, x=x)
    counts = {call.ops: call.count for call in report}
    assert counts == {"exp": 1, "add": 7}
    (step,) = [call for call in report if call.ops == "add"]
    assert step.name.startswith("sum: ") and step.seconds > 0
    assert step.shapes == "float32[8]" and step.bytes == 7 * 4 * 3 * 8  # of all executions
    assert [call.ops for call in module.profile(repeat=1, trips=np.array(0))] == ["exp"]


def test_control_flow_in_specialisations():
    node = helper.make_node("Loop", ["trips", "", "start"], ["end", "stack"], body=accumulate(), name="sum")
    graph = helper.make_graph([node], "control", [info("trips", [], INT64), info("start", ["n"]), info("x", ["n"])],
                              [info("end", None), info("stack", None)])  # fmt: skip
    mod, _ = from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    module = graph_executor.GraphModule(relay.build(mod, specialize={"n": [4]})["default"](device("cpu", 0)))
    for n in (4, 5):
        x = np.arange(n, dtype=np.float32)
        end, stack = module(np.array(3), x, x)
        np.testing.assert_array_equal(end.numpy(), 4 * x)
        np.testing.assert_array_equal(stack.numpy(), np.arange(2, 5)[:, None] * x)


def test_a_result_of_which_only_the_size_is_used_is_computed():
    """Only the shape of the loop's result is used, outside and in another body."""
    grow = helper.make_graph(
        [helper.make_node("Concat", ["list", "x"], ["longer"], axis=0), helper.make_node("Identity", ["g"], ["h"])],
        "grow", [info("i", [], INT64), info("g", [], BOOL), info("list", None)],
        [info("h", [], BOOL), info("longer", None)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Loop", ["trips", "", "x"], ["all"], body=grow, name="grow"),
        helper.make_node("Shape", ["all"], ["shape"]),
    ]
    inputs = [info("trips", [], INT64), info("x", [2, 3])]
    x = np.zeros((2, 3), np.float32)
    module = compiled(nodes, inputs, [info("shape", None, INT64)])
    assert module(np.array(3), x)[0].numpy().tolist() == [8, 3]
    then = helper.make_graph([helper.make_node("Expand", ["one", "shape"], ["t"])], "then", [], [info("t", None)])
    other = helper.make_graph([helper.make_node("Neg", ["one"], ["e"])], "else", [], [info("e", None)])
    choose = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other, name="choose")
    module = compiled([*nodes, choose], [*inputs, info("c", [], BOOL)], [info("y", [None, None])],
                      [constant("one", np.ones((1, 1), np.float32))])  # fmt: skip
    np.testing.assert_array_equal(module(np.array(2), x, np.array(True))[0].numpy(), np.ones((6, 3)))
    np.testing.assert_array_equal(module(np.array(2), x, np.array(False))[0].numpy(), [[-1]])


def test_a_body_waits_for_a_size_that_is_computed_around_it():
    """The body fills a tensor of a computed size, its only captured value."""
    fill = helper.make_node("ConstantOfShape", ["size"], ["filled"])
    nodes = [fill, helper.make_node("ReduceSum", ["filled"], ["sum"], keepdims=0),
             helper.make_node("Shape", ["filled"], ["measured"]),
             helper.make_node("Cast", ["measured"], ["m"], to=FLOAT),
             helper.make_node("Squeeze", ["m"], ["n"]), helper.make_node("Add", ["list", "n"], ["a"]),
             helper.make_node("Add", ["a", "sum"], ["longer"])]  # fmt: skip
    body = helper.make_graph(
        [*nodes, helper.make_node("Identity", ["g"], ["h"])], "body",
        [info("i", [], INT64), info("g", [], BOOL), info("list", [])], [info("h", [], BOOL), info("longer", [])],
    )  # fmt: skip
    around = [
        helper.make_node("NonZero", ["x"], ["at"]),
        helper.make_node("Shape", ["at"], ["shape"]),
        helper.make_node("Slice", ["shape", "one", "two"], ["size"]),
        helper.make_node("Loop", ["trips", "", "start"], ["y"], body=body, name="fill"),
    ]
    module = compiled(around, [info("trips", [], INT64), info("x", ["n"]), info("start", [])], [info("y", [])],
                      [constant("one", np.array([1])), constant("two", np.array([2]))])  # fmt: skip
    x = np.array([0, 1, 2, 0, 3], np.float32)
    assert module(np.array(4), x, np.array(1, np.float32))[0].numpy() == 13


@pytest.mark.parametrize("negated", [False, True])
def test_an_axis_is_taken_away_where_its_size_is_one(negated):
    """torch's export of `squeeze(1)`: one version of the model for a size of 1, one for others."""
    then = helper.make_graph([helper.make_node("Squeeze", ["x", "axis"], ["t"])], "then", [], [info("t", None)])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["e"])], "else", [], [info("e", None)])
    branches = dict(zip(("then_branch", "else_branch"), (other, then) if negated else (then, other), strict=True))
    nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "second"], ["size"]),
             helper.make_node("Equal", ["size", "second"], ["one"]),
             helper.make_node("Not" if negated else "Cast", ["one"], ["c"], **({} if negated else {"to": BOOL})),
             helper.make_node("If", ["c"], ["z"], name="maybe", **branches),
             helper.make_node("Relu", ["z"], ["y"])]  # fmt: skip
    weights = [constant("second", np.array(1)), constant("axis", np.array([1]))]
    module = compiled(nodes, [info("x", ["a", "b"])], [info("y", None)], weights)
    assert [module(np.ones((3, n), np.float32))[0].shape for n in (4, 1, 0, 1)] == [(3, 4), (3,), (3, 0), (3,)]
    module = compiled(nodes, [info("x", ["a", "b"])], [info("y", None)], weights, shape={"b": 1})
    assert module(np.ones((3, 1), np.float32))[0].shape == (3,)


def test_equal_branches_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of branch is optimised once, of a chain of Ifs and of a tree of them inside each other."""

    def branch(name: str, nodes: list[NodeProto]) -> GraphProto:
        return helper.make_graph(nodes, name, [], [info(nodes[-1].output[0], [2, 3])])

    def scaled(x: str, y: str, factor: str) -> GraphProto:
        return branch(y, [helper.make_node("Mul", [x, factor], [y])])

    def choice(y: str, then: GraphProto, otherwise: GraphProto) -> NodeProto:
        return helper.make_node("If", ["c"], [y], then_branch=then, else_branch=otherwise)

    def tree(name: str, depth: int) -> NodeProto:
        one, other = [
            branch(name + side, [tree(name + side, depth - 1)]) if depth else scaled("x", name + side, factor)
            for side, factor in (("a", "two"), ("b", "three"))
        ]
        return choice(name, one, other)

    nodes = [tree("t", 4)]
    for i in range(20):
        x = nodes[-1].output[0]
        nodes.append(choice(f"y{i}", scaled(x, f"a{i}", "two"), scaled(x, f"b{i}", "three")))
    optimized = 0
    prepared = driver._prepared

    def counted(body: Function, target: Target) -> Function:
        nonlocal optimized
        optimized += 1
        return prepared(body, target)

    monkeypatch.setattr(driver, "_prepared", counted)
    weights = [numpy_helper.from_array(np.float32(v), name) for v, name in ((2, "two"), (3, "three"))]
    inputs = [info("x", [2, 3]), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [info("y19", [2, 3])], weights)
    lib = relay.build(from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))[0])
    assert optimized == 2 + 4  # the two products, and a branch of each depth of the tree
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    for c in (True, False):
        module.set_input("x", data)
        module.set_input("c", np.array(c))
        module.run()
        np.testing.assert_allclose(module.get_output(0).numpy(), data * (2.0 if c else 3.0) ** 21, rtol=1e-5)
