"""Tensor expressions, schedules, the loop IR and its lowering, device-independent. (TVM: `tvm.te`, `tvm.tir`.)"""

from relayc.te.deprecation import deprecated_names as _deprecated_names
from relayc.te.lower import lower as lower
from relayc.te.math import *
from relayc.te.operation import *
from relayc.te.reduction import *
from relayc.te.schedule import *
from relayc.te.stage import Prefetch as Prefetch, Stage as Stage
from relayc.te.tag import tag_scope as tag_scope
from relayc.te.tensor import *
from relayc.te.tensor_intrin import *
from relayc.te.tir import ir_builder as ir_builder
from relayc.te.tir.expr import Dim as Dim, IterVar as IterVar
from relayc.te.tir.ops import (
    all as all,
    any as any,
    cast as cast,
    const as const,
    div as div,
    floordiv as floordiv,
    floormod as floormod,
    if_then_else as if_then_else,
    indexdiv as indexdiv,
    indexmod as indexmod,
    infinity as infinity,
    max_value as max_value,
    maximum as maximum,
    min_value as min_value,
    minimum as minimum,
    select as select,
    truncdiv as truncdiv,
    truncmod as truncmod,
)

__getattr__ = _deprecated_names(__name__, {"dot_pairs": "dot2", "dot_quads": "dot4", "dot_octets": "dot8"})
