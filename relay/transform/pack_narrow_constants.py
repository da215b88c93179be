"""PackNarrowConstants: weights of int4, int2 and float4 are stored packed, and the compiled code unpacks them."""

from __future__ import annotations

from typing import ClassVar, cast

import numpy as np

from relayc.relay.expr import Constant, Expr, Function
from relayc.relay.op.elementwise import reinterpret
from relayc.relay.op.packing import pack_bits, unpack_bits
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext, rewrite_dag

__all__ = ["PackNarrowConstants"]


class PackNarrowConstants(FunctionPass):
    """Constants of types of less than a byte become bytes that hold several elements, with `unpack_bits` on them.

    That takes half or a quarter of the memory, on disk too; the unpacking is fused with the readers of the weights.
    Constants of float8_e4m3fnuz and float8_e5m2fnuz, for which files of weights have no name, become bytes that are
    reinterpreted.
    """

    opt_level: ClassVar[int] = 0

    def transform(self, function: Function, context: PassContext) -> Function:
        def pack(e: Expr) -> Expr:
            if not isinstance(e, Constant) or e.dtype.is_bool:
                return e
            if e.dtype.variant.endswith("fnuz"):
                return reinterpret(Constant(e.data.view(np.uint8), span=e.span), str(e.dtype))
            if e.dtype.bits >= 8:
                return e
            packed = Constant(pack_bits(e.data), span=e.span)
            return unpack_bits(packed, e.ty.static_shape, str(e.dtype))

        return cast(Function, rewrite_dag(function, pack))
