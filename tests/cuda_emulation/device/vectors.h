// Vector types of the CUDA language. They may alias other types: kernels load them from arrays of scalars.
#pragma once

#define RC_VECTOR2(T, name)                                                         \
  struct __attribute__((aligned(2 * sizeof(T)), may_alias)) name##2 { T x, y; };    \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }
#define RC_VECTOR3(T, name)                                       \
  struct __attribute__((may_alias)) name##3 { T x, y, z; };       \
  static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }
#define RC_VECTOR4(T, name)                                                                                     \
  struct __attribute__((aligned(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)), may_alias)) name##4 { T x, y, z, w; }; \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define RC_VECTORS(T, name) RC_VECTOR2(T, name) RC_VECTOR3(T, name) RC_VECTOR4(T, name)

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulonglong = unsigned long long;

RC_VECTORS(signed char, char)
RC_VECTORS(unsigned char, uchar)
RC_VECTORS(short, short)
RC_VECTORS(unsigned short, ushort)
RC_VECTORS(int, int)
RC_VECTOR2(unsigned, uint)
RC_VECTOR4(unsigned, uint)
RC_VECTORS(float, float)
RC_VECTORS(double, double)
RC_VECTOR2(long, long)
RC_VECTOR2(unsigned long, ulong)
RC_VECTOR2(long long, longlong)
RC_VECTOR2(unsigned long long, ulonglong)
RC_VECTOR4(long long, longlong)

template <class To, class From>
static inline To emulation_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "another width");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
