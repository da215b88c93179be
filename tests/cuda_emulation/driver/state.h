// The emulated devices, memory, streams and events.
//
// Device addresses have bit 62 set: no host pointer has, and a host access through one faults, as it
// should. Streams are lazy: an operation runs when a caller synchronises with it, which exposes missing waits.
// One lock guards everything.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "abi.h"

namespace driver {

constexpr Address kDeviceBit = 1ull << 62;
constexpr int kMaxDevices = 8;

struct Allocation {
  char* base;         // host address
  std::size_t bytes;  // as requested
  int device;         // -1: pinned memory of the host
  char* memory;       // the pages that it lies in, and their bytes
  std::size_t pages;
};

// A point in a stream: done when all work before it has run.
struct Record {
  struct Stream* stream;
  bool done = false, captured = false;
  std::chrono::steady_clock::time_point time;
};

struct Event {
  int device;
  bool timing;
  std::shared_ptr<Record> last;
};

using Operation = std::function<Result()>;

struct Graph {
  std::vector<Operation> operations;
  struct Stream* origin;
  bool invalid = false;
};

struct Stream {
  int device;
  bool blocking;  // runs in order with the null stream
  std::deque<Operation> queue;
  std::shared_ptr<Graph> capture;
};

struct Device {
  int index;
  int retained = 0;
  Stream null_stream;
  std::set<Stream*> streams;
  std::set<int> peers;  // devices with peer access
  std::set<int> pools;  // devices with access to their pools
  Result error = SUCCESS;  // sticky error of a kernel, returned by every later call
  std::string message;
  std::size_t used = 0;
  std::uint64_t release_threshold = 0;
};

extern std::recursive_mutex lock;
extern bool initialized;
extern std::vector<Device> devices;
extern thread_local Device* context;  // the device of the current context

// The prologue of every entry point that needs a context.
Result enter();
std::size_t total_memory();

// memory.cpp: the live allocation that holds [address, address + bytes), or nullptr. Host addresses without the bit.
Allocation* find_allocation(Address address, std::size_t bytes);
char* host_place(Address address);
bool is_intact(const Allocation& allocation);  // nothing was written behind its end

// streams.cpp
Stream* stream_of(void* handle);  // nullptr: not a stream
Result submit(void* stream, Operation operation);
Result drain(Stream& stream);
Result drain_device(Device& device);
bool capturing(const Device& device);

}  // namespace driver

#define ENTER                                          \
  std::lock_guard<std::recursive_mutex> guard(driver::lock); \
  if (Result entered = driver::enter()) return entered
