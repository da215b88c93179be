"""Operators: importing this package registers all of them. Helper functions build calls (`relay.op.add(x, y)`)."""

from types import ModuleType

from relayc.relay.op import (
    cache as cache,
    image as image,
    nn as nn,
    qnn as qnn,
    random as random,
    sequence as sequence,
    strings as strings,
    vision as vision,
)
from relayc.relay.op.base import *
from relayc.relay.op.broadcast import *
from relayc.relay.op.control import *
from relayc.relay.op.coupling import *
from relayc.relay.op.creation import *
from relayc.relay.op.elementwise import *
from relayc.relay.op.fourier import *
from relayc.relay.op.indexing import *
from relayc.relay.op.joining import *
from relayc.relay.op.layout import *
from relayc.relay.op.linalg import *
from relayc.relay.op.packing import *
from relayc.relay.op.reduce import *
from relayc.relay.op.selection import *
from relayc.relay.op.transform import *
from relayc.relay.op.trees import *

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]  # a star import of this package means no modules
    name for name, value in tuple(globals().items()) if not name.startswith("_") and not isinstance(value, ModuleType)
]
