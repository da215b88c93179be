// Initialisation, devices, their contexts and attributes.
//
// Environment variables: EMULATED_CUDA_DEVICES (count; default 2, 0: cuInit reports no device), EMULATED_CUDA_MEMORY
// (bytes per device), EMULATED_CUDA_VERSION (driver version, default 13000).
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "state.h"

namespace driver {

std::recursive_mutex lock;
bool initialized = false;
std::vector<Device> devices;
thread_local Device* context = nullptr;

namespace {

long setting(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atol(text) : otherwise;
}

bool valid(int device) { return device >= 0 && device < static_cast<int>(devices.size()); }

struct Attribute {
  int number, value;
};

// An H100, as in the table of architectures for sm_90.
constexpr Attribute kAttributes[] = {
    {1, 1024},     {2, 1024},     {3, 1024},     {4, 64},       {5, 2147483647}, {6, 65535},    {7, 65535},
    {8, 49152},    {9, 65536},    {10, 32},      {11, 2147483647}, {12, 65536},  {13, 1980000}, {16, 132},
    {31, 1},       {36, 2619000}, {37, 5120},    {38, 52428800}, {39, 2048},     {40, 3},       {41, 1},
    {75, 9},       {76, 0},       {81, 233472},  {82, 65536},   {95, 1},         {97, 232448},  {106, 32},
    {111, 1024},   {115, 1},
};

struct ErrorName {
  Result code;
  const char *name, *text;
};

constexpr ErrorName kErrors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {PEER_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {PEER_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted when a stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "a previous error spoiled the capture"},
    {CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "would merge separate captures"},
    {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "not the stream where it began"},
    {CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "depends on work that is not captured"},
    {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "not permitted on an event of a capture"},
};

}  // namespace

Result enter() {
  if (!initialized) return NOT_INITIALIZED;
  if (!context) return INVALID_CONTEXT;
  return context->error;
}

std::size_t total_memory() { return static_cast<std::size_t>(setting("EMULATED_CUDA_MEMORY", 8l << 30)); }

}  // namespace driver

using namespace driver;

#define ENTER_WITHOUT_CONTEXT                                \
  std::lock_guard<std::recursive_mutex> guard(driver::lock); \
  if (!initialized) return NOT_INITIALIZED

DRIVER_API Result cuInit(unsigned) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (initialized) return SUCCESS;
  long count = setting("EMULATED_CUDA_DEVICES", 2);
  if (count < 1 || count > kMaxDevices) return NO_DEVICE;
  devices.resize(count);
  for (int i = 0; i < count; ++i) devices[i].index = devices[i].null_stream.device = i;
  initialized = true;
  return SUCCESS;
}

DRIVER_API Result cuDriverGetVersion(int* version) {
  *version = static_cast<int>(setting("EMULATED_CUDA_VERSION", 13000));
  return SUCCESS;
}

// NVRTC requests the driver's internal tables if it finds a driver, and works without them.
DRIVER_API Result cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return NOT_FOUND;
}

DRIVER_API Result cuDeviceGetCount(int* count) {
  ENTER_WITHOUT_CONTEXT;
  *count = static_cast<int>(devices.size());
  return SUCCESS;
}

DRIVER_API Result cuDeviceGet(int* device, int ordinal) {
  ENTER_WITHOUT_CONTEXT;
  if (!valid(ordinal)) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}

DRIVER_API Result cuDeviceGetName(char* name, int length, int device) {
  ENTER_WITHOUT_CONTEXT;
  if (!valid(device)) return INVALID_DEVICE;
  std::strncpy(name, "emulated GPU", length);
  return SUCCESS;
}

DRIVER_API Result cuDeviceTotalMem(std::size_t* bytes, int device) {
  ENTER_WITHOUT_CONTEXT;
  if (!valid(device)) return INVALID_DEVICE;
  *bytes = total_memory();
  return SUCCESS;
}

DRIVER_API Result cuDeviceGetUuid(void* uuid, int device) {
  ENTER_WITHOUT_CONTEXT;
  if (!valid(device)) return INVALID_DEVICE;
  std::memset(uuid, device + 1, 16);
  return SUCCESS;
}

DRIVER_API Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER_WITHOUT_CONTEXT;
  if (!valid(device)) return INVALID_DEVICE;
  *value = attribute == 33 ? device : 0;  // the PCI bus
  for (const Attribute& known : kAttributes)
    if (known.number == attribute) *value = known.value;
  return SUCCESS;
}

DRIVER_API Result cuDevicePrimaryCtxRetain(void** result, int device) {
  ENTER_WITHOUT_CONTEXT;
  if (!valid(device)) return INVALID_DEVICE;
  ++devices[device].retained;
  *result = &devices[device];
  return SUCCESS;
}

DRIVER_API Result cuDevicePrimaryCtxRelease(int device) {
  ENTER_WITHOUT_CONTEXT;
  if (!valid(device)) return INVALID_DEVICE;
  if (!devices[device].retained) return INVALID_CONTEXT;
  --devices[device].retained;
  return SUCCESS;
}

DRIVER_API Result cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  ENTER_WITHOUT_CONTEXT;
  if (!valid(device)) return INVALID_DEVICE;
  *flags = 0;
  *active = devices[device].retained > 0;
  return SUCCESS;
}

DRIVER_API Result cuCtxSetCurrent(void* wanted) {
  ENTER_WITHOUT_CONTEXT;
  auto device = static_cast<Device*>(wanted);
  if (device && !device->retained) return INVALID_CONTEXT;
  context = device;
  return SUCCESS;
}

DRIVER_API Result cuCtxGetCurrent(void** result) {
  ENTER_WITHOUT_CONTEXT;
  *result = context;
  return SUCCESS;
}

DRIVER_API Result cuCtxGetDevice(int* device) {
  ENTER;
  *device = context->index;
  return SUCCESS;
}

DRIVER_API Result cuCtxSynchronize() {
  ENTER;
  if (capturing(*context)) return CAPTURE_UNSUPPORTED;
  return drain_device(*context);
}

DRIVER_API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ENTER;
  *least = 0;
  *greatest = -5;
  return SUCCESS;
}

DRIVER_API Result cuDeviceCanAccessPeer(int* can, int device, int peer) {
  ENTER_WITHOUT_CONTEXT;
  if (!valid(device) || !valid(peer)) return INVALID_DEVICE;
  *can = device != peer;
  return SUCCESS;
}

DRIVER_API Result cuCtxEnablePeerAccess(void* peer, unsigned flags) {
  ENTER;
  auto other = static_cast<Device*>(peer);
  if (!other || other == context || flags) return INVALID_VALUE;
  return context->peers.insert(other->index).second ? SUCCESS : PEER_ALREADY_ENABLED;
}

DRIVER_API Result cuCtxDisablePeerAccess(void* peer) {
  ENTER;
  return context->peers.erase(static_cast<Device*>(peer)->index) ? SUCCESS : PEER_NOT_ENABLED;
}

DRIVER_API Result cuGetErrorName(Result code, const char** name) {
  *name = nullptr;
  for (const ErrorName& error : kErrors)
    if (error.code == code) *name = error.name;
  return *name ? SUCCESS : INVALID_VALUE;
}

DRIVER_API Result cuGetErrorString(Result code, const char** text) {
  *text = nullptr;
  for (const ErrorName& error : kErrors)
    if (error.code == code) *text = error.text;
  return *text ? SUCCESS : INVALID_VALUE;
}

DRIVER_API Result cuGetProcAddress_v2(const char* symbol, void** function, int, std::uint64_t, int* status) {
  static void* self = [] {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&cuInit), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  *function = dlsym(self, symbol);
  if (status) *status = *function ? 0 : 1;
  return *function ? SUCCESS : NOT_FOUND;
}

DRIVER_API Result cuGetProcAddress(const char* symbol, void** function, int version, std::uint64_t flags, int* status) {
  return cuGetProcAddress_v2(symbol, function, version, flags, status);
}

// For tests: the error of a kernel, and a reset of the device after it (a real one requires a new process). The work
// behind the kernel never runs: the host memory that it would write may be another's by now.
DRIVER_API const char* emulation_last_error(int device) { return devices[device].message.c_str(); }

DRIVER_API void emulation_reset(int index) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  Device& device = devices[index];
  if (!device.error) return;
  device.error = SUCCESS;
  device.message.clear();
  device.null_stream.queue.clear();
  for (Stream* stream : device.streams) stream->queue.clear();
}
