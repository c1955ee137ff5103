// Whether the threads of a mainloop of CUTLASS's 2.x API store all of a tile to shared memory, and its warps read each
// element from there that their instructions multiply. The iterators are CUTLASS's own, as a kernel has them.
#pragma once

#include "pycutlass/prelude.h"

#include <cutlass/cutlass.h>
#include <cutlass/gemm/threadblock/default_mma_core_sm75.h>
#include <cutlass/gemm/threadblock/default_mma_core_sm80.h>
#include <cutlass/gemm/threadblock/mma_base.h>

#include <vector>

#include "../emulation/synchronization.h"
#include "pycutlass/mixed_input.h"

namespace proof {

using namespace cutlass;

/// Some bytes of the number that stands for an element: as many as it has, those of each pass beginning higher up.
template <typename Element>
struct Bits {
  char bytes[sizeof(Element)];

  Bits(int number, int pass) {
    int64_t const shifted = int64_t(number) >> (8 * sizeof(Element) * pass);
    std::memcpy(bytes, &shifted, sizeof(bytes));
  }
  bool is(void const* memory) const { return !std::memcmp(bytes, memory, sizeof(bytes)); }
};

/// Which line (a row of A, a column of B) and which k a thread map means.
template <bool kAlongK>
struct Plain {
  static int line(int contiguous, int strided) { return kAlongK ? strided : contiguous; }
  static int k(int contiguous, int strided) { return kAlongK ? contiguous : strided; }
};
struct Interleaved {
  static int line(int contiguous, int) { return contiguous / 32; }
  static int k(int contiguous, int strided) { return strided * 32 + contiguous % 32; }
};

/// One operand of a mainloop.
template <typename Element, typename Place, typename ThreadMap, typename SmemIterator, typename WarpIterator,
          typename Instruction, int kLines, int kDepth, int kWarpLines, int kGroups, int kParts, bool kIsA, int kStages>
struct Operand {
  static constexpr int kEach = sizeof(Element) >= 4 ? 1 : 4 / sizeof(Element);  // elements of a register
  static constexpr int kAbove = kIsA ? Instruction::kM / 8 : 1;
  static constexpr int kInstructionLines = kIsA ? Instruction::kM : Instruction::kN;
  static constexpr int kOfPart = kGroups;
  static constexpr int kOfInstruction = kInstructionLines * Instruction::kK / 32;

  static int number(int stage, int line, int k) { return ((stage + 1) * kLines + line) * kDepth + k; }

  template <typename Ref>
  static void store(Ref ref, int thread, int pass) {
    SmemIterator iterator(ref, thread);
    auto const first = ThreadMap::initial_offset(thread);
    for (int stage = 0; stage < 2; ++stage) {
      int access = 0;
      std::vector<Bits<Element>> elements;
      for (int s = 0; s < ThreadMap::Iterations::kStrided; ++s) {
        for (int c = 0; c < ThreadMap::Iterations::kContiguous; ++c, ++access) {
          for (int e = 0; e < ThreadMap::kElementsPerAccess; ++e) {
            int const x = first.contiguous() + c * ThreadMap::Delta::kContiguous + e;
            int const y = first.strided() + s * ThreadMap::Delta::kStrided;
            elements.emplace_back(number(stage, Place::line(x, y), Place::k(x, y)), pass);
          }
        }
      }
      if constexpr (kStages > 2) {
        iterator.set_iteration_index(0);
        for (int i = 0; i < access; ++i, ++iterator) {
          std::memcpy(static_cast<void*>(iterator.get()), &elements[i * ThreadMap::kElementsPerAccess],
                      ThreadMap::kElementsPerAccess * sizeof(Element));
        }
      } else {
        typename SmemIterator::Fragment fragment;
        if (sizeof(fragment) != elements.size() * sizeof(Element)) ++wrong;
        std::memcpy(static_cast<void*>(&fragment), elements.data(), sizeof(fragment));
        iterator.store(fragment);
      }
      if constexpr (kIsA) {
        iterator.add_tile_offset({0, 1});
      } else {
        iterator.add_tile_offset({1, 0});
      }
    }
  }

  template <typename Ref>
  static void read(Ref ref, int warp, int part, int lane, int pass) {
    WarpIterator iterator(ref, lane);
    if constexpr (kIsA) {
      iterator.add_tile_offset({warp, kGroups * part});
    } else {
      iterator.add_tile_offset({kGroups * part, warp});
    }
    for (int stage = 0; stage < 2; ++stage) {
      for (int group = 0; group < kGroups; ++group, ++iterator) {
        typename WarpIterator::Fragment fragment;
        iterator.load(fragment);
        Element const* element = reinterpret_cast<Element const*>(&fragment);
        for (int i = 0; i < kWarpLines / kInstructionLines; ++i) {
          for (int e = 0; e < kOfInstruction; ++e, ++element) {
            int const registers = e / kEach;
            int const line = warp * kWarpLines + i * kInstructionLines + registers % kAbove * 8 + lane / 4;
            int const k = (part * kGroups + group) * Instruction::kK + registers / kAbove * 4 * kEach +
                          lane % 4 * kEach + e % kEach;
            if (!Bits<Element>(number(stage, line, k), pass).is(element)) ++wrong;
          }
        }
      }
    }
  }

  /// Looks at what an instruction is given of an operand that has been converted to the type of the other one.
  template <typename Converted>
  static void check_converted(Converted const& fragment, int stage, int group, int warp, int part, int lane, int pass) {
    using Wide = typename Converted::Element;
    for (int e = 0; e < int(Converted::kElements); ++e) {
      int const i = e / kOfInstruction, registers = e % kOfInstruction / 2;
      int const line = warp * kWarpLines + i * kInstructionLines + registers % kAbove * 8 + lane / 4;
      int const k = (part * kGroups + group) * Instruction::kK + registers / kAbove * 8 + lane % 4 * 2 + e % 2;
      Element element;
      std::memcpy(static_cast<void*>(&element), Bits<Element>(number(stage, line, k), pass).bytes, sizeof(element));
      Wide const found = fragment[e], expected = Wide(element);
      if (std::memcmp(&found, &expected, sizeof(Wide))) ++wrong;
    }
  }

  static inline long wrong = 0;
};

template <typename Layout, bool kIsA>
struct PlaceOf {
  using Type = Plain<platform::is_same<Layout, layout::RowMajor>::value == kIsA>;
};
template <int kInterleaved, bool kIsA>
struct PlaceOf<layout::ColumnMajorInterleaved<kInterleaved>, kIsA> {
  using Type = Interleaved;
};
template <int kInterleaved, bool kIsA>
struct PlaceOf<layout::RowMajorInterleaved<kInterleaved>, kIsA> {
  using Type = Interleaved;
};

/// Converts what a warp has read, as a mainloop of operands of two types does.
template <typename Math, typename A, typename B, typename Storage>
void convert(Storage& storage, int warp_a, int warp_b, int part, int lane, int pass) {
  typename Math::IteratorA of_a(storage.operand_A_ref(), lane);
  typename Math::IteratorB of_b(storage.operand_B_ref(), lane);
  of_a.add_tile_offset({warp_a, A::kOfPart * part});
  of_b.add_tile_offset({A::kOfPart * part, warp_b});
  for (int stage = 0; stage < 2; ++stage) {
    for (int group = 0; group < A::kOfPart; ++group, ++of_a, ++of_b) {
      typename Math::FragmentA a;
      typename Math::FragmentB b;
      of_a.load(a);
      of_b.load(b);
      typename Math::TransformedFragmentA converted_a;
      typename Math::TransformedFragmentB converted_b;
      Math().transform(converted_a, converted_b, a, b);
      A::check_converted(converted_a, stage, group, warp_a, part, lane, pass);
      B::check_converted(converted_b, stage, group, warp_b, part, lane, pass);
    }
  }
}

/// Lets all threads of a block store both operands, and read them again.
template <typename A, typename B, typename Storage, typename Count, typename ElementA, typename ElementB = ElementA,
          typename Math = void>
void store_and_read() {
  constexpr int kLeast = int(sizeof(ElementA) < sizeof(ElementB) ? sizeof(ElementA) : sizeof(ElementB));
  std::vector<char> memory(sizeof(Storage) + 1024);
  auto* storage = reinterpret_cast<Storage*>((reinterpret_cast<uintptr_t>(memory.data()) + 1023) / 1024 * 1024);
  for (int pass = 0; pass < (kLeast > 2 ? 1 : 4 / kLeast); ++pass) {
    emulation::run_block({0, 0, 0}, 32 * Count::kCount, [&] {
      int const thread = threadIdx.x, warp = thread / 32, of_part = warp % (Count::kM * Count::kN);
      A::store(storage->operand_A_ref(), thread, pass);
      B::store(storage->operand_B_ref(), thread, pass);
      emulation::wait_for_block();
      int const part = warp / (Count::kM * Count::kN);
      A::read(storage->operand_A_ref(), of_part % Count::kM, part, thread % 32, pass);
      B::read(storage->operand_B_ref(), of_part / Count::kM, part, thread % 32, pass);
      if constexpr (!platform::is_same<ElementA, ElementB>::value) {
        convert<Math, A, B>(*storage, of_part % Count::kM, of_part / Count::kM, part, thread % 32, pass);
      }
    });
  }
}

/// Says how many elements of A and of B are wrong in the fragments of any thread.
template <typename Shape, typename Warp, typename Instruction, typename ElementA, typename LayoutA, typename ElementB,
          typename LayoutB, typename Accumulator, int kStages, typename Operator, bool kInterleaved = false>
void mainloop() {
  using LayoutC = platform::conditional_t<kInterleaved, layout::ColumnMajorInterleaved<32>, layout::RowMajor>;
  using Core =
      gemm::threadblock::DefaultMmaCore<Shape, Warp, Instruction, ElementA, LayoutA, ElementB, LayoutB, Accumulator,
                                        LayoutC, arch::OpClassTensorOp, kStages, Operator, kInterleaved>;
  using Base = gemm::threadblock::MmaBase<Shape, typename Core::MmaPolicy, kStages>;
  using Storage = typename Base::SharedStorage;
  using Math = typename Core::MmaPolicy::Operator;
  using Count = typename Base::WarpCount;
  constexpr int kGroups = Warp::kK / Instruction::kK;
  using A = Operand<ElementA, typename PlaceOf<LayoutA, true>::Type, typename Core::IteratorThreadMapA,
                    typename Core::SmemIteratorA, typename Math::IteratorA, Instruction, Shape::kM, Shape::kK, Warp::kM,
                    kGroups, Count::kK, true, kStages>;
  using B = Operand<ElementB, typename PlaceOf<LayoutB, false>::Type, typename Core::IteratorThreadMapB,
                    typename Core::SmemIteratorB, typename Math::IteratorB, Instruction, Shape::kN, Shape::kK, Warp::kN,
                    kGroups, Count::kK, false, kStages>;
  store_and_read<A, B, Storage, Count, ElementA, ElementB, Math>();
  long wrong_a = A::wrong, wrong_b = B::wrong;
  if constexpr (kInterleaved) {  // a convolution loads as it stores (conv/kernel/default_conv2d_fprop.h)
    using A = Operand<ElementA, Plain<true>, typename Core::SmemThreadMapA, typename Core::SmemIteratorA,
                      typename Math::IteratorA, Instruction, Shape::kM, Shape::kK, Warp::kM, kGroups, Count::kK, true,
                      kStages>;
    using B = Operand<ElementB, Plain<true>, typename Core::SmemThreadMapB, typename Core::SmemIteratorB,
                      typename Math::IteratorB, Instruction, Shape::kN, Shape::kK, Warp::kN, kGroups, Count::kK, false,
                      kStages>;
    store_and_read<A, B, Storage, Count, ElementA>();
    wrong_a += A::wrong;
    wrong_b += B::wrong;
  }
  std::printf("%ld %ld\n", wrong_a, wrong_b);
}

}  // namespace proof
