"""Operators: importing this package registers all of them. Helper functions build calls (`relay.op.add(x, y)`)."""

import sys
import types

from relayc.relay import argument_types
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


def _check_arguments(module: types.ModuleType, prefix: str) -> None:
    """Let the functions of a module that build calls check their arguments."""
    for name in getattr(module, "__all__", dir(module)):
        function = getattr(module, name)
        if isinstance(function, types.FunctionType):
            setattr(module, name, argument_types.checked(function, prefix + name))


for _module in (cache, image, nn, qnn, random, sequence, strings, vision):
    _check_arguments(_module, _module.__name__.rpartition(".")[2] + ".")

_face = sys.modules[__name__]
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]  # a star import of this package means no modules
    name for name, value in vars(_face).items() if not (name.startswith("_") or isinstance(value, types.ModuleType))
]
_check_arguments(_face, "")
