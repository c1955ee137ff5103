// Whether an epilogue of CUTLASS's 2.x API writes each sum of a threadblock once, and to its own place. The epilogue is
// CUTLASS's own, as a kernel has it, but for a functor that hands on what it gets.
#pragma once

#include "pycutlass/prelude.h"

#include <cutlass/cutlass.h>
#include <cutlass/epilogue/threadblock/default_epilogue_tensor_op.h>

#include <vector>

namespace proof {

using namespace cutlass;

/// What the epilogue is told of the instruction.
template <typename Shape_, typename Instruction, typename Accumulator>
struct WarpMma {
  using Shape = Shape_;
  using ElementC = Accumulator;
  using LayoutC = layout::RowMajor;
  struct Policy {
    struct Operator {
      using Shape = Instruction;
      using ElementC = Accumulator;
      using FragmentC = Array<Accumulator, Instruction::kM * Instruction::kN / 32>;
    };
  };
};

template <typename Output, typename Accumulator, int kAlignment>
struct HandOn {
  using ElementOutput = Output;
  using ElementAccumulator = Accumulator;
  using ElementCompute = float;
  static int const kCount = kAlignment;

  bool is_source_needed() const { return false; }
  Array<Output, kAlignment> operator()(Array<Accumulator, kAlignment> const& sums) const {
    Array<Output, kAlignment> result;
    for (int i = 0; i < kAlignment; ++i) {
      uint64_t const sum = uint64_t(emulation::number(Accumulator(sums[i])));
      std::memcpy(reinterpret_cast<char*>(&result) + i * sizeof(Output), &sum, sizeof(Output));
    }
    return result;
  }
  Array<Output, kAlignment> operator()(Array<Accumulator, kAlignment> const& sums,
                                       Array<Output, kAlignment> const&) const {
    return (*this)(sums);
  }
};

/// A number below 128 that stands for an element: another one in each pass, so that no two elements are mixed up in
/// all.
inline int stands_for(int row, int column, int part, int pass) {
  uint64_t x = (((uint64_t(row) << 12 | column) << 6 | part) << 6 | pass) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9;
  return x >> 57;
}

/// Returns how many elements of a tile of D, and of what lies around it, are wrong.
template <typename Shape, typename Warp, typename Instruction, typename Accumulator, typename Output, int kAlignment>
void epilogue() {
  constexpr int kParts = Shape::kK / Warp::kK;
  using Functor = HandOn<Output, Accumulator, kAlignment>;
  using Epilogue =
      typename epilogue::threadblock::DefaultEpilogueTensorOp<Shape, WarpMma<Warp, Instruction, Accumulator>, kParts,
                                                              Functor, kAlignment>::Epilogue;
  using Iterator = typename Epilogue::OutputTileIterator;
  constexpr int kAround = 16, kLine = Shape::kN + 2 * kAround, kRegisters = Instruction::kM * Instruction::kN / 32;
  constexpr int kRows = Shape::kM / Warp::kM, kColumns = Shape::kN / Warp::kN, kBytes = sizeof(Output);
  constexpr uint64_t kPoison = 0xa5;

  std::vector<char> memory(sizeof(typename Epilogue::SharedStorage) + 1024);
  auto* shared = reinterpret_cast<typename Epilogue::SharedStorage*>(
      (reinterpret_cast<uintptr_t>(memory.data()) + 1023) / 1024 * 1024);
  long wrong = 0;
  for (int pass = 0; pass < 4; ++pass) {
    std::vector<char> buffer((Shape::kM + 2 * kAround) * kLine * kBytes + 64, char(kPoison));
    char* first = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(buffer.data()) + 31) / 32 * 32);
    char* origin = first + (kAround * kLine + kAround) * kBytes;
    emulation::run_block({0, 0, 0}, 32 * kRows * kColumns * kParts, [&] {
      int const thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
      int const part = warp / (kRows * kColumns), row = warp % kRows, column = warp / kRows % kColumns;
      typename Epilogue::AccumulatorTile sums;
      for (int i = 0; i < int(sums.size()); ++i) {
        int const instruction = i / kRegisters, number = i % kRegisters;
        int const down = instruction % (Warp::kM / Instruction::kM), along = instruction / (Warp::kM / Instruction::kM);
        int const y = row * Warp::kM + down * Instruction::kM + number / 2 * 8 + lane / 4;
        int const x = column * Warp::kN + along * Instruction::kN + lane % 4 * 2 + number % 2;
        sums[i] = Accumulator(stands_for(y, x, part, pass));
      }
      typename Iterator::Params params{layout::RowMajor(kLine)};
      Iterator iterator(params, reinterpret_cast<Output*>(origin), {Shape::kM, Shape::kN}, thread);
      Epilogue epilogue(*shared, thread, warp, lane);
      epilogue(Functor(), iterator, sums);
    });
    for (int y = -kAround; y < Shape::kM + kAround; ++y) {
      for (int x = -kAround; x < Shape::kN + kAround; ++x) {
        bool const inside = y >= 0 && x >= 0 && y < Shape::kM && x < Shape::kN;
        uint64_t sum = 0, found = 0;
        for (int part = 0; inside && part < kParts; ++part) sum += stands_for(y, x, part, pass);
        if (!inside) std::memset(&sum, kPoison, kBytes);
        if (kBytes == 1) sum &= 0xff;
        std::memcpy(&found, origin + (y * kLine + x) * kBytes, kBytes);
        wrong += found != sum;
      }
    }
  }
  std::printf("%ld 0\n", wrong);
}

}  // namespace proof
