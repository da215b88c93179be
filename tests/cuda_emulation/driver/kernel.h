// The interface between compiled kernels and the emulated driver. Kernels are built into shared libraries whose
// undefined symbols, the functions below, are resolved in the driver.
#pragma once
#include <cstddef>

struct uint3 {
  unsigned x, y, z;
};

namespace emulation {

struct Parameter {
  unsigned size;  // bytes
  bool pointer;
};

// One kernel of a module: exported as `relayc_kernel_<name>`.
struct Kernel {
  void (*run)(void** arguments);  // one thread, from its first statement to its last
  unsigned parameter_count;
  const Parameter* parameters;
  unsigned max_threads;  // of __launch_bounds__
};

// Work of a whole warp: called once, by the last lane to arrive, with the values of all lanes.
// `slots` has 32 slots of `kSlotBytes`; `active` has a bit for each participating lane.
constexpr unsigned kSlotBytes = 64;
using WarpWork = void (*)(unsigned char* slots, unsigned active);

}  // namespace emulation

#define EMULATION_API extern "C" __attribute__((visibility("default")))

// Position of the running thread. They never change while a thread runs, hence const.
EMULATION_API uint3 emulation_thread_index() __attribute__((const));
EMULATION_API uint3 emulation_block_index() __attribute__((const));
EMULATION_API uint3 emulation_block_dim() __attribute__((const));
EMULATION_API uint3 emulation_grid_dim() __attribute__((const));
EMULATION_API unsigned emulation_linear_thread() __attribute__((const));

// Memory of the block for the array declared at `line`; `line` 0 is the dynamic shared memory.
EMULATION_API void* emulation_shared(unsigned line, std::size_t bytes);
// Aborts the kernel unless `bytes` from `address` on are shared memory of the block, aligned to `bytes`.
EMULATION_API void emulation_check_shared(const void* address, unsigned bytes);

// A barrier of all threads of the block; `line` identifies it.
EMULATION_API void emulation_block_barrier(unsigned line);
// Synchronises the lanes in `mask`, each with `bytes` of data. `work`, if any, runs when all have arrived.
// Returns the slots.
EMULATION_API unsigned char* emulation_warp_meet(unsigned mask, const void* value, unsigned bytes,
                                                 emulation::WarpWork work, unsigned line);
// The lane of the running thread, and the lanes of its warp in the last synchronisation that it returned from.
EMULATION_API unsigned emulation_active_lanes();

// Asynchronous copies to shared memory: only a wait completes them. Unless `inside`, they store zeros.
EMULATION_API void emulation_copy_async(void* to, const void* from, unsigned bytes, bool inside);
EMULATION_API void emulation_copy_commit();
EMULATION_API void emulation_copy_wait(unsigned groups_left);

// Aborts the kernel with an error that has its block and thread.
EMULATION_API void emulation_fail(const char* format, ...) __attribute__((format(printf, 1, 2), noreturn));
