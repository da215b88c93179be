"""Neural-network operators, registered as `nn.*`."""

from relayc.relay.op.nn.activation import *
from relayc.relay.op.nn.attention import *
from relayc.relay.op.nn.bias import *
from relayc.relay.op.nn.conv import *
from relayc.relay.op.nn.dense import *
from relayc.relay.op.nn.dense_bits import *
from relayc.relay.op.nn.embedding import *
from relayc.relay.op.nn.linear_attention import *
from relayc.relay.op.nn.norm import *
from relayc.relay.op.nn.packed_conv import *
from relayc.relay.op.nn.pad import *
from relayc.relay.op.nn.pool import *
from relayc.relay.op.nn.recurrent import *
from relayc.relay.op.nn.rotary import *
from relayc.relay.op.nn.space import *
from relayc.relay.op.nn.unfold import *
from relayc.relay.op.nn.winograd import *
