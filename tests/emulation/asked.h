// What a kernel asks for before a mainloop, for the caches, and whether that is what its epilogue reads.
#pragma once

#include "launch.h"

namespace emulation {

/// Bytes from an address on; whether they are of a tensor is found at last.
struct Asked {
  void const* address;
  int bytes;
  bool is_inside = false;
};
inline std::vector<Asked> asked;

/// Returns how many elements of a matrix were not asked for.
template <typename Element, bool kRowMajor>
long not_asked(Matrix<Element, kRowMajor>& matrix) {
  std::vector<bool> found(matrix.size());
  for (Asked& each : asked) {
    matrix.for_each_in(each.address, each.bytes, [&](size_t number) { found[number] = each.is_inside = true; });
  }
  return std::count(found.begin(), found.end(), false);
}
/// Takes some memory for a tensor's as well.
inline void allow(std::vector<double> const& memory) {
  std::less<void const*> const is_before;
  for (Asked& each : asked) {
    each.is_inside |= !is_before(each.address, memory.data()) && is_before(each.address, memory.data() + memory.size());
  }
}
/// Returns how many addresses were of nothing of all this.
inline long asked_outside() {
  return std::count_if(asked.begin(), asked.end(), [](Asked const& each) { return !each.is_inside; });
}

/// Whether kernels of `Operation` ask for anything. Those of stream-K are CUTLASS's own.
template <typename Operation, typename = void>
struct Asks : std::false_type {};
template <typename Operation>
struct Asks<Operation, std::void_t<decltype(&Operation::Tree::prefetch)>> : std::true_type {};
template <typename Operation, typename = void>
struct IsOfStreamK : std::false_type {};
template <typename Operation>
struct IsOfStreamK<Operation, std::enable_if_t<Operation::kStreamK>> : std::true_type {};
template <typename Operation>
constexpr bool kAsks = Asks<Operation>::value && !IsOfStreamK<Operation>::value;

}  // namespace emulation

namespace pycutlass::function {
void prefetch_sector(void const* address, bool wanted) {
  if (wanted) emulation::asked.push_back({address, 32});
}
void prefetch_line(void const* address, bool wanted) {
  if (wanted) emulation::asked.push_back({address, 128});
}
}  // namespace pycutlass::function
