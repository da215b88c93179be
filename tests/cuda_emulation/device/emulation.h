// The CUDA language on the host, with which emitted kernels compile under g++. Included before the text of a module.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "../driver/kernel.h"

#define RELAYC_HOST_EMULATION 1

// Barriers and warp operations are identified by their line, which survives inlining and loop unrolling.
#define __global__ __attribute__((visibility("hidden"), used))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __constant__ const
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict

#define threadIdx (emulation_thread_index())
#define blockIdx (emulation_block_index())
#define blockDim (emulation_block_dim())
#define gridDim (emulation_grid_dim())
#define warpSize 32
#define __syncthreads() emulation_block_barrier(__LINE__)
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)

#include "vectors.h"
#include "mathematics.h"
#include "atomics.h"
#include "warp.h"
#include "prelude.h"

namespace emulation {

// Calls a kernel with an array of pointers to its arguments.
template <class Signature>
struct Entry;

template <class... A>
struct Entry<void (*)(A...)> {
  static constexpr Parameter parameters[sizeof...(A) + 1] = {{sizeof(A), std::is_pointer_v<A>}..., {0, false}};

  template <void (*kernel)(A...), size_t... I>
  static inline void call(void** arguments, std::index_sequence<I...>) {
    kernel(*(A*)arguments[I]...);
  }

  template <void (*kernel)(A...)>
  static void run(void** arguments) {
    call<kernel>(arguments, std::index_sequence_for<A...>());
  }

  template <void (*kernel)(A...)>
  static constexpr Kernel describe(unsigned max_threads) {
    return {run<kernel>, sizeof...(A), parameters, max_threads};
  }
};

}  // namespace emulation

// Placed after the text of a kernel: registers it with the driver.
#define RELAYC_KERNEL(name, max_threads)                                                                        \
  extern "C" __attribute__((visibility("default"))) const emulation::Kernel relayc_kernel_##name =              \
      emulation::Entry<decltype(&name)>::describe<&name>(max_threads);
