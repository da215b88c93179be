"""Normalisations of the domain com.microsoft, with sums and embeddings fused in front of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import MICROSOFT, require_rank
from frontends.onnx.ops.normalization import layer_normalized, rms_normalized
from frontends.onnx.registry import convert_with, converter
from relay import op
from relay.expr import Constant, Expr
from relay.type import dims_match
from te.tir import Dim


def simplified_layer_normalization(node: OnnxNode) -> list[Expr]:
    """x / sqrt(mean(x * x) + epsilon) * scale over the axes from `axis` on, and 1 / the root."""
    node.attrs.ignore("stash_type")
    axis = node.axis(node.attr_int("axis", -1), node.rank(0))
    return rms_normalized(node[0], node[1], axis, node.attr_float("epsilon", 1e-5), node.wants(1))


convert_with(simplified_layer_normalization, "SimplifiedLayerNormalization")  # where onnxruntime itself puts it
convert_with(simplified_layer_normalization, "SimplifiedLayerNormalization", domain=MICROSOFT)


@converter("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(node: OnnxNode) -> list[Expr]:
    """Layer normalisation of input + skip + bias. Inputs: input, skip, gamma, beta, bias. The sum is output 3."""
    require_rank(node, 0, 1)
    _check_vectors(node, node.type(0).shape[-1], (2, 3, 4))
    total = _with_skip(node, node.get(4))
    epsilon, statistics = node.attr_float("epsilon", 1e-12), node.wants(1) or node.wants(2)
    found = layer_normalized(total, node[2], node.get(3), len(total.shape) - 1, epsilon, statistics)
    return [found[0], *(found[1:] if statistics else (total, total)), total]


@converter("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(node: OnnxNode) -> list[Expr | None]:
    """input + skip + bias over its root mean square. Inputs: input, skip, gamma, bias. The sum is output 3."""
    require_rank(node, 0, 1)
    _check_vectors(node, node.type(0).shape[-1], (2, 3))
    total = _with_skip(node, node.get(3))
    found = rms_normalized(total, node[2], len(total.shape) - 1, node.attr_float("epsilon", 1e-12), node.wants(2))
    return [found[0], None, found[1] if node.wants(2) else None, total]


def _with_skip(node: OnnxNode, bias: Expr | None) -> Expr:
    """input + skip + bias; the skip may lack leading axes, or have 1 there."""
    x, skip = node[0], node[1]
    lead = len(x.shape) - len(skip.shape)
    fits = lead >= 0 and all(s == 1 or dims_match(s, d) for s, d in zip(skip.shape, x.shape[lead:], strict=True))
    if not fits:
        raise node.error(f"a skip input {skip.ty} for {x.ty}", expected="the input's shape, without or with 1 batch")
    total = op.add(x, skip)
    return total if bias is None else op.add(total, bias)


def _check_vectors(node: OnnxNode, size: Dim, indices: Sequence[int]) -> None:
    """Inputs that are given are vectors of `size` elements."""
    for index in indices:
        if node.get(index) is not None and (node.rank(index) != 1 or not dims_match(node.type(index).shape[0], size)):
            raise node.error(f"input {index} is {node.type(index)}", expected=f"a vector of {size} elements")


@converter("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(node: OnnxNode) -> list[Expr]:
    """The sum of the embeddings of words, positions and segments, normalised; words per row; the sum.

    Inputs: words, segments, the tables of words, positions and segments, gamma, beta, mask, positions.
    """
    node.attrs.ignore("mask_index_type")
    for index in (0, 2, 3):
        require_rank(node, index, 2, 2)
    batch, length = node.type(0).shape
    words = op.take(node[2], node[0], axis=0)
    positions = op.arange(0, length, 1, "int64") if node.get(8) is None else node[8]
    total = op.add(words, op.take(node[3], positions, axis=0))
    if node.get(1) is not None:
        total = op.add(total, op.take(node[4], node[1], axis=0))
    _check_vectors(node, total.shape[-1], (5, 6))
    result = layer_normalized(total, node[5], node[6], 2, node.attr_float("epsilon", 1e-12))[0]
    if node.get(7) is None:
        counts: Expr = op.zeros((batch,), "int32")
    else:
        counts = op.sum(op.cast(op.equal(node[7], Constant(np.array(1, str(node.dtype(7))))), "int32"), axis=(1,))
    return [result, counts, total]
