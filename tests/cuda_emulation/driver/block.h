// Runs the blocks of a kernel one after another, the threads of a block as fibers.
#pragma once
#include <string>

#include "kernel.h"

namespace emulation {

struct Launch {
  const Kernel* kernel;
  const char* name;
  uint3 grid, block;
  unsigned dynamic_shared;
  void** arguments;
};

// Runs all blocks. Returns an empty string or the error; `illegal_address` is set for an invalid memory access.
std::string run_kernel(const Launch& launch, bool& illegal_address);

}  // namespace emulation
