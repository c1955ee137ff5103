// Epilogue functions in Hopper-native kernels, as GemmSm90 and GemmGroupedSm90 take them.
#pragma once

#include "pycutlass/function_callbacks_sm90.h"

namespace pycutlass {

/// What GemmSm90 and GemmGroupedSm90 take.
template <typename Function>
struct FunctionSm90 {
  using ElementCompute = float;

  template <typename TileShape, typename C, typename D, typename Schedule>
  struct Tree {
    static constexpr bool kIsArray = IsArray<Schedule>::value;
    static constexpr bool kIsCooperativeGroup =
        cute::is_same_v<Schedule, cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>;
    static constexpr bool kIsGroup =
        kIsCooperativeGroup || cute::is_same_v<Schedule, cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong>;
    static constexpr bool kIsCooperative =
        kIsCooperativeGroup || cute::is_same_v<Schedule, cutlass::epilogue::TmaWarpSpecializedCooperative> ||
        cute::is_same_v<Schedule, OfArray<cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>>;
    static constexpr int kWarpGroups = !kIsCooperative                                        ? 1
                                       : cute::size<0>(TileShape{}) == kRowsOfThreeWarpGroups ? 3
                                                                                              : 2;
    using Type = FunctionCallbacks<Function, TileShape, 4 * kWarpGroups, kIsGroup, D, kIsArray>;
  };

#if !PYCUTLASS_DEVICE_SIDE
  template <typename TreeArguments>
  struct Launch {
    using Arguments = typename Function::Arguments;

    static void describe(EpilogueFields<Arguments>& fields) { Arguments::describe(fields); }
    static Arguments const& of(pycutlass_call const& call) { return *static_cast<Arguments const*>(call.epilogue); }
    static bool reads_ahead(pycutlass_call const& call) { return Function::reads_device_scalars(of(call)); }
    static void fill(TreeArguments& tree, pycutlass_call const& call) {
      static_cast<Arguments&>(tree) = of(call);
      if constexpr (Function::kIsGated) {
        pycutlass_operand const& target = call.operands[PYCUTLASS_D];
        tree.target = {static_cast<decltype(tree.target.data)>(target.data), target.stride[0], target.stride[1]};
      }
      if (call.operands[PYCUTLASS_D].form == PYCUTLASS_ADDRESSES) {
        AllPorts<Function>::list(static_cast<Arguments&>(tree), Port<char>::kAddresses);
        if constexpr (Function::kIsGated) tree.target.batch = tree.target.kAddresses;
      }
    }

    /// Has the ports be tables, of a group; D as well where threads write it.
    static void list(TreeArguments& tree, pycutlass_group_tables const& tables) {
      AllPorts<Function>::list(static_cast<Arguments&>(tree), Port<char>::kTables);
      if constexpr (Function::kIsGated) {
        void const *const targets = tables.pointers[PYCUTLASS_D], *const lds = tables.lds[PYCUTLASS_D];
        tree.target = {static_cast<decltype(tree.target.data)>(const_cast<void*>(targets)),
                       static_cast<int64_t>(reinterpret_cast<intptr_t>(lds)), tree.target.kTables};
      }
    }

    /// The tensor that comes by TMA: C, or the one that takes its place.
    static pycutlass_operand source(pycutlass_call const& call, pycutlass_operand operand) {
      return Function::source(of(call), operand);
    }
  };
#endif
};

template <typename Function>
struct IsFunction<FunctionSm90<Function>> : cute::true_type {};
#if !PYCUTLASS_DEVICE_SIDE
template <typename Function>
struct AxesOf<FunctionSm90<Function>> : ReducedAxes<typename Function::Reductions> {};
#endif

}  // namespace pycutlass
