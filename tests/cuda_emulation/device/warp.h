// Warp operations. Reading an inactive lane is an error here; on a GPU the result is undefined.
#pragma once

static inline unsigned emulation_lane() { return emulation_linear_thread() & 31; }

static inline unsigned emulation_all_lanes() { return 0xffffffffu; }

template <class T>
static inline T emulation_read_lane(const unsigned char* slots, unsigned lane, unsigned line) {
  if (!(emulation_active_lanes() >> lane & 1))
    emulation_fail("shuffle of line %u reads lane %u, which does not take part (lanes %08x do)", line, lane,
                   emulation_active_lanes());
  T value;
  memcpy(&value, slots + lane * emulation::kSlotBytes, sizeof value);
  return value;
}

// `source` is the lane within groups of `width`; lanes that would leave their group keep their own value.
template <class T>
static inline T emulation_shuffle(unsigned mask, T value, int source, bool inside, int width, unsigned line) {
  unsigned lane = emulation_lane();
  unsigned char* slots = emulation_warp_meet(mask, &value, sizeof value, nullptr, line);
  unsigned base = lane & ~(unsigned)(width - 1);
  return inside ? emulation_read_lane<T>(slots, base + (unsigned)source, line) : value;
}

template <class T>
static inline T emulation_shuffle_index(unsigned mask, T value, int source, unsigned line, int width = 32) {
  return emulation_shuffle(mask, value, source & (width - 1), true, width, line);
}
template <class T>
static inline T emulation_shuffle_xor(unsigned mask, T value, int flip, unsigned line, int width = 32) {
  int source = (int)(emulation_lane() & (unsigned)(width - 1)) ^ flip;
  return emulation_shuffle(mask, value, source, source < width, width, line);
}
template <class T>
static inline T emulation_shuffle_down(unsigned mask, T value, int delta, unsigned line, int width = 32) {
  int source = (int)(emulation_lane() & (unsigned)(width - 1)) + delta;
  return emulation_shuffle(mask, value, source, source < width, width, line);
}
template <class T>
static inline T emulation_shuffle_up(unsigned mask, T value, int delta, unsigned line, int width = 32) {
  int source = (int)(emulation_lane() & (unsigned)(width - 1)) - delta;
  return emulation_shuffle(mask, value, source, source >= 0, width, line);
}
#define __shfl_sync(mask, value, source, ...) \
  emulation_shuffle_index(mask, value, source, __LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_xor_sync(mask, value, flip, ...) \
  emulation_shuffle_xor(mask, value, flip, __LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_down_sync(mask, value, delta, ...) \
  emulation_shuffle_down(mask, value, delta, __LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_up_sync(mask, value, delta, ...) \
  emulation_shuffle_up(mask, value, delta, __LINE__ __VA_OPT__(, ) __VA_ARGS__)

static inline void emulation_warp_barrier(unsigned line, unsigned mask = 0xffffffffu) {
  emulation_warp_meet(mask, &mask, 0, nullptr, line);
}
#define __syncwarp(...) emulation_warp_barrier(__LINE__ __VA_OPT__(, ) __VA_ARGS__)

static inline unsigned emulation_ballot(unsigned mask, int predicate, unsigned line) {
  unsigned char* slots = emulation_warp_meet(mask, &predicate, sizeof predicate, nullptr, line);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (emulation_active_lanes() >> lane & 1) votes |= (emulation_read_lane<int>(slots, lane, line) != 0) << lane;
  return votes;
}
#define __ballot_sync(mask, predicate) emulation_ballot(mask, predicate, __LINE__)
#define __any_sync(mask, predicate) (emulation_ballot(mask, predicate, __LINE__) != 0)
#define __all_sync(mask, predicate) (emulation_ballot(mask, !(predicate), __LINE__) == 0)
