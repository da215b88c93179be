// The threads of a block as fibers.
//
// A fiber runs threads one after another until one of them has to wait; then another fiber continues with the next
// thread. So a kernel without barriers runs as a plain loop on one fiber, and only waiting threads hold a stack. Even
// blocks run their threads in ascending, odd blocks in descending order, so that a dependence on the order shows as a
// wrong result. Shared memory is initialised to NaN in every block.
#include "block.h"

#include <setjmp.h>
#include <signal.h>

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "context_switch.h"
#include "guarded.h"

namespace emulation {
namespace {

constexpr std::size_t kStackBytes = 256 << 10, kSharedBytes = 512 << 10;
constexpr unsigned kMaxThreads = 1024, kMaxWarps = kMaxThreads / 32;

struct Fiber {
  char* stack;
  void* position = nullptr;
};

struct PendingCopy {
  void* to;
  const void* from;
  unsigned bytes;
  bool inside;
  unsigned group;
};

struct Meeting {  // a synchronisation of lanes of a warp
  unsigned met, mask, line;  // lanes that wait in it, lanes that must come, where
  unsigned users;            // lanes that may still read its slots: until their next meeting
  WarpWork work;
};

struct Thread {
  uint3 index;
  int fiber;    // -1 before its start
  int meeting;  // the last one; -1 before the first
  unsigned active, groups;
  std::vector<PendingCopy> copies;
};

constexpr int kMeetings = 33;  // every lane may hold one of its own, and one may begin

struct Warp {
  unsigned lanes;                    // threads that exist
  unsigned ready, done, at_barrier;  // by lane
  int opened;                        // meetings ever used
  Meeting meetings[kMeetings];
  alignas(64) unsigned char slots[kMeetings][32 * kSlotBytes];
};

struct SharedArray {
  unsigned line;
  std::size_t offset, bytes;
};

struct Block {
  Launch launch;
  uint3 index;
  unsigned thread_count, warp_count, done, at_barrier, barrier_line;
  bool downwards;
  int current;          // the running thread
  int fiber;            // and its fiber
  void* scheduler;      // stack position of `run_block`
  std::vector<Fiber> fibers;
  std::vector<int> free_fibers;
  std::vector<SharedArray> arrays;
  std::size_t shared_used;
  char* shared;
  std::string error;
  bool illegal_address;
  Thread threads[kMaxThreads];
  Warp warps[kMaxWarps];
};

Block block;
sigjmp_buf fault;

Thread& current() { return block.threads[block.current]; }
Warp& current_warp() { return block.warps[block.current / 32]; }

void new_fiber() {
  block.free_fibers.push_back(static_cast<int>(block.fibers.size()));
  block.fibers.push_back({map_guarded(kStackBytes)});
}

// The next thread that can run, those of the current warp first; -1 when there is none.
int next_ready() {
  int warp = block.current / 32, count = static_cast<int>(block.warp_count);
  for (int i = 0; i < count; ++i) {
    unsigned ready = block.warps[warp].ready;
    if (ready) return warp * 32 + (block.downwards ? 31 - std::countl_zero(ready) : std::countr_zero(ready));
    warp = block.downwards ? (warp + count - 1) % count : (warp + 1) % count;
  }
  return -1;
}

void fiber_main();

// Switches from the running fiber to the next runnable thread, or to the scheduler if there is none.
// `position` receives the fiber's stack position.
void leave(void** position) {
  int next = next_ready();
  if (next < 0) {
    emulation_switch(position, block.scheduler);
    return;
  }
  Thread& thread = block.threads[next];
  block.current = next;
  if (thread.fiber < 0) {
    if (block.free_fibers.empty()) new_fiber();
    thread.fiber = block.free_fibers.back();
    block.free_fibers.pop_back();
    Fiber& fiber = block.fibers[thread.fiber];
    fiber.position = fresh_stack(fiber.stack + kStackBytes, fiber_main);
  }
  block.fiber = thread.fiber;
  emulation_switch(position, block.fibers[thread.fiber].position);
}

// Completes a warp synchronisation if all lanes that can arrive have arrived.
void release(Warp& warp, int number) {
  Meeting& meeting = warp.meetings[number];
  unsigned waiting = meeting.met;
  if (!waiting || waiting != (meeting.mask & warp.lanes & ~warp.done)) return;
  if (meeting.work) meeting.work(warp.slots[number], waiting);
  Thread* threads = block.threads + (&warp - block.warps) * 32;
  for (unsigned lanes = waiting; lanes; lanes &= lanes - 1) threads[std::countr_zero(lanes)].active = waiting;
  warp.ready |= waiting;
  meeting.met = 0;
}

void leave_meeting(Warp& warp, Thread& thread) {
  if (thread.meeting >= 0) --warp.meetings[thread.meeting].users;
  thread.meeting = -1;
}

// The pending warp synchronisation of the lanes in `mask` at `line`, or a new one.
int find_meeting(Warp& warp, unsigned mask, unsigned line, unsigned lane) {
  int unused = -1;
  for (int i = 0; i < warp.opened; ++i) {
    const Meeting& meeting = warp.meetings[i];
    if (meeting.met && meeting.mask == mask && meeting.line == line) return i;
    if (meeting.met & mask)
      emulation_fail("divergent warp operation: lane %u at line %u with mask %08x, while lanes %08x wait at line %u "
                     "with mask %08x", lane, line, mask, meeting.met, meeting.line, meeting.mask);
    if (!meeting.users && unused < 0) unused = i;
  }
  if (unused < 0) unused = warp.opened++;
  warp.meetings[unused] = {0, mask, line, 0, nullptr};
  return unused;
}

void finish_thread() {
  Warp& warp = current_warp();
  unsigned lane = 1u << (block.current & 31);
  warp.done |= lane;
  warp.ready &= ~lane;
  ++block.done;
  current().copies.clear();
  leave_meeting(warp, current());
  for (int i = 0; i < warp.opened; ++i) release(warp, i);
}

void fiber_main() {
  for (;;) {
    block.launch.kernel->run(block.launch.arguments);
    finish_thread();
    int next = next_ready();
    if (next >= 0 && block.threads[next].fiber < 0) {  // the next thread starts on this stack: a plain loop
      block.threads[next].fiber = block.fiber;
      block.current = next;
      continue;
    }
    block.free_fibers.push_back(block.fiber);
    void* nowhere;
    leave(&nowhere);
  }
}

void prepare_block() {
  block.done = block.at_barrier = block.barrier_line = 0;
  block.error.clear();
  const uint3 dim = block.launch.block;
  for (unsigned i = 0; i < block.thread_count; ++i) {
    Thread& thread = block.threads[i];
    thread.index = {i % dim.x, i / dim.x % dim.y, i / (dim.x * dim.y)};
    thread.fiber = -1;
    thread.meeting = -1;
    thread.groups = 0;
    thread.copies.clear();
  }
  for (unsigned w = 0; w < block.warp_count; ++w) {
    Warp& warp = block.warps[w];
    unsigned count = std::min(32u, block.thread_count - 32 * w);
    warp.lanes = warp.ready = count == 32 ? ~0u : (1u << count) - 1;
    warp.done = warp.at_barrier = 0;
    warp.opened = 0;
  }
  block.free_fibers.clear();
  for (int i = static_cast<int>(block.fibers.size()) - 1; i >= 0; --i) block.free_fibers.push_back(i);
  std::memset(block.shared, 0xff, block.shared_used);
}

std::string describe_deadlock() {
  char text[400];
  unsigned meeting = 0, line = 0;
  for (unsigned w = 0; w < block.warp_count; ++w)
    for (int i = 0; i < block.warps[w].opened; ++i)
      if (const Meeting& open = block.warps[w].meetings[i]; open.met) {
        meeting += std::popcount(open.met);
        line = open.line;
      }
  std::snprintf(text, sizeof text, "divergent barrier: of %u threads %u wait at the barrier of line %u, %u in a warp "
                "operation (line %u), %u have ended", block.thread_count, block.at_barrier, block.barrier_line, meeting,
                line, block.done);
  return text;
}

void run_block() {
  prepare_block();
  block.current = block.downwards ? static_cast<int>(block.thread_count) - 1 : 0;
  leave(&block.scheduler);
  if (block.error.empty() && block.done < block.thread_count) block.error = describe_deadlock();
}

void on_fault(int) { siglongjmp(fault, 1); }

// RAII handler for faults of kernel code, on a stack of its own.
class FaultHandler {
 public:
  FaultHandler() {
    static char stack[64 << 10];
    stack_t alternate{}, *to = &alternate;
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof stack;
    sigaltstack(to, &old_stack_);
    struct sigaction action{};
    action.sa_handler = on_fault;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGSEGV, &action, &old_segv_);
    sigaction(SIGBUS, &action, &old_bus_);
  }
  ~FaultHandler() {
    sigaction(SIGSEGV, &old_segv_, nullptr);
    sigaction(SIGBUS, &old_bus_, nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

 private:
  stack_t old_stack_;
  struct sigaction old_segv_, old_bus_;
};

void run_all_blocks() {
  const uint3 grid = block.launch.grid;
  unsigned number = 0;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        block.index = {x, y, z};
        block.downwards = number++ & 1;
        run_block();
        if (!block.error.empty()) return;
      }
}

}  // namespace

std::string run_kernel(const Launch& launch, bool& illegal_address) {
  if (!block.shared) {
    block.shared = map_guarded(kSharedBytes);
    block.fibers.reserve(kMaxThreads);
  }
  block.launch = launch;
  block.thread_count = launch.block.x * launch.block.y * launch.block.z;
  block.warp_count = (block.thread_count + 31) / 32;
  block.arrays.clear();
  block.shared_used = (launch.dynamic_shared + 127) / 128 * 128;
  block.illegal_address = false;
  FaultHandler handler;
  if (sigsetjmp(fault, 1) == 0) {
    run_all_blocks();
  } else {
    block.illegal_address = true;
    block.error = "access to memory that is not the device's";
  }
  illegal_address = block.illegal_address;
  if (block.error.empty()) return {};
  char where[300];
  const uint3 thread = current().index;
  std::snprintf(where, sizeof where, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u): ", launch.name, block.index.x,
                block.index.y, block.index.z, thread.x, thread.y, thread.z);
  return where + block.error;
}

}  // namespace emulation

using namespace emulation;

uint3 emulation_thread_index() { return current().index; }
uint3 emulation_block_index() { return block.index; }
uint3 emulation_block_dim() { return block.launch.block; }
uint3 emulation_grid_dim() { return block.launch.grid; }
unsigned emulation_linear_thread() { return static_cast<unsigned>(block.current); }
unsigned emulation_active_lanes() { return current().active; }

void emulation_fail(const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  block.error = text;
  void* nowhere;
  emulation_switch(&nowhere, block.scheduler);
  std::abort();
}

void* emulation_shared(unsigned line, std::size_t bytes) {
  if (line == 0) return block.shared;
  for (const SharedArray& array : block.arrays)
    if (array.line == line) return block.shared + array.offset;
  SharedArray array{line, block.shared_used, bytes};
  block.shared_used += (bytes + 127) / 128 * 128;
  if (block.shared_used > kSharedBytes) emulation_fail("%zu bytes of shared memory", block.shared_used);
  std::memset(block.shared + array.offset, 0xff, bytes);
  block.arrays.push_back(array);
  return block.shared + array.offset;
}

void emulation_check_shared(const void* address, unsigned bytes) {
  auto offset = static_cast<const char*>(address) - block.shared;
  if (offset < 0 || offset + bytes > static_cast<std::ptrdiff_t>(block.shared_used))
    emulation_fail("shared address %td outside the %zu bytes of the block", offset, block.shared_used);
  if (offset & (bytes - 1)) emulation_fail("misaligned shared address %td for %u bytes", offset, bytes);
}

void emulation_block_barrier(unsigned line) {
  if (block.at_barrier && block.barrier_line != line)
    emulation_fail("divergent barrier: at line %u, while %u threads wait at the barrier of line %u", line,
                   block.at_barrier, block.barrier_line);
  block.barrier_line = line;
  Warp& warp = current_warp();
  unsigned lane = 1u << (block.current & 31);
  warp.ready &= ~lane;
  warp.at_barrier |= lane;
  if (++block.at_barrier < block.thread_count) {
    leave(&block.fibers[block.fiber].position);
    return;
  }
  block.at_barrier = 0;
  for (unsigned w = 0; w < block.warp_count; ++w) {
    block.warps[w].ready |= block.warps[w].at_barrier;
    block.warps[w].at_barrier = 0;
  }
}

unsigned char* emulation_warp_meet(unsigned mask, const void* value, unsigned bytes, WarpWork work, unsigned line) {
  Warp& warp = current_warp();
  Thread& thread = current();
  unsigned number = static_cast<unsigned>(block.current) & 31, lane = 1u << number;
  if (!(mask & lane))
    emulation_fail("warp operation of line %u: the mask %08x leaves out its own lane %u", line, mask, number);
  leave_meeting(warp, thread);
  int place = thread.meeting = find_meeting(warp, mask, line, number);
  Meeting& meeting = warp.meetings[place];
  std::memcpy(warp.slots[place] + number * kSlotBytes, value, bytes);
  meeting.work = work;
  meeting.met |= lane;
  ++meeting.users;
  warp.ready &= ~lane;
  release(warp, place);
  if (!(warp.ready & lane)) leave(&block.fibers[block.fiber].position);
  return warp.slots[place];
}

void emulation_copy_async(void* to, const void* from, unsigned bytes, bool inside) {
  emulation_check_shared(to, bytes);
  if (inside && (reinterpret_cast<std::uintptr_t>(from) & (bytes - 1)))
    emulation_fail("misaligned source of a copy of %u bytes", bytes);
  current().copies.push_back({to, from, bytes, inside, current().groups});
}

void emulation_copy_commit() { ++current().groups; }

template <unsigned bytes>
static void complete(const PendingCopy& copy) {
  if (copy.inside) {
    std::memcpy(copy.to, copy.from, bytes);
  } else {
    std::memset(copy.to, 0, bytes);
  }
}

void emulation_copy_wait(unsigned groups_left) {
  Thread& thread = current();
  std::size_t kept = 0;
  for (const PendingCopy& copy : thread.copies) {
    if (copy.group + groups_left >= thread.groups) {
      thread.copies[kept++] = copy;
      continue;
    }
    switch (copy.bytes) {
      case 4: complete<4>(copy); break;
      case 8: complete<8>(copy); break;
      default: complete<16>(copy);
    }
  }
  thread.copies.resize(kept);
}
