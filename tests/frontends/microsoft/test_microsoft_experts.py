"""Mixture of experts (MoE) of com.microsoft against numpy and onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from relayc import relay
from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.backend import RelayBackend
from tests.frontends.node_cases import check, node_model, rejected

rng = np.random.default_rng(0)
EXPERTS, WIDTH, HIDDEN = 4, 32, 64
SWIGLU = {"activation_type": "swiglu", "activation_alpha": 1.702, "activation_beta": 1.0}


def normal(*shape):
    return (rng.normal(size=shape) * 0.5).astype(np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def swiglu(gate, linear, limit=np.inf):
    gate, linear = np.minimum(gate, limit), np.clip(linear, -limit, limit)
    return gate * sigmoid(1.702 * gate) * (linear + 1)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x),
    "identity": lambda x: x,
    "interleaved": lambda x: swiglu(x[0::2], x[1::2], 1.0),
    "side by side": lambda x: swiglu(*np.split(x, 2), 1.0),
}


def mixture(x, scores, layers, chosen, activation, normalized):
    """`layers` are (weights, bias) in float64; a third one multiplies the first."""
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    result = np.zeros((len(x), layers[1][0].shape[1]))
    for row, token in enumerate(x.astype(np.float64)):
        best = np.argsort(-scores[row])[:chosen]
        for expert in best:
            products = [weights[expert] @ token + bias[expert] for weights, bias in (layers[0], *layers[2:])]
            hidden = activation(*products)
            share = shares[row, expert] / (shares[row, best].sum() if normalized else 1)
            result[row] += share * (layers[1][0][expert] @ hidden + layers[1][1][expert])
    return result.astype(np.float32)


@pytest.mark.parametrize("tokens", [3, 40])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_mixture_of_experts(name, tokens):
    fusion = {"interleaved": 1, "side by side": 2}.get(name, 0)
    extra = {**SWIGLU, "swiglu_limit": 1.0, "swiglu_fusion": fusion} if fusion else {"activation_type": name}
    x, scores = normal(tokens, WIDTH), normal(tokens, EXPERTS)
    first, second = normal(EXPERTS, HIDDEN * (2 if fusion else 1), WIDTH), normal(EXPERTS, WIDTH, HIDDEN)
    biases = normal(*first.shape[:2]), normal(EXPERTS, WIDTH)
    expected = mixture(x, scores, [(first, biases[0]), (second, biases[1])], 2, ACTIVATIONS[name], True)
    check("MoE", [x, scores, first, biases[0], second, biases[1]], expected, weights=[2, 3, 4, 5], atol=1e-4,
          peer=fusion != 2, k=2, normalize_routing_weights=1, **extra)  # fmt: skip


def test_mixture_of_experts_with_a_third_layer_and_dynamic_tokens():
    first, third = normal(EXPERTS, HIDDEN, WIDTH), normal(EXPERTS, HIDDEN, WIDTH)
    second = normal(EXPERTS, WIDTH, HIDDEN)
    nothing = np.zeros((EXPERTS, HIDDEN)), np.zeros((EXPERTS, WIDTH))
    inputs = [normal(1, 4, WIDTH), normal(4, EXPERTS), first, None, second, None, third]
    dims = {0: ("n", "t", WIDTH), 1: ("r", EXPERTS)}
    model, _ = node_model("MoE", inputs, weights=[2, 4, 6], k=1, dims=dims, **SWIGLU)
    prepared = RelayBackend.prepare(model)
    for batch, length in ((1, 1), (2, 5), (3, 25), (5, 25)):
        x, scores = normal(batch, length, WIDTH), normal(batch * length, EXPERTS)
        layers = [(first, nothing[0]), (second, nothing[1]), (third, nothing[0])]
        expected = mixture(x.reshape(-1, WIDTH), scores, layers, 1, swiglu, False)
        (found,) = prepared.run({"x0": x, "x1": scores})
        np.testing.assert_allclose(found, expected.reshape(x.shape), rtol=1e-4, atol=1e-4)


def quantized(columns, depth, bits, size, points, experts=EXPERTS):
    """Packed weights, scales, zero points (None: the middle) and the dequantised weights."""
    codes = rng.integers(0, 1 << bits, (experts, columns, depth))
    blocks = depth // size if size else 1
    scales = rng.uniform(0.01, 0.03, (experts, columns, blocks)).astype(np.float32)
    zeros = rng.integers(0, 1 << bits, scales.shape) if points else np.full(scales.shape, 1 << (bits - 1))
    real = (codes.reshape(*scales.shape, -1) - zeros[..., None]) * scales[..., None].astype(np.float64)
    stored = pack(zeros, bits) if points else None
    return pack(codes, bits), scales if size else scales[..., 0], stored, real.reshape(codes.shape)


def pack(codes, bits):
    fields = 8 // bits
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % fields)])
    parts = padded.reshape(*codes.shape[:-1], -1, fields) << (bits * np.arange(fields))
    return parts.sum(-1).astype(np.uint8)


@pytest.mark.parametrize("tokens", [3, 40])
@pytest.mark.parametrize(("bits", "size", "points"), [(4, 0, False), (4, 16, False), (4, 16, True), (8, 0, False)])
def test_quantized_mixture_of_experts(bits, size, points, tokens):
    x, scores = normal(tokens, WIDTH), normal(tokens, EXPERTS)
    first, second = quantized(HIDDEN * 2, WIDTH, bits, size, points), quantized(WIDTH, HIDDEN, bits, size, points)
    biases = normal(EXPERTS, HIDDEN * 2), normal(EXPERTS, WIDTH)
    inputs = [x, scores, first[0], first[1], biases[0], second[0], second[1], biases[1], None, None, None,
              first[2], second[2]]  # fmt: skip
    expected = mixture(x, scores, [(first[3], biases[0]), (second[3], biases[1])], 2,
                       lambda h: swiglu(h[0::2], h[1::2]), True)  # fmt: skip
    check("QMoE", inputs, expected, weights=[i for i in range(2, 13) if inputs[i] is not None], rtol=1e-3, atol=1e-3,
          k=2, normalize_routing_weights=1, swiglu_fusion=1, expert_weight_bits=bits,
          **({"block_size": size} if size else {}), **SWIGLU)  # fmt: skip


def quantized_model(bits, size, tokens, experts, level=0, third=False, points=False):
    """QMoE of some number of tokens, and the dequantised layers."""
    forms = [(HIDDEN, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)][: 3 if third else 2]
    layers = [quantized(*form, bits, size, points, experts) for form in forms]
    inputs = [normal(3, WIDTH), normal(3, experts)]
    inputs += [part for codes, scales, _, _ in layers for part in (codes, scales, None)]
    inputs += [None] * (11 - len(inputs)) + [layer[2] for layer in layers]
    model, _ = node_model(
        "QMoE", inputs, weights=[i for i, part in enumerate(inputs) if i > 1 and part is not None],
        dims={0: (tokens, WIDTH), 1: (tokens, experts)}, k=2, expert_weight_bits=bits, accuracy_level=level,
        activation_type="silu", normalize_routing_weights=1, **({"block_size": size} if size else {}),
    )  # fmt: skip
    real = [(layer[3], np.zeros(layer[3].shape[:2])) for layer in layers]
    return model, real


def silu(x, other=1.0):
    return ACTIVATIONS["silu"](x) * other


@pytest.mark.parametrize("experts", [3, 8])
@pytest.mark.parametrize(("bits", "size", "points", "third"), [(4, 16, False, False), (4, 16, True, True),
                                                               (4, 0, False, True), (8, 0, True, False)])  # fmt: skip
def test_quantized_mixture_of_experts_of_dynamic_tokens(bits, size, points, third, experts):
    """Single rows, groups of 4 and groups of 8; tokens that all choose the same experts, and none of others."""
    model, layers = quantized_model(bits, size, "n", experts, 0, third, points)
    prepared = RelayBackend.prepare(model)
    for tokens in (1, 2, 7, 10, 16, 50):
        for favourite in (0.0, 9.0):
            x, scores = normal(tokens, WIDTH), normal(tokens, experts)
            scores[:, 1] += favourite
            (found,) = prepared.run({"x0": x, "x1": scores})
            expected = mixture(x, scores, layers, 2, silu, True)
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tokens", [3, 40])
@pytest.mark.parametrize(("bits", "level"), [(4, 4), (8, 0)])
def test_data_of_quantized_experts_become_int8_where_the_model_lets_them(bits, level, tokens):
    """At accuracy_level 4; those of 8-bit blocks at every level. Results are onnxruntime's."""
    model, layers = quantized_model(bits, 32, tokens, EXPERTS, level)
    x, scores = normal(tokens, WIDTH), normal(tokens, EXPERTS)
    (found,) = RelayBackend.prepare(model).run({"x0": x, "x1": scores})
    exact = mixture(x, scores, layers, 2, silu, True)
    assert 1e-4 < np.abs(found - exact).max() < 0.1 * np.abs(exact).max()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(found, session.run(None, {"x0": x, "x1": scores})[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 40, "n"])
@pytest.mark.parametrize(("bits", "size"), [(4, 0), (4, 16), (8, 16)])
def test_weights_of_quantized_experts_stay_packed(bits, size, tokens):
    """No kernel makes floats of them, and they are stored once."""
    model, _ = quantized_model(bits, size, tokens, EXPERTS)
    mod, params = from_onnx(model)
    kernels = relay.analysis.evaluation_order(relay.optimize(mod, "llvm", params)["main"])
    calls = [e for e in kernels if isinstance(e, relay.Call) and isinstance(e.op, relay.Function)]
    shapes = [e.shape for e in calls if isinstance(e.ty, relay.TensorType)]
    assert shapes and not [shape for shape in shapes if shape[1:] in ((HIDDEN, WIDTH), (WIDTH, HIDDEN))]
    constants = [a for e in calls for a in e.args if isinstance(a, relay.Constant)]
    nbytes = {id(c): c.data.nbytes for c in constants}
    given = sum([onnx.numpy_helper.to_array(t).nbytes for t in model.graph.initializer])
    assert sum(nbytes.values()) <= 1.05 * given


def test_invalid_mixtures_of_experts_are_rejected():
    x, scores, first, second = normal(3, 8), normal(3, 4), normal(4, 16, 8), normal(4, 8, 16)
    rejected("MoE", [x, scores, first, None, second], "SwiGLU of one product", activation_type="swiglu")
    rejected("MoE", [x, scores, first, None, second], "5 experts", k=5)
    rejected("MoE", [x, scores, first, None, second], "use_sparse_mixer", use_sparse_mixer=1)
    rejected("QMoE", [x, scores, first, None, None, second], "quant_type 'fp8'", quant_type="fp8")


@pytest.mark.parametrize("tokens", [3, 40, "n"])
def test_weights_of_chosen_experts_are_read_in_place(tokens):
    """A copy of them for each token would be larger than any other tensor; nor do all experts take all tokens."""
    first, second = normal(EXPERTS, HIDDEN, WIDTH), normal(EXPERTS, WIDTH, HIDDEN)
    inputs = [normal(40, WIDTH), normal(40, EXPERTS), first, None, second]
    model, _ = node_model("MoE", inputs, weights=[2, 4], dims={0: (tokens, WIDTH), 1: (tokens, EXPERTS)})
    mod, params = from_onnx(model)
    kernels = relay.analysis.evaluation_order(relay.optimize(mod, "llvm", params)["main"])
    shapes = [e.shape for e in kernels if isinstance(e, relay.Call) and isinstance(e.op, relay.Function)]
    large = [str((HIDDEN, WIDTH)), str((WIDTH, HIDDEN)), str((tokens, HIDDEN))]
    assert shapes and not [shape for shape in shapes if str(shape[1:]) in large]
