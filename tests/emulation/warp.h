// What the kernels of CUTLASS's 2.x API ask of a GPU beside threads: the instructions of a whole warp, by what PTX says
// of them, and accesses to memory.
#pragma once

#include <cuda_runtime.h>
#include <device_launch_parameters.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "threads.h"

namespace emulation {

[[noreturn]] inline void fail(char const* why) {
  std::printf("%s\n", why);
  std::fflush(stdout);
  std::_Exit(2);  // on the stack of a thread, which would be destroyed
}

template <typename T>
double number(T const& value) {
  return static_cast<double>(static_cast<float>(value));
}
inline double number(double value) { return value; }
inline double number(int value) { return value; }

template <typename T>
T read(int lane, int offset) {
  T value;
  std::memcpy(&value, slot(lane) + offset, sizeof(T));
  return value;
}

/// mma.sync of m16n8 and m8n8 (PTX ISA, "Matrix Fragments for mma"). A register has four bytes, or one element of
/// eight; lane l has rows l / 4 (and + 8) of A, and column l / 4 of B.
template <typename Shape, typename ElementA, typename ElementB, typename FragmentA, typename FragmentB,
          typename FragmentC>
void mma(FragmentC& d, FragmentA const& a, FragmentB const& b, FragmentC const& c) {
  static_assert(Shape::kN == 8 && (Shape::kM == 16 || Shape::kM == 8), "another instruction");
  static_assert(sizeof(ElementA) == sizeof(ElementB) && sizeof(a) + sizeof(b) <= kSlotBytes, "other operands");
  constexpr int kEach = sizeof(ElementA) >= 4 ? 1 : 4 / sizeof(ElementA);  // elements of a register
  constexpr int kAbove = Shape::kM / 8;                                    // registers of A one above the other
  std::memcpy(slot(lane()), &a, sizeof(a));
  std::memcpy(slot(lane()) + sizeof(a), &b, sizeof(b));
  wait_for_warp();
  auto of_a = [](int row, int k) {
    int const index = (row / 8 + kAbove * (k / (4 * kEach))) * kEach + k % kEach;
    return number(read<ElementA>(row % 8 * 4 + k % (4 * kEach) / kEach, index * sizeof(ElementA)));
  };
  auto of_b = [](int k, int column) {
    int const index = k / (4 * kEach) * kEach + k % kEach;
    return number(read<ElementB>(column * 4 + k % (4 * kEach) / kEach, sizeof(FragmentA) + index * sizeof(ElementB)));
  };
  FragmentC result = c;
  for (int i = 0; i < 2 * kAbove; ++i) {
    int const row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
    double sum = number(typename FragmentC::Element(c[i]));
    for (int k = 0; k < Shape::kK; ++k) sum += of_a(row, k) * of_b(k, column);
    result[i] = typename FragmentC::Element(sum);
  }
  d = result;
  wait_for_warp();
}

/// ldmatrix: lane l names row l % 8 of matrix l / 8, 16 bytes, and gets two elements of 16 bits of each matrix.
template <bool kTransposed, int kMatrices, typename Registers>
void ldmatrix(Registers& registers, void const* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16) fail("ldmatrix of an address that is no multiple of 16");
  std::memcpy(slot(lane()), &row, sizeof(row));
  wait_for_warp();
  for (int matrix = 0; matrix < kMatrices; ++matrix) {
    uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      int const along = lane() % 4 * 2 + i, across = lane() / 4;
      char const* line = read<char const*>(8 * matrix + (kTransposed ? along : across), 0);
      std::memcpy(&pair[i], line + 2 * (kTransposed ? across : along), 2);
    }
    std::memcpy(&registers[matrix], pair, 4);
  }
  wait_for_warp();
}

/// prmt: each byte is one of eight, or its sign.
inline uint32_t prmt(uint32_t low, uint32_t high, uint32_t selector) {
  uint64_t const bytes = uint64_t(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    auto const byte = int8_t(bytes >> (selector >> 4 * i & 7) * 8);
    result |= uint32_t(uint8_t(selector >> 4 * i & 8 ? byte >> 7 : byte)) << 8 * i;
  }
  return result;
}

/// lop3: each bit is looked up by those of a, b and c.
inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t result = 0;
  for (int i = 0; i < 32; ++i) result |= (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i;
  return result;
}

/// A load or store of global memory by one thread.
template <int kBytes>
void copy(void* to, void const* from, void const* global, bool wanted) {
  if (!wanted) return;
  if (reinterpret_cast<uintptr_t>(global) % (kBytes < 16 ? kBytes : 16)) fail("an access that is not aligned");
  std::memcpy(to, from, kBytes);
}

}  // namespace emulation

template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  std::memcpy(emulation::slot(emulation::lane()), &value, sizeof(value));
  emulation::wait_for_warp();
  T const result = emulation::read<T>(from, 0);
  emulation::wait_for_warp();
  return result;
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, int lanes) {
  T const other = __shfl_sync(mask, value, emulation::lane() < lanes ? emulation::lane() : emulation::lane() - lanes);
  return other;
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, int lanes) {
  return __shfl_sync(mask, value, emulation::lane() + lanes > 31 ? emulation::lane() : emulation::lane() + lanes);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return __shfl_sync(mask, value, emulation::lane() ^ lanes);
}

inline unsigned __ballot_sync(unsigned, int holds) {
  std::memcpy(emulation::slot(emulation::lane()), &holds, sizeof(holds));
  emulation::wait_for_warp();
  unsigned result = 0;
  for (int lane = 0; lane < 32; ++lane) result |= unsigned(emulation::read<int>(lane, 0) != 0) << lane;
  emulation::wait_for_warp();
  return result;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  uint64_t const bytes = uint64_t(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}

inline int __dp4a(int left, int right, int sum) {
  for (int i = 0; i < 32; i += 8) sum += int8_t(left >> i) * int8_t(right >> i);
  return sum;
}
