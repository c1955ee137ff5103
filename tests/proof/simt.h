// Whether a tile of A times a tile of B is what a threadblock of a SIMT kernel of CUTLASS's 2.x API writes: its threads
// store both to shared memory, its warps multiply what they read there, and its epilogue writes the sums.
#pragma once

#include "pycutlass/prelude.h"
#include "epilogue.h"
#include "mainloop.h"

#include <cutlass/epilogue/threadblock/default_epilogue_simt.h>
#include <cutlass/gemm/threadblock/default_mma_core_simt.h>

namespace proof {

/// Stores the first stage of an operand of numbers, each by a function of its line and k.
template <bool kAlongK, typename ThreadMap, typename SmemIterator, int kStages, typename Ref, typename Number>
void store_numbers(Ref ref, int thread, Number number) {
  using Element = typename SmemIterator::Element;
  SmemIterator iterator(ref, thread);
  auto const first = ThreadMap::initial_offset(thread);
  std::vector<Element> elements;
  for (int s = 0; s < ThreadMap::Iterations::kStrided; ++s) {
    for (int c = 0; c < ThreadMap::Iterations::kContiguous; ++c) {
      for (int e = 0; e < ThreadMap::kElementsPerAccess; ++e) {
        int const x = first.contiguous() + c * ThreadMap::Delta::kContiguous + e;
        int const y = first.strided() + s * ThreadMap::Delta::kStrided;
        elements.push_back(Element(number(Plain<kAlongK>::line(x, y), Plain<kAlongK>::k(x, y))));
      }
    }
  }
  if constexpr (kStages > 2) {
    iterator.set_iteration_index(0);
    for (size_t i = 0; i < elements.size(); i += ThreadMap::kElementsPerAccess, ++iterator) {
      std::memcpy(static_cast<void*>(iterator.get()), &elements[i], ThreadMap::kElementsPerAccess * sizeof(Element));
    }
  } else {
    typename SmemIterator::Fragment fragment;
    if (sizeof(fragment) != elements.size() * sizeof(Element)) emulation::fail("a fragment is of another size");
    std::memcpy(static_cast<void*>(&fragment), elements.data(), sizeof(fragment));
    iterator.store(fragment);
  }
}

/// Returns how many elements of the product are wrong.
template <typename Shape, typename Warp, typename Element, typename LayoutA, typename LayoutB, int kStages>
void simt() {
  using Core =
      gemm::threadblock::DefaultMmaCore<Shape, Warp, gemm::GemmShape<1, 1, 1>, Element, LayoutA, Element, LayoutB,
                                        Element, layout::RowMajor, arch::OpClassSimt, kStages, arch::OpMultiplyAdd>;
  using Base = gemm::threadblock::MmaBase<Shape, typename Core::MmaPolicy, kStages>;
  using Storage = typename Base::SharedStorage;
  using Math = typename Core::MmaPolicy::Operator;
  using Functor = HandOn<Element, Element, 1>;
  using Epilogue = typename epilogue::threadblock::DefaultEpilogueSimt<Shape, Math, Functor, 1>::Epilogue;
  using Iterator = typename Epilogue::OutputTileIterator;
  constexpr bool kAlongA = platform::is_same<LayoutA, layout::RowMajor>::value;
  constexpr bool kAlongB = !platform::is_same<LayoutB, layout::RowMajor>::value;
  constexpr int kRows = Shape::kM / Warp::kM, kColumns = Shape::kN / Warp::kN;

  auto const a = [](int line, int k) { return stands_for(line, k, 0, 0) % 16; };
  auto const b = [](int line, int k) { return stands_for(line, k, 1, 0) % 16; };
  std::vector<char> memory(sizeof(Storage) + sizeof(typename Epilogue::SharedStorage) + 1024);
  char* aligned = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.data()) + 1023) / 1024 * 1024);
  std::vector<Element> D(Shape::kM * Shape::kN, Element(-1));
  emulation::run_block({0, 0, 0}, 32 * kRows * kColumns, [&] {
    int const thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    auto* storage = reinterpret_cast<Storage*>(aligned);
    store_numbers<kAlongA, typename Core::IteratorThreadMapA, typename Core::SmemIteratorA, kStages>(
        storage->operand_A_ref(), thread, a);
    store_numbers<kAlongB, typename Core::IteratorThreadMapB, typename Core::SmemIteratorB, kStages>(
        storage->operand_B_ref(), thread, b);
    emulation::wait_for_block();
    typename Math::IteratorA rows(storage->operand_A_ref(), lane);
    typename Math::IteratorB columns(storage->operand_B_ref(), lane);
    rows.add_tile_offset({warp % kRows, 0});
    columns.add_tile_offset({0, warp / kRows});
    typename Math::FragmentC sums;
    sums.clear();
    for (int k = 0; k < Warp::kK; ++k, ++rows, ++columns) {
      typename Math::FragmentA of_a;
      typename Math::FragmentB of_b;
      rows.load(of_a);
      columns.load(of_b);
      Math()(sums, of_a, of_b, sums);
    }
    emulation::wait_for_block();
    typename Iterator::Params params{layout::RowMajor(Shape::kN)};
    Iterator iterator(params, D.data(), {Shape::kM, Shape::kN}, thread);
    Epilogue epilogue(*reinterpret_cast<typename Epilogue::SharedStorage*>(aligned), thread, warp, lane);
    epilogue(Functor(), iterator, sums);
  });
  long wrong = 0;
  for (int y = 0; y < Shape::kM; ++y) {
    for (int x = 0; x < Shape::kN; ++x) {
      uint64_t sum = 0, found = 0;
      for (int k = 0; k < Shape::kK; ++k) sum += a(y, k) * b(x, k);
      std::memcpy(&found, &D[y * Shape::kN + x], sizeof(Element));
      wrong += found != sum;
    }
  }
  std::printf("%ld 0\n", wrong);
}

}  // namespace proof
