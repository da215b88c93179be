// The host implementation of the GPU-specific part of the prelude; on a GPU these are single instructions.
#pragma once

#define RC_DEVICE [[maybe_unused]] static inline __attribute__((always_inline))

#define RC_SHARED(T, name, n) T* const name = (T*)emulation_shared(__LINE__, sizeof(T) * (n))
#define RC_DYN_SHARED(T, name) T* const name = (T*)emulation_shared(0, 0)
#define RC_INF __builtin_inff()
#define RC_NAN __builtin_nanf("")

RC_DEVICE unsigned short rc_float16_bits(float x) { return emulation_bits<unsigned short>((_Float16)x); }
RC_DEVICE unsigned short rc_float16_bits(double x) { return emulation_bits<unsigned short>((_Float16)x); }
RC_DEVICE float rc_float16_value(unsigned short bits) { return (float)emulation_bits<_Float16>(bits); }

RC_DEVICE float rc_exp2_approx(float x) { return exp2f(x); }

[[maybe_unused]] static unsigned int rc_draws[128];

RC_DEVICE float rc_min_f32(float a, float b) { return (a < b || a != a) ? a : b; }
RC_DEVICE float rc_max_f32(float a, float b) { return (a > b || a != a) ? a : b; }

// Asynchronous copies complete at the wait, not before.
template <int N>
static inline void rc_async_copy(void* to, const void* from, bool inside) {
  emulation_copy_async(to, from, N, inside);
}
static inline void rc_async_commit() { emulation_copy_commit(); }
template <int Pending>
static inline void rc_async_wait() {
  emulation_copy_wait(Pending);
}

// Atomic operations: a fiber is never preempted between two accesses.
struct rc_float16;
struct rc_bfloat16;
RC_DEVICE float rc_from_float16(rc_float16);
RC_DEVICE rc_float16 rc_to_float16(float);
RC_DEVICE float rc_from_bfloat16(rc_bfloat16);
RC_DEVICE rc_bfloat16 rc_to_bfloat16(float);

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

// Tensor cores: lanes synchronise, exchanging their registers or addresses, and each computes its part of the result.

template <int Count, bool Transposed>
static inline void emulation_ldmatrix(void* to, void* also, const char* from) {
  unsigned lane = emulation_lane();
  if ((unsigned long long)from % 16) emulation_fail("ldmatrix reads a row that is not aligned to 16 bytes");
  const unsigned line = Transposed + 2u * Count;
  const unsigned char* slots = emulation_warp_meet(emulation_all_lanes(), &from, sizeof from, nullptr, line);
  for (unsigned i = 0; i < Count; ++i) {
    unsigned short pair[2];
    for (unsigned half = 0; half < 2; ++half) {
      unsigned across = 2 * (lane & 3) + half, down = lane >> 2;
      auto row = emulation_read_lane<const char*>(slots, 8 * i + (Transposed ? across : down), __LINE__);
      memcpy(&pair[half], row + 2 * (Transposed ? down : across), 2);
    }
    memcpy(i < 2 ? (char*)to + 4 * i : (char*)also + 4 * (i - 2), pair, 4);
  }
}
#define EMULATION_LDMATRIX(name, transposed)                                             \
  static inline void rc_ldmatrix_x4##name(void* to, void* also, const char* from) {      \
    emulation_ldmatrix<4, transposed>(to, also, from);                                   \
  }                                                                                      \
  static inline void rc_ldmatrix_x2##name(void* to, const char* from) {                  \
    emulation_ldmatrix<2, transposed>(to, to, from);                                     \
  }
EMULATION_LDMATRIX(, false)
EMULATION_LDMATRIX(_transposed, true)

// The operands of a lane in a matrix product.
template <class Sum>
struct EmulationFragments {
  unsigned left[4], right[2];
  Sum sums[4];
};

// The product of a warp: unpacks the fragments of all lanes, multiplies, and returns its sums to every lane.
template <class T, class Sum, class Widen>
static void emulation_multiply_warp(unsigned char* slots, unsigned active) {
  if (active != emulation_all_lanes()) emulation_fail("a product of matrices by lanes %08x of a warp", active);
  constexpr unsigned each = 4 / sizeof(T), depth = 8 * each;  // elements of a register, and of a row
  auto lanes = [&](unsigned lane) { return (EmulationFragments<Sum>*)(slots + lane * emulation::kSlotBytes); };
  Sum left[16][depth], right[depth][8];
  for (unsigned lane = 0; lane < 32; ++lane) {
    unsigned row = lane / 4, first = lane % 4 * each;
    T values[6 * each];
    memcpy(values, lanes(lane)->left, 24);
    for (unsigned i = 0; i < each; ++i) {
      left[row][first + i] = Widen()(values[i]);
      left[row + 8][first + i] = Widen()(values[each + i]);
      left[row][4 * each + first + i] = Widen()(values[2 * each + i]);
      left[row + 8][4 * each + first + i] = Widen()(values[3 * each + i]);
      right[first + i][row] = Widen()(values[4 * each + i]);
      right[4 * each + first + i][row] = Widen()(values[5 * each + i]);
    }
  }
  for (unsigned row = 0; row < 16; ++row) {
    auto place = [&](unsigned column) { return &lanes(row % 8 * 4 + column / 2)->sums[row / 8 * 2 + column % 2]; };
    Sum sums[8];
    for (unsigned column = 0; column < 8; ++column) sums[column] = *place(column);
    for (unsigned k = 0; k < depth; ++k)
      for (unsigned column = 0; column < 8; ++column) sums[column] += left[row][k] * right[k][column];
    for (unsigned column = 0; column < 8; ++column) *place(column) = sums[column];
  }
}

template <class T, class Sum, class Widen>
static inline void emulation_multiply(Sum* sums, const void* left, const void* right, Widen, unsigned line) {
  EmulationFragments<Sum> own;
  memcpy(own.left, left, sizeof own.left);
  memcpy(own.right, right, sizeof own.right);
  memcpy(own.sums, sums, sizeof own.sums);
  const unsigned char* slots =
      emulation_warp_meet(emulation_all_lanes(), &own, sizeof own, emulation_multiply_warp<T, Sum, Widen>, line);
  memcpy(&own, slots + emulation_lane() * emulation::kSlotBytes, sizeof own);
  memcpy(sums, own.sums, sizeof own.sums);
}
static inline void rc_mma_float16(float* sums, const void* left, const void* right) {
  emulation_multiply<_Float16>(sums, left, right, [](_Float16 x) { return (float)x; }, __LINE__);
}
static inline void rc_mma_bfloat16(float* sums, const void* left, const void* right) {
  auto widen = [](unsigned short x) { return emulation_bits<float>((unsigned)x << 16); };
  emulation_multiply<unsigned short>(sums, left, right, widen, __LINE__);
}
static inline void rc_mma_tfloat32(float* sums, const void* left, const void* right) {
  auto widen = [](unsigned x) { return emulation_bits<float>(x & 0xffffe000u); };
  emulation_multiply<unsigned>(sums, left, right, widen, __LINE__);
}
static inline void rc_mma_int8(int* sums, const void* left, const void* right) {
  emulation_multiply<signed char>(sums, left, right, [](signed char x) { return (int)x; }, __LINE__);
}

// Products of warp groups: every warp has the same right operand, its own 16 rows, and all lanes active.

struct EmulationOperand {
  const char* first;
  int stride;
};
static inline EmulationOperand rc_wgmma_operand(const void* own, int offset, int stride) {
  return {(const char*)((unsigned long long)own & ~1023ull) + offset, stride};
}
static inline void rc_wgmma_begin() {}
static inline void rc_wgmma_end() {}
static inline void rc_wgmma_settle() {}

// Element `k` of row or column `i`, from swizzled lines that have one `i` each, or one `k` each if transposed.
template <class Widen>
static inline float emulation_wgmma_element(EmulationOperand from, unsigned i, unsigned k, bool transposed,
                                            Widen widen) {
  unsigned long long place = (unsigned long long)from.first;
  place += transposed ? i / 64 * from.stride + k * 128 + i % 64 * 2 : i * 128 + k * 2;
  unsigned short bits;
  memcpy(&bits, (const char*)(place ^ (place >> 7 & 7) << 4), 2);
  return widen(bits);
}
template <unsigned Columns, class Widen>
static inline void emulation_wgmma(float* sums, EmulationOperand left, EmulationOperand right, bool transposed,
                                   Widen widen, unsigned line) {
  const char* places[2] = {left.first, right.first};
  const unsigned char* slots = emulation_warp_meet(emulation_all_lanes(), places, sizeof places, nullptr, line);
  if (memcmp(slots, places, sizeof places)) emulation_fail("lanes of a warp give wgmma different operands");
  unsigned lane = emulation_lane(), first_row = 16 * (emulation_linear_thread() >> 5 & 3) + (lane >> 2);
  for (unsigned i = 0; i < Columns / 2; ++i) {
    unsigned row = first_row + 8 * (i >> 1 & 1), column = 8 * (i >> 2) + 2 * (lane & 3) + (i & 1);
    for (unsigned k = 0; k < 16; ++k)
      sums[i] += emulation_wgmma_element(left, row, k, false, widen) *
                 emulation_wgmma_element(right, column, k, transposed, widen);
  }
}
template <int Transposed, unsigned Sums>
static inline void rc_wgmma_step_float16(float (*d)[Sums], EmulationOperand left, EmulationOperand right) {
  auto widen = [](unsigned short x) { return (float)emulation_bits<_Float16>(x); };
  emulation_wgmma<2 * Sums>(*d, left, right, Transposed, widen, __LINE__);
}
template <int Transposed, unsigned Sums>
static inline void rc_wgmma_step_bfloat16(float (*d)[Sums], EmulationOperand left, EmulationOperand right) {
  auto widen = [](unsigned short x) { return emulation_bits<float>((unsigned)x << 16); };
  emulation_wgmma<2 * Sums>(*d, left, right, Transposed, widen, __LINE__);
}
