"""Products with block-quantised weights: every size, type and processor against numpy and the interpreter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from relayc import relay, te
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay.op.nn.dense_bits import dense_bits, routed_bits
from relayc.relay.transform import PassContext
from relayc.te.ir import IRModule

Array = np.ndarray[Any, Any]
HASWELL, HOST = "llvm -mcpu=haswell", "llvm"
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def weights(columns: int, depth: int, block: int, bits: int, zeros: str) -> tuple[Array, Array, Array | None, Array]:
    """Codes as bytes, scales, zero points, and the real weights (columns, depth)."""
    blocks = -(-depth // block)
    codes = RANDOM.integers(0, 1 << bits, (columns, blocks, block)).astype(np.uint8)
    scales = RANDOM.uniform(0.01, 0.1, (columns, blocks)).astype(np.float32)
    middle = np.full((columns, blocks), 1 << (bits - 1), np.float32)
    points = {
        "middle": None, "codes": RANDOM.integers(0, 1 << bits, middle.shape).astype(np.uint8),
        "floats": middle + normal(*middle.shape),
    }[zeros]  # fmt: skip
    subtracted = middle if points is None else points.astype(np.float32)
    real = ((codes - subtracted[..., None]) * scales[..., None]).reshape(columns, -1)[:, :depth]
    flat = codes.reshape(columns, -1)
    packed = flat if bits == 8 else flat[:, ::2] | flat[:, 1::2] << 4
    return packed, scales, points, real


def in_int8(x: Array, block: int) -> Array:
    """Data (..., K) rounded to int8 by the largest magnitude of each block, as real numbers."""
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % block)])
    blocks = padded.reshape(*x.shape[:-1], padded.shape[-1] // block, block)
    largest = np.abs(blocks).max(-1, keepdims=True)
    inverse = np.float32(127) / np.where(largest > 0, largest, np.inf)  # 1 / scale rounds otherwise
    return (np.rint(blocks * inverse) * (largest / np.float32(127))).reshape(padded.shape)[..., : x.shape[-1]]


def run(body: relay.Expr, params: list[relay.Var], values: list[Array], target: str, **config: str) -> Array:
    with PassContext(config={f"relay.{name}": value for name, value in config.items()}):
        lib = relay.build(IRModule({"main": relay.Function(params, body)}), target=target)
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for param, value in zip(params, values, strict=True):
        module.set_input(param.name, value)
    module.run()
    return module.get_output(0).numpy()


@pytest.mark.parametrize("target", [HOST, HASWELL])
@pytest.mark.parametrize("activations", ["float", "int8"])
@pytest.mark.parametrize("zeros", ["middle", "codes", "floats"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 33])
def test_products_are_those_of_numpy(rows, block, bits, zeros, activations, target):
    columns, depth = 37, 2 * block + (block // 2 if rows == 3 else 0)  # no whole panel; a block used in part
    packed, scales, points, real = weights(columns, depth, block, bits, zeros)
    x, data = relay.var("x", (rows, depth)), normal(rows, depth)
    body = dense_bits(x, packed, scales, points, bits)
    result = run(body, [x], [data], target, activations=activations)
    used = in_int8(data, block) if activations == "int8" else data
    np.testing.assert_allclose(result, used.astype(np.float64) @ real.T, rtol=1e-4, atol=1e-4 * block)


@pytest.mark.parametrize("target", [HOST, HASWELL])
@pytest.mark.parametrize("activations", ["float", "int8"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [(1, 1), (1, 4), (2, 3), (1, 40)])
def test_dynamic_rows(rows, bits, activations, target):
    packed, scales, points, real = weights(48, 128, 32, bits, "codes")
    x = relay.var("x", (te.size_var("batch"), te.size_var("length"), 128))
    data, bias = normal(*rows, 128), normal(48)
    body = relay.nn.relu(dense_bits(x, packed, scales, points, bits) + relay.const(bias))
    result = run(body, [x], [data], target, activations=activations)
    used = in_int8(data, 32) if activations == "int8" else data
    np.testing.assert_allclose(result, np.maximum(used @ real.T + bias, 0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("target", [HOST, HASWELL])
@pytest.mark.parametrize("activations", ["float", "int8"])
@pytest.mark.parametrize(("bits", "block", "zeros"), [(4, 32, "middle"), (4, 16, "codes"), (8, 32, "codes"),
                                                      (4, 128, "middle"), (8, 128, "middle")])  # fmt: skip
@pytest.mark.parametrize("columns", [64, 37])
@pytest.mark.parametrize("groups", [(3, 1), (2, 8), (1, 4), (4, 19), (2, 6)])
def test_groups_of_rows_with_weights_of_experts(groups, columns, bits, block, zeros, activations, target):
    """Groups have a dynamic number and length, and static ones."""
    of_experts = [weights(columns, 128, block, bits, zeros) for _ in range(3)]
    packed, scales, real = [np.stack([each[n] for each in of_experts]) for n in (0, 1, 3)]
    points = None if zeros == "middle" else np.stack([each[2] for each in of_experts if each[2] is not None])
    data, chosen, bias = normal(*groups, 128), RANDOM.integers(0, 3, groups[0]), normal(columns)
    used = in_int8(data, block) if activations == "int8" else data
    expected = np.maximum(used.astype(np.float64) @ real[chosen].swapaxes(1, 2) + bias, 0)
    for shape in (groups, (te.size_var("groups"), te.size_var("length"))):
        x, at = relay.var("x", (*shape, 128)), relay.var("at", shape[:1], "int64")
        body = relay.nn.relu(routed_bits(x, at, packed, scales, points, bits) + relay.const(bias))
        result = run(body, [x, at], [data, chosen], target, activations=activations)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4 * block)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_that_experts_take_are_rounded_once(dtype):
    """Rows of a table of activations are rounded before they are taken, those of a constant table after."""
    of_experts = [weights(40, 64, 32, 4, "middle") for _ in range(3)]
    packed, scales, real = [np.stack([each[n] for each in of_experts]) for n in (0, 1, 3)]
    data, which, chosen = normal(5, 64).astype(dtype), RANDOM.integers(0, 5, (6, 4)), RANDOM.integers(0, 3, 6)
    x, rows, at = relay.var("x", (5, 64), dtype), relay.var("rows", (6, 4), "int64"), relay.var("at", (6,), "int64")
    used = in_int8(data.astype(np.float32), 32)[which].astype(np.float64)
    for source, params, values in ((x, [x, rows, at], [data, which, chosen]),
                                   (relay.const(data), [rows, at], [which, chosen])):  # fmt: skip
        body = routed_bits(relay.op.take(source, rows, axis=0), at, packed, scales, None, 4)
        config = {"relay.activations": "int8"}
        with PassContext(config=config):
            mod = relay.optimize(IRModule({"main": relay.Function(params, body)}), HOST)
        calls = [e for e in relay.analysis.evaluation_order(mod["main"]) if isinstance(e, relay.Call)]
        made = [e.ty for e in calls if isinstance(e.op, relay.Function) and isinstance(e.ty, relay.TupleType)]
        lead = (6, 4) if isinstance(source, relay.Constant) else (5,)
        assert [ty.fields[0].shape for ty in made] == [(*lead, 2, 32)]
        result = run(body, params, values, HOST, activations="int8")
        np.testing.assert_allclose(result, used @ real[chosen].swapaxes(1, 2), rtol=1e-3, atol=0.05)


@pytest.mark.parametrize("target", [HOST, "llvm -mcpu=icelake-server -mtriple=x86_64-unknown-linux-gnu"])
@pytest.mark.parametrize(("bits", "activations"), [(4, "int8"), (8, "int8"), (4, "float")])
@pytest.mark.parametrize("columns", [32, 60, 80])
@pytest.mark.parametrize("rows", [6, 8, 20, 33])
@pytest.mark.parametrize("dynamic", [False, True])
def test_tiles_of_two_panels(dynamic, rows, columns, bits, activations, target):
    """Where several tiles of rows read each panel; whole ones, a partial last one, and an odd number of them."""
    if "icelake" in target and "avx512vnni" not in Target(HOST).features:
        pytest.skip("the code is for AVX-512 with VNNI, which this processor lacks")
    packed, scales, points, real = weights(columns, 96, 32, bits, "codes")
    x, data = relay.var("x", (te.size_var("rows") if dynamic else rows, 96)), normal(rows, 96)
    bias = normal(columns)
    body = relay.nn.gelu(dense_bits(x, packed, scales, points, bits) + relay.const(bias))
    plain = run(dense_bits(x, packed, scales, points, bits), [x], [data], target, activations=activations)
    result = run(body, [x], [data], target, activations=activations)
    used = in_int8(data, 32) if activations == "int8" else data
    np.testing.assert_allclose(plain, used.astype(np.float64) @ real.T, rtol=1e-4, atol=1e-3)
    sums = (plain + bias).astype(np.float64)
    erf = np.vectorize(math.erf)(sums / np.sqrt(2))
    np.testing.assert_allclose(result, sums * (1 + erf) / 2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", [HOST, HASWELL, "llvm -mcpu=x86-64-v2"])
@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("rows", [1, 3, 33])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_codes_of_a_table(dtype, rows, block, target):
    packed, scales, _, _ = weights(37, 3 * block, block, 4, "middle")
    table = normal(16)
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(37, 3, block)
    real = (table[codes] * scales[..., None]).reshape(37, -1)
    x, data = relay.var("x", (rows, 3 * block), dtype), normal(rows, 3 * block).astype(dtype)
    body = dense_bits(x, packed, scales, None, 4, table=table)
    result = run(body, [x], [data], target, activations="int8")  # which a table excludes
    assert result.dtype == dtype
    tolerance = 1e-4 if dtype == "float32" else 2e-3
    np.testing.assert_allclose(result, data.astype(np.float64) @ real.T, rtol=tolerance, atol=tolerance * 3)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("target", [HOST, HASWELL])
def test_extreme_codes_do_not_overflow(target, bits):
    """The largest codes times the largest activations, in 256 steps of a block."""
    top = (1 << bits) - 1
    packed = np.full((16, 256 * bits // 8), top | top << 4 if bits == 4 else top, np.uint8)
    zeros = np.zeros((16, 1), np.uint8)
    x, data = relay.var("x", (2, 256)), np.stack([np.full(256, 3.0), np.full(256, -3.0)]).astype(np.float32)
    body = dense_bits(x, packed, np.ones((16, 1), np.float32), zeros, bits)
    result = run(body, [x], [data], target, activations="int8")
    np.testing.assert_allclose(result, np.repeat(data[:, :1] * 256 * top, 16, 1), rtol=1e-5)


def test_blocks_of_zeros_and_tiny_values():
    packed, scales, points, real = weights(16, 96, 32, 4, "middle")
    x, data = relay.var("x", (1, 96)), np.zeros((1, 96), np.float32)
    data[0, 32:64], data[0, 64] = 1e-38, 1.0
    result = run(dense_bits(x, packed, scales, points, 4), [x], [data], HOST, activations="int8")
    np.testing.assert_allclose(result, real[:, 64][None], rtol=1e-4, atol=1e-6)


def test_the_model_decides_by_default():
    packed, scales, points, real = weights(16, 64, 32, 4, "middle")
    x, data = relay.var("x", (1, 64)), normal(1, 64)
    for allowed in (False, True):
        body = dense_bits(x, packed, scales, points, 4, int8_activations=allowed)
        used = in_int8(data, 32) if allowed else data
        np.testing.assert_allclose(run(body, [x], [data], HOST), used @ real.T, rtol=1e-5, atol=1e-5)


def test_half_precision_keeps_its_type():
    packed, scales, points, real = weights(16, 64, 32, 4, "middle")
    x, data = relay.var("x", (3, 64), "float16"), normal(3, 64).astype(np.float16)
    for activations in ("float", "int8"):
        result = run(dense_bits(x, packed, scales, points, 4), [x], [data], HOST, activations=activations)
        assert result.dtype == np.float16
        np.testing.assert_allclose(result.astype(np.float32), data.astype(np.float32) @ real.T, atol=0.05)


def test_products_of_the_same_data_share_its_quantisation():
    x = relay.var("x", (1, 64))
    products = [dense_bits(x, *weights(columns, 64, 32, 4, "middle")[:3], 4) for columns in (16, 32)]
    module = IRModule({"main": relay.Function([x], relay.Tuple(products))})
    with PassContext(config={"relay.activations": "int8"}):
        kernels = [node.ops for node in relay.build(module, target=HOST).graph.nodes]
    assert sorted(kernels) == [("nn.dense_blocks",), ("nn.dense_blocks",), ("nn.quantize_blocks",)], kernels


def test_scales_are_narrow_where_that_is_exact_and_zero_points_are_bytes():
    x = relay.var("x", (1, 64))
    packed, scales, points, _ = weights(16, 64, 32, 4, "codes")
    exact = scales.astype(np.float16).astype(np.float32)
    assert [str(a.dtype) for a in dense_bits(x, packed, exact, points, 4).args[1:]] == ["int32", "float16", "uint8"]
    assert [str(a.dtype) for a in dense_bits(x, packed, scales, None, 4).args[1:]] == ["int32", "float32"]


@pytest.mark.parametrize(("cpu", "rows", "instruction"), [("neoverse-n1", 1, "sdot"), ("neoverse-v2", 20, "usdot")])
def test_products_of_bytes_on_aarch64(cpu, rows, instruction):
    """One instruction multiplies and adds four bytes."""
    x = relay.var("x", (rows, 64))
    packed, scales, points, _ = weights(16, 64, 32, 4, "middle")
    module = IRModule({"main": relay.Function([x], dense_bits(x, packed, scales, points, 4))})
    with PassContext(config={"relay.activations": "int8"}):
        lib = relay.build(module, target=f"llvm -mtriple=aarch64-unknown-linux-gnu -mcpu={cpu}")
    assembly = lib.module.get_source("asm")
    assert f"\t{instruction}\t" in assembly and "\tsmull\t" not in assembly


@pytest.mark.parametrize("activations", ["float", "int8"])
@pytest.mark.parametrize("known", [0, 3])
def test_no_rows(activations, known):
    """Rows have three dimensions, the last of which has a known size."""
    codes, scales, points, real = weights(7, 48, 16, 4, "codes")
    x = relay.var("x", (te.size_var("n"), te.size_var("m"), known, 48))
    data = normal(2, 1, known, 48)
    expected = (data if activations == "float" else in_int8(data, 16)) @ real.T
    found = run(dense_bits(x, codes, scales, points, 4), [x], [data], HOST, activations=activations)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
