// Vectors that all tiles of a threadblock find in the L1 cache.
#pragma once

#include "pycutlass/ports.h"

namespace pycutlass {

namespace function {

/// Brings what is at an address to the L1 cache, where it is to stay.
template <typename Element>
CUTLASS_DEVICE void cache(Element const* address) {
#if PYCUTLASS_DEVICE_SIDE
  uint32_t unused;
  asm volatile("ld.global.L1::evict_last.u8 %0, [%1];" : "=r"(unused) : "l"(address));
#endif
}

}  // namespace function

/// Brings vectors that are not long to the L1 cache, where all tiles of a threadblock find them that come after its
/// first.
template <typename Ports>
struct CachedVectors {
  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void load(Arguments const&, Where const&, int, int) {}
};
template <typename First, typename... Others>
struct CachedVectors<List<First, Others...>> {
  template <typename Arguments, typename Where>
  CUTLASS_DEVICE static void load(Arguments const& arguments, Where const& where, int thread, int threads) {
    load_one(First(), arguments, where, thread, threads);
    CachedVectors<List<Others...>>::load(arguments, where, thread, threads);
  }

 private:
  static constexpr int kMostBytes = 8192;

  template <typename Port, typename Arguments, typename Where>
  CUTLASS_DEVICE static void load_one(Port, Arguments const&, Where const&, int, int) {}
  template <auto kMember, int kAlignment, typename Arguments, typename Where>
  CUTLASS_DEVICE static void load_one(Row<kMember, kAlignment>, Arguments const& arguments, Where const& where,
                                      int thread, int threads) {
    auto const& port = arguments.*kMember;
    constexpr int kSector = 32 / int(sizeof(*port.data));  // which is what a miss brings
    if (where.columns > kMostBytes / int(sizeof(*port.data))) return;
    auto const* const first = port.data + where.batch * port.batch;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = thread * kSector; i < where.columns; i += threads * kSector) function::cache(first + i);
  }
};

}  // namespace pycutlass
