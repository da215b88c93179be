"""Caches of GroupQueryAttention step by step: kept in place by the executor, and of a window of positions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import relayc
from relayc.frontends.onnx import from_onnx
from relayc.relay.expr import Call
from relayc.relay.op import IfElse
from relayc.runtime import ArgumentError, Device, GraphModule, device
from relayc.te.errors import CompileError
from relayc.te.ir import post_order

HEADS, GROUPS, SIZE, WIDTH = 4, 2, 8, 64
WINDOW = 5
CODES = {TensorProto.INT8: np.int8, TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn}
"""Types of quantised caches."""
rng = np.random.default_rng(0)


def grouped_model(room: int | str = "past", scaled: bool = False, **attrs: Any) -> ModelProto:
    """One node on packed `x` [batch, new, width], with the `total` of positions; `scaled`: with LongRoPE's If."""
    info, kind = helper.make_tensor_value_info, attrs.pop("kind", TensorProto.FLOAT)
    names = ["x", "", "", "past_key", "past_value", "lengths", "total"]
    nodes, constants = [], []
    if scaled:
        constants = [numpy_helper.from_array(np.int32(6), "limit")]
        nodes = [helper.make_node("Greater", ["total", "limit"], ["long"]), helper.make_node(
            "If", ["long"], ["cos", "sin"], then_branch=tables(2.0, 40), else_branch=tables(1.0, 10))]  # fmt: skip
        names += ["cos", "sin"]
        attrs["do_rotary"] = 1
    if kind in CODES:
        constants += [numpy_helper.from_array(np.float32([0.05]), name) for name in ("key_scale", "value_scale")]
        names += [""] * (12 - len(names)) + ["key_scale", "value_scale"]
        attrs.update(k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR", kv_cache_bit_width=8)
    nodes.append(helper.make_node(
        "GroupQueryAttention", names, ["y", "present_key", "present_value"], domain="com.microsoft", num_heads=HEADS,
        kv_num_heads=GROUPS, **attrs,
    ))  # fmt: skip
    past, present = ["batch", GROUPS, room, "size"], ["batch", GROUPS, room if room != "past" else "all", "size"]
    inputs = [
        info("x", TensorProto.FLOAT, ["batch", "new", WIDTH]), info("past_key", kind, past),
        info("past_value", kind, past), info("lengths", TensorProto.INT32, ["batch"]),
        info("total", TensorProto.INT32, []),
    ]  # fmt: skip
    outputs = [
        info("y", TensorProto.FLOAT, ["batch", "new", HEADS * SIZE]), info("present_key", kind, present),
        info("present_value", kind, present),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "grouped", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def tables(scale: float, rows: int) -> Any:
    """A branch that gives cosines and sines of `rows` positions."""
    angles = np.arange(rows)[:, None] / scale / 10.0 ** np.linspace(0, 1, SIZE // 2)
    values = [f(angles).astype(np.float32) for f in (np.cos, np.sin)]
    names = [f"{name}_{rows}" for name in ("cos", "sin")]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, SIZE // 2]) for n in names]
    nodes = [helper.make_node("Constant", [], [n], value=numpy_helper.from_array(v, n))
             for n, v in zip(names, values, strict=True)]  # fmt: skip
    return helper.make_graph(nodes, "tables", [], outputs)


CPU = device("cpu", 0)


def executor(model: ModelProto, where: Device = CPU, **options: Any) -> GraphModule:
    target = "llvm -num-cores=1" if where == CPU else "cuda"
    return GraphModule(relayc.compile_onnx(model, target, **options)["default"](where))


def positions(new: int, batch: int = 1) -> np.ndarray[Any, Any]:
    return rng.standard_normal((batch, new, WIDTH)).astype(np.float32)


def told(lengths: list[int], total: int) -> dict[str, Any]:
    """The inputs that say how many positions there are, of each row and at most."""
    return {"lengths": np.array(lengths, np.int32) - 1, "total": np.array(total, np.int32)}


def expected(x: np.ndarray[Any, Any], new: int, window: int) -> np.ndarray[Any, Any]:
    """The result of the last `new` of the positions `x` of one row."""
    count = len(x)
    q, k, v = np.split(x.reshape(count, -1, SIZE).swapaxes(0, 1), [HEADS, HEADS + GROUPS])
    scores = q @ k.repeat(HEADS // GROUPS, 0).swapaxes(1, 2) * SIZE**-0.5
    behind = np.arange(count)[:, None] - np.arange(count)
    scores = np.where((behind >= 0) & (behind < window), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result = weights / weights.sum(-1, keepdims=True) @ v.repeat(HEADS // GROUPS, 0)
    return result.swapaxes(0, 1).reshape(count, -1)[-new:]


@pytest.mark.parametrize("attrs", [{}, {"local_window_size": WINDOW, "sliding_window_cache": 1}], ids=["all", "window"])
def test_the_executor_keeps_the_caches(attrs, where):
    run = executor(grouped_model(**attrs), where, caches="auto")
    assert run.has_caches and list(run.get_input_info()[0]) == ["x", "lengths", "total"]
    window, seen = attrs.get("local_window_size", 99), np.zeros((2, 0, WIDTH), np.float32)
    for new in (7, 1, 1, 2, 1):
        seen = np.concatenate([seen, positions(new, 2)], axis=1)
        count = seen.shape[1]
        (y,) = run(seen[:, -new:], **told([count] * 2, count))
        for row, found in zip(seen, y.numpy(), strict=True):
            np.testing.assert_allclose(found, expected(row, new, window), rtol=1e-4, atol=1e-5)


def test_rows_of_different_lengths_are_written_where_they_end(where):
    """Prompts padded on the right, as onnxruntime takes them."""
    run, lengths = executor(grouped_model(), where, caches="auto"), [5, 2]
    x, rows = positions(5, 2), [np.zeros((0, WIDTH), np.float32)] * 2
    for new in (5, 1, 1):
        (y,) = run(x, **told(lengths, max(lengths)))
        for entry in range(2):
            count = min(new, lengths[entry])
            rows[entry] = np.concatenate([rows[entry], x[entry, :count]])
            np.testing.assert_allclose(y.numpy()[entry, :count], expected(rows[entry], count, 99), rtol=1e-4, atol=1e-5)
        x, lengths = positions(1, 2), [n + 1 for n in lengths]


@pytest.mark.parametrize("kind", CODES)
def test_caches_of_codes_are_kept(kind, where):
    """Keys and values quantised to 8 bits, in place as out of place, also after they were saved and set."""
    model = grouped_model(kind=kind)
    kept, passed = executor(model, where, caches="auto"), executor(model)
    caches = [np.zeros((1, GROUPS, 0, SIZE), CODES[kind])] * 2
    count = 0
    for new in (4, 1, 1):
        x, count = positions(new), count + new
        y, *caches = [r.numpy() for r in passed(x, *caches, **told([count], count))]
        np.testing.assert_allclose(kept(x, **told([count], count))[0].numpy(), y, rtol=1e-5, atol=1e-6)
        saved = kept.cache_values()
        kept.truncate_caches(0)
        kept.set_caches(saved)


def test_a_total_that_is_not_that_of_the_caches_is_an_error():
    run = executor(grouped_model(), caches="auto")
    run(positions(3), **told([3], 3))
    with pytest.raises(ArgumentError, match="the positions that the executor keeps and new ones"):
        run(positions(1), **told([9], 9))
    run(positions(1), **told([4], 4))


@pytest.mark.parametrize("room", [WINDOW, WINDOW + 3])
def test_a_cache_of_a_window_holds_the_latest_positions(room):
    """Layout and results follow the operator's contract, however positions are split into steps."""
    run = executor(grouped_model(room, local_window_size=WINDOW, sliding_window_cache=1))
    caches = [np.zeros((1, GROUPS, room, SIZE), np.float32)] * 2
    seen, step = np.zeros((0, WIDTH), np.float32), room - WINDOW + 1
    for new in (3, 1, 1, 1, 12, 1, 1, 1, 1, 2):
        seen = np.concatenate([seen, positions(new)[0]])
        count = len(seen)
        y, *caches = [r.numpy() for r in run(seen[None, -new:], *caches, **told([count], count))]
        np.testing.assert_allclose(y[0], expected(seen, new, WINDOW), rtol=1e-4, atol=1e-5)
        held = count - step * -(-max(count - room, 0) // step)
        values = seen[-held:].reshape(held, -1, SIZE).swapaxes(0, 1)[HEADS + GROUPS :]
        np.testing.assert_array_equal(caches[1][0, :, :held], values)


def test_a_cache_below_its_window_is_an_error():
    with pytest.raises(CompileError, match=f"a cache of at least {WINDOW} positions"):
        executor(grouped_model(WINDOW - 1, local_window_size=WINDOW, sliding_window_cache=1))


def test_tables_of_an_if_are_read_in_place():
    """LongRoPE: results are those of the table that the number of positions chooses, without an If."""
    chosen = executor(grouped_model(scaled=True), caches="auto")
    body = from_onnx(grouped_model(scaled=True))[0]["main"].body
    assert not any(isinstance(e, Call) and isinstance(e.op, IfElse) for e in post_order(body))
    rows = {}
    for scale, count in ((1.0, 6), (2.0, 7)):
        x = positions(count)
        q, k, v = np.split(x[0].reshape(count, -1, SIZE), [HEADS, HEADS + GROUPS], axis=1)
        angles = np.arange(count)[:, None, None] / scale / 10.0 ** np.linspace(0, 1, SIZE // 2)
        turned = []
        for part in (q, k):
            a, b = part[..., : SIZE // 2], part[..., SIZE // 2 :]
            cos, sin = np.cos(angles), np.sin(angles)
            turned.append(np.concatenate([a * cos - b * sin, a * sin + b * cos], -1))
        rows[count] = expected(np.concatenate([*turned, v], 1).reshape(count, -1), count, 99)
        chosen.truncate_caches()
        np.testing.assert_allclose(chosen(x, **told([count], count))[0].numpy()[0], rows[count], rtol=1e-4, atol=1e-5)


def test_nothing_of_rows_that_were_taken_back_is_read(where):
    """Behind the end of a shorter entry of a batch lies what an earlier run wrote there: NaN is not masked away."""
    run, fresh = (executor(grouped_model(), where, caches="auto") for _ in range(2))
    unfit = np.full((2, 20, WIDTH), np.nan, np.float32)
    for new, lengths in ((5, [3, 5]), (1, [4, 6]), (1, [5, 7])):
        kept = run.cache_length
        run.run(x=unfit, **told([kept + 20] * 2, kept + 20))
        run.truncate_caches(kept)
        x = positions(new, 2)
        for each in (run, fresh):
            each.run(x=x, **told(lengths, max(lengths)))
        np.testing.assert_array_equal(run.get_output(0).numpy(), fresh.get_output(0).numpy())
