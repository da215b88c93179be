"""The intrinsics and functions that a `tir.Call` may name: a table from the name to the function that emits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relayc.backend.llvm.codegen.amx import emit_amx, emit_amx_configure
from relayc.backend.llvm.codegen.bits import (
    BITWISE,
    REDUCTIONS,
    emit_bitwise,
    emit_bitwise_not,
    emit_clz,
    emit_popcount,
    emit_reinterpret,
    emit_shift_right,
    emit_vector_reduce,
)
from relayc.backend.llvm.codegen.conditions import (
    emit_all_below,
    emit_assume,
    emit_blend,
    emit_if_then_else,
    emit_likely,
)
from relayc.backend.llvm.codegen.dots import (
    emit_add_dot2_bfloat16,
    emit_add_dot4,
    emit_byte_pairs,
    emit_dot2,
    emit_dot2_bfloat16,
    emit_dot4,
)
from relayc.backend.llvm.codegen.emitter import Emitter
from relayc.backend.llvm.codegen.functions import (
    emit_call_extern,
    emit_call_kernel,
    emit_call_packed,
    emit_call_packed_args,
    emit_call_step,
)
from relayc.backend.llvm.codegen.lookups import emit_lookup
from relayc.backend.llvm.codegen.math import (
    C_FUNCTIONS,
    CONTRACTED,
    LLVM_FUNCTIONS,
    emit_c_math,
    emit_contracted,
    emit_fast_reciprocal,
    emit_fast_rsqrt,
    emit_fma,
    emit_fmod,
    emit_fraction,
    emit_isfinite,
    emit_isinf,
    emit_isnan,
    emit_llvm_math,
    emit_round_to_int32,
    emit_rsqrt,
    emit_rsqrt_estimate,
    emit_scale_by_power,
)
from relayc.backend.llvm.codegen.pointers import (
    emit_address_of,
    emit_atomic_add,
    emit_atomic_max,
    emit_copy_bytes,
    emit_dlpack_field,
    emit_handle_add_byte_offset,
    emit_load_at,
    emit_next_draw,
    emit_prefetch,
    emit_store_at,
)
from relayc.te.errors import CompileError
from relayc.te.tir import Call

__all__ = ["INTRINSICS", "emit_call"]

INTRINSICS: Mapping[str, Callable[[Emitter, Any], str]] = {
    "add_dot2_bfloat16": emit_add_dot2_bfloat16,
    "add_dot4": emit_add_dot4,
    "add_dot8": emit_add_dot4,
    "address_of": emit_address_of,
    "all_below": emit_all_below,
    "amx_configure": emit_amx_configure,
    "amx_dot_bfloat16": emit_amx,
    "amx_dot_bytes": emit_amx,
    "amx_load": emit_amx,
    "amx_store": emit_amx,
    "amx_zero": emit_amx,
    "assume": emit_assume,
    "atomic_add": emit_atomic_add,
    "atomic_max": emit_atomic_max,
    "bitwise_not": emit_bitwise_not,
    "blend": emit_blend,
    "byte_pairs": emit_byte_pairs,
    "call_extern": emit_call_extern,
    "call_kernel": emit_call_kernel,
    "call_packed": emit_call_packed,
    "call_packed_args": emit_call_packed_args,
    "call_step": emit_call_step,
    "clz": emit_clz,
    "copy_bytes": emit_copy_bytes,
    "dlpack_field": emit_dlpack_field,
    "dot2": emit_dot2,
    "dot2_bfloat16": emit_dot2_bfloat16,
    "dot4": emit_dot4,
    "dot8": emit_dot4,
    "fast_reciprocal": emit_fast_reciprocal,
    "fast_rsqrt": emit_fast_rsqrt,
    "fma": emit_fma,
    "fmod": emit_fmod,
    "fraction": emit_fraction,
    "handle_add_byte_offset": emit_handle_add_byte_offset,
    "if_then_else": emit_if_then_else,
    "isfinite": emit_isfinite,
    "isinf": emit_isinf,
    "isnan": emit_isnan,
    "likely": emit_likely,
    "load_at": emit_load_at,
    "lookup": emit_lookup,
    "next_draw": emit_next_draw,
    "popcount": emit_popcount,
    "prefetch": emit_prefetch,
    "reinterpret": emit_reinterpret,
    "round_to_int32": emit_round_to_int32,
    "rsqrt": emit_rsqrt,
    "rsqrt_estimate": emit_rsqrt_estimate,
    "scale_by_power": emit_scale_by_power,
    "shift_right": emit_shift_right,
    "store_at": emit_store_at,
    **dict.fromkeys(BITWISE, emit_bitwise),
    **dict.fromkeys(REDUCTIONS, emit_vector_reduce),
    **dict.fromkeys(LLVM_FUNCTIONS, emit_llvm_math),
    **dict.fromkeys(C_FUNCTIONS, emit_c_math),
    **dict.fromkeys(CONTRACTED, emit_contracted),
}


def emit_call(e: Emitter, call: Call) -> str:
    """Emit a call of an intrinsic."""
    emit = INTRINSICS.get(call.op)
    if emit is None:
        raise CompileError(f"the llvm target does not know the intrinsic {call.op!r}: {call}")
    return emit(e, call)
