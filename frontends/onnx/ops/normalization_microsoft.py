"""Normalisations of com.microsoft, fused with sums and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import MICROSOFT, require_rank, reshape_to, transposed
from relayc.frontends.onnx.ops.normalization import group_normalized, layer_normalized, rms_normalized
from relayc.frontends.onnx.registry import convert_with, converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.relay.sizes import quotient
from relayc.relay.type import dims_match
from relayc.te.tir import Dim


def simplified_layer_normalization(node: OnnxNode) -> list[Expr]:
    """RMS normalisation over the axes from `axis` on; also returns 1 / root mean square."""
    node.attrs.ignore("stash_type")
    axis = node.axis(node.attr_int("axis", -1), node.rank(0))
    return rms_normalized(node[0], node[1], axis, node.attr_float("epsilon", 1e-5), node.wants(1))


convert_with(simplified_layer_normalization, "SimplifiedLayerNormalization")  # onnxruntime's domain for it
convert_with(simplified_layer_normalization, "SimplifiedLayerNormalization", domain=MICROSOFT)


@converter("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(node: OnnxNode) -> list[Expr]:
    """Layer normalisation of input + skip + bias. Inputs: input, skip, gamma, beta, bias. Output 3 is the sum."""
    require_rank(node, 0, 1)
    _check_vectors(node, node.type(0).shape[-1], (2, 3, 4))
    total = _with_skip(node, node.get(4))
    epsilon, statistics = node.attr_float("epsilon", 1e-12), node.wants(1) or node.wants(2)
    found = layer_normalized(total, node[2], node.get(3), len(total.shape) - 1, epsilon, statistics)
    return [found[0], *(found[1:] if statistics else (total, total)), total]


@converter("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(node: OnnxNode) -> list[Expr | None]:
    """RMS normalisation of input + skip + bias. Inputs: input, skip, gamma, bias. Output 3 is the sum."""
    require_rank(node, 0, 1)
    _check_vectors(node, node.type(0).shape[-1], (2, 3))
    total = _with_skip(node, node.get(3))
    found = rms_normalized(total, node[2], len(total.shape) - 1, node.attr_float("epsilon", 1e-12), node.wants(2))
    return [found[0], None, found[1] if node.wants(2) else None, total]


def _with_skip(node: OnnxNode, bias: Expr | None) -> Expr:
    """input + skip + bias; the skip may lack leading axes or have size 1 there."""
    x, skip = node[0], node[1]
    lead = len(x.shape) - len(skip.shape)
    pairs = [] if lead < 0 else zip(skip.shape, x.shape[lead:], strict=True)
    if lead < 0 or any(isinstance(s, int) and isinstance(d, int) and s not in (1, d) for s, d in pairs):
        raise node.error(f"a skip input {skip.ty} for {x.ty}", expected="the input's shape, without or with 1 batch")
    total = op.add(x, skip)
    return total if bias is None else op.add(total, bias)


def _check_vectors(node: OnnxNode, size: Dim, indices: Sequence[int]) -> None:
    """Check that the present ones of inputs `indices` are vectors of `size` elements."""
    for index in indices:
        if node.get(index) is not None and (node.rank(index) != 1 or not dims_match(node.type(index).shape[0], size)):
            raise node.error(f"input {index} is {node.type(index)}", expected=f"a vector of {size} elements")


@converter("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(node: OnnxNode) -> list[Expr]:
    """Layer normalisation of the sum of word, position and segment embeddings; also words per row, and the sum.

    Inputs: words, segments, the tables of words, positions and segments, gamma, beta, mask, positions.
    """
    node.attrs.ignore("mask_index_type")
    return _embedded(node, lambda index, rows: op.take(node[index], rows, axis=0), (node[5], node[6]), node.get(8))


@converter("QEmbedLayerNormalization", domain=MICROSOFT)
def q_embed_layer_normalization(node: OnnxNode) -> list[Expr]:
    """EmbedLayerNormalization with quantised tables, gamma and beta.

    Inputs 8 to 12 are scales, then zero points. Rows are gathered, then dequantised.
    """

    def real(index: int, x: Expr) -> Expr:
        scale, zero = (reshape_to(node[index + offset], ()) for offset in (6, 11))
        return op.multiply(op.subtract(op.cast(x, scale.dtype), op.cast(zero, scale.dtype)), scale)

    last = real(5, node[5]), real(6, node[6])
    found = _embedded(node, lambda index, rows: real(index, op.take(node[index], rows, axis=0)), last, None)
    return found[:2]


def _embedded(
    node: OnnxNode, row: Callable[[int, Expr], Expr], last: tuple[Expr, Expr], positions: Expr | None
) -> list[Expr]:
    """`row` gathers rows of the table at an input; `last` are gamma and beta."""
    for index in (0, 2, 3):
        require_rank(node, index, 2, 2)
    batch, length = node.type(0).shape
    positions = op.arange(0, length, 1, "int64") if positions is None else positions
    total = op.add(row(2, node[0]), row(3, positions))
    if node.get(1) is not None:
        total = op.add(total, row(4, node[1]))
    _check_vectors(node, total.shape[-1], (5, 6))
    result = layer_normalized(total, *last, 2, node.attr_float("epsilon", 1e-12))[0]
    if node.get(7) is None:
        counts: Expr = op.zeros((batch,), "int32")
    else:
        counts = op.sum(op.cast(op.equal(node[7], Constant(np.array(1, str(node.dtype(7))))), "int32"), axis=(1,))
    return [result, counts, total]


# groups of channels ---------------------------------------------------------------------------------------------------


@converter("GroupNorm", domain=MICROSOFT)
def group_norm(node: OnnxNode) -> Expr:
    """Channels-last group normalisation, optionally with SiLU. Inputs: x, scale, bias per channel."""
    return _grouped(node, node[0])


@converter("SkipGroupNorm", domain=MICROSOFT)
def skip_group_norm(node: OnnxNode) -> list[Expr]:
    """GroupNorm of x + skip + bias, and the sum. Inputs: x, scale, bias per channel, skip, bias of the sum."""
    require_rank(node, 0, 4, 4)
    require_rank(node, 3, 2, 4)
    x, skip = node[0], node[3]
    last = node.attr_bool("channels_last", True)
    if len(skip.shape) == 2:
        batch, channels = skip.shape
        skip = reshape_to(skip, (batch, 1, 1, channels) if last else (batch, channels, 1, 1))
    total = op.add(x, skip)
    if node.get(4) is not None:
        require_rank(node, 4, 1, 1)
        total = op.add(total, node[4] if last else op.expand_dims(node[4], 1, 2))
    return [_grouped(node, total), total]


def _grouped(node: OnnxNode, x: Expr) -> Expr:
    require_rank(node, 0, 4, 4)
    for index in (1, 2):
        require_rank(node, index, 1, 1)
    last = node.attr_bool("channels_last", True)
    data = transposed(x, (0, 3, 1, 2)) if last else x
    result = group_normalized(node, data, node.attr_int("groups"), node.attr_float("epsilon", 1e-5))
    activation = node.attr_int("activation")
    if activation not in (0, 1):
        raise node.unsupported(f"activation {activation}", expected="0 (none) or 1 (SiLU)")
    result = op.nn.silu(result) if activation else result
    return transposed(result, (0, 2, 3, 1)) if last else result


# RMS normalisation ----------------------------------------------------------------------------------------------------


@converter("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(node: OnnxNode) -> Expr:
    """RMS normalisation of heads, times an activated gate. Inputs: x, scale, gate."""
    require_rank(node, 0, 1)
    require_rank(node, 1, 1, 1)
    kind, shape = node.attr_choice("activation", ("silu", "swish", "sigmoid"), "silu"), node.type(0).shape
    heads = quotient(shape[-1:], node.type(1).shape)
    if heads is None:
        raise node.error(f"heads of {node.type(1)} in {node.type(0)}", expected="a divisor of the last axis")
    size = node.type(1).shape[0]
    x, gate = op.cast(node[0], "float32"), op.cast(node[2], "float32")
    rows = reshape_to(x, (*shape[:-1], heads, size))
    (normal,) = rms_normalized(rows, op.cast(node[1], "float32"), len(shape), node.attr_float("epsilon", 1e-5))
    opened = op.sigmoid(gate) if kind == "sigmoid" else op.nn.silu(gate)
    return op.cast(op.multiply(reshape_to(normal, shape), opened), str(node.dtype(0)))
