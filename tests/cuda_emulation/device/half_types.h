// float16 and bfloat16: storage types whose arithmetic is float32's, rounded after each operation.
#pragma once

namespace emulation {

struct HalfFormat {
  static inline float widen(unsigned short bits) { return (float)emulation_bits<_Float16>(bits); }
  static inline unsigned short narrow(float value) { return emulation_bits<unsigned short>((_Float16)value); }
};

struct BrainFormat {
  static inline float widen(unsigned short bits) { return emulation_bits<float>((unsigned)bits << 16); }
  static inline unsigned short narrow(float value) {  // to nearest, ties to even
    unsigned bits = emulation_bits<unsigned>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

template <class Format>
struct __attribute__((may_alias)) Short {
  unsigned short bits;
  Short() = default;
  Short(float value) : bits(Format::narrow(value)) {}
  Short(double value) : bits(Format::narrow((float)value)) {}
  Short(int value) : bits(Format::narrow((float)value)) {}
  Short(unsigned value) : bits(Format::narrow((float)value)) {}
  Short(long value) : bits(Format::narrow((float)value)) {}
  Short(long long value) : bits(Format::narrow((float)value)) {}
  operator float() const { return Format::widen(bits); }
  Short& operator+=(Short other) { return *this = Short((float)*this + (float)other); }
  Short& operator-=(Short other) { return *this = Short((float)*this - (float)other); }
  Short& operator*=(Short other) { return *this = Short((float)*this * (float)other); }
  Short& operator/=(Short other) { return *this = Short((float)*this / (float)other); }
};

#define RC_SHORT_OPERATOR(sign)                                          \
  template <class F>                                                     \
  static inline Short<F> operator sign(Short<F> a, Short<F> b) {         \
    return Short<F>((float)a sign(float) b);                             \
  }
RC_SHORT_OPERATOR(+)
RC_SHORT_OPERATOR(-)
RC_SHORT_OPERATOR(*)
RC_SHORT_OPERATOR(/)
#undef RC_SHORT_OPERATOR
template <class F>
static inline Short<F> operator-(Short<F> a) { return Short<F>(-(float)a); }

template <class F>
struct __attribute__((aligned(4), may_alias)) Short2 {
  Short<F> x, y;
};

}  // namespace emulation

using __half = emulation::Short<emulation::HalfFormat>;
using half = __half;
using __half2 = emulation::Short2<emulation::HalfFormat>;
using half2 = __half2;
using __nv_bfloat16 = emulation::Short<emulation::BrainFormat>;
using nv_bfloat16 = __nv_bfloat16;
using __nv_bfloat162 = emulation::Short2<emulation::BrainFormat>;

#define RC_SHORT_FUNCTIONS(T, T2, name)                                              \
  static inline float __##name##2float(T x) { return (float)x; }                     \
  static inline T __float2##name(float x) { return T(x); }                           \
  static inline T __float2##name##_rn(float x) { return T(x); }                      \
  static inline T2 __floats2##name##2_rn(float x, float y) { return {T(x), T(y)}; }  \
  static inline T __ushort_as_##name(unsigned short bits) { return emulation_bits<T>(bits); } \
  static inline unsigned short __##name##_as_ushort(T x) { return x.bits; }
RC_SHORT_FUNCTIONS(__half, __half2, half)
RC_SHORT_FUNCTIONS(__nv_bfloat16, __nv_bfloat162, bfloat16)
#undef RC_SHORT_FUNCTIONS
static inline __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
static inline float2 __half22float2(__half2 v) { return {(float)v.x, (float)v.y}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {(float)v.x, (float)v.y}; }
static inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
static inline __half2 make_half2(__half x, __half y) { return {x, y}; }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }

#define RC_SHORT_BINARY(function, expression)                                        \
  template <class F>                                                                 \
  static inline emulation::Short<F> function(emulation::Short<F> a, emulation::Short<F> b) { \
    return expression;                                                               \
  }                                                                                  \
  template <class F>                                                                 \
  static inline emulation::Short2<F> function##2(emulation::Short2<F> p, emulation::Short2<F> q) { \
    return {function(p.x, q.x), function(p.y, q.y)};                                 \
  }
RC_SHORT_BINARY(__hadd, a + b)
RC_SHORT_BINARY(__hsub, a - b)
RC_SHORT_BINARY(__hmul, a * b)
RC_SHORT_BINARY(__hmax, emulation::Short<F>(fmaxf(a, b)))
RC_SHORT_BINARY(__hmin, emulation::Short<F>(fminf(a, b)))
RC_SHORT_BINARY(__hdiv, a / b)
#undef RC_SHORT_BINARY
template <class F>
static inline emulation::Short<F> __hfma(emulation::Short<F> a, emulation::Short<F> b, emulation::Short<F> c) {
  return emulation::Short<F>((float)a * (float)b + (float)c);
}
template <class F>
static inline emulation::Short2<F> __hfma2(emulation::Short2<F> a, emulation::Short2<F> b, emulation::Short2<F> c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
template <class F>
static inline emulation::Short<F> min(emulation::Short<F> a, emulation::Short<F> b) { return __hmin(a, b); }
template <class F>
static inline emulation::Short<F> max(emulation::Short<F> a, emulation::Short<F> b) { return __hmax(a, b); }
