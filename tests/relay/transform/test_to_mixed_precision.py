"""ToMixedPrecision: which operators it converts, where it casts, and the loss of accuracy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay.expr import Constant
from relayc.relay.interpreter import evaluate
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relayc.relay.transform import ToMixedPrecision, default_pipeline
from relayc.relay.type import TensorType
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, PassContext, structural_equal
from relayc.topi.cpu.tiling import has_bfloat16_products

_random = np.random.default_rng(3)


def weights(*shape: int) -> Constant:
    """Random weights that keep the magnitude of their operand."""
    return relay.const((_random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32"))


def half(c: Constant, dtype: str = "float16") -> Constant:
    return relay.const(c.data.astype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16))


def cast(x: relay.Expr, dtype: str = "float16") -> relay.Call:
    return relay.cast(x, dtype)


def converted(function: relay.Function, *args: str, **settings: object) -> relay.Function:
    return ToMixedPrecision(*args, **settings)(IRModule({"main": function}))["main"]


def assert_becomes(before: relay.Function, after: relay.Function, *args: str, **settings: object) -> None:
    found = converted(before, *args, **settings)
    assert structural_equal(found, after), f"{found}\nexpected\n{after}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_contractions_take_the_narrow_type_and_weights_are_rounded_once(dtype):
    x, w = relay.var("x", (4, 8)), weights(3, 8)
    before = relay.Function((x,), relay.nn.dense(x, w))
    after = relay.Function((x,), cast(relay.nn.dense(cast(x, dtype), half(w, dtype)), "float32"))
    assert_becomes(before, after, dtype)


def test_packed_weights_keep_their_types():
    x, codes, scales = relay.var("x", (4, 32)), np.full((16, 16), 0x5A, np.uint8), np.full((16, 1), 0.1)
    product = relay.nn.dense_bits(x, codes, scales, np.full((16, 1), 3.5), 4)
    before = relay.Function((x,), product)
    after = relay.Function((x,), cast(product.op(cast(x, "bfloat16"), *product.args[1:]), "float32"))
    assert_becomes(before, after, "bfloat16", ("nn.dense_bits",))


def test_followers_stay_narrow_and_others_get_float32_back():
    x, w, v = relay.var("x", (4, 8)), weights(8, 8), weights(8, 8)
    hidden = relay.nn.relu(relay.nn.dense(x, w))
    before = relay.Function((x,), relay.nn.dense(relay.exp(hidden), v))
    narrow = relay.nn.relu(relay.nn.dense(cast(x), half(w)))
    result = relay.nn.dense(cast(relay.exp(cast(narrow, "float32"))), half(v))
    assert_becomes(before, relay.Function((x,), cast(result, "float32")))


def test_a_value_is_cast_once_for_all_its_readers():
    x, w, v = relay.var("x", (4, 8)), weights(8, 8), weights(8, 8)
    before = relay.Function((x,), relay.nn.dense(x, w) + relay.nn.dense(x, v))
    y = cast(x)
    after = relay.Function((x,), cast(relay.nn.dense(y, half(w)) + relay.nn.dense(y, half(v)), "float32"))
    assert_becomes(before, after)


def test_nothing_narrow_nothing_changed():
    x = relay.var("x", (4, 8))
    function = relay.Function((x,), relay.nn.softmax(relay.nn.relu(x) + relay.const(1.0)))
    assert converted(function) is function
    n = relay.var("n", (4,), "int32")
    integers = relay.Function((n,), n + n)
    assert converted(integers) is integers


def test_a_sum_with_something_narrow_is_narrow():
    x, w = relay.var("x", (8, 8)), weights(8, 8)
    before = relay.Function((x,), relay.nn.dense(x, w) + x)
    y = cast(x)
    assert_becomes(before, relay.Function((x,), cast(relay.nn.dense(y, half(w)) + y, "float32")))


def test_tuples_pass_and_keep_their_types_outside():
    x, w = relay.var("x", (4, 8)), weights(8, 8)
    parts = relay.split(relay.nn.dense(x, w), 2, axis=1)
    before = relay.Function((x,), relay.Tuple((parts[0], relay.nn.relu(parts[1]), x)))
    narrow = relay.split(relay.nn.dense(cast(x), half(w)), 2, axis=1)
    fields = cast(narrow[0], "float32"), cast(relay.nn.relu(narrow[1]), "float32"), x
    assert_becomes(before, relay.Function((x,), relay.Tuple(fields)))
    whole = relay.Function((x,), parts[0].tuple_value)
    assert converted(whole).ret_type is whole.ret_type


def test_other_types_than_float32_are_left_alone():
    x, w = relay.var("x", (4, 8), "float64"), relay.const(np.ones((3, 8)))
    function = relay.Function((x,), relay.nn.dense(x, w))
    assert converted(function) is function
    y = relay.var("y", (4, 8), "float16")
    mine = relay.Function((y,), relay.exp(y))
    assert converted(mine) is mine


def test_casts_of_the_program_are_kept():
    x, w = relay.var("x", (4, 8)), weights(8, 8)
    before = relay.Function((x,), relay.cast(relay.nn.dense(x, w), "int32"))
    after = relay.Function((x,), relay.cast(cast(relay.nn.dense(cast(x), half(w)), "float32"), "int32"))
    assert_becomes(before, after)


def test_outputs_in_half_precision_on_request():
    x, w = relay.var("x", (4, 8)), weights(3, 8)
    before = relay.Function((x,), relay.nn.dense(x, w))
    after = relay.Function((x,), relay.nn.dense(cast(x), half(w)))
    assert_becomes(before, after, keep_orig_output_dtype=False)


def test_lists_overrule_operators():
    x, w = relay.var("x", (4, 8)), weights(3, 8)
    function = relay.Function((x,), relay.nn.dense(x, w))
    assert converted(function, never=("nn.dense",)) is function
    exponential = relay.Function((x,), relay.exp(x))
    assert_becomes(exponential, relay.Function((x,), cast(relay.exp(cast(x)), "float32")), always=("exp",))


def test_huge_constants_stay_finite_and_infinite_ones_infinite():
    x, w = relay.var("x", (1, 2)), weights(2, 2)
    mask = relay.const(np.array([-3.4e38, -np.inf], "float32"))
    after = converted(relay.Function((x,), relay.nn.dense(x, w) + mask))
    rounded = after.body.args[0].args[1].data
    assert rounded.dtype == np.float16 and rounded[0] == -65504 and rounded[1] == -np.inf


def test_an_external_operator_declares_its_precision():
    @register_op("test.cube_of_exp", pattern=OpPattern.ELEMWISE)
    class CubeOfExp(OpDef):
        mixed_precision = MixedPrecision.NEVER

        def infer(self, x: TensorType) -> TensorType:
            return x

    x, w = relay.var("x", (4, 8)), weights(8, 8)
    before = relay.Function((x,), CubeOfExp()(relay.nn.dense(x, w)))
    after = relay.Function((x,), CubeOfExp()(cast(relay.nn.dense(cast(x), half(w)), "float32")))
    assert_becomes(before, after)


def test_wrong_settings_are_rejected():
    with pytest.raises(CompileError, match=r"mixed precision in 'float8'; expected one of float16, bfloat16"):
        ToMixedPrecision("float8")
    with pytest.raises(CompileError, match=r"unknown operator 'nn.dens'"):
        ToMixedPrecision(never=("nn.dens",))


@pytest.mark.parametrize("seed", range(200, 220))
def test_random_graphs_keep_their_types(random_graph, seed):
    function = random_graph(seed, 30, 3)
    after = converted(function)
    relay.analysis.well_formed(IRModule({"main": after}))
    assert after.ty is function.ty


def encoder_layer() -> relay.Function:
    """A transformer's layer of width 64, 4 heads, on 16 positions."""
    x = relay.var("x", (16, 64))

    def heads(y: relay.Expr) -> relay.Expr:
        return relay.transpose(relay.reshape(y, (16, 4, 16)), (1, 0, 2))

    q, k, v = (heads(relay.nn.dense(x, weights(64, 64))) for _ in range(3))
    scores = relay.nn.softmax(relay.nn.batch_matmul(q, k) * relay.const(0.25))
    mixed = relay.reshape(relay.transpose(relay.nn.batch_matmul(scores, v, transpose_b=False), (1, 0, 2)), (16, 64))
    one, zero = relay.const(np.ones(64, "float32")), relay.const(np.zeros(64, "float32"))
    y = relay.nn.layer_norm(x + relay.nn.dense(mixed, weights(64, 64)), one, zero)
    hidden = relay.nn.gelu(relay.nn.dense(y, weights(256, 64)))
    return relay.Function((x,), relay.nn.layer_norm(y + relay.nn.dense(hidden, weights(64, 256)), one, zero))


def convolutions() -> relay.Function:
    """Three convolutions with a residual addition, batch normalisation, pooling and a classifier."""
    x = relay.var("x", (1, 3, 16, 16))
    y = relay.nn.relu(relay.nn.conv2d(x, weights(16, 3, 3, 3), padding=(1, 1)))
    parameters = [relay.const(_random.uniform(0.5, 1.5, 16).astype("float32")) for _ in range(4)]
    z = relay.nn.conv2d(y, weights(16, 16, 3, 3), padding=(1, 1))
    z = relay.nn.relu(relay.nn.batch_norm(z, *parameters)[0])
    z = relay.nn.conv2d(z, weights(16, 16, 1, 1)) + y
    pooled = relay.mean(z, axis=(2, 3))
    return relay.Function((x,), relay.nn.softmax(relay.nn.dense(pooled, weights(10, 16))))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 4e-3), ("bfloat16", 5e-3)])
@pytest.mark.parametrize("model", [encoder_layer, convolutions])
def test_accuracy_of_compiled_models(model, dtype, tolerance):
    function = model()
    x = _random.standard_normal(function.params[0].tensor_type.static_shape).astype("float32")
    expected = evaluate(function, [x])
    with PassContext(config={"relay.ToMixedPrecision.dtype": dtype}):
        compiled = relay.build(function, "llvm")
    in_pairs = dtype == "bfloat16" and has_bfloat16_products(Target("llvm"))
    kept = {str(value.dtype) for value in compiled.params.values() if value.size > 100}
    assert kept == {"int32" if in_pairs else dtype}
    executor = graph_executor.GraphModule(compiled["default"](device("cpu")))
    executor.run(x=x)
    error = np.abs(executor.get_output(0).numpy() - expected).max() / np.abs(expected).max()
    assert error < tolerance


@pytest.mark.parametrize(("limit", "rounded"), [(4 * 6 * 6 * 8 - 1, True), (4 * 6 * 6 * 8, False)])
def test_large_images_of_residual_connections_are_stored_rounded(limit: int, rounded: bool):
    """An image is stored rounded if a convolution reads it rounded in any case; the sum is of float32."""
    x, w, v = relay.var("x", (1, 8, 6, 6)), weights(8, 8, 1, 1), weights(8, 8, 1, 1)
    image = relay.nn.relu(relay.nn.conv2d(x, w))
    before = relay.Function((x,), relay.add(relay.nn.conv2d(image, v), image))
    to = {"out_dtype": "float32"}
    image = relay.nn.relu(relay.nn.conv2d(cast(x, "bfloat16"), half(w, "bfloat16"), **to))
    narrow = cast(image, "bfloat16")
    residual = cast(narrow, "float32") if rounded else image
    after = relay.add(relay.nn.conv2d(narrow, half(v, "bfloat16"), **to), residual)
    assert_becomes(before, relay.Function((x,), after), "bfloat16", of_weights=True, round_images_above=limit)


@pytest.mark.parametrize("shared", [False, True])
def test_max_pooling_that_only_convolutions_read_is_of_rounded_values(shared: bool):
    """The largest rounded value is the rounded largest one; other readers get values that are not rounded."""
    x, w = relay.var("x", (1, 8, 6, 6)), weights(8, 8, 1, 1)

    def pooled(image: relay.Expr) -> relay.Expr:
        return relay.nn.max_pool2d(image, (3, 3), strides=(2, 2))

    def product(image: relay.Expr, filters: relay.Expr, **to: str) -> relay.Expr:
        return relay.nn.conv2d(image, filters, **to)

    exact, narrow = pooled(relay.exp(x)), pooled(cast(relay.exp(x), "bfloat16"))
    before = product(exact, w)
    after = product(cast(exact, "bfloat16") if shared else narrow, half(w, "bfloat16"), out_dtype="float32")
    if shared:
        before, after = relay.Tuple((before, exact)), relay.Tuple((after, exact))
    settings = {"of_weights": True}
    assert_becomes(relay.Function((x,), before), relay.Function((x,), after), "bfloat16", **settings)


@pytest.mark.parametrize(("cpu", "limit"), [("cooperlake", 4000), ("sapphirerapids", 1000)])
def test_smaller_images_are_rounded_beside_amx(cpu: str, limit: int):
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu} -l2-bytes=4000")
    (settings,) = [p for p in default_pipeline(3, target, "bfloat16") if isinstance(p, ToMixedPrecision)]
    assert settings.round_images_above == limit
