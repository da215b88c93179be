"""Decoding operators of com.microsoft: attention of one new position with a KV cache, multimodal rotary embedding."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.attention_microsoft import attend_masked, require_absent
from relayc.frontends.onnx.ops.attention_parts import columns, merged_heads, rotated, split_heads
from relayc.frontends.onnx.ops.common import MICROSOFT, counted, require_rank, reshape_to, transposed
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.relay.sizes import add_sizes, product, quotient
from relayc.relay.type import dims_match
from relayc.te.tir import Dim


@converter("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_masked_multi_head_attention(node: OnnxNode) -> list[Expr | None]:
    """Attention of one new position with a KV cache.

    Inputs: Q (or packed QKV), K, V, key mask, bias of the scores, past keys and values, their number if the cache has
    spare capacity, beams, a bias of Q, K and V. Cross-attention K and V are [batch, heads, length, size]. Outputs: Y,
    and the updated cache.
    """
    require_absent(node, 8, "the width of a beam")
    require_absent(node, 9, "the beams of a cache")
    if node.attr_bool("output_qk", False) or node.wants(3):
        raise node.unsupported("the scores as an output (output_qk)", expected="0")
    require_rank(node, 0, 3, 3)
    heads, roomy = node.attr_int("num_heads"), node.attr_bool("past_present_share_buffer", False)
    if node.get(1) is not None and node.rank(1) == 4:
        query, _, _ = _biased(node, node[0], None, None)
        passed = split_heads(node, query, heads, "queries of"), node[1], node[2]
        result, _ = attend_masked(node, passed, node.get(3), node.get(4), 0)
        return [merged_heads(result), None, None]
    parts = _three(node)
    query, key, value = [split_heads(node, x, heads, "a projection of") for x in parts]
    caches, before = [key, value], 0
    used: list[Expr] = [key, value]
    if node.get(5) is not None:
        for index in (5, 6):
            require_rank(node, index, 4, 4)
        before = node.sizes(7, "the number of past keys", 1)[0] if roomy else node[5].shape[2]
        caches = [_written(node[i], x, before) if roomy else op.concatenate([node[i], x], axis=2)
                  for i, x in ((5, key), (6, value))]  # fmt: skip
        total = add_sizes(before, 1)
        used = [op.strided_slice(x, (0,), (total,), axes=(2,)) for x in caches] if roomy else caches
    result, _ = attend_masked(node, (query, used[0], used[1]), node.get(3), node.get(4), before)
    return [merged_heads(result), *caches]


def _three(node: OnnxNode) -> list[Expr]:
    """Q, K and V [batch, 1, channels], with their bias."""
    if node.get(1) is not None:
        query, key, value = _biased(node, node[0], node[1], node[2])
        assert key is not None and value is not None
        return [query, key, value]
    width = node.type(0).shape[2]
    hidden = quotient((width,), (3,))
    if not isinstance(width, int) or not isinstance(hidden, int):
        raise node.error(f"packed heads {node.type(0)}", expected="Q, K and V of one width")
    packed = node[0] if node.get(10) is None else op.add(node[0], node[10])
    return columns(packed, (hidden, hidden, hidden))


def _biased(node: OnnxNode, query: Expr, key: Expr | None, value: Expr | None) -> tuple[Expr, Expr | None, Expr | None]:
    bias = node.get(10)
    if bias is None:
        return query, key, value
    require_rank(node, 10, 1, 1)
    hidden, total = query.shape[2], node.extent(bias, 0, "the elements of the bias")
    if not isinstance(hidden, int) or total <= 2 * hidden:
        raise node.error(f"a bias of {bias.ty}", expected="a bias of Q, K and V, whose sizes are known")
    first, second, third = columns(bias, (hidden, hidden, total - 2 * hidden))
    return (op.add(query, first), None if key is None else op.add(key, second),
            None if value is None else op.add(value, third))  # fmt: skip


def _written(cache: Expr, new: Expr, at: Dim) -> Expr:
    """A cache [batch, heads, room, size] with `new` [batch, heads, 1, size] at position `at`."""
    here = op.equal(counted(cache.shape[2]), op.size_tensor((at,), ()))
    return op.where(op.expand_dims(here, 1), new, cache)


@converter("MRotaryEmbedding", domain=MICROSOFT)
def m_rotary_embedding(node: OnnxNode) -> Expr:
    """Multimodal rotary embedding: positions on three axes (time, height, width) for sections of the angles.

    Inputs: x [batch, length, heads * size] or [batch, heads, length, size], positions [3, batch, length], cosines and
    sines.
    """
    if node.attr_bool("is_packed_batching", False):
        raise node.unsupported("batches of different lengths in one (is_packed_batching)", expected="0")
    node.attrs.ignore("scale")
    require_rank(node, 0, 3, 4)
    require_rank(node, 1, 3, 3)
    for index in (2, 3):
        require_rank(node, index, 2, 2)
    pairs = node.extent(node[2], 1, "the angles")
    x, shape = node[0], node.type(0).shape
    if len(shape) == 4:
        x = transposed(x, (0, 2, 1, 3))
    else:
        heads, width = node.attr_int("num_heads", 0), shape[2]
        heads = heads if heads or not isinstance(width, int) else width // (2 * pairs)
        x = transposed(split_heads(node, x, heads, "data"), (0, 2, 1, 3))
    rotary_size = node.attr_int("rotary_embedding_dim", 0) or 2 * pairs
    if rotary_size != 2 * pairs or not dims_match(node.type(1).shape[0], 3):
        problem = f"{rotary_size} channels rotated by {pairs} angles, positions {node.type(1)}"
        raise node.error(problem, expected="two channels for an angle, three positions")
    source = Constant(_sections(node, pairs).reshape(1, 1, pairs))
    cosine, sine = [_angles(node, index, source) for index in (2, 3)]
    result = rotated(x, cosine, sine, rotary_size, node.attr_bool("interleaved", False))
    return transposed(result, (0, 2, 1, 3)) if len(shape) == 4 else reshape_to(result, shape)


def _sections(node: OnnxNode, pairs: int) -> np.ndarray:
    """The position axis, 0 to 2, of each angle."""
    sections = node.attr_ints("mrope_section")
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != pairs:
        raise node.error(f"sections {list(sections)} of {pairs} angles", expected="three that add up")
    layout = node.attr_int("mrope_layout", 0)
    if layout not in (0, 1):
        raise node.error(f"mrope_layout {layout}", expected="0 or 1")
    source = np.zeros(pairs, np.int64)
    if layout == 0:
        for axis, (begin, end) in enumerate(pairwise([0, *accumulate(sections)])):
            source[begin:end] = axis
    else:
        for axis in (1, 2):
            source[axis : sections[axis] * 3 : 3] = axis
    return source


def _angles(node: OnnxNode, index: int, source: Expr) -> Expr:
    """Cosines or sines as [batch, length, 1, pairs]."""
    found = op.take(node[index], node[1], axis=0, mode="clip")  # [3, batch, length, pairs]
    _, batch, length, pairs = found.shape
    wanted = op.broadcast_to(op.expand_dims(source, 0), (1, batch, length, pairs))
    return reshape_to(op.gather(found, 0, wanted), (batch, length, 1, product((pairs,))))
