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

// Runs all blocks. Gives an empty text, or what went wrong; then `illegal_address` says whether it was an access.
std::string run_kernel(const Launch& launch, bool& illegal_address);

}  // namespace emulation
