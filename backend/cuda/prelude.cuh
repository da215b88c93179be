// The prelude of every generated CUDA file. It includes no header. Everything specific to GPUs (intrinsics and PTX
// instructions) is in the first part, which a host emulation replaces by defining RELAYC_HOST_EMULATION and the same
// names.

#ifndef RELAYC_HOST_EMULATION

#define RC_DEVICE __device__ __forceinline__
#define RC_SHARED(T, name, n) __shared__ __align__(128) T name[n]
#define RC_DYN_SHARED(T, name) \
  extern __shared__ __align__(1024) unsigned char rc_dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(rc_dynamic_shared)
#define RC_INF __int_as_float(0x7f800000)
#define RC_NAN __int_as_float(0x7fffffff)

RC_DEVICE unsigned short rc_float16_bits(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
RC_DEVICE unsigned short rc_float16_bits(double x) {
  unsigned short bits;
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(x));
  return bits;
}
RC_DEVICE float rc_float16_value(unsigned short bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

// 2 to the power x, with an error of a few units in the last place; results below 2^-126 are 0.
RC_DEVICE float rc_exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The number of random draws of each stream so far.
[[maybe_unused]] static __device__ unsigned int rc_draws[128];

// Minimum and maximum; NaN if either operand is.
RC_DEVICE float rc_min_f32(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  return (a < b || a != a) ? a : b;
#endif
}
RC_DEVICE float rc_max_f32(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  return (a > b || a != a) ? a : b;
#endif
}

// Asynchronous copies from global to shared memory: N = 4, 8 or 16 bytes, aligned to N; zeros if `inside` is false.
// `commit` closes a group of the thread's copies, `wait` waits until all but the newest `Pending` groups are complete.
// Before sm_80 copies are synchronous.

#if __CUDA_ARCH__ >= 800
template <int N> RC_DEVICE void rc_async_copy(void* to, const void* from, bool inside) {
  unsigned place = (unsigned)__cvta_generic_to_shared(to);
  int bytes = inside ? N : 0;
  if constexpr (N == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(place), "l"(from), "n"(N), "r"(bytes) : "memory");
  }
}
RC_DEVICE void rc_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending> RC_DEVICE void rc_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory"); }
#else
template <int N> RC_DEVICE void rc_async_copy(void* to, const void* from, bool inside) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i) ((unsigned*)to)[i] = inside ? ((const unsigned*)from)[i] : 0u;
}
RC_DEVICE void rc_async_commit() {}
template <int Pending> RC_DEVICE void rc_async_wait() {}
#endif

// Tensor cores (sm_80 and newer). Fragments are those of `mma.sync` with 16 rows, 8 columns and 32 bytes of depth, for lane
// 4 g + t: `left` 4 registers, `right` 2, `sums` 4 values, of rows g (first two) and g + 8, columns 2 t and 2 t + 1.

#if __CUDA_ARCH__ >= 800
#define RC_MMA(name, shape, operands, T, constraint) \
  RC_DEVICE void rc_mma_##name(T* sums, const void* left, const void* right) { \
    const unsigned* a = (const unsigned*)left; \
    const unsigned* b = (const unsigned*)right; \
    asm volatile("mma.sync.aligned." shape ".row.col." operands " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+" constraint(sums[0]), "+" constraint(sums[1]), "+" constraint(sums[2]), "+" constraint(sums[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
RC_MMA(float16, "m16n8k16", "f32.f16.f16.f32", float, "f")
RC_MMA(bfloat16, "m16n8k16", "f32.bf16.bf16.f32", float, "f")
RC_MMA(tfloat32, "m16n8k8", "f32.tf32.tf32.f32", float, "f")
RC_MMA(int8, "m16n8k32", "s32.s8.s8.s32", int, "r")

// Loads of 8 x 8 matrices of 16-bit elements, with rows of 16 bytes at the lanes' addresses: two matrices, or four to one
// or two destinations.
#define RC_LDMATRIX(name, which) \
  RC_DEVICE void rc_ldmatrix_x4##name(void* to, void* also, const char* from) { \
    unsigned *r = (unsigned*)to, *s = (unsigned*)also; \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" which ".shared.b16 {%0,%1,%2,%3}, [%4];" \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(s[0]), "=r"(s[1]) : "r"((unsigned)__cvta_generic_to_shared(from)) : "memory"); \
  } \
  RC_DEVICE void rc_ldmatrix_x2##name(void* to, const char* from) { \
    unsigned* r = (unsigned*)to; \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2" which ".shared.b16 {%0,%1}, [%2];" \
                 : "=r"(r[0]), "=r"(r[1]) : "r"((unsigned)__cvta_generic_to_shared(from)) : "memory"); \
  }
RC_LDMATRIX(, "")
RC_LDMATRIX(_transposed, ".trans")
#endif

// Products of warp groups (sm_90a): four adjacent warps multiply 64 rows by `columns` over 16 elements of depth. Operands
// are in swizzled lines of 128 bytes (`Stage.swizzle`; PTX ISA, "wgmma.mma_async"), in groups of eight lines 1024 bytes
// apart. A line has elements of one row or column, or for a transposed operand of one depth, and the next line those of
// the next one; the next lines of rows or columns of a transposed operand are `stride` bytes away.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The descriptor of an operand that begins `offset` bytes after the multiple of 1024 bytes at or before `own`.
RC_DEVICE unsigned long long rc_wgmma_operand(const void* own, int offset, int stride) {
  unsigned place = ((unsigned)__cvta_generic_to_shared(own) & ~1023u) + offset;
  return 1ull << 62 | 64ull << 32 | (unsigned long long)(stride >> 4) << 16 | (place >> 4 & 0x3fff);
}
RC_DEVICE void rc_wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
RC_DEVICE void rc_wgmma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Called before every barrier: waits for pending products, which read shared memory, and makes the thread's writes
// visible to later ones (proxy fence).
RC_DEVICE void rc_wgmma_settle() {
  asm volatile("wgmma.wait_group.sync.aligned 0;\n fence.proxy.async.shared::cta;" ::: "memory");
}

#define RC_TEXT_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15" "," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define RC_TEXT_64 RC_TEXT_32 "," "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" "," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define RC_TEXT_96 RC_TEXT_64 "," "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" "," \
  "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define RC_TEXT_128 RC_TEXT_96 "," "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" "," \
  "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define RC_SUMS_8(d) \
  "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]), "+f"((d)[4]), "+f"((d)[5]), "+f"((d)[6]), "+f"((d)[7])
#define RC_SUMS_32(d) RC_SUMS_8(d), RC_SUMS_8((d) + 8), RC_SUMS_8((d) + 16), RC_SUMS_8((d) + 24)
#define RC_SUMS_64(d) RC_SUMS_32(d), RC_SUMS_32((d) + 32)
#define RC_SUMS_96(d) RC_SUMS_64(d), RC_SUMS_32((d) + 64)
#define RC_SUMS_128(d) RC_SUMS_96(d), RC_SUMS_32((d) + 96)
#define RC_WGMMA(kind, operands, columns, sums, a, b, transposed) \
  template <int Transposed> \
  RC_DEVICE void rc_wgmma_step_##kind(float (*d)[columns / 2], unsigned long long left, unsigned long long right) { \
    asm volatile("{ .reg .pred add; setp.eq.u32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." operands \
                 " {" RC_TEXT_##sums "}, %" #a ", %" #b ", add, 1, 1, 0, %" #transposed "; }" \
                 : RC_SUMS_##sums(*d) : "l"(left), "l"(right), "n"(Transposed)); \
  }
#define RC_WGMMA_KIND(kind, operands) \
  RC_WGMMA(kind, operands, 64, 32, 32, 33, 34) \
  RC_WGMMA(kind, operands, 128, 64, 64, 65, 66) \
  RC_WGMMA(kind, operands, 192, 96, 96, 97, 98) \
  RC_WGMMA(kind, operands, 256, 128, 128, 129, 130)
RC_WGMMA_KIND(float16, "f16.f16")
RC_WGMMA_KIND(bfloat16, "bf16.bf16")
#endif

#endif  // RELAYC_HOST_EMULATION

#if defined(RELAYC_HOST_EMULATION) || __CUDA_ARCH__ >= 800

// Loads of a warp's fragments from shared memory, with rows `stride` bytes apart and aligned to 16 bytes. `own` is the
// first element of the calling thread's row g or column 2 t. Rows of memory are rows (columns) of the operand; in the
// `transposed` variants, for 16-bit elements only, they are positions of depth.

RC_DEVICE void rc_load_left(void* to, const void* own, int stride) {
  int lane = threadIdx.x & 31;
  rc_ldmatrix_x4(to, (unsigned*)to + 2, (const char*)own + ((lane & 15) - (lane >> 2)) * stride + (lane >> 4) * 16);
}
RC_DEVICE void rc_load_left_transposed(void* to, const void* own, int stride) {
  int lane = threadIdx.x & 31, k = (lane >> 4) * 8 + (lane & 7), row = (lane >> 3 & 1) * 8;
  rc_ldmatrix_x4_transposed(to, (unsigned*)to + 2, (const char*)own + k * stride + (row - (lane >> 2)) * 2);
}
RC_DEVICE void rc_load_right(void* to, const void* own, int stride) {
  int lane = threadIdx.x & 31;
  rc_ldmatrix_x2(to, (const char*)own + ((lane & 7) - (lane & 3) * 2) * stride + (lane >> 3 & 1) * 16);
}
RC_DEVICE void rc_load_right_transposed(void* to, const void* own, int stride) {
  int lane = threadIdx.x & 31;
  rc_ldmatrix_x2_transposed(to, (const char*)own + (lane & 15) * stride - (lane & 3) * 4);
}
// The fragments of this tile of columns and the next.
RC_DEVICE void rc_load_right_pair(void* to, void* next, const void* own, int stride) {
  int lane = threadIdx.x & 31, column = (lane >> 4) * 8 + (lane & 7) - (lane & 3) * 2;
  rc_ldmatrix_x4(to, next, (const char*)own + column * stride + (lane >> 3 & 1) * 16);
}
RC_DEVICE void rc_load_right_pair_transposed(void* to, void* next, const void* own, int stride) {
  int lane = threadIdx.x & 31;
  rc_ldmatrix_x4_transposed(to, next, (const char*)own + (lane & 15) * stride + (lane >> 4) * 16 - (lane & 3) * 4);
}

#endif

#if defined(RELAYC_HOST_EMULATION) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// sums += left * right over a slice of 64 elements of depth, by a warp group. `left` and `right` are the elements of the
// calling thread at the slice's first depth: row g of its warp's 16, column 2 t. Only `right` may be transposed. The sums
// are available after the next barrier.
#define RC_WGMMA_SLICE(kind) \
  template <int Columns, int Transposed> \
  RC_DEVICE void rc_wgmma_##kind(float* sums, const void* left, const void* right) { \
    int above = (threadIdx.x >> 5 & 3) * 2048; \
    auto* d = (float (*)[Columns / 2])sums; \
    rc_wgmma_begin(); \
    _Pragma("unroll") for (int i = 0; i < 4; ++i) \
        rc_wgmma_step_##kind<Transposed>(d, rc_wgmma_operand(left, i * 32 - above, 0), \
                                     rc_wgmma_operand(right, i * (Transposed ? 2048 : 32), 8192)); \
    rc_wgmma_end(); \
  }
RC_WGMMA_SLICE(float16)
RC_WGMMA_SLICE(bfloat16)

#endif

// Storage types, computed with in float.

struct alignas(2) rc_float16 { unsigned short bits; };
struct alignas(2) rc_bfloat16 { unsigned short bits; };

RC_DEVICE float rc_from_float16(rc_float16 x) { return rc_float16_value(x.bits); }
RC_DEVICE rc_float16 rc_to_float16(float x) { return rc_float16{rc_float16_bits(x)}; }
RC_DEVICE rc_float16 rc_to_float16(double x) { return rc_float16{rc_float16_bits(x)}; }

template <class To, class From> RC_DEVICE To rc_reinterpret(From from) {
  static_assert(sizeof(To) == sizeof(From), "reinterpret keeps the width");
  union { From from; To to; } both;
  both.from = from;
  return both.to;
}

RC_DEVICE unsigned long long rc_to_uint64(double x) {
  return x < 0 ? (unsigned long long)(long long)x : (unsigned long long)x;
}

RC_DEVICE float rc_from_bfloat16(rc_bfloat16 x) { return rc_reinterpret<float>((unsigned)x.bits << 16); }
RC_DEVICE rc_bfloat16 rc_to_bfloat16(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  rc_bfloat16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#else
  unsigned bits = rc_reinterpret<unsigned>(x);
  if (x != x) return rc_bfloat16{(unsigned short)(bits >> 16 | 0x40)};
  return rc_bfloat16{(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
#endif
}

// Vectors of N values, accessed in memory K values (a power of two, at most 16 bytes) at a time. `from` and `to` are
// aligned to K values.

template <class T, int N> struct rc_vec { T lane[N]; };
template <class T, int K> struct alignas(K * sizeof(T)) rc_chunk { T lane[K]; };

template <class T, int N, int K> RC_DEVICE rc_vec<T, N> rc_load(const T* from) {
  rc_vec<T, N> all;
#pragma unroll
  for (int i = 0; i < N; i += K) {
    rc_chunk<T, K> chunk = *reinterpret_cast<const rc_chunk<T, K>*>(from + i);
#pragma unroll
    for (int j = 0; j < K; ++j) all.lane[i + j] = chunk.lane[j];
  }
  return all;
}
template <class T, int N, int K> RC_DEVICE void rc_store(T* to, const rc_vec<T, N>& all) {
#pragma unroll
  for (int i = 0; i < N; i += K) {
    rc_chunk<T, K> chunk;
#pragma unroll
    for (int j = 0; j < K; ++j) chunk.lane[j] = all.lane[i + j];
    *reinterpret_cast<rc_chunk<T, K>*>(to + i) = chunk;
  }
}

// Arithmetic that C++ has no operator for: floor division, minimum and maximum, sigmoid.

#define RC_INTEGER(T, S) \
  RC_DEVICE T rc_floordiv_##S(T a, T b) { T q = a / b; return q - ((a % b != 0) & ((a < 0) != (b < 0))); } \
  RC_DEVICE T rc_floormod_##S(T a, T b) { T r = a % b; return r + ((r != 0) & ((r < 0) != (b < 0)) ? b : 0); } \
  RC_ORDER(T, S)
#define RC_ORDER(T, S) \
  RC_DEVICE T rc_min_##S(T a, T b) { return a < b ? a : b; } \
  RC_DEVICE T rc_max_##S(T a, T b) { return a > b ? a : b; }

RC_INTEGER(int, i32)
RC_INTEGER(long long, i64)
RC_ORDER(unsigned long long, u64)

RC_DEVICE double rc_min_f64(double a, double b) { return (a < b || a != a) ? a : b; }
RC_DEVICE double rc_max_f64(double a, double b) { return (a > b || a != a) ? a : b; }
RC_DEVICE float rc_sigmoid_f32(float x) { return 1.0f / (1.0f + expf(-x)); }
RC_DEVICE double rc_sigmoid_f64(double x) { return 1.0 / (1.0 + exp(-x)); }

// Atomic operations on all types, by compare-and-swap where the hardware has none; they return the old value.

#ifndef RELAYC_HOST_EMULATION

#define RC_ATOMIC_NATIVE(T, As) \
  RC_DEVICE T rc_atomic_add(T* at, T by) { return (T)atomicAdd((As*)at, (As)by); }
#define RC_ATOMIC_MAX_NATIVE(T) \
  RC_DEVICE T rc_atomic_max(T* at, T by) { return atomicMax(at, by); }
#define RC_ATOMIC_EXCHANGE(T, Bits, name, combined) \
  RC_DEVICE T rc_atomic_##name(T* at, T by) { \
    Bits seen = *reinterpret_cast<volatile Bits*>(at), before; \
    do { \
      before = seen; \
      T old = rc_reinterpret<T>(before); \
      seen = atomicCAS(reinterpret_cast<Bits*>(at), before, rc_reinterpret<Bits>(combined)); \
    } while (seen != before); \
    return rc_reinterpret<T>(before); \
  }

RC_ATOMIC_NATIVE(int, int)
RC_ATOMIC_NATIVE(unsigned, unsigned)
RC_ATOMIC_NATIVE(long long, unsigned long long)
RC_ATOMIC_NATIVE(unsigned long long, unsigned long long)
RC_ATOMIC_NATIVE(float, float)
RC_ATOMIC_NATIVE(double, double)
RC_ATOMIC_EXCHANGE(rc_float16, unsigned short, add, rc_to_float16(rc_from_float16(old) + rc_from_float16(by)))
RC_ATOMIC_EXCHANGE(rc_bfloat16, unsigned short, add, rc_to_bfloat16(rc_from_bfloat16(old) + rc_from_bfloat16(by)))
RC_ATOMIC_MAX_NATIVE(int)
RC_ATOMIC_MAX_NATIVE(unsigned)
RC_ATOMIC_MAX_NATIVE(long long)
RC_ATOMIC_MAX_NATIVE(unsigned long long)
RC_ATOMIC_EXCHANGE(float, unsigned, max, rc_max_f32(old, by))
RC_ATOMIC_EXCHANGE(double, unsigned long long, max, rc_max_f64(old, by))
RC_ATOMIC_EXCHANGE(rc_float16, unsigned short, max, rc_to_float16(rc_max_f32(rc_from_float16(old), rc_from_float16(by))))
RC_ATOMIC_EXCHANGE(rc_bfloat16, unsigned short, max, rc_to_bfloat16(rc_max_f32(rc_from_bfloat16(old), rc_from_bfloat16(by))))

#endif  // RELAYC_HOST_EMULATION
