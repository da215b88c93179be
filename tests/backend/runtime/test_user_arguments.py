"""Values that users pass from Python: positions, names, lists of numbers, inputs named like parameters."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay, te
from relayc.backend.runtime import ArgumentError, RelaycError, device, set_num_threads
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.relay.transform import PassContext
from relayc.te.errors import CompileError

X = np.ones((2, 3), np.float32)


def executor_of(name: str = "x", dtype: str = "float32", shape: tuple[int, ...] = (2, 3)) -> GraphModule:
    x = relay.var(name, shape=shape, dtype=dtype)
    return GraphModule(relay.build(relay.Function((x,), x + x))["default"](device("cpu")))


@pytest.fixture(scope="module")
def executor() -> GraphModule:
    made = executor_of()
    made.run(x=X)
    return made


@pytest.mark.parametrize("key", [0.5, "nothing", -1, 1, True, np.True_, 2**70, None, [0], b"x"], ids=repr)
def test_what_is_no_position_or_name_is_refused(executor, key):
    for method in (executor.get_output, executor.get_input, executor.get_input_index):
        with pytest.raises(ArgumentError, match=r"model 'default' has no (in|out)put"):
            method(key)
    with pytest.raises(ArgumentError, match="has no input"):
        executor.set_input(key, X)


@pytest.mark.parametrize("key", [0, np.int64(0), np.uint8(0), np.array(0)])
def test_integers_of_numpy_are_positions(executor, key):
    assert executor.get_input_index(key) == 0
    np.testing.assert_array_equal(executor.get_output(key).numpy(), 2 * X)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_get_output_returns_the_array_that_it_fills(is_dynamic):
    size = te.var("n") if is_dynamic else 2
    x = relay.var("x", shape=(size, 3))
    executor = GraphModule(relay.build(relay.Function((x,), x + x))["default"](device("cpu")))
    executor.run(x=X)
    out = np.zeros((2, 3), np.float32)
    assert executor.get_output(0, out=out) is out
    np.testing.assert_array_equal(out, 2 * X)
    with pytest.raises(ArgumentError):
        executor.get_output(0, out=np.zeros((3, 3), np.float32))


@pytest.mark.parametrize(
    "name", ["key", "value", "self", "args", "dev", "func_name", "inputs", "name", "index", "out", "end_to_end"]
)
def test_inputs_may_be_named_like_parameters(name):
    executor = executor_of(name)
    (result,) = executor(**{name: X})
    np.testing.assert_array_equal(result.numpy(), 2 * X)
    executor.set_input(**{name: 2 * X})
    executor.run()
    np.testing.assert_array_equal(executor.get_output(0).numpy(), 4 * X)
    executor.run(**{name: X})
    assert len(executor.profile(**{name: X})) == 1
    if name != "end_to_end":
        assert executor.benchmark(repeat=1, number=1, **{name: X}).mean > 0


def test_an_input_named_like_an_option_of_a_measurement_is_set_before():
    executor = executor_of("repeat")
    executor.set_input("repeat", X)
    assert executor.benchmark(repeat=1, number=1).mean > 0
    for method in (executor.benchmark, executor.profile):
        with pytest.raises(ArgumentError, match=r"(?s)repeat is array.*expected a positive integer"):
            method(repeat=X)


def test_a_value_by_position_and_by_name_is_refused(executor):
    with pytest.raises(ArgumentError, match=r"inputs \['x'\] are passed twice"):
        executor(X, x=X)
    with pytest.raises(ArgumentError, match=r"inputs \['x'\] are passed twice"):
        executor.set_input(0, X, x=X)


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        ("int64", [1.5, 2.5], "got a list that holds a float; expected int64.*astype"),
        ("int64", [1.0, 2.0], "got a list that holds a float"),
        ("int64", [np.float32(1.5), 1], "got a list that holds a float32"),
        ("int64", [2**70, 1], "no array of int64"),
        ("int64", ["1", "2"], "got a list that holds a str"),
        ("uint8", [300, 1], "no array of uint8.*300"),
        ("uint8", [-1, 1], "no array of uint8.*-1"),
        ("bool", [0, 1], "got a list that holds a int; expected bool"),
        ("float32", [1j, 2], "no array of float32"),
        ("float32", [10**400, 2], "no array of float32"),
    ],
)
def test_lists_are_not_converted_to_another_kind(dtype, value, text):
    x = relay.var("x", shape=(2,), dtype=dtype)
    executor = GraphModule(relay.build(relay.Function((x,), relay.op.reshape(x, (2, 1))))["default"](device("cpu")))
    with pytest.raises(ArgumentError, match=f"input 'x' of model 'default': {text}"):
        executor.set_input("x", value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int64", [True, False]), ("uint64", [2**63, 1]), ("float32", [2**70, 1]), ("float32", [1, True]), ("int8", [])],
)
def test_lists_of_values_that_fit_are_converted(dtype, value):
    executor = executor_of(dtype=dtype, shape=(len(value),))
    executor.set_input("x", value)
    np.testing.assert_array_equal(executor.get_input("x").numpy(), np.array(value, dtype))


@pytest.mark.parametrize("count", ["2", 0, -1, 2.5, True])
def test_numbers_of_threads_are_positive_integers(executor, count):
    for method in (executor.set_num_threads, executor.clone, set_num_threads):
        with pytest.raises(ArgumentError, match="expected a positive integer"):
            method(count)


@pytest.mark.parametrize("level", [5, 9, -1, "3", 2.5, True, None, 2**70])
def test_levels_that_there_are_not_are_refused(level):
    with pytest.raises(CompileError, match=r"opt_level is .*; expected a number, 0 to 4"):
        PassContext(opt_level=level)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("relay.winograd", 3, "one of auto, f2, f4, off"),
        ("relay.batch_slices", True, "one of auto, off"),
        ("relay.ToMixedPrecision.dtype", "float31", "one of float16, bfloat16"),
        ("relay.FuseOps.max_size", "x", "an integer of 1 or more"),
        ("relay.FuseOps.max_size", 0, "an integer of 1 or more"),
        ("relay.FoldConstant.max_bytes", 1.5, "an integer of 0 or more"),
        ("relay.FoldConstant.max_macs", True, "an integer of 0 or more"),
        ("llvm.fast_math", "yes", "bool"),
        ("llvm.fast_math", 1, "bool"),
        ("relay.tuning.records", 3, "str or PathLike or None"),
    ],
)
def test_options_of_another_kind_are_refused(option, value, text):
    with pytest.raises(CompileError, match=f"option {option} is {value!r}; expected {text}"):
        PassContext(config={option: value})


@pytest.mark.parametrize(
    "settings",
    [
        {"disabled_pass": "FuseOps"}, {"required_pass": [3]}, {"required_pass": 3}, {"instruments": [3]},
        {"config": 3}, {"config": ["relay.winograd"]}, {"config": {3: 4}}, {"config": {"nothing": 1}},
    ],
)  # fmt: skip
def test_settings_of_another_kind_are_refused(settings):
    with pytest.raises(CompileError):
        PassContext(**settings)


def test_every_declared_default_is_legal():
    with PassContext(config={name: default for name, (default, _) in PassContext.list_options().items()}):
        executor_of()


def test_the_debug_executor_refuses_unknown_names():
    x = relay.var("x", shape=(2, 3))
    run = relay.create_executor("debug", relay.IRModule.from_expr(relay.Function((x,), x + x))).evaluate()
    with pytest.raises(CompileError, match="no input is named y; the inputs are: x"):
        run(X, y=X)


def test_errors_of_arguments_are_errors_of_the_package():
    assert issubclass(ArgumentError, RelaycError)
