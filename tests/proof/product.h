// Whether a tile of A times a tile of B is what a threadblock of a kernel of CUTLASS's 2.x API writes. All is CUTLASS's
// own, as a kernel has it: who loads what of A and B, the mainloop, and who writes what. But for a functor that hands
// on what it gets.
#pragma once

#include "pycutlass/host.h"

#include <cutlass/gemm/kernel/default_gemm_universal.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

#include "epilogue.h"
#include "mainloop.h"

// Named by what is never called here.
extern "C" cudaError_t cudaGetLastError() { return cudaSuccess; }

namespace proof {

/// Where a column of B lies: interleaved kernels have those that a lane makes side by side, in eights, of which each
/// instruction makes two (cutlass/util/host_reorder.h).
template <typename LayoutB>
struct ColumnOf {
  static int at(int column) { return column; }
};
template <>
struct ColumnOf<layout::RowMajorInterleaved<32>> {
  static int at(int column) { return column / 32 * 32 + column % 8 / 2 * 8 + column % 32 / 8 * 2 + column % 2; }
};

/// D as a matrix: where its elements lie, and what its iterators are told of it.
template <typename Layout>
struct Output {
  static Layout packed(int rows, int columns) { return Layout::packed({rows, columns}); }
  static int64_t at(Layout const& layout, int rows, int row, int column) { return layout({row, column}); }
  static cutlass::Coord<2> extent(int rows, int columns) { return cutlass::make_Coord(rows, columns); }
};
/// That of convolutions, here of two images: rows are their pixels, columns are channels.
template <>
struct Output<layout::TensorNCxHWx<32>> {
  using Layout = layout::TensorNCxHWx<32>;
  static Layout packed(int rows, int columns) { return Layout::packed(extent(rows, columns)); }
  static int64_t at(Layout const& layout, int rows, int row, int column) {
    return layout({row / (rows / 2), 0, row % (rows / 2), column});
  }
  static Tensor4DCoord extent(int rows, int columns) { return {2, 1, rows / 2, columns}; }
};

/// Returns how many elements of a product are wrong, along K of two tiles.
template <typename Mma, typename Epilogue, typename LayoutC, int kStages>
void product_of() {
  using Shape = typename Mma::Shape;
  using Iterator = typename Epilogue::OutputTileIterator;
  using Element = typename Iterator::Element;
  using Written = Output<LayoutC>;
  using LayoutA = typename Mma::IteratorA::Layout;
  using LayoutB = typename Mma::IteratorB::Layout;
  using ElementA = typename Mma::IteratorA::Element;
  using ElementB = typename Mma::IteratorB::Element;
  using Count = typename Mma::WarpCount;
  constexpr int kM = Shape::kM, kN = Shape::kN, kTiles = 2, kDepth = kTiles * Shape::kK;

  std::vector<ElementA> A(kM * kDepth + 64);
  std::vector<ElementB> B(kN * kDepth + 64);
  std::vector<Element> D(kM * kN + 64);
  std::vector<char> memory(sizeof(typename Mma::SharedStorage) + sizeof(typename Epilogue::SharedStorage) + 1024);
  auto const aligned = [](auto& memory, int alignment) {
    return reinterpret_cast<decltype(memory.data())>((reinterpret_cast<uintptr_t>(memory.data()) + alignment - 1) /
                                                     alignment * alignment);
  };
  ElementA* a = aligned(A, 32);
  ElementB* b = aligned(B, 32);
  Element* d = aligned(D, 32);
  char* shared = aligned(memory, 1024);
  auto const layout_a = LayoutA::packed({kM, kDepth});
  auto const layout_b = LayoutB::packed({kDepth, kN});
  auto const layout_d = Written::packed(kM, kN);
  auto const extent_d = Written::extent(kM, kN);
  auto const value = [](int line, int k, int operand) { return stands_for(line, k, operand, 0) % 16; };
  for (int k = 0; k < kDepth; ++k) {
    for (int line = 0; line < kM; ++line) a[layout_a({line, k})] = ElementA(value(line, k, 0));
    for (int line = 0; line < kN; ++line) b[layout_b({k, ColumnOf<LayoutB>::at(line)})] = ElementB(value(line, k, 1));
  }
  std::memset(static_cast<void*>(d), 0xa5, kM * kN * sizeof(Element));
  std::memset(shared, 0x7f, memory.size() - 1024);

  emulation::run_block({0, 0, 0}, 32 * Count::kCount, [&] {
    int const thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    typename Mma::IteratorA::Params params_a(layout_a);
    typename Mma::IteratorB::Params params_b(layout_b);
    typename Mma::IteratorA of_a(params_a, a, {kM, kDepth}, thread, {0, 0});
    typename Mma::IteratorB of_b(params_b, b, {kDepth, kN}, thread, {0, 0});
    typename Mma::FragmentC sums;
    sums.clear();
    Mma mma(*reinterpret_cast<typename Mma::SharedStorage*>(shared), thread, warp, lane);
    mma(kTiles, sums, of_a, of_b, sums);
    emulation::wait_for_block();
    typename Iterator::Params params(layout_d);
    Iterator iterator(params, d, extent_d, thread, make_Coord(0, 0));
    Epilogue epilogue(*reinterpret_cast<typename Epilogue::SharedStorage*>(shared), thread, warp, lane);
    epilogue(typename Epilogue::OutputOp(), iterator, sums);
  });

  long wrong = 0;
  constexpr uint64_t kKept = sizeof(Element) == 8 ? ~uint64_t(0) : (uint64_t(1) << 8 * sizeof(Element) % 64) - 1;
  for (int y = 0; y < kM; ++y) {
    for (int x = 0; x < kN; ++x) {
      uint64_t sum = 0, found = 0;
      for (int k = 0; k < kDepth; ++k) sum += value(y, k, 0) * value(x, k, 1);
      std::memcpy(&found, &d[Written::at(layout_d, kM, y, x)], sizeof(Element));
      wrong += found != (sum & kKept);
    }
  }
  std::printf("%ld 0\n", wrong);
}

template <typename Shape, typename Warp, typename Instruction, typename Element, typename LayoutA, typename LayoutB,
          typename Accumulator, typename Output, typename LayoutC, int kAlignment, int kAlignmentC, typename OpClass,
          typename Arch, int kStages, typename Operator>
using DefaultOf =
    gemm::kernel::DefaultGemm<Element, LayoutA, kAlignment, Element, LayoutB, kAlignment, Output, LayoutC, Accumulator,
                              OpClass, Arch, Shape, Warp, Instruction, HandOn<Output, Accumulator, kAlignmentC>,
                              gemm::threadblock::GemmIdentityThreadblockSwizzle<>, kStages, true, Operator>;

/// A SIMT kernel.
template <typename Shape, typename Warp, typename Instruction, typename Element, typename LayoutA, typename LayoutB,
          typename Accumulator, typename Output, int kStages>
void simt() {
  using Default = DefaultOf<Shape, Warp, Instruction, Element, LayoutA, LayoutB, Accumulator, Output, layout::RowMajor,
                            Instruction::kK, 1, arch::OpClassSimt, arch::Sm80, kStages, arch::OpMultiplyAdd>;
  product_of<typename Default::Mma, typename Default::Epilogue, layout::RowMajor, kStages>();
}

/// An int8 kernel of interleaved layouts: a GEMM, and a convolution by what it has instead of a GEMM's epilogue.
template <typename Shape, typename Warp, typename Instruction, typename Arch, int kStages, bool kConvolution>
void interleaved() {
  using Default = DefaultOf<Shape, Warp, Instruction, int8_t, layout::ColumnMajorInterleaved<32>,
                            layout::RowMajorInterleaved<32>, int32_t, int8_t, layout::ColumnMajorInterleaved<32>, 16, 8,
                            arch::OpClassTensorOp, Arch, kStages, arch::OpMultiplyAddSaturate>;
  using Mma = typename Default::Mma;
  if constexpr (kConvolution) {
    using Epilogue =
        typename epilogue::threadblock::DefaultInterleavedConvEpilogue<Shape, typename Mma::Operator, 1,
                                                                       HandOn<int8_t, int32_t, 8>, 8, 32>::Epilogue;
    product_of<Mma, Epilogue, layout::TensorNCxHWx<32>, kStages>();
  } else {
    product_of<Mma, typename Default::Epilogue, layout::ColumnMajorInterleaved<32>, kStages>();
  }
}

}  // namespace proof
