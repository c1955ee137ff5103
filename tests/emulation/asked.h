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
/// Returns how many addresses were of nothing of all this.
inline long asked_outside() {
  return std::count_if(asked.begin(), asked.end(), [](Asked const& each) { return !each.is_inside; });
}

}  // namespace emulation

namespace pycutlass::function {
void prefetch_sector(void const* address, bool wanted) {
  if (wanted) emulation::asked.push_back({address, 32});
}
void prefetch_line(void const* address, bool wanted) {
  if (wanted) emulation::asked.push_back({address, 128});
}
}  // namespace pycutlass::function
