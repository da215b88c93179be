"""Compute definitions of neural-network operators (TVM: `topi.nn`)."""

from relayc.te.deprecation import deprecated_names as _deprecated_names
from relayc.topi.nn.activation import *
from relayc.topi.nn.attention import *
from relayc.topi.nn.blocked_attention import *
from relayc.topi.nn.conv import *
from relayc.topi.nn.dense import *
from relayc.topi.nn.dense_bits import *
from relayc.topi.nn.dot4 import *
from relayc.topi.nn.embedding import *
from relayc.topi.nn.linear_attention import *
from relayc.topi.nn.norm import *
from relayc.topi.nn.overlap_add import *
from relayc.topi.nn.pad import *
from relayc.topi.nn.pool import *
from relayc.topi.nn.recurrent import *
from relayc.topi.nn.rotary import *
from relayc.topi.nn.softmax import *
from relayc.topi.nn.unfold import *
from relayc.topi.nn.winograd import *

__getattr__ = _deprecated_names(__name__, {
    "dense_quads": "dense_dot4",
    "dense_quad_groups": "dense_dot4_groups",
    "conv2d_quads": "conv2d_dot4",
    "window_quad_groups": "window_dot4_groups",
})  # fmt: skip
