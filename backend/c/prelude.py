"""The prelude of every generated C file: the execution context, and helpers for operations that C lacks."""

from __future__ import annotations

__all__ = ["PRELUDE"]

PRELUDE = r"""#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct Ctx Ctx;
struct Ctx {
  void (*parallel)(Ctx*, void (*)(Ctx*, void*, int32_t, int32_t, int64_t, int32_t), void*, int32_t, int64_t);
  int32_t num_threads, draws;
  void* (*alloc_workspace)(Ctx*, int64_t);
  void (*free_workspace)(Ctx*, void*);
  int32_t (*call_packed)(Ctx*, const char*, int64_t*, int32_t*, int32_t);
  int64_t shortage;
  uint32_t stream_draws[128];
};

typedef uint16_t rc_bfloat16;

static inline float rc_from_bfloat16(rc_bfloat16 x) {
  uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static inline rc_bfloat16 rc_to_bfloat16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if (x != x) return (bits >> 16) | 0x40;
  return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

static inline int64_t rc_float_bits(double x) {
  int64_t bits;
  memcpy(&bits, &x, 8);
  return bits;
}

static inline uint64_t rc_to_uint64(double x) { return x < 0 ? (uint64_t)(int64_t)x : (uint64_t)x; }

static inline int32_t rc_least(int64_t x, int32_t most) { return x < most ? (int32_t)x : most; }

#define RC_INTEGER(T, S) \
  static inline T rc_floordiv_##S(T a, T b) { T q = a / b; return q - ((a % b != 0) & ((a < 0) != (b < 0))); } \
  static inline T rc_floormod_##S(T a, T b) { T r = a % b; return r + ((r != 0) & ((r < 0) != (b < 0)) ? b : 0); } \
  RC_ORDER(T, S)
#define RC_ORDER(T, S) \
  static inline T rc_min_##S(T a, T b) { return a < b ? a : b; } \
  static inline T rc_max_##S(T a, T b) { return a > b ? a : b; }
#define RC_FLOAT(T, S, EXP) \
  static inline T rc_min_##S(T a, T b) { return (a < b || a != a) ? a : b; } \
  static inline T rc_max_##S(T a, T b) { return (a > b || a != a) ? a : b; } \
  static inline T rc_sigmoid_##S(T x) { return 1 / (1 + EXP(-x)); }

RC_INTEGER(int32_t, i32)
RC_INTEGER(int64_t, i64)
RC_ORDER(uint64_t, u64)
RC_FLOAT(float, f32, expf)
RC_FLOAT(double, f64, exp)"""
