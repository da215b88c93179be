"""Compute definitions of neural-network operators (TVM: `topi.nn`)."""

from relayc.topi.nn.activation import (
    celu,
    elu,
    gelu,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    mish,
    prelu,
    relu,
    selu,
    silu,
    softplus,
    softsign,
    thresholded_relu,
)
from relayc.topi.nn.attention import attention
from relayc.topi.nn.blocked_attention import blocked_attention
from relayc.topi.nn.conv import conv, conv_across_groups, conv_packed, conv_transpose
from relayc.topi.nn.dense import (
    Pairs,
    batch_matmul,
    batch_matmul_packed,
    bias_add,
    dense,
    dense_packed,
    pack_panels,
    take_from_panels,
)
from relayc.topi.nn.dense_bits import dense_bits
from relayc.topi.nn.dot4 import conv2d_dot4, dense_dot4, dense_dot4_groups, window_dot4_groups, words
from relayc.topi.nn.embedding import embedding_bag
from relayc.topi.nn.linear_attention import linear_attention
from relayc.topi.nn.norm import (
    batch_norm,
    group_norm,
    instance_norm,
    l2_normalize,
    layer_norm,
    lrn,
    rms_norm,
    standardize,
)
from relayc.topi.nn.overlap_add import overlap_add
from relayc.topi.nn.pad import mirror_pad, pad
from relayc.topi.nn.pool import Windows, adaptive_pool, avg_pool, lp_pool, max_pool, max_pool_with_argmax
from relayc.topi.nn.recurrent import gru, lstm, rnn
from relayc.topi.nn.rotary import rotary_embedding
from relayc.topi.nn.softmax import log_softmax, softmax
from relayc.topi.nn.unfold import col2im
from relayc.topi.nn.winograd import Depth, conv_winograd

__all__ = [
    "Depth",
    "Pairs",
    "Windows",
    "adaptive_pool",
    "attention",
    "avg_pool",
    "batch_matmul",
    "batch_matmul_packed",
    "batch_norm",
    "bias_add",
    "blocked_attention",
    "celu",
    "col2im",
    "conv",
    "conv2d_dot4",
    "conv_across_groups",
    "conv_packed",
    "conv_transpose",
    "conv_winograd",
    "dense",
    "dense_bits",
    "dense_dot4",
    "dense_dot4_groups",
    "dense_packed",
    "elu",
    "embedding_bag",
    "gelu",
    "group_norm",
    "gru",
    "hard_sigmoid",
    "hard_swish",
    "instance_norm",
    "l2_normalize",
    "layer_norm",
    "leaky_relu",
    "linear_attention",
    "log_softmax",
    "lp_pool",
    "lrn",
    "lstm",
    "max_pool",
    "max_pool_with_argmax",
    "mirror_pad",
    "mish",
    "overlap_add",
    "pack_panels",
    "pad",
    "prelu",
    "relu",
    "rms_norm",
    "rnn",
    "rotary_embedding",
    "selu",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "standardize",
    "take_from_panels",
    "thresholded_relu",
    "window_dot4_groups",
    "words",
]  # fmt: skip
