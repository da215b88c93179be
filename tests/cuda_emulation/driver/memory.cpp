// Device memory, pinned memory of the host, memory pools, copies and fills.
//
// An allocation ends at an inaccessible guard; the bytes between its end and the next multiple of 256 have a
// pattern that must not change. Fresh memory is NaN.
#include <cstring>

#include "guarded.h"
#include "state.h"

namespace driver {
namespace {

constexpr std::size_t kPage = 4096, kAlignment = 256;
constexpr unsigned char kFresh = 0xff, kPattern = 0xcb;

std::map<std::uintptr_t, Allocation> allocations;

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

Allocation map_memory(std::size_t bytes, int device) {
  std::size_t padded = round_up(bytes, kAlignment), pages = round_up(padded, kPage);
  char* memory = map_guarded(pages);
  if (!memory) return {};
  char* base = memory + pages - padded;
  std::memset(base, kFresh, bytes);
  std::memset(base + bytes, kPattern, padded - bytes);
  return {base, bytes, device, memory, pages};
}

Allocation* allocate(std::size_t bytes, int device) {
  if (bytes > total_memory()) return nullptr;  // whether the system would promise it depends on its settings
  Allocation made = map_memory(bytes, device);
  if (!made.base) return nullptr;
  if (device >= 0) devices[device].used += bytes;
  return &(allocations[reinterpret_cast<std::uintptr_t>(made.base)] = made);
}

Result release(Address address) {
  auto found = allocations.find(address & ~kDeviceBit);
  if (found == allocations.end()) return INVALID_VALUE;
  Allocation& allocation = found->second;
  Result result = is_intact(allocation) ? SUCCESS : ILLEGAL_ADDRESS;
  if (allocation.device >= 0) devices[allocation.device].used -= allocation.bytes;
  unmap_guarded(allocation.memory, allocation.pages);
  allocations.erase(found);
  return result;
}

bool is_pinned(const void* host, std::size_t bytes) {
  Allocation* found = find_allocation(reinterpret_cast<Address>(host), bytes);
  return found && found->device < 0;
}

bool on_device(Address address, std::size_t bytes) { return (address & kDeviceBit) && find_allocation(address, bytes); }

// A copy whose operands are checked when it runs: memory freed in the meantime is an error.
Operation copy(Address to, Address from, std::size_t bytes) {
  return [=]() -> Result {
    for (Address side : {to, from})
      if ((side & kDeviceBit) && !find_allocation(side, bytes)) return ILLEGAL_ADDRESS;
    std::memcpy(host_place(to), host_place(from), bytes);
    return SUCCESS;
  };
}

Result copy_now(Address to, Address from, std::size_t bytes) {
  if (capturing(*context)) return CAPTURE_UNSUPPORTED;
  if (Result result = submit(nullptr, copy(to, from, bytes))) return result;
  return drain(context->null_stream);
}

Address of_host(const void* pointer) { return reinterpret_cast<Address>(pointer); }

}  // namespace

Allocation* find_allocation(Address address, std::size_t bytes) {
  std::uintptr_t place = address & ~kDeviceBit;
  auto after = allocations.upper_bound(place);
  if (after == allocations.begin()) return nullptr;
  Allocation& found = std::prev(after)->second;
  bool device = address & kDeviceBit;
  if (device != (found.device >= 0)) return nullptr;
  return place + bytes <= reinterpret_cast<std::uintptr_t>(found.base) + found.bytes ? &found : nullptr;
}

char* host_place(Address address) { return reinterpret_cast<char*>(address & ~kDeviceBit); }

bool is_intact(const Allocation& allocation) {
  for (std::size_t i = allocation.bytes; i < round_up(allocation.bytes, kAlignment); ++i)
    if (static_cast<unsigned char>(allocation.base[i]) != kPattern) return false;
  return true;
}

}  // namespace driver

using namespace driver;

DRIVER_API Result cuMemGetInfo(std::size_t* unused, std::size_t* total) {
  ENTER;
  *total = total_memory();
  *unused = *total - context->used;
  return SUCCESS;
}

static Result allocate_here(Address* address, std::size_t bytes) {
  if (!bytes) return INVALID_VALUE;
  if (context->used + bytes > total_memory()) return OUT_OF_MEMORY;
  Allocation* made = allocate(bytes, context->index);
  if (!made) return OUT_OF_MEMORY;
  *address = of_host(made->base) | kDeviceBit;
  return SUCCESS;
}

DRIVER_API Result cuMemAlloc(Address* address, std::size_t bytes) {
  ENTER;
  if (capturing(*context)) return CAPTURE_UNSUPPORTED;
  return allocate_here(address, bytes);
}

DRIVER_API Result cuMemAllocAsync(Address* address, std::size_t bytes, void* stream) {
  ENTER;
  Stream* on = stream_of(stream);
  if (!on) return INVALID_HANDLE;
  if (on->capture) return CAPTURE_UNSUPPORTED;  // a real driver adds an allocation node
  return allocate_here(address, bytes);
}

DRIVER_API Result cuMemAllocFromPoolAsync(Address* address, std::size_t bytes, void* pool, void* stream) {
  return pool ? cuMemAllocAsync(address, bytes, stream) : INVALID_HANDLE;
}

DRIVER_API Result cuMemFree(Address address) {
  ENTER;
  if (!on_device(address, 0)) return INVALID_VALUE;
  if (capturing(*context)) return CAPTURE_UNSUPPORTED;
  if (Result result = drain_device(*context)) return result;
  return release(address);
}

DRIVER_API Result cuMemFreeAsync(Address address, void* stream) {
  ENTER;
  if (!on_device(address, 0)) return INVALID_VALUE;
  if (capturing(*context) && stream_of(stream)->capture) return CAPTURE_UNSUPPORTED;
  return submit(stream, [=] { return release(address); });
}

DRIVER_API Result cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  ENTER;
  if (!bytes) return INVALID_VALUE;
  Allocation* made = allocate(bytes, -1);
  if (!made) return OUT_OF_MEMORY;
  *pointer = made->base;
  return SUCCESS;
}

DRIVER_API Result cuMemAllocHost(void** pointer, std::size_t bytes) { return cuMemHostAlloc(pointer, bytes, 0); }

DRIVER_API Result cuMemFreeHost(void* pointer) {
  ENTER;
  if (!is_pinned(pointer, 0)) return INVALID_VALUE;
  if (Result result = drain_device(*context)) return result;
  return release(of_host(pointer));
}

DRIVER_API Result cuMemcpyHtoD(Address to, const void* from, std::size_t bytes) {
  ENTER;
  return on_device(to, bytes) ? copy_now(to, of_host(from), bytes) : INVALID_VALUE;
}

DRIVER_API Result cuMemcpyDtoH(void* to, Address from, std::size_t bytes) {
  ENTER;
  return on_device(from, bytes) ? copy_now(of_host(to), from, bytes) : INVALID_VALUE;
}

DRIVER_API Result cuMemcpyDtoD(Address to, Address from, std::size_t bytes) {
  ENTER;
  return on_device(to, bytes) && on_device(from, bytes) ? copy_now(to, from, bytes) : INVALID_VALUE;
}

DRIVER_API Result cuMemcpyHtoDAsync(Address to, const void* from, std::size_t bytes, void* stream) {
  ENTER;
  if (!on_device(to, bytes)) return INVALID_VALUE;
  Stream* on = stream_of(stream);
  if (!on) return INVALID_HANDLE;
  if (is_pinned(from, bytes) || on->capture) return submit(stream, copy(to, of_host(from), bytes));
  auto source = static_cast<const char*>(from);  // pageable: staged immediately
  auto staged = std::make_shared<std::vector<char>>(source, source + bytes);
  return submit(stream, [=]() -> Result {
    if (!on_device(to, bytes)) return ILLEGAL_ADDRESS;
    std::memcpy(host_place(to), staged->data(), bytes);
    return SUCCESS;
  });
}

DRIVER_API Result cuMemcpyDtoHAsync(void* to, Address from, std::size_t bytes, void* stream) {
  ENTER;
  if (!on_device(from, bytes)) return INVALID_VALUE;
  Stream* on = stream_of(stream);
  if (!on) return INVALID_HANDLE;
  if (Result result = submit(stream, copy(of_host(to), from, bytes))) return result;
  return is_pinned(to, bytes) || on->capture ? SUCCESS : drain(*on);  // into pageable memory the driver waits
}

DRIVER_API Result cuMemcpyDtoDAsync(Address to, Address from, std::size_t bytes, void* stream) {
  ENTER;
  if (!on_device(to, bytes) || !on_device(from, bytes)) return INVALID_VALUE;
  return submit(stream, copy(to, from, bytes));
}

DRIVER_API Result cuMemcpyPeerAsync(Address to, void* to_context, Address from, void* from_context, std::size_t bytes,
                                    void* stream) {
  ENTER;
  if (!on_device(to, bytes) || !on_device(from, bytes)) return INVALID_VALUE;
  bool right = find_allocation(to, bytes)->device == static_cast<Device*>(to_context)->index &&
               find_allocation(from, bytes)->device == static_cast<Device*>(from_context)->index;
  return right ? submit(stream, copy(to, from, bytes)) : INVALID_VALUE;
}

DRIVER_API Result cuMemcpyPeer(Address to, void* to_context, Address from, void* from_context, std::size_t bytes) {
  ENTER;
  if (Result result = cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, nullptr)) return result;
  return drain(context->null_stream);
}

DRIVER_API Result cuMemcpyAsync(Address to, Address from, std::size_t bytes, void* stream) {
  if (to & kDeviceBit && from & kDeviceBit) return cuMemcpyDtoDAsync(to, from, bytes, stream);
  if (to & kDeviceBit) return cuMemcpyHtoDAsync(to, reinterpret_cast<void*>(from), bytes, stream);
  return cuMemcpyDtoHAsync(reinterpret_cast<void*>(to), from, bytes, stream);
}

DRIVER_API Result cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, void* stream) {
  ENTER;
  if (!on_device(to, bytes)) return INVALID_VALUE;
  return submit(stream, [=]() -> Result {
    if (!on_device(to, bytes)) return ILLEGAL_ADDRESS;
    std::memset(host_place(to), value, bytes);
    return SUCCESS;
  });
}

DRIVER_API Result cuMemsetD32Async(Address to, unsigned value, std::size_t count, void* stream) {
  ENTER;
  if (!on_device(to, 4 * count) || to % 4) return INVALID_VALUE;
  return submit(stream, [=]() -> Result {
    if (!on_device(to, 4 * count)) return ILLEGAL_ADDRESS;
    for (std::size_t i = 0; i < count; ++i) std::memcpy(host_place(to) + 4 * i, &value, 4);
    return SUCCESS;
  });
}

DRIVER_API Result cuMemsetD8(Address to, unsigned char value, std::size_t bytes) {
  return cuMemsetD8Async(to, value, bytes, nullptr);
}

DRIVER_API Result cuDeviceGetDefaultMemPool(void** pool, int device) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (device < 0 || device >= static_cast<int>(devices.size())) return INVALID_DEVICE;
  *pool = &devices[device];
  return SUCCESS;
}

DRIVER_API Result cuDeviceGetMemPool(void** pool, int device) { return cuDeviceGetDefaultMemPool(pool, device); }

enum PoolAttribute { REUSE_FIRST = 1, REUSE_LAST = 3, RELEASE_THRESHOLD = 4, RESERVED = 5, USED_HIGH = 8 };

DRIVER_API Result cuMemPoolSetAttribute(void* pool, int attribute, void* value) {
  ENTER;
  if (attribute == RELEASE_THRESHOLD) std::memcpy(&static_cast<Device*>(pool)->release_threshold, value, 8);
  return attribute >= REUSE_FIRST && attribute <= USED_HIGH ? SUCCESS : INVALID_VALUE;
}

DRIVER_API Result cuMemPoolGetAttribute(void* pool, int attribute, void* value) {
  ENTER;
  auto device = static_cast<Device*>(pool);
  std::uint64_t current = attribute == RELEASE_THRESHOLD ? device->release_threshold : device->used;
  if (attribute >= REUSE_FIRST && attribute <= REUSE_LAST) {
    std::memset(value, 0, 4);
  } else if (attribute >= RELEASE_THRESHOLD && attribute <= USED_HIGH) {
    std::memcpy(value, &current, 8);
  } else {
    return INVALID_VALUE;
  }
  return SUCCESS;
}

// CUmemAccessDesc
struct PoolAccess {
  int kind, device;
  int flags;  // 0: none, 3: read and write
};

DRIVER_API Result cuMemPoolSetAccess(void* pool, const PoolAccess* rules, std::size_t count) {
  ENTER;
  int owner = static_cast<Device*>(pool)->index;
  for (const PoolAccess* rule = rules; rule != rules + count; ++rule) {
    if (rule->kind != 1 || rule->device < 0 || rule->device >= static_cast<int>(devices.size())) return INVALID_VALUE;
    std::set<int>& pools = devices[rule->device].pools;
    if (rule->flags) pools.insert(owner);
    else pools.erase(owner);
  }
  return SUCCESS;
}

DRIVER_API Result cuMemPoolTrimTo(void*, std::size_t) {
  ENTER;
  return SUCCESS;
}

enum PointerAttribute { POINTER_CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, ORDINAL = 9 };

DRIVER_API Result cuPointerGetAttribute(void* value, int attribute, Address address) {
  ENTER;
  Allocation* found = find_allocation(address, 0);
  if (!found) return INVALID_VALUE;
  unsigned kind = found->device < 0 ? 1 : 2;
  int ordinal = found->device < 0 ? 0 : found->device;
  void* owner = &devices[ordinal];
  switch (attribute) {
    case POINTER_CONTEXT: std::memcpy(value, &owner, sizeof owner); return SUCCESS;
    case MEMORY_TYPE: std::memcpy(value, &kind, sizeof kind); return SUCCESS;
    case DEVICE_POINTER: std::memcpy(value, &address, sizeof address); return SUCCESS;
    case HOST_POINTER: std::memcpy(value, &address, sizeof address); return kind == 1 ? SUCCESS : INVALID_VALUE;
    case ORDINAL: std::memcpy(value, &ordinal, sizeof ordinal); return SUCCESS;
    default: return INVALID_VALUE;
  }
}
