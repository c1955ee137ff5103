// What the epilogue of a Hopper-native kernel asks of a GPU beside threads: barriers in shared memory, and TMA, which
// moves boxes between shared memory and tensors (PTX ISA, "mbarrier" and "Tensors").
//
// What TMA stores it reads at once, or as late as it may, as it is drawn: shared memory that is not written yet, or is
// written over too early, is seen.
#pragma once

#include "warp.h"

#include <deque>
#include <map>
#include <random>
#include <vector>

namespace emulation {

/// A phase ends when so many threads have arrived, and all bytes that were expected have come.
struct SharedBarrier {
  unsigned expected, pending;
  int64_t bytes;
  unsigned phase;
};

/// A tensor map, in the 128 bytes that CUDA has for one, and what a box of it is in shared memory. Bit 21 of the second
/// word is cleared for some drivers: nothing is there.
struct TensorMap {
  char* address;
  uint64_t unused;
  uint64_t strides[4];  // in bytes, of all dimensions but the first
  uint32_t extents[5], box[5];
  uint8_t rank, element_bytes, swizzle;  // how many bits of the address are changed
};
static_assert(sizeof(TensorMap) <= 128, "larger than a tensor map of CUDA");

/// Stores of one thread that have not read shared memory yet, in groups; the last one is not committed.
struct Stores {
  std::deque<std::vector<std::function<void()>>> groups{1};
};

inline std::map<void const*, SharedBarrier> shared_barriers;
inline std::map<unsigned, Stores> stores;
inline std::mt19937 drawn_for_tma;

inline SharedBarrier& barrier_at(void const* address) {
  auto const found = shared_barriers.find(address);
  if (found == shared_barriers.end()) fail("a barrier is used that nobody made");
  return found->second;
}
inline void begin_phase(SharedBarrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  barrier.pending = barrier.expected;
  barrier.phase ^= 1;
}
inline void make_barrier(void const* address, unsigned count) { shared_barriers[address] = {count, count, 0, 0}; }
inline void arrive(void const* address) {
  SharedBarrier& barrier = barrier_at(address);
  if (barrier.pending == 0) fail("more threads arrive at a barrier than it is for");
  --barrier.pending;
  begin_phase(barrier);
}
inline void arrive_if(bool wanted, void const* address, unsigned threadblock) {
  if (threadblock) fail("a threadblock arrives at a barrier of another one");
  if (wanted) arrive(address);
}
inline void expect(void const* address, int64_t bytes) {
  SharedBarrier& barrier = barrier_at(address);
  barrier.bytes += bytes;
  if (bytes < 0) begin_phase(barrier);
}
inline bool has_ended(void const* address, unsigned phase) { return barrier_at(address).phase != phase % 2; }
inline void wait_for_phase(void const* address, unsigned phase) {
  wait_until([&] { return has_ended(address, phase); });
}

/// Calls `move` with the place of each element of a box in shared memory and in the tensor, null outside of it.
template <typename Move>
void each_element(TensorMap const& map, char* shared, int32_t const* at, Move const& move) {
  if (reinterpret_cast<uintptr_t>(shared) % 128) fail("TMA moves shared memory whose address is no multiple of 128");
  uint64_t count = 1;
  for (int i = 0; i < map.rank; ++i) count *= map.box[i];
  for (uint64_t number = 0; number < count; ++number) {
    uint64_t rest = number;
    char* place = map.address;
    for (int i = 0; i < map.rank; ++i) {
      int64_t const index = at[i] + int64_t(rest % map.box[i]);
      rest /= map.box[i];
      if (index < 0 || index >= map.extents[i]) place = nullptr;
      if (place) place += index * int64_t(i ? map.strides[i - 1] : map.element_bytes);
    }
    auto inside = reinterpret_cast<uintptr_t>(shared) + number * map.element_bytes;
    inside ^= (inside >> 7 & ((1u << map.swizzle) - 1)) << 4;
    move(reinterpret_cast<char*>(inside), place);
  }
}
inline uint64_t box_bytes(TensorMap const& map) {
  uint64_t bytes = map.element_bytes;
  for (int i = 0; i < map.rank; ++i) bytes *= map.box[i];
  return bytes;
}

template <int kRank>
void tma_load(void const* map_, void* barrier, void* shared, int32_t const (&at)[kRank]) {
  auto const& map = *static_cast<TensorMap const*>(map_);
  if (map.rank != kRank) fail("a tensor map has another rank than TMA is told");
  each_element(map, static_cast<char*>(shared), at, [&](char* inside, char const* place) {
    if (place) {
      std::memcpy(inside, place, map.element_bytes);
    } else {
      std::memset(inside, 0, map.element_bytes);
    }
  });
  expect(barrier, -int64_t(box_bytes(map)));
}
template <int kRank>
void tma_store(void const* map_, void const* shared, int32_t const (&at)[kRank]) {
  TensorMap const map = *static_cast<TensorMap const*>(map_);
  if (map.rank != kRank) fail("a tensor map has another rank than TMA is told");
  std::vector<int32_t> const place(at, at + kRank);
  auto const store = [map, shared, place] {
    auto* const from = const_cast<char*>(static_cast<char const*>(shared));
    each_element(map, from, place.data(), [&](char const* inside, char* to) {
      if (to) std::memcpy(to, inside, map.element_bytes);
    });
  };
  if (drawn_for_tma() % 2) {
    store();
  } else {
    stores[threadIdx.x].groups.back().emplace_back(store);
  }
}
inline void commit_stores() { stores[threadIdx.x].groups.emplace_back(); }
/// Has all but the last `count` groups read shared memory.
inline void wait_for_stores(size_t count) {
  auto& groups = stores[threadIdx.x].groups;
  while (groups.size() > count + 1) {
    for (auto const& store : groups.front()) store();
    groups.pop_front();
  }
}
/// Whether shared memory has been read that is there no longer; to be called behind a threadblock.
inline bool has_stores() {
  bool found = false;
  for (auto const& [thread, each] : stores) {
    for (auto const& group : each.groups) found |= !group.empty();
  }
  stores.clear();
  return found;
}

/// stmatrix: lane l names row l % 8 of matrix l / 8, 16 bytes, and has two elements of 16 bits of each matrix.
template <bool kTransposed, int kMatrices>
void stmatrix(void* row, uint32_t const (&registers)[kMatrices]) {
  std::memcpy(slot(lane()), &row, sizeof(row));
  wait_for_warp();
  for (int matrix = 0; matrix < kMatrices; ++matrix) {
    for (int i = 0; i < 2; ++i) {
      int const along = lane() % 4 * 2 + i, across = lane() / 4;
      char* line;
      std::memcpy(&line, slot(8 * matrix + (kTransposed ? along : across)), sizeof(line));
      if (reinterpret_cast<uintptr_t>(line) % 16) fail("stmatrix to an address that is no multiple of 16");
      uint16_t const element = registers[matrix] >> 16 * i;
      std::memcpy(line + 2 * (kTransposed ? across : along), &element, 2);
    }
  }
  wait_for_warp();
}

}  // namespace emulation
