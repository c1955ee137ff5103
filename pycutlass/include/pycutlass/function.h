// Epilogue functions: what the C++ of one is made of, whatever kernel it belongs to. pycutlass/epilogue/lowering.py
// writes a structure `Function` for each, with
//   Number, Arguments, Inputs, Outputs, Reductions, kReadsSource, kScalars,
//   read_scalars(arguments, scalars): scalars of the launch, from the arguments or from device memory, and
//   compute(scalars, in, out): one element. in[0] is the accumulator, then come C where it is read and the Inputs in
//   their order; out[0] is D, then come the Outputs.
// Where kIsGated, D has half as many columns, as have the HalfInputs, the Outputs and what is reduced: compute(scalars,
// even, odd, half, out, whole) makes one element of them of two neighbouring ones, each given as `in` is. `half` has
// the HalfInputs, and whole[0], whole[1] and so on are the two elements of each of the WholeOutputs. C is not read.
#pragma once

#include "pycutlass/ports.h"

namespace pycutlass {

/// What every `Function` has: the type that each result is rounded to, the one that is computed in on the way, and the
/// one that activations are right to.
template <typename Compute, typename Number_, typename Activated_ = Number_>
struct EpilogueFunction {
  using Number = Number_;
  using Activated = Activated_;
  static constexpr bool kIsGated = false;
  using HalfInputs = List<>;
  using WholeOutputs = List<>;

  CUTLASS_HOST_DEVICE static Number rounded(Number x) {
    if constexpr (cutlass::platform::is_same<Compute, Number>::value) {
      return x;
    } else {
      return function::rounded_to<Compute>(x);
    }
  }
  CUTLASS_HOST_DEVICE static void read(Compute const& value, Compute const* address, Number& scalar) {
#if PYCUTLASS_DEVICE_SIDE
    // A load from one place or the other would first copy the parameter that has the value to memory of the thread.
    Compute given = value;
    cutlass::arch::global_load<Compute, int(sizeof(Compute))>(given, address, address != nullptr);
    scalar = function::widened<Number>(given);
#else
    scalar = function::widened<Number>(address ? *address : value);
#endif
  }
};
/// Computes what a group of elements comes to where each two neighbours are one element of D.
template <typename Function, int kVector, typename Accumulator, typename AllReaders, typename HalfReaders, int kMade,
          int kWhole>
CUTLASS_HOST_DEVICE void compute_pairs(typename Function::Number const* scalars, Accumulator const* accumulators,
                                       AllReaders const& readers, HalfReaders const& half_readers, int r, int g,
                                       typename Function::Number (&out)[kMade][kVector / 2],
                                       typename Function::Number (&whole)[kWhole][kVector]) {
  using Number = typename Function::Number;
  static_assert(kVector % 2 == 0, "both columns of a pair belong to one thread");
  static_assert(!Function::kReadsSource && kMade == 1 + Function::Outputs::kSize + Function::Reductions::kSize);
  CUTLASS_PRAGMA_UNROLL
  for (int v = 0; v < kVector / 2; ++v) {
    Number in[2][1 + Function::Inputs::kSize], half[1 + Function::HalfInputs::kSize], made[kMade], both[kWhole][2];
    CUTLASS_PRAGMA_UNROLL
    for (int odd = 0; odd < 2; ++odd) {
      in[odd][0] = function::widened<Number>(accumulators[2 * v + odd]);
      readers.values(r, g, 2 * v + odd, in[odd] + 1);
    }
    half_readers.values(r, g, v, half);
    Function::compute(scalars, in[0], in[1], half, made, both);
    CUTLASS_PRAGMA_UNROLL
    for (int o = 0; o < kMade; ++o) out[o][v] = made[o];
    CUTLASS_PRAGMA_UNROLL
    for (int o = 0; o < Function::WholeOutputs::kSize; ++o) {
      CUTLASS_PRAGMA_UNROLL
      for (int odd = 0; odd < 2; ++odd) whole[o][2 * v + odd] = both[o][odd];
    }
  }
}

/// Computes a group of elements: `source` is called for C, with the number of an element.
template <typename Function, int kVector, typename Accumulator, typename Source, typename AllReaders>
CUTLASS_HOST_DEVICE void compute_group(typename Function::Number const* scalars, Accumulator const* accumulators,
                                       Source const& source, AllReaders const& readers, int r, int g,
                                       typename Function::Number (*out)[kVector]) {
  using Number = typename Function::Number;
  constexpr int kBefore = Function::kReadsSource ? 2 : 1;
  constexpr int kMade = 1 + Function::Outputs::kSize + Function::Reductions::kSize;
  CUTLASS_PRAGMA_UNROLL
  for (int v = 0; v < kVector; ++v) {
    Number in[kBefore + Function::Inputs::kSize], made[kMade];
    in[0] = function::widened<Number>(accumulators[v]);
    if constexpr (Function::kReadsSource) in[1] = Number(source(v));
    readers.values(r, g, v, in + kBefore);
    Function::compute(scalars, in, made);
    CUTLASS_PRAGMA_UNROLL
    for (int o = 0; o < kMade; ++o) out[o][v] = made[o];
  }
}

}  // namespace pycutlass
