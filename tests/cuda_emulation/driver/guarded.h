// Memory between inaccessible guards, so wide that the index of a wrong kernel ends in them: what is behind them is the
// process's own, and a write there would end another test, much later.
#pragma once
#include <sys/mman.h>

#include <cstddef>

constexpr std::size_t kGuard = 16 << 20;

// `bytes` of memory, a multiple of the page, or nullptr. Guards take address space only.
inline char* map_guarded(std::size_t bytes) {
  void* reserved = mmap(nullptr, bytes + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  char* memory = static_cast<char*>(reserved) + kGuard;
  if (!mprotect(memory, bytes, PROT_READ | PROT_WRITE)) return memory;
  munmap(reserved, bytes + 2 * kGuard);
  return nullptr;
}

inline void unmap_guarded(char* memory, std::size_t bytes) { munmap(memory - kGuard, bytes + 2 * kGuard); }
