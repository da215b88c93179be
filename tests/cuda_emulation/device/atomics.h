// Atomic operations: a fiber is never preempted, so plain ones suffice.
#pragma once

template <class T>
static inline T emulation_exchange(T* address, T value) {
  T old = *address;
  *address = value;
  return old;
}
template <class T, class U>
static inline T atomicAdd(T* address, U value) { return emulation_exchange(address, (T)(*address + (T)value)); }
template <class T, class U>
static inline T atomicSub(T* address, U value) { return emulation_exchange(address, (T)(*address - (T)value)); }
template <class T, class U>
static inline T atomicMax(T* address, U value) { return emulation_exchange(address, max(*address, (T)value)); }
template <class T, class U>
static inline T atomicMin(T* address, U value) { return emulation_exchange(address, min(*address, (T)value)); }
template <class T, class U>
static inline T atomicAnd(T* address, U value) { return emulation_exchange(address, (T)(*address & (T)value)); }
template <class T, class U>
static inline T atomicOr(T* address, U value) { return emulation_exchange(address, (T)(*address | (T)value)); }
template <class T, class U>
static inline T atomicXor(T* address, U value) { return emulation_exchange(address, (T)(*address ^ (T)value)); }
template <class T, class U>
static inline T atomicExch(T* address, U value) { return emulation_exchange(address, (T)value); }
template <class T, class U>
static inline T atomicCAS(T* address, U expected, U value) {
  return emulation_exchange(address, *address == (T)expected ? (T)value : *address);
}
