"""Sequences of dynamic length, from ONNX to results."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor, sequences
from relayc.backend.runtime.errors import ArgumentError
from relayc.frontends.onnx import OnnxImportError, UnsupportedOperatorError, from_onnx
from tests.frontends.sequence_models import (
    BOOL,
    EMPTY,
    FLOAT,
    INT64,
    TRIPS,
    Compiled,
    appending,
    assert_same,
    body,
    check,
    constant,
    f,
    info,
    model_of,
    n,
    sequence,
)

# sequences built by loops ---------------------------------------------------------------------------------------------


def rows_of_x():
    return [helper.make_node("Gather", ["x", "i"], ["at"]), helper.make_node("Tanh", ["at"], ["row"])]


@pytest.mark.parametrize("axis, new_axis", [(0, 0), (1, 0), (0, 1), (1, 1), (-1, 1), (-1, 0)])
def test_appended_in_a_loop_and_concatenated(axis, new_axis):
    """`ys = []; for i in range(n): ys.append(tanh(x[i])); return torch.cat(ys, axis)`, or `torch.stack`."""
    nodes = [
        EMPTY,
        helper.make_node("Loop", ["trips", "always", "empty"], ["all"], body=appending(rows_of_x()), name="loop"),
        helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=axis, new_axis=new_axis),
        helper.make_node("SequenceLength", ["all"], ["length"]),
    ]
    model = model_of(nodes, [TRIPS, info("x", ["t", 2, 3])], [info("y"), info("length", [], INT64), sequence("all")])
    check(model, (n(5), f(7, 2, 3)), (n(1), f(1, 2, 3)), (n(7), f(7, 2, 3)))


def test_elements_of_different_sizes():
    """x[:i + 1] and x[:2 * i]: the sizes differ from element to element, so they are joined along that axis."""
    nodes = [
        helper.make_node("Add", ["i", "one"], ["end"]),
        helper.make_node("Slice", ["x", "zero", "end"], ["row"]),
    ]
    part = [helper.make_node("Unsqueeze", ["i", "zero"], ["at"])]
    nodes = [*part, helper.make_node("Add", ["at", "one"], ["end"]), nodes[1]]
    loop = helper.make_node("Loop", ["trips", "always", "empty"], ["all"], body=appending(nodes), name="loop")
    model = model_of(
        [EMPTY, loop, helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=0)],
        [TRIPS, info("x", [6, 2])], [info("y"), sequence("all")],
        [constant("one", [1]), constant("zero", [0])],
    )  # fmt: skip
    check(model, (n(4), f(6, 2)), (n(6), f(6, 2)), (n(1), f(6, 2)))


def test_joined_along_an_inner_axis_of_different_sizes():
    nodes = [
        helper.make_node("Unsqueeze", ["i", "zero"], ["at"]),
        helper.make_node("Add", ["at", "one"], ["end"]),
        helper.make_node("Slice", ["x", "zero", "end", "one"], ["row"]),
    ]
    loop = helper.make_node("Loop", ["trips", "always", "empty"], ["all"], body=appending(nodes), name="loop")
    model = model_of(
        [EMPTY, loop, helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=1)],
        [TRIPS, info("x", ["b", 6, 2])], [info("y")], [constant("one", [1]), constant("zero", [0])],
    )  # fmt: skip
    check(model, (n(4), f(3, 6, 2)), (n(2), f(1, 6, 2)))


def test_a_recurrent_network_as_a_loop_over_a_sequence():
    """`h = cell(x[t], h); hs.append(h)` and `torch.stack(hs, 1)`: a carried tensor and a carried sequence."""
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["x_t"], axis=1),
        helper.make_node("MatMul", ["x_t", "w"], ["in"]),
        helper.make_node("MatMul", ["h", "u"], ["back"]),
        helper.make_node("Add", ["in", "back"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["h_next"]),
        helper.make_node("SequenceInsert", ["list", "h_next"], ["longer"]),
    ]
    graph = body(nodes, [info("h"), sequence("list")], [info("h_next"), sequence("longer")])
    around = [
        helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "one"], ["length"]), EMPTY,
        helper.make_node("Loop", ["length", "always", "start", "empty"], ["h_last", "hs"], body=graph, name="cell"),
        helper.make_node("ConcatFromSequence", ["hs"], ["y"], axis=1, new_axis=1),
    ]  # fmt: skip
    model = model_of(around, [info("x", ["b", "t", 4]), info("start", ["b", 8])], [info("y"), info("h_last")],
                     [constant("one", 1), constant("w", f(4, 8, seed=1)), constant("u", f(8, 8, seed=2))])  # fmt: skip
    check(model, (f(2, 5, 4), f(2, 8, seed=3)), (f(1, 20, 4), f(1, 8, seed=4)), (f(3, 1, 4), f(3, 8, seed=5)))


def test_an_input_sequence_is_extended_and_read_in_a_loop():
    """Fibonacci: `xs.append(xs[-1] + xs[-2])`."""
    nodes = [
        helper.make_node("SequenceAt", ["list", "last"], ["a"]),
        helper.make_node("SequenceAt", ["list", "second"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["row"]),
    ]
    around = [
        helper.make_node("SequenceConstruct", ["x", "y"], ["start"]),
        helper.make_node("Loop", ["trips", "always", "start"], ["all"], body=appending(nodes)),
        helper.make_node("SequenceAt", ["all", "at"], ["z"]),
    ]
    model = model_of(around, [TRIPS, info("x", ["n"]), info("y", ["n"]), info("at", [], INT64)],
                     [info("z"), sequence("all")], [constant("last", -1), constant("second", -2)])  # fmt: skip
    one = np.ones(2, np.float32)
    check(model, (n(6), one, one, n(7)), (n(0), one, one, n(-1)), (n(3), 2 * one, one, n(-3)))


def test_insertion_and_erasure_at_computed_positions():
    nodes = [
        helper.make_node("SequenceLength", ["list"], ["length"]),
        helper.make_node("Mod", ["i", "length"], ["at"]),
        helper.make_node("Cast", ["i"], ["number"], to=FLOAT),
        helper.make_node("Add", ["x", "number"], ["row"]),
        helper.make_node("SequenceInsert", ["list", "row", "at"], ["longer"]),
        helper.make_node("SequenceInsert", ["longer", "x"], ["longest"]),
        helper.make_node("SequenceErase", ["longest", "first"], ["shorter"]),
    ]
    graph = body(nodes, [sequence("list")], [sequence("shorter")])
    around = [
        helper.make_node("SequenceConstruct", ["x", "x", "x"], ["start"]),
        helper.make_node("Loop", ["trips", "always", "start"], ["all"], body=graph),
    ]
    model = model_of(around, [TRIPS, info("x", [2])], [sequence("all")], [constant("first", 0)])
    check(model, (n(0), f(2)), (n(1), f(2)), (n(9), f(2)))


def test_the_last_element_is_erased():
    nodes = [helper.make_node("SequenceErase", ["list"], ["shorter"])]
    graph = body(nodes, [sequence("list")], [sequence("shorter")])
    around = [
        helper.make_node("SplitToSequence", ["x"], ["start"], axis=0, keepdims=0),
        helper.make_node("Loop", ["trips", "always", "start"], ["all"], body=graph),
    ]
    model = model_of(around, [TRIPS, info("x", ["t", 2])], [sequence("all")])
    check(model, (n(3), f(5, 2)), (n(4), f(4, 2)))


def test_nested_loops_append_to_one_sequence():
    inner = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "x"], ["xx"]),
            helper.make_node("SequenceInsert", ["inner", "xx"], ["inner_next"]),
            helper.make_node("Identity", ["on"], ["on_next"]),
        ],
        "inner", [info("j", [], INT64), info("on", [], BOOL), sequence("inner")],
        [info("on_next", [], BOOL), sequence("inner_next")],
    )  # fmt: skip
    outer = body([helper.make_node("Loop", ["i", "always", "list"], ["longer"], body=inner)],
                 [sequence("list")], [sequence("longer")])  # fmt: skip
    model = model_of([EMPTY, helper.make_node("Loop", ["trips", "always", "empty"], ["all"], body=outer)],
                     [TRIPS, info("x", ["n"])], [sequence("all")])  # fmt: skip
    check(model, (n(4), f(3)), (n(1), f(3)), (n(0), f(2)))


def test_an_element_of_an_iteration_outlives_it():
    """The inner sequence is rebuilt in each iteration of the outer loop, from tensors that the iteration computes."""
    inner = helper.make_graph(
        [
            helper.make_node("SequenceInsert", ["inner", "row"], ["inner_next"]),
            helper.make_node("Identity", ["on"], ["on_next"]),
        ],
        "inner", [info("j", [], INT64), info("on", [], BOOL), sequence("inner")],
        [info("on_next", [], BOOL), sequence("inner_next")],
    )  # fmt: skip
    nodes = [
        helper.make_node("Cast", ["i"], ["number"], to=FLOAT),
        helper.make_node("Add", ["x", "number"], ["row"]),
        helper.make_node("Loop", ["two", "always", "list"], ["longer"], body=inner),
    ]
    model = model_of(
        [EMPTY, helper.make_node("Loop", ["trips", "always", "empty"], ["all"],
                                 body=body(nodes, [sequence("list")], [sequence("longer")]))],
        [TRIPS, info("x", ["n"]), info("two", [], INT64)], [sequence("all")],
    )  # fmt: skip
    check(model, (n(4), f(3), n(2)), (n(2), f(1), n(1)))


def test_a_branch_may_return_its_input_in_each_iteration():
    """The tensor of one iteration must not be overwritten by the next."""
    then = helper.make_graph([helper.make_node("Identity", ["t"], ["a"])], "then", [], [info("a")])
    other = helper.make_graph([helper.make_node("Neg", ["t"], ["b"])], "else", [], [info("b")])
    nodes = [
        helper.make_node("Reciprocal", ["carried"], ["r"]),
        helper.make_node("CumSum", ["r", "zero"], ["t"]),
        helper.make_node("If", ["c"], ["next"], then_branch=then, else_branch=other),
    ]
    graph = body(nodes, [info("carried")], [info("next")])
    model = model_of(
        [helper.make_node("Loop", ["trips", "always", "x"], ["y"], body=graph)],
        [TRIPS, info("x", [5]), info("c", [], BOOL)], [info("y")], [constant("zero", 0)],
    )  # fmt: skip
    x = np.arange(1, 6, dtype=np.float32)
    check(model, (n(3), x, np.array(True)), (n(4), x, np.array(False)))


# parts of tensors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1])
def test_a_tensor_of_dynamic_length_is_split_and_mapped(axis):
    doubled = helper.make_graph(
        [helper.make_node("Mul", ["e", "w"], ["d"]), helper.make_node("ReduceSum", ["d", "axes"], ["s"], keepdims=1)],
        "map", [info("e")], [info("s"), info("d")],
    )  # fmt: skip
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=axis, keepdims=1),
        helper.make_node("SequenceMap", ["parts"], ["sums", "scaled"], body=doubled, name="map"),
        helper.make_node("ConcatFromSequence", ["scaled"], ["y"], axis=axis),
    ]
    model = model_of(nodes, [info("x", ["a", "b"]), info("w", [1])], [sequence("sums"), info("y")],
                     [constant("axes", [1])])  # fmt: skip

    def expected(x, w):
        parts = [x[i : i + 1] if axis == 0 else x[:, i : i + 1] for i in range(x.shape[axis])]
        return [[(p * w).sum(1, keepdims=True) for p in parts], x * w]

    check(model, (f(5, 3), f(1)), (f(1, 4), f(1)), expected=expected)


def test_splits_that_are_computed():
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"], ["parts"], axis=1, name="split"),
        helper.make_node("SequenceLength", ["parts"], ["length"]),
        helper.make_node("SequenceAt", ["parts", "one"], ["second"]),
        helper.make_node("Neg", ["second"], ["y"]),
    ]
    model = model_of(nodes, [info("x", [2, "n", 3]), info("sizes", ["k"], INT64)],
                     [sequence("parts"), info("length", [], INT64), info("y")], [constant("one", 1)])  # fmt: skip
    compiled = check(model, (f(2, 6, 3), n([1, 2, 3])), (f(2, 4, 3), n([0, 4])), (f(2, 4, 3), n([2, 2, 0, 0])))
    with pytest.raises(ArgumentError, match=r"SplitToSequence 'split': parts of \[1, 2\].*add up to 4"):
        compiled(f(2, 4, 3), n([1, 2]))


def test_parts_of_a_size_that_is_computed():
    nodes = [helper.make_node("SplitToSequence", ["x", "size"], ["parts"], axis=0, name="split")]
    model = model_of(nodes, [info("x", ["n", 3]), info("size", [], INT64)], [sequence("parts")])
    compiled = check(model, (f(7, 3), n(3)), (f(6, 3), n(2)), (f(1, 3), n(5)))
    with pytest.raises(ArgumentError, match="parts of 0 elements; expected 1 or more"):
        compiled(f(7, 3), n(0))


def test_rows_repeated_as_often_as_an_input_says():
    """`x.repeat_interleave(r, 0)`: both are cut into parts of size 1, which is the shape a part is expanded to."""
    nodes = [
        helper.make_node("SequenceAt", ["counts", "i"], ["count"]),
        helper.make_node("SequenceAt", ["rows", "i"], ["row"]),
        helper.make_node("Concat", ["count", "two"], ["shape"], axis=0),
        helper.make_node("Expand", ["row", "shape"], ["repeated"]),
        helper.make_node("SequenceInsert", ["list", "repeated"], ["longer"]),
    ]
    ones = helper.make_node("ConstantOfShape", ["length"], ["ones"], value=constant("one", [1]))
    around = [
        helper.make_node("Shape", ["r"], ["length"]),
        ones,
        helper.make_node("SplitToSequence", ["r", "ones"], ["counts"], axis=0),
        helper.make_node("SplitToSequence", ["x", "ones"], ["rows"], axis=0),
        EMPTY,
        helper.make_node("Squeeze", ["length"], ["trips"]),
        helper.make_node("Loop", ["trips", "always", "empty"], ["all"], name="loop",
                         body=body(nodes, [sequence("list")], [sequence("longer")])),
        helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=0),
    ]  # fmt: skip
    model = model_of(around, [info("x", ["n", 2]), info("r", ["n"], INT64)], [info("y")], [constant("two", [2])])
    check(model, (f(3, 2), n([2, 1, 3])), (f(1, 2), n([4])), (f(4, 2), n([1, 0, 2, 5])))


@pytest.mark.parametrize("size", [None, 2])
def test_equal_parts_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    """A million parts took 14 s to copy one by one."""
    sizes = [] if size is None else ["size"]
    nodes = [helper.make_node("SplitToSequence", ["x", *sizes], ["parts"], axis=0),
             helper.make_node("SequenceLength", ["parts"], ["length"]),
             helper.make_node("SequenceAt", ["parts", "at"], ["y"])]  # fmt: skip
    model = model_of(nodes, [info("x", ["n", 3]), info("at", [], INT64)], [info("length", [], INT64), info("y")],
                     [constant("size", size or 1)])  # fmt: skip
    monkeypatch.setattr("relayc.backend.runtime.sequences._parts", pytest.fail)
    check(model, (f(6, 3), n(1)), (f(4, 3), n(0)))


def test_splits_into_many_parts_are_runtime_sequences():
    nodes = [helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0, keepdims=0),
             helper.make_node("SequenceAt", ["parts", "at"], ["y"])]  # fmt: skip
    mod, _ = from_onnx(model_of(nodes, [info("x", [500, 2]), info("at", [], INT64)], [info("y")]))
    lib = relay.build(mod)
    assert not lib.graph.nodes
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    np.testing.assert_array_equal(module(f(500, 2), n(-2))[0].numpy(), f(500, 2)[498])


def test_two_sequences_and_a_tensor_are_mapped_together():
    added = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Mul", ["c", "w"], ["d"])],
        "map", [info("a"), info("b"), info("w")], [info("d")],
    )  # fmt: skip
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["xs"], axis=0),
        helper.make_node("SplitToSequence", ["y"], ["ys"], axis=0),
        helper.make_node("SequenceMap", ["xs", "ys", "w"], ["zs"], body=added, name="map"),
        helper.make_node("ConcatFromSequence", ["zs"], ["z"], axis=0),
    ]
    model = model_of(nodes, [info("x", ["m", 2]), info("y", ["k", 2]), info("w", [2])], [info("z")])
    compiled = check(model, (f(4, 2), f(4, 2, seed=1), f(2)), expected=lambda x, y, w: [(x + y) * w])
    with pytest.raises(ArgumentError, match="the lengths of the sequences needs two equal sizes and gets 4 and 3"):
        compiled(f(4, 2), f(3, 2), f(2))


# branches -------------------------------------------------------------------------------------------------------------


def test_a_branch_that_appends():
    then = helper.make_graph([helper.make_node("SequenceInsert", ["xs", "x"], ["a"])], "then", [], [sequence("a")])
    other = helper.make_graph([helper.make_node("SequenceErase", ["xs"], ["b"])], "else", [], [sequence("b")])
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "y"], ["xs"]),
        helper.make_node("If", ["c"], ["zs"], then_branch=then, else_branch=other, name="choose"),
        helper.make_node("ConcatFromSequence", ["zs"], ["z"], axis=0),
    ]
    inputs = [info("c", [], BOOL), info("x", ["n", 2]), info("y", ["m", 2])]
    model = model_of(nodes, inputs, [info("z"), sequence("zs")])
    check(model, (np.array(True), f(3, 2), f(2, 2)), (np.array(False), f(3, 2), f(2, 2)))


def test_branches_choose_between_sequences_around_them():
    then = helper.make_graph([helper.make_node("Identity", ["xs"], ["a"])], "then", [], [sequence("a")])
    other = helper.make_graph([helper.make_node("SequenceEmpty", [], ["b"])], "else", [], [sequence("b")])
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "y"], ["xs"]),
        helper.make_node("If", ["c"], ["zs"], then_branch=then, else_branch=other, name="choose"),
        helper.make_node("SequenceLength", ["zs"], ["length"]),
    ]
    outputs = [sequence("zs"), info("length", [], INT64)]
    model = model_of(nodes, [info("c", [], BOOL), info("x", [3]), info("y", [2, 2])], outputs)
    check(model, (np.array(True), f(3), f(2, 2)), (np.array(False), f(3), f(2, 2)))


def test_a_filter():
    """`if x[i].sum() > 0: ys.append(x[i])`, while the sequence is short."""
    keep = helper.make_graph([helper.make_node("SequenceInsert", ["list", "row"], ["a"])], "then", [], [sequence("a")])
    skip = helper.make_graph([helper.make_node("Identity", ["list"], ["b"])], "else", [], [sequence("b")])
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["row"]),
        helper.make_node("ReduceSum", ["row"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["longer"], then_branch=keep, else_branch=skip),
        helper.make_node("SequenceLength", ["longer"], ["length"]),
        helper.make_node("Less", ["length", "most"], ["goes_on_next"]),
    ]
    graph = helper.make_graph(
        nodes, "body", [info("i", [], INT64), info("goes_on", [], BOOL), sequence("list")],
        [info("goes_on_next", [], BOOL), sequence("longer")],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["trips", "always", "empty"], ["all"], body=graph, name="filter")
    model = model_of([EMPTY, loop], [TRIPS, info("x", ["t", 3])], [sequence("all")],
                     [constant("zero", np.float32(0)), constant("most", 4)])  # fmt: skip
    check(model, (n(10), f(10, 3)), (n(3), f(3, 3)), (n(2), -np.abs(f(2, 3))))


# faults ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "node, message",
    [
        (helper.make_node("SequenceAt", ["all", "at"], ["y"], name="pick"),
         "SequenceAt 'pick': position 9 in a sequence of 3; expected a position from -3 to 2"),
        (helper.make_node("SequenceErase", ["all", "at"], ["y"], name="drop"),
         "SequenceErase 'drop': position 9 in a sequence of 3; expected a position from -3 to 2"),
        (helper.make_node("SequenceInsert", ["all", "x", "at"], ["y"], name="put"),
         "SequenceInsert 'put': position 9 in a sequence of 3; expected a position from -3 to 3"),
    ],
)  # fmt: skip
def test_positions_outside_are_errors_that_name_the_node(node, message):
    loop = helper.make_node("Loop", ["trips", "always", "empty"], ["all"],
                            body=appending([helper.make_node("Neg", ["x"], ["row"])]))  # fmt: skip
    kind = info("y") if node.op_type == "SequenceAt" else sequence("y")
    model = model_of([EMPTY, loop, node], [TRIPS, info("x", [2]), info("at", [], INT64)], [kind])
    compiled = Compiled(model)
    with pytest.raises(ArgumentError) as error:
        compiled(n(3), f(2), n(9))
    assert message in str(error.value)


def test_an_empty_sequence_has_nothing_to_concatenate_and_nothing_to_drop():
    loop = helper.make_node("Loop", ["trips", "always", "empty"], ["all"],
                            body=appending([helper.make_node("Neg", ["x"], ["row"])]))  # fmt: skip
    for op, message in (("ConcatFromSequence", "the sequence is empty; expected at least one element"),
                        ("SequenceErase", "the last element of a sequence of 0")):  # fmt: skip
        attributes = {"axis": 0} if op == "ConcatFromSequence" else {}
        result = info("y") if attributes else sequence("y")
        node = helper.make_node(op, ["all"], ["y"], name="last", **attributes)
        compiled = Compiled(model_of([EMPTY, loop, node], [TRIPS, info("x", [2])], [result]))
        with pytest.raises(ArgumentError, match=f"{op} 'last': {message}"):
            compiled(n(0), f(2))


def test_elements_that_do_not_fit_together():
    nodes = [
        helper.make_node("Unsqueeze", ["i", "zero"], ["at"]), helper.make_node("Add", ["at", "one"], ["end"]),
        helper.make_node("Slice", ["x", "zero", "end", "one"], ["row"]),
    ]  # fmt: skip
    loop = helper.make_node("Loop", ["trips", "always", "empty"], ["all"], body=appending(nodes))
    join = helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=0, name="cat")
    model = model_of([EMPTY, loop, join], [TRIPS, info("x", [2, 6])], [info("y")],
                     [constant("one", [1]), constant("zero", [0])])  # fmt: skip
    compiled = Compiled(model)
    assert_same(compiled(n(1), f(2, 6)), [f(2, 6)[:, :1]])
    with pytest.raises(ArgumentError, match=r"'cat': elements of shapes \(2, 1\), \(2, 2\); expected shapes that fit"):
        compiled(n(2), f(2, 6))


def test_element_types_that_differ_are_rejected():
    nodes = [helper.make_node("Cast", ["x"], ["row"], to=INT64)]
    loop = helper.make_node("Loop", ["trips", "always", "start"], ["all"], body=appending(nodes), name="grow")
    model = model_of([helper.make_node("SequenceConstruct", ["x"], ["start"]), loop], [TRIPS, info("x", [2])],
                     [sequence("all")])  # fmt: skip
    with pytest.raises(OnnxImportError, match=r"append.*float32 and of int64 in one container"):
        from_onnx(model)


def test_constant_strings_at_computed_positions():
    strings = [helper.make_tensor(name, TensorProto.STRING, [1], [name.encode()]) for name in ("a", "b")]
    nodes = [helper.make_node("SequenceConstruct", ["a", "b"], ["xs"]),
             helper.make_node("SequenceErase", ["xs", "at"], ["y"], name="drop")]  # fmt: skip
    model = model_of(nodes, [info("at", [], INT64)], [sequence("y", None, TensorProto.STRING)], strings)
    compiled = Compiled(model)
    assert compiled(np.array(0))[0][0].tolist() == ["b"] and compiled(np.array(-1))[0][0].tolist() == ["a"]


def test_elements_of_several_ranks_are_kept_but_not_taken_out():
    """A sequence may hold them, but operators need the rank of an element."""
    then = helper.make_graph([helper.make_node("SequenceInsert", ["xs", "x"], ["a"])], "then", [], [sequence("a")])
    other = helper.make_graph([helper.make_node("SequenceInsert", ["xs", "y"], ["b"])], "else", [], [sequence("b")])
    nodes = [
        helper.make_node("SequenceConstruct", ["x"], ["xs"]),
        helper.make_node("If", ["c"], ["zs"], then_branch=then, else_branch=other, name="choose"),
    ]
    inputs = [info("c", [], BOOL), info("x", [3]), info("y", [2, 2])]
    check(model_of(nodes, inputs, [sequence("zs")]), (np.array(True), f(3), f(2, 2)), (np.array(False), f(3), f(2, 2)))
    taken = helper.make_node("SequenceAt", ["zs", "one"], ["z"], name="pick")
    with pytest.raises(UnsupportedOperatorError, match=r"pick.*tensors of several ranks"):
        from_onnx(model_of([*nodes, taken], inputs, [info("z")], [constant("one", 1)]))


# what it costs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trips", [100, 1000])
def test_the_work_of_appending_is_linear(monkeypatch, trips):
    """Counts copied references and copied bytes."""
    counted = {"references": 0, "bytes": 0}
    make, move = sequences.ArraySequence.__init__, sequences.copy_strided

    def counting_make(self, items=()):
        counted["references"] += len(items)
        make(self, items)

    def counting_move(*args):
        counted["bytes"] += args[-2] * args[-1]
        move(*args)

    nodes = [EMPTY, helper.make_node("Loop", ["trips", "always", "empty"], ["all"], body=appending(rows_of_x())),
             helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=1)]  # fmt: skip
    compiled = Compiled(model_of(nodes, [TRIPS, info("x", ["t", 64])], [info("y")]))
    monkeypatch.setattr(sequences.ArraySequence, "__init__", counting_make)
    monkeypatch.setattr(sequences, "copy_strided", counting_move)
    x = f(1000, 64)
    assert_same(compiled(n(trips), x), [np.tanh(x[:trips])])
    assert counted["references"] == 0 and counted["bytes"] <= x[:trips].nbytes


def test_a_queue_keeps_only_what_is_in_it():
    """Each iteration appends one tensor and drops the first: memory stays bounded by the sequence."""
    nodes = [
        helper.make_node("Cast", ["i"], ["number"], to=FLOAT),
        helper.make_node("Add", ["x", "number"], ["row"]),
        helper.make_node("SequenceInsert", ["list", "row"], ["longer"]),
        helper.make_node("SequenceErase", ["longer", "zero"], ["next"]),
    ]
    graph = body(nodes, [sequence("list")], [sequence("next")], [constant("zero", 0)])
    around = [helper.make_node("SequenceConstruct", ["x", "x", "x"], ["start"]),
              helper.make_node("Loop", ["trips", "always", "start"], ["all"], body=graph)]  # fmt: skip
    compiled = Compiled(model_of(around, [TRIPS, info("x", [1 << 16])], [sequence("all")]))
    alive, most = 0, 0
    api = device("cpu", 0).api
    alloc, free = api.alloc_data_space, api.free_data_space

    def counting_alloc(*args):
        nonlocal alive, most
        alive, most = alive + 1, max(most, alive + 1)
        return alloc(*args)

    def counting_free(*args):
        nonlocal alive
        alive -= 1
        free(*args)

    api.alloc_data_space, api.free_data_space = counting_alloc, counting_free
    try:
        x = np.zeros(1 << 16, np.float32)
        (xs,) = compiled(n(300), x)
    finally:
        del api.alloc_data_space, api.free_data_space
    assert [v[0] for v in xs] == [297, 298, 299]
    assert most < 30


def test_results_are_the_callers():
    nodes = [EMPTY, helper.make_node("Loop", ["trips", "always", "empty"], ["all"],
                                     body=appending([helper.make_node("Identity", ["x"], ["row"])]))]  # fmt: skip
    compiled = Compiled(model_of(nodes, [TRIPS, info("x", [3])], [sequence("all")]))
    first = compiled.executor(n(2), f(3))[0]
    second = compiled.executor(n(1), f(3, seed=1))[0]
    assert_same([x.numpy() for x in first], [f(3), f(3)])
    assert_same([x.numpy() for x in second], [f(3, seed=1)])
