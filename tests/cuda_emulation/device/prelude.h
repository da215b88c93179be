// What the prelude of emitted text leaves to its environment: on a GPU these are single instructions.
#pragma once

#define RC_DEVICE [[maybe_unused]] static inline __attribute__((always_inline))

#define RC_SHARED(T, name, n) T* const name = (T*)emulation_shared(__LINE__, sizeof(T) * (n))
#define RC_DYN_SHARED(T, name) T* const name = (T*)emulation_shared(0, 0)
#define RC_INF __builtin_inff()
#define RC_NAN __builtin_nanf("")

RC_DEVICE unsigned short rc_float16_bits(float x) { return emulation_bits<unsigned short>((_Float16)x); }
RC_DEVICE unsigned short rc_float16_bits(double x) { return emulation_bits<unsigned short>((_Float16)x); }
RC_DEVICE float rc_float16_value(unsigned short bits) { return (float)emulation_bits<_Float16>(bits); }

RC_DEVICE float rc_min_f32(float a, float b) { return (a < b || a != a) ? a : b; }
RC_DEVICE float rc_max_f32(float a, float b) { return (a > b || a != a) ? a : b; }

// Asynchronous copies end at the wait, not before.
template <int N>
static inline void rc_async_copy(void* to, const void* from, bool inside) {
  emulation_copy_async(to, from, N, inside);
}
static inline void rc_async_commit() { emulation_copy_commit(); }
template <int Pending>
static inline void rc_async_wait() {
  emulation_copy_wait(Pending);
}

// Atomic operations: a thread is never interrupted between two accesses.
struct rc_float16;
struct rc_bfloat16;

template <class T>
static inline T emulation_sum(T a, T b) {
  if constexpr (std::is_same_v<T, rc_float16>) {
    return rc_to_float16(rc_from_float16(a) + rc_from_float16(b));
  } else if constexpr (std::is_same_v<T, rc_bfloat16>) {
    return rc_to_bfloat16(rc_from_bfloat16(a) + rc_from_bfloat16(b));
  } else {
    return a + b;
  }
}

template <class T>
static inline T emulation_larger(T a, T b) {
  if constexpr (std::is_same_v<T, rc_float16>) {
    return rc_to_float16(rc_max_f32(rc_from_float16(a), rc_from_float16(b)));
  } else if constexpr (std::is_same_v<T, rc_bfloat16>) {
    return rc_to_bfloat16(rc_max_f32(rc_from_bfloat16(a), rc_from_bfloat16(b)));
  } else {
    return (a > b || a != a) ? a : b;
  }
}

template <class T>
static inline T rc_atomic_add(T* at, T by) {
  T old = *at;
  *at = emulation_sum(old, by);
  return old;
}

template <class T>
static inline T rc_atomic_max(T* at, T by) {
  T old = *at;
  *at = emulation_larger(old, by);
  return old;
}
