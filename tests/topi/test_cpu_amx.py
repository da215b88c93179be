"""Products of bytes and bfloat16 with AMX, on processors that have it, or else emulated."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest

from relayc import relay, te, topi
from relayc.backend.llvm.codegen import EmittedModule
from relayc.backend.llvm.compiler import Compiler
from relayc.backend.llvm.runtime import LLVMModule, ObjectCode
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay import Function, IRModule, const, op, var
from relayc.relay.op import nn
from relayc.relay.op.base import make_call
from relayc.te import size_var
from relayc.te.ir import post_order
from relayc.te.tir import PrimFunc
from relayc.topi.cpu.tiling import amx_panel
from tests.processor_emulation import emulation

Array = np.ndarray[Any, Any]
SAPPHIRE = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=sapphirerapids -num-cores=1"
SMALL_CACHES = SAPPHIRE + " -l1-bytes=2048 -l2-bytes=8192 -l3-bytes=16384"


FORMS = {"dot4": "tdpbusd", "dot2_bfloat16": "tdpbf16ps"}
"""Instructions, by the form of a product."""
OPERATORS = {"nn.dense_dot4": "dot4", "nn.dense_dot2_bfloat16": "dot2_bfloat16",
             "nn.conv2d_nhwc_dot4": "dot4", "nn.conv2d_nhwc_dot2_bfloat16": "dot2_bfloat16"}  # fmt: skip


def words(random: np.random.Generator, form: str, *shape: int) -> Array:
    """Words of four bytes, or of two bfloat16, small integers, whose sums are exact."""
    if form == "dot4":
        return random.integers(-(1 << 31), 1 << 31, shape).astype(np.int32)
    values = random.integers(-8, 9, (*shape[:-1], 2 * shape[-1])).astype(ml_dtypes.bfloat16)
    return values.view("<i4")


def emulated(call: Any, *data: Array, target: str = SAPPHIRE) -> Array:
    """The result of the one kernel of an operator."""
    arguments = tuple([e for e in post_order(call) if isinstance(e, relay.Var)])
    module = relay.build(IRModule({"main": Function(arguments, call)}), target).module
    assert isinstance(module, LLVMModule)
    source = module.get_source("raw-ll")
    ((name, parameters),) = re.findall(r"^define void @(fused_\w+)\((.*)\) ", source, re.MULTILINE)
    assert FORMS[OPERATORS[call.op.name]] in source and source.count("call void @llvm.x86.ldtilecfg") == 1
    result = np.empty(call.ty.static_shape, str(call.dtype))
    workspaces = [np.empty(1 << 20, np.uint8) for _ in range(parameters.count("ptr ") - 2 - len(data))]
    pointers = [a.ctypes.data for a in (*data, result, *workspaces)]
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (1 + len(pointers)))(module.address_of(name))(None, *pointers)
    assert not emulation.library().emulated_tiles_in_use(), "released"
    return result


@pytest.mark.usefixtures("emulated_processors")
@pytest.mark.parametrize("operator", ["nn.dense_dot4", "nn.dense_dot2_bfloat16"])
@pytest.mark.parametrize("target", [SAPPHIRE, SMALL_CACHES])
@pytest.mark.parametrize(("rows", "steps", "units"), [
    (2, 8, 32), (4, 6, 16), (16, 16, 20), (17, 16, 32), (32, 32, 33), (33, 24, 96), (49, 7, 64), (70, 40, 24),
    (67, 32, 40),
])  # fmt: skip
def test_products(rows: int, steps: int, units: int, target: str, operator: str):
    random, form = np.random.default_rng(rows), OPERATORS[operator]
    panel, _ = amx_panel(Target(target), rows, units, steps, form)
    data, weight = words(random, form, rows, steps), words(random, form, -(-units // panel), steps, panel)
    y = make_call(operator, (var("x", data.shape, "int32"), var("w", weight.shape, "int32")), units=units)
    np.testing.assert_array_equal(emulated(y, data, weight, target=target), y.op.reference(data, weight))


@pytest.mark.usefixtures("emulated_processors")
@pytest.mark.parametrize("operator", ["nn.dense_dot4", "nn.dense_dot2_bfloat16"])
@pytest.mark.parametrize(("rows", "steps"), [
    (1, 128), (49, 128), (49, 24), (65, 144), (100, 128), (128, 64), (197, 48),
])  # fmt: skip
def test_every_line_of_the_next_panel_is_prefetched(
    rows: int, steps: int, operator: str, monkeypatch: pytest.MonkeyPatch
):
    """Also by a last tile of rows that is shifted inwards, and few lines more than once."""
    random, form, panels = np.random.default_rng(rows), OPERATORS[operator], 3
    rows += form == "dot4" and rows == 1
    data, weight = words(random, form, rows, steps), words(random, form, panels, steps, 32)
    y = make_call(operator, (var("x", data.shape, "int32"), var("w", weight.shape, "int32")), units=32 * panels)
    object_code, prefetched = Compiler.object_code, list[int]()
    recorded = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(prefetched.append)
    llvm.add_symbol("recorded_prefetch", ctypes.cast(recorded, ctypes.c_void_p).value)

    def with_recorded_prefetches(self: Compiler, emitted: EmittedModule, functions: Iterable[PrimFunc]) -> ObjectCode:
        text = re.sub(r"declare void @llvm\.prefetch\.p0\(.*", "declare void @recorded_prefetch(ptr)", emitted.text)
        text = re.sub(r"@llvm\.prefetch\.p0\((.*?),.*\)", r"@recorded_prefetch(\1)", text)
        return object_code(self, replace(emitted, text=text), functions)

    monkeypatch.setattr(Compiler, "object_code", with_recorded_prefetches)
    emulated(y, data, weight)
    lines = [(address - weight.ctypes.data) // 64 for address in prefetched]
    assert set(range(2 * steps, 2 * steps * panels)) <= set(lines)
    assert len(lines) <= 1.4 * 2 * steps * panels


@pytest.mark.usefixtures("emulated_processors")
@pytest.mark.parametrize("operator", ["nn.conv2d_nhwc_dot4", "nn.conv2d_nhwc_dot2_bfloat16"])
@pytest.mark.parametrize("target", [SAPPHIRE, SMALL_CACHES])
@pytest.mark.parametrize(("size", "depth", "units", "window"), [
    ((2, 5, 6), 8, 24, {"kernel_size": (3, 3), "padding": (1, 1, 1, 1), "border": 77}),
    ((1, 9, 8), 4, 64, {"kernel_size": (2, 3), "strides": (2, 1)}),
    ((1, 12, 11), 1, 16, {"kernel_size": (7, 7), "strides": (2, 2), "padding": (3, 3, 3, 3), "border": 1}),
    ((1, 6, 9), 16, 17, {"kernel_size": (3, 2), "dilation": (2, 3), "padding": (2, 0, 1, 3)}),
    ((1, 9, 9), 16, 32, {"kernel_size": (1, 1), "strides": (2, 2)}),
    ((2, 5, 14), 8, 72, {"kernel_size": (3, 3), "padding": (1, 1, 1, 1), "border": 3}),
    ((2, 2, 18), 8, 20, {"kernel_size": (3, 3), "dilation": (1, 2), "padding": (1, 0, 1, 0)}),
    ((2, 9, 30), 4, 17, {"kernel_size": (2, 3), "strides": (2, 2), "padding": (0, 0, 0, 2)}),
    ((3, 4, 10), 8, 40, {"kernel_size": (3, 3), "padding": (1, 1, 1, 1), "border": 9}),
    ((2, 9, 25), 6, 16, {"kernel_size": (3, 2), "strides": (2, 2), "padding": (0, 1, 0, 1)}),
    ((1, 4, 56), 6, 33, {"kernel_size": (1, 1), "strides": (1, 2)}),
])  # fmt: skip
def test_convolutions(
    size: tuple[int, ...], depth: int, units: int, window: dict[str, Any], target: str, operator: str
):
    random, form = np.random.default_rng(units), OPERATORS[operator]
    if form != "dot4":
        window = {**window, "border": 0}
    steps = depth * int(np.prod(window["kernel_size"]))
    panel, _ = amx_panel(Target(target), 16, units, steps, form)
    data, weight = words(random, form, *size, depth), words(random, form, -(-units // panel), steps, panel)
    x, w = var("x", data.shape, "int32"), var("w", weight.shape, "int32")
    y = make_call(operator, (x, w), channels=units, **window)
    np.testing.assert_array_equal(emulated(y, data, weight, target=target), y.op.reference(data, weight))


def quantized(
    *shape: int, outputs: int, kernel: int = 0, stride: int = 1, transposed: bool = False
) -> tuple[Any, Array, Any]:
    """A quantised product, or convolution, with requantisation; its input; its expected result."""
    random = np.random.default_rng(outputs)
    data = random.integers(0, 256, shape).astype(np.uint8)
    window = (kernel, kernel) if kernel else ()
    weight = random.integers(-128, 128, (outputs, shape[-1], *window)).astype(np.int32)
    x = var("x", shape, "uint8")
    quantized_values = op.subtract(op.cast(x, "int32"), const(np.int32(120)))
    values = data.astype(np.float64) - 120
    if kernel:
        y = nn.conv2d(quantized_values, const(weight), stride, kernel // 2, data_layout="NHWC")
        exact = y.op.reference(values, weight.astype(np.float64))
    else:
        y, exact = nn.dense(quantized_values, const(weight)), values @ weight.T.astype(np.float64)
    scaled = op.round(op.multiply(op.cast(y, "float32"), const(np.float32(2.0**-10))))
    expected = np.clip(np.rint(exact / 1024), 0, 255).astype(np.uint8)
    result = op.cast(op.clip(scaled, 0, 255), "uint8")
    if transposed:
        return Function((x,), op.transpose(result, (0, 3, 1, 2))), data, expected.transpose(0, 3, 1, 2)
    return Function((x,), result), data, expected


CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((128, 256), {"outputs": 200}), ((7, 768), {"outputs": 1000}), ((3, 11, 96), {"outputs": 40}),
    ((1, 28, 28, 64), {"outputs": 96, "kernel": 3}), ((2, 15, 17, 128), {"outputs": 256, "kernel": 3, "stride": 2}),
    ((1, 56, 56, 3), {"outputs": 64, "kernel": 7, "stride": 2}), ((1, 14, 14, 256), {"outputs": 512, "kernel": 1}),
    ((1, 7, 3, 32), {"outputs": 1, "kernel": 3}), ((40, 64), {"outputs": 7}),
    ((1, 14, 14, 256), {"outputs": 128, "kernel": 1, "stride": 2}),
    ((2, 14, 14, 64), {"outputs": 48, "transposed": True}),
    ((1, 9, 21, 64), {"outputs": 70, "kernel": 3, "transposed": True}), ((4, 30, 30, 32), {"outputs": 16, "kernel": 3}),
]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_exact(case: tuple[tuple[int, ...], dict[str, Any]], threads: int, amx_target: str):
    """Also where results have few columns, which vectors compute."""
    function, data, expected = quantized(*case[0], **case[1])
    compiled = relay.build(IRModule({"main": function}), f"{amx_target} -num-cores={threads}")
    assert case[1]["outputs"] < 8 or "tdpbusd" in compiled.module.get_source("raw-ll")
    runner = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=threads)
    np.testing.assert_array_equal(runner(data)[0].numpy(), expected)


def bfloat16_layer(
    *shape: int, outputs: int, kernel: int = 0, stride: int = 1, transposed: bool = False
) -> tuple[Any, Array, Array]:
    """A product, or convolution, of bfloat16 with ReLU in float32; its input, small integers; its exact result."""
    random = np.random.default_rng(outputs)
    data = random.integers(-8, 9, shape).astype(np.float32)
    window = (kernel, kernel) if kernel else ()
    weight = random.integers(-8, 9, (outputs, shape[-1], *window)).astype(ml_dtypes.bfloat16)
    x = var("x", shape)
    narrow = op.cast(x, "bfloat16")
    if kernel:
        y = nn.conv2d(narrow, const(weight), stride, kernel // 2, data_layout="NHWC", out_dtype="float32")
        exact = y.op.reference(data, weight.astype(np.float32))
    else:
        y = make_call("nn.dense", (narrow, const(weight)), out_dtype="float32")
        exact = data @ weight.T.astype(np.float32)
    result, expected = nn.relu(y), np.maximum(exact, 0)
    if transposed:
        return Function((x,), op.transpose(result, (0, 3, 1, 2))), data, expected.transpose(0, 3, 1, 2)
    return Function((x,), result), data, expected


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_of_bfloat16(case: tuple[tuple[int, ...], dict[str, Any]], threads: int, amx_target: str):
    function, data, expected = bfloat16_layer(*case[0], **case[1])
    compiled = relay.build(IRModule({"main": function}), f"{amx_target} -num-cores={threads}")
    assert case[1]["outputs"] < 8 or "tdpbf16ps" in compiled.module.get_source("raw-ll")
    runner = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=threads)
    np.testing.assert_array_equal(runner(data)[0].numpy(), expected)


@pytest.mark.parametrize(("cpu", "rows", "depth", "used"), [
    ("sapphirerapids", 64, 256, True), ("sapphirerapids", 64, 255, True), ("cooperlake", 64, 256, False),
    ("sapphirerapids", 1, 256, True), ("znver4", 64, 256, False),
])  # fmt: skip
def test_amx_of_bfloat16_is_used_where_it_is_faster(cpu: str, rows: int, depth: int, used: bool):
    function, _, _ = bfloat16_layer(rows, depth, outputs=64)
    target = f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}"
    assembly = relay.build(IRModule({"main": function}), target).module.get_source("asm")
    assert ("tdpbf16ps" in assembly) == used
    assert ("vdpbf16ps" in assembly) != used


@pytest.mark.parametrize(("cpu", "rows", "depth", "used"), [
    ("sapphirerapids", 64, 256, True), ("graniterapids", 64, 256, True), ("icelake-server", 64, 256, False),
    ("sapphirerapids", 1, 256, False), ("sapphirerapids", 2, 256, True), ("sapphirerapids", 64, 52, True),
    ("sapphirerapids", 64, 44 * 23, True),
    ("sapphirerapids", 64, 4 * 23, False),
])  # fmt: skip
def test_amx_is_used_where_it_is_faster(cpu: str, rows: int, depth: int, used: bool):
    """Not for few rows, nor where the steps of a reduction have no divisor that fills an instruction."""
    function, _, _ = quantized(rows, depth, outputs=64)
    target = f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}"
    assembly = relay.build(IRModule({"main": function}), target).module.get_source("asm")
    assert ("tdpbusd" in assembly) == used
    assert ("vpdpbusd" in assembly) != used


def test_tiles_are_configured_once_and_released_wherever_a_function_ends():
    function, _, _ = quantized(1, 56, 56, 64, outputs=64, kernel=3)
    assembly = relay.build(IRModule({"main": function}), SAPPHIRE).module.get_source("asm")
    bodies = [text for text in assembly.split(".Lfunc_end") if "tdpbusd" in text]
    assert bodies and all(text.count("ldtilecfg") == 1 for text in bodies)
    assert all(text.count("tilerelease") == len(re.findall(r"\tretq", text)) for text in bodies)


def test_convolutions_are_products_of_windows():
    function, _, _ = quantized(1, 14, 14, 64, outputs=64, kernel=3)
    body = relay.optimize(IRModule({"main": function}), SAPPHIRE)["main"].body
    assert "kernel_size=(3, 3)" in str(body)
    function, _, _ = quantized(1, 14, 14, 64, outputs=64, kernel=1)
    assert "nn.dense_dot4" in str(relay.optimize(IRModule({"main": function}), SAPPHIRE)["main"].body)


@pytest.mark.parametrize(("size", "stride", "copied"), [(28, 1, False), (56, 2, False), (7, 1, True), (23, 1, False)])
def test_windows_are_copied_only_where_lines_are_too_short(size: int, stride: int, copied: bool):
    """Tiles read windows of 13 pixels or more of a line where they are."""
    x, w = te.placeholder((1, size, size, 16), "int32"), te.placeholder((2, 144, 32), "int32")
    y = topi.nn.conv2d_dot4(x, w, 64, (stride, stride), (1, 1, 1, 1), (1, 1), 0, (3, 3))
    text = str(te.lower(topi.schedule_for([y], Target(SAPPHIRE)), [x, w, y]))
    assert "amx_dot_bytes" in text and ("windows" in text) == copied


@pytest.mark.parametrize(("rows", "depth", "units", "alternate"), [
    (3136, 32, 256, True), (49, 32, 256, False), (3136, 512, 2048, False),
], ids=["large results", "small results", "large weights"])  # fmt: skip
def test_all_panels_pass_over_a_tile_of_rows_where_weights_are_resident(
    rows: int, depth: int, units: int, alternate: bool
):
    x, w = te.placeholder((rows, depth), "int32"), te.placeholder((units // 32, depth, 32), "int32")
    y = topi.nn.dense_dot4(x, w, units, form="dot2_bfloat16")
    text = str(te.lower(topi.schedule_for([y], Target(SAPPHIRE)), [x, w, y]))
    assert (f"fused % {units // 32} * {depth * 32}" in text) == alternate, "the panel is the innermost loop"


def layer_of_rows(lead: tuple[int | str, ...], form: str) -> tuple[IRModule, Array]:
    """A product with ReLU of a dynamic number of rows, of integers that both forms sum exactly; its weights."""
    weight = np.random.default_rng(len(lead)).integers(-100, 100, (70, 64))
    symbols = {name: size_var(name) for name in lead if isinstance(name, str)}
    shape = (*[symbols[d] if isinstance(d, str) else d for d in lead], 64)
    if form == "dot4":
        x = var("x", shape, "uint8")
        product = nn.dense(op.cast(x, "int32"), const(weight.astype(np.int32)))
    else:
        x = var("x", shape, "bfloat16")
        product = make_call("nn.dense", (x, const(weight.astype(ml_dtypes.bfloat16))), out_dtype="float32")
    return IRModule({"main": Function((x,), nn.relu(product))}), weight


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("lead", "sizes"), [
    (("n",), [(0,), *[(n,) for n in range(1, 18)], (31,), (32,), (33,), (170,)]),
    (("b", "n"), [(1, 3), (2, 16), (1, 70), (3, 50)]),
    ((1, "n"), [(1, 5), (1, 40)]), (("b", 16), [(1, 16), (7, 16)]),
], ids=str)  # fmt: skip
def test_dynamic_numbers_of_rows(
    lead: tuple[int | str, ...], sizes: list[tuple[int, ...]], threads: int, form: str, amx_target: str
):
    """Lower tiles, down to the fewest rows for which they are faster than vectors, multiply fewer rows."""
    module, weight = layer_of_rows(lead, form)
    compiled = relay.build(module, f"{amx_target} -num-cores={threads}")
    runner = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=threads)
    for size in sizes:
        data = np.random.default_rng(1).integers(0, 200, (*size, 64))
        exact = np.maximum(data @ weight.T, 0)
        dtype = "uint8" if form == "dot4" else "bfloat16"
        np.testing.assert_array_equal(runner(data.astype(dtype))[0].numpy(), exact)


@pytest.mark.parametrize("form", FORMS)
def test_tiles_of_several_heights_in_one_function(form: str, amx_target: str):
    """Each version configures its own, where small loops are in no functions of their own."""
    weight = np.random.default_rng(4).integers(-100, 100, (32, 64))
    x, of_bytes = var("x", (size_var("n"), 64), "uint8" if form == "dot4" else "bfloat16"), form == "dot4"
    product = (
        nn.dense(op.cast(x, "int32"), const(weight.astype(np.int32))) if of_bytes
        else make_call("nn.dense", (x, const(weight.astype(ml_dtypes.bfloat16))), out_dtype="float32")
    )  # fmt: skip
    compiled = relay.build(IRModule({"main": Function((x,), product)}), f"{amx_target} -num-cores=1")
    bodies = [text for text in compiled.module.get_source("asm").split(".Lfunc_end") if "ldtilecfg" in text]
    assert max(text.count("ldtilecfg") for text in bodies) > 1
    assert all(text.count("tilerelease") == len(re.findall(r"\tretq", text)) for text in bodies)
    runner = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=1)
    for rows in (1, 2, 5, 16, 40):
        data = np.random.default_rng(1).integers(0, 200, (rows, 64))
        found = runner(data.astype(str(x.dtype)))[0].numpy()
        np.testing.assert_array_equal(found, data @ weight.T)


@pytest.mark.parametrize(("form", "heights", "vectors"), [
    ("dot4", {16, 8, 4, 2}, "vpdpbusd"), ("dot2_bfloat16", {16, 8, 4, 2, 1}, None),
])  # fmt: skip
def test_dynamic_numbers_of_rows_have_lower_tiles(form: str, heights: set[int], vectors: str | None):
    """Vectors multiply a single row of bytes only."""
    x, w = te.placeholder((size_var("n"), 16), "int32"), te.placeholder((3, 16, 32), "int32")
    y = topi.nn.dense_dot4(x, w, 70, form=form)
    text = str(te.lower(topi.schedule_for([y], Target(SAPPHIRE)), [x, w, y]))
    assert {int(rows) for rows in re.findall(r"amx_configure\((\d+),", text)} == heights
    assembly = relay.build(layer_of_rows(("n",), form)[0], SAPPHIRE).module.get_source("asm")
    assert [name for name in ("vpdpbusd", "vdpbf16ps") if name in assembly] == ([vectors] if vectors else [])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("fixed", "strides", "padding", "dilation"), [
    ({}, (1, 1), (1, 1, 1, 1), (1, 1)), ({0: 2}, (4, 4), (0, 4, 2, 0), (3, 1)), ({1: 10}, (1, 1), (3, 2, 3, 2), (3, 2)),
    ({0: 1, 1: 7}, (2, 1), (0, 0, 0, 0), (1, 1)),
], ids=str)  # fmt: skip
def test_convolutions_of_dynamic_images(
    fixed: dict[int, int], strides: tuple[int, int], padding: tuple[int, ...], dilation: tuple[int, int],
    threads: int, form: str, amx_target: str,
):  # fmt: skip
    """Windows of fewer pixels than a tile has rows, as many, and more."""
    random, of_bytes = np.random.default_rng(len(fixed)), form == "dot4"
    weight = random.integers(-20, 21, (16, 64, 3, 3))
    shape = [fixed.get(n, size_var(f"d{n}")) for n in range(3)]
    attrs = {"strides": strides, "padding": padding, "dilation": dilation, "data_layout": "NHWC"}
    x = var("x", (*shape, 64), "uint8" if of_bytes else "bfloat16")
    if of_bytes:
        y = make_call("nn.conv2d", (op.cast(x, "int32"), const(weight.astype(np.int32))), **attrs)
    else:
        y = make_call("nn.conv2d", (x, const(weight.astype(ml_dtypes.bfloat16))), out_dtype="float32", **attrs)
    compiled = relay.build(IRModule({"main": Function((x,), nn.relu(y))}), f"{amx_target} -num-cores={threads}")
    assert FORMS[form] in compiled.module.get_source("raw-ll")
    runner = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=threads)
    for sizes in ((1, 7, 5), (2, 9, 6), (3, 11, 17), (1, 7, 41)):
        data = random.integers(0, 30, (*[fixed.get(n, size) for n, size in enumerate(sizes)], 64))
        exact = np.maximum(y.op.reference(data.astype("float64"), weight.astype("float64")), 0)  # type: ignore[union-attr]
        np.testing.assert_array_equal(runner(data.astype(str(x.dtype)))[0].numpy(), exact)
