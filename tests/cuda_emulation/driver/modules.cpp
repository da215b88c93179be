// Modules, functions, launches and occupancy.
//
// An image is "RELAYC-EMU", a zero byte, the size of a shared library as 8 bytes, and the library itself.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "block.h"
#include "state.h"

namespace driver {
namespace {

constexpr char kMagic[] = "RELAYC-EMU";
constexpr unsigned kSharedDefault = 48 << 10, kSharedOptIn = 232448, kSharedPerSM = 233472, kSharedReserved = 1024;

struct Function {
  int device;
  std::string name;
  const emulation::Kernel* kernel;
  unsigned max_dynamic_shared = kSharedDefault;
};

struct Module {
  int device;
  void* library;
  std::map<std::string, Function> functions;
};

// The library is loaded from a temporary file, so that every module has its own copy.
void* load_library(const char* bytes, std::size_t size) {
  const char* folder = std::getenv("TMPDIR");
  std::string path = std::string(folder ? folder : "/tmp") + "/relayc-emulated-XXXXXX";
  int file = mkstemp(path.data());
  if (file < 0) return nullptr;
  bool written = write(file, bytes, size) == static_cast<ssize_t>(size);
  close(file);
  void* library = written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!library) std::fprintf(stderr, "emulated CUDA driver: %s\n", dlerror());
  unlink(path.c_str());
  return library;
}

bool launchable(const unsigned* grid, const unsigned* block) {
  for (int i = 0; i < 3; ++i)
    if (!grid[i] || !block[i]) return false;
  bool grid_fits = grid[0] <= 2147483647u && grid[1] <= 65535 && grid[2] <= 65535;
  bool block_fits = block[0] <= 1024 && block[1] <= 1024 && block[2] <= 64;
  return grid_fits && block_fits && block[0] * block[1] * block[2] <= 1024;
}

struct PendingLaunch {
  const Function* function;
  unsigned grid[3], block[3], shared;
  std::vector<std::uint64_t> values;  // the driver copies arguments when a launch is queued
};

Result fail(Device& device, Result code, const std::string& message) {
  device.message = message;
  std::fprintf(stderr, "emulated CUDA device %d: %s\n", device.index, message.c_str());
  return code;
}

Result run(const PendingLaunch& launch) {
  const Function& function = *launch.function;
  Device& device = devices[function.device];
  const emulation::Kernel& kernel = *function.kernel;
  std::vector<std::uint64_t> values = launch.values;
  std::vector<void*> arguments(values.size());
  for (unsigned i = 0; i < values.size(); ++i) {
    arguments[i] = &values[i];
    if (!kernel.parameters[i].pointer || !values[i]) continue;
    Allocation* found = find_allocation(values[i], 0);
    std::string what = "kernel " + function.name + ": argument " + std::to_string(i);
    if (!found) return fail(device, ILLEGAL_ADDRESS, what + " is not in memory of a device");
    if (found->device >= 0 && found->device != device.index && !device.peers.count(found->device) &&
        !device.pools.count(found->device))
      return fail(device, ILLEGAL_ADDRESS, what + " is on a device without peer access");
    values[i] &= ~kDeviceBit;
  }
  emulation::Launch what{&kernel, function.name.c_str(), {launch.grid[0], launch.grid[1], launch.grid[2]},
                         {launch.block[0], launch.block[1], launch.block[2]}, launch.shared, arguments.data()};
  bool illegal_address;
  std::string error = emulation::run_kernel(what, illegal_address);
  if (!error.empty()) return fail(device, illegal_address ? ILLEGAL_ADDRESS : LAUNCH_FAILED, error);
  for (unsigned i = 0; i < values.size(); ++i) {
    Allocation* found = kernel.parameters[i].pointer ? find_allocation(launch.values[i], 0) : nullptr;
    if (found && !is_intact(*found))
      return fail(device, ILLEGAL_ADDRESS,
                  "kernel " + function.name + " wrote past the end of argument " + std::to_string(i));
  }
  return SUCCESS;
}

Result launch(Function* function, const unsigned* grid, const unsigned* block, unsigned shared, void* stream,
              void** arguments) {
  if (!function || function->device != context->index) return INVALID_HANDLE;
  if (!launchable(grid, block) || shared > function->max_dynamic_shared) return INVALID_VALUE;
  const emulation::Kernel& kernel = *function->kernel;
  if (block[0] * block[1] * block[2] > kernel.max_threads) return LAUNCH_OUT_OF_RESOURCES;
  if (kernel.parameter_count && !arguments) return INVALID_VALUE;
  PendingLaunch pending{function, {}, {}, shared, std::vector<std::uint64_t>(kernel.parameter_count)};
  std::copy(grid, grid + 3, pending.grid);
  std::copy(block, block + 3, pending.block);
  for (unsigned i = 0; i < kernel.parameter_count; ++i)
    std::memcpy(&pending.values[i], arguments[i], kernel.parameters[i].size);
  return submit(stream, [pending] { return run(pending); });
}

}  // namespace
}  // namespace driver

using namespace driver;

DRIVER_API Result cuModuleLoadData(void** module, const void* image) {
  ENTER;
  auto bytes = static_cast<const char*>(image);
  if (std::memcmp(bytes, kMagic, sizeof kMagic)) return INVALID_IMAGE;
  std::uint64_t size;
  std::memcpy(&size, bytes + sizeof kMagic, sizeof size);
  void* library = load_library(bytes + sizeof kMagic + sizeof size, size);
  if (!library) return INVALID_IMAGE;
  *module = new Module{context->index, library, {}};
  return SUCCESS;
}

DRIVER_API Result cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  return cuModuleLoadData(module, image);
}

DRIVER_API Result cuModuleUnload(void* handle) {
  ENTER;
  auto module = static_cast<Module*>(handle);
  if (Result result = drain_device(devices[module->device])) return result;
  dlclose(module->library);
  delete module;
  return SUCCESS;
}

DRIVER_API Result cuModuleGetFunction(void** function, void* handle, const char* name) {
  ENTER;
  auto module = static_cast<Module*>(handle);
  std::string symbol = std::string("relayc_kernel_") + name;
  auto kernel = static_cast<const emulation::Kernel*>(dlsym(module->library, symbol.c_str()));
  if (!kernel) return NOT_FOUND;
  *function = &module->functions.try_emplace(name, Function{module->device, name, kernel}).first->second;
  return SUCCESS;
}

enum FunctionAttribute { MAX_THREADS = 0, BINARY_VERSION = 6, MAX_DYNAMIC_SHARED = 8 };

DRIVER_API Result cuFuncGetAttribute(int* value, int attribute, void* handle) {
  ENTER;
  auto function = static_cast<Function*>(handle);
  *value = attribute == MAX_THREADS          ? static_cast<int>(function->kernel->max_threads)
           : attribute == BINARY_VERSION     ? 90
           : attribute == MAX_DYNAMIC_SHARED ? static_cast<int>(function->max_dynamic_shared)
                                             : 0;
  return SUCCESS;
}

DRIVER_API Result cuFuncSetAttribute(void* handle, int attribute, int value) {
  ENTER;
  if (attribute != MAX_DYNAMIC_SHARED) return SUCCESS;
  if (value < 0 || value > static_cast<int>(kSharedOptIn)) return INVALID_VALUE;
  static_cast<Function*>(handle)->max_dynamic_shared = std::max(kSharedDefault, static_cast<unsigned>(value));
  return SUCCESS;
}

DRIVER_API Result cuFuncLoad(void*) {
  ENTER;
  return SUCCESS;
}

DRIVER_API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int threads, std::size_t shared) {
  ENTER;
  if (threads < 1 || threads > 1024) return INVALID_VALUE;
  *blocks = std::min(32, 2048 / ((threads + 31) / 32 * 32));
  *blocks = std::min(*blocks, static_cast<int>(kSharedPerSM / (shared + kSharedReserved)));
  return SUCCESS;
}

DRIVER_API Result cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, void* stream, void** arguments, void** extra) {
  ENTER;
  if (extra) return INVALID_VALUE;
  unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return launch(static_cast<Function*>(function), grid, block, shared, stream, arguments);
}

DRIVER_API Result cuLaunchKernelEx(const LaunchConfig* config, void* function, void** arguments, void**) {
  ENTER;
  return launch(static_cast<Function*>(function), config->grid, config->block, config->shared_bytes, config->stream,
                arguments);
}
