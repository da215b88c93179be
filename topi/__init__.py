"""Compute definitions of operators, and the registry of their schedules by tag and target (TVM: `topi`)."""

from relayc.te.deprecation import deprecated_names as _deprecated_names
from relayc.topi import nn as nn, vision as vision
from relayc.topi.broadcast import *
from relayc.topi.coupling import *
from relayc.topi.elementwise import *
from relayc.topi.indexing import *
from relayc.topi.layout import *
from relayc.topi.linalg import *
from relayc.topi.packing import *
from relayc.topi.quantization import *
from relayc.topi.reduction import *
from relayc.topi.registry import *
from relayc.topi.selection import *
from relayc.topi.sort import *
from relayc.topi.suppression import *
from relayc.topi.transform import *
from relayc.topi.trees import *

__getattr__ = _deprecated_names(__name__, {"sizes": "size_tensor"})
