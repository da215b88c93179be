"""The intrinsic functions a `Call` may name: one row each.

A row says how many arguments an intrinsic takes, whether it is pure, and its meaning as numpy code (`reference`, used
by the interpreter and as the oracle for code generators; None for intrinsics without a value). External functions are
called by the rows "call_extern" (a C symbol), "call_kernel" (another function of the module) and "call_packed" (a
registered Python or packed function); their first argument is the name as a `StringImm`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import erf as scalar_erf, erfc, sqrt
from typing import Any

import numpy as np

__all__ = ["INTRINSICS", "Intrinsic", "intrinsic"]


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """One row: `arity` is None for any number of arguments; `pure` calls may be moved, merged and dropped."""

    name: str
    arity: int | None
    pure: bool = True
    reference: Callable[..., Any] | None = None
    doc: str = ""


INTRINSICS: dict[str, Intrinsic] = {}


def intrinsic(
    name: str, arity: int | None, reference: Callable[..., Any] | None = None, *, pure: bool = True, doc: str = ""
) -> Intrinsic:
    """Add a row; a second row of the same name is an error."""
    if name in INTRINSICS:
        raise ValueError(f"intrinsic {name!r} is declared twice")
    row = INTRINSICS[name] = Intrinsic(name, arity, pure, reference, doc)
    return row


def _rsqrt(x: Any) -> Any:
    return 1.0 / np.sqrt(x)


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def _byte_pairs(x: Any) -> Any:
    x = np.asarray(x, np.int64)
    return ((((x & 0xFF ^ 0x80) - 0x80) & 0xFFFF) | (x >> 8 << 16)).astype(np.int32)


def _dot2(x: Any, y: Any) -> Any:
    x, y = np.asarray(x, np.int64), np.asarray(y, np.int64)
    low, other = ((v & 0xFFFF ^ 0x8000) - 0x8000 for v in (x, y))
    return (low * other + (x >> 16) * (y >> 16)).astype(np.int32)


def _dot2_bfloat16(x: Any, y: Any) -> Any:
    words = [np.asarray(v, np.int64) & 0xFFFFFFFF for v in (x, y)]
    halves = [[(h & 0xFFFFFFFF).astype(np.uint32).view(np.float32) for h in (w << 16, w & 0xFFFF0000)] for w in words]
    return halves[0][0] * halves[1][0] + halves[0][1] * halves[1][1]


def _dot4(x: Any, y: Any) -> Any:
    x, y = np.asarray(x, np.int64), np.asarray(y, np.int64)
    products = [(x >> s & 0xFF) * ((y >> s & 0xFF ^ 0x80) - 0x80) for s in range(0, 32, 8)]
    return np.sum(products, axis=0).astype(np.int32)


def _dot8(x: Any, y: Any, z: Any, w: Any) -> Any:
    return _dot4(x, y) + _dot4(z, w)


def _lookup(index: Any, *values: Any) -> Any:
    of = np.asarray(index)
    return np.asarray(values, of.dtype)[of & (len(values) - 1)]


for _name, _reference in {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": _rsqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "erf": np.vectorize(scalar_erf, otypes=[float]),
    "sigmoid": _sigmoid, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "fabs": np.abs,
}.items():  # fmt: skip
    intrinsic(_name, 1, _reference)

intrinsic("exp_nonpositive", 1, np.exp, doc="exp(x) for x <= 64 or NaN, cheaper than \"exp\"; any value for other x")
intrinsic("fast_exp", 1, np.exp, doc="exp(x) to 15 bits; for x > 64 any value above e^64")
intrinsic("log1p_fraction", 1, np.log1p,
          doc="log(1 + x) for 0 <= x <= 1 or NaN, cheaper than \"log1p\"; any value for other x")  # fmt: skip
intrinsic("fast_rsqrt", 1, _rsqrt, doc="1 / sqrt(x) for positive normal x, to 3 ulp; any value for other x")
intrinsic("fast_reciprocal", 1, lambda x: 1 / x, doc="1 / x to 14 bits; 0 for infinity")
intrinsic("rsqrt_estimate", 1, _rsqrt, doc="1 / sqrt(x) to 14 bits, of float64; NaN for negative x")
intrinsic("fast_gelu", 1, np.vectorize(lambda x: max(x, -100) * erfc(-x * sqrt(0.5)) / 2, otypes=[float]),
          doc="x Phi(x), Phi the normal distribution, to 13 bits, 10 near -1e-7; 0 below that")  # fmt: skip
intrinsic("fraction", 1, lambda x: np.where(np.isinf(x), 0, x - np.floor(x)), doc="x - floor(x); 0 for infinities")
intrinsic("scale_by_power", 2, lambda x, n: x * np.exp2(np.floor(n)), doc="(x, n): x 2^floor(n)")
intrinsic("round", 1, np.round, doc="to nearest, ties to even")
intrinsic("pow", 2, np.power)
intrinsic("atan2", 2, np.arctan2)
intrinsic("fmod", 2, np.fmod, doc="C remainder on floats")
intrinsic("fma", 3, lambda a, b, c: a * b + c, doc="a * b + c; rounded once where the target has the instruction")
intrinsic("isnan", 1, np.isnan)
intrinsic("isinf", 1, np.isinf)
intrinsic("isfinite", 1, np.isfinite)
intrinsic("shift_left", 2, np.left_shift)
intrinsic("shift_right", 2, np.right_shift, doc="arithmetic on signed, logical on unsigned operands")
intrinsic("bitwise_and", 2, np.bitwise_and)
intrinsic("bitwise_or", 2, np.bitwise_or)
intrinsic("bitwise_xor", 2, np.bitwise_xor)
intrinsic("bitwise_not", 1, np.bitwise_not)
intrinsic("byte_pairs", 1, _byte_pairs,
          doc="(x), two signed bytes in an int16: sign-extended to two 16-bit values in an int32")  # fmt: skip
intrinsic("dot2", 2, _dot2,
          doc="(x, y), two signed 16-bit values in each int32: 2-way dot product, summed in int32")  # fmt: skip
intrinsic("dot2_bfloat16", 2, _dot2_bfloat16,
          doc="(x, y), two bfloat16 in each int32: 2-way dot product, summed in float32")  # fmt: skip
intrinsic("dot4", 2, _dot4,
          doc="(x, y), four bytes in each int32: 4-way dot product, unsigned by signed; 16-bit pair sums")  # fmt: skip
intrinsic("dot8", 4, _dot8,
          doc="(x, y, z, w): dot4(x, y) + dot4(z, w), whose halves add up to 16-bit sums")  # fmt: skip
intrinsic("lookup", None, _lookup,
          doc="(x, 4 or 8 int32, or 8 or 16 int64 constants): the constant at index x modulo their number")  # fmt: skip
intrinsic("popcount", 1, np.bitwise_count)
intrinsic("clz", 1, doc="leading zero bits")
intrinsic("reinterpret", 1, doc="the bits as another type of equal width")
intrinsic("likely", 1, lambda x: x, doc="a guard of the schedule, which loop partitioning removes where possible")
intrinsic("if_then_else", 3, doc="lazy: only the chosen side is evaluated")
intrinsic("vector_reduce_add", 1, np.sum, doc="sum of the lanes of a vector, in any order")
intrinsic("vector_reduce_max", 1, np.max, doc="largest lane")
intrinsic("vector_reduce_min", 1, np.min, doc="smallest lane")
intrinsic("address_of", 1, pure=True, doc="the address of a BufferLoad's element, as a handle")
intrinsic("handle_add_byte_offset", 2, doc="a pointer moved by bytes")
intrinsic("load_at", 2, pure=False, doc="the value of the call's type at (handle, byte offset)")
intrinsic("store_at", 3, pure=False, doc="(handle, byte offset, value): stores the value there")
intrinsic("copy_bytes", 3, pure=False, doc="(to, from, n): copies n bytes between handles that do not overlap")
intrinsic("call_extern", None, pure=False, doc="(name, args...): a C function")
intrinsic("call_kernel", None, pure=False, doc="(name, args...): a function of the same module, raw convention")
intrinsic("call_step", None, pure=False, doc="(name, args..., i): call_kernel with the bounds i and i + 1 of a range")
intrinsic("call_packed", None, pure=False, doc="(name, args...): a registered packed function, by name at run time")
intrinsic("call_packed_args", 4, pure=False, doc="(name, args, type_codes, num_args): already packed")
intrinsic("prefetch", 3, pure=False, doc="(address, locality 0..3, 1 if it will be written, else 0): a hint")
intrinsic("amx_configure", None, pure=False,
          doc="(rows and bytes of a row of tile 0, of tile 1, ...): shapes, one set in a function")  # fmt: skip
intrinsic("amx_zero", 1, pure=False, doc="(tile): zeros in a tile")
intrinsic("amx_load", 3, pure=False, doc="(tile, address, stride): rows from memory, stride in bytes")
intrinsic("amx_store", 3, pure=False, doc="(tile, address, stride): rows to memory, stride in bytes")
intrinsic("amx_dot_bytes", 3, pure=False,
          doc="(sums, left, right): adds to (i, j) left row i, unsigned, times right column j, signed")  # fmt: skip
intrinsic("amx_dot_bfloat16", 3, pure=False,
          doc="(sums, left, right): adds to float32 (i, j) left row i times right column j, of bfloat16")  # fmt: skip
intrinsic("storage_sync", 1, pure=False, doc='(scope "shared", "warp" or "global"): a barrier of the thread group')
intrinsic("async_copy", 4, pure=False, doc="(to, from, bytes, condition): async copy; zeros without the condition")
intrinsic("async_commit", 0, pure=False, doc='closes a group of the thread\'s copies inside "async_scope"')
intrinsic("async_wait", 1, pure=False, doc="(n): waits until all but the n newest groups of the thread are complete")
intrinsic("atomic_add", 2, pure=False, doc="(address, value): adds to memory atomically, gives the old value")
intrinsic("atomic_max", 2, pure=False, doc="(address, value): atomic maximum with memory, gives the old value")
intrinsic("warp_shuffle_xor", 4, pure=False,
          doc="(mask of participating lanes, value, flip, width): the value of lane ^ flip")  # fmt: skip
intrinsic("thread_allreduce", None, pure=False, doc="cross-thread reduction; lowered by the device passes")
intrinsic("next_draw", 1, pure=False, doc="(stream): the count of earlier random draws of the stream: 0, 1, 2, ...")
intrinsic("assume", 1, pure=False, doc="the argument is true; a hint")
intrinsic("dlpack_field", 2, pure=False, doc="(packed argument handle, field name): a field of a DLTensor argument")
