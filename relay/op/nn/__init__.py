"""Neural-network operators, registered as `nn.*`."""

from relay.op.nn.activation import (
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
from relay.op.nn.attention import attention
from relay.op.nn.bias import bias_add
from relay.op.nn.conv import (
    conv1d,
    conv1d_transpose,
    conv2d,
    conv2d_nhwc_packed,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
)
from relay.op.nn.dense import batch_matmul, dense, dense_packed, matmul
from relay.op.nn.norm import (
    batch_norm,
    group_norm,
    instance_norm,
    l2_normalize,
    layer_norm,
    log_softmax,
    lrn,
    rms_norm,
    softmax,
)
from relay.op.nn.pad import pad
from relay.op.nn.pool import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    global_avg_pool2d,
    global_max_pool2d,
    lp_pool,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from relay.op.nn.recurrent import gru, lstm, pack_recurrence, rnn

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "attention", "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_matmul", "batch_norm",
    "bias_add", "celu", "conv1d", "conv1d_transpose", "conv2d", "conv2d_nhwc_packed", "conv2d_transpose", "conv3d",
    "conv3d_transpose", "dense", "dense_packed", "elu", "gelu", "global_avg_pool2d", "global_max_pool2d",
    "group_norm", "gru", "hard_sigmoid", "hard_swish", "instance_norm", "l2_normalize", "layer_norm", "leaky_relu",
    "log_softmax", "lp_pool", "lrn", "lstm", "matmul", "max_pool1d", "max_pool2d", "max_pool3d", "mish",
    "pack_recurrence", "pad", "prelu", "relu", "rms_norm", "rnn", "selu", "silu", "softmax", "softplus", "softsign",
    "thresholded_relu",
]  # fmt: skip
