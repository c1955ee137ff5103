// Runs the `load` and the `store` of a Hopper-native kernel's epilogue on the host, as its warps call them: one brings
// C, and those that have the sums of a tile store it, all together, or as two groups that take turns (CUTLASS's
// sm90_gemm_tma_warpspecialized_cooperative.hpp and _pingpong.hpp). Sums are handed to each thread where CuTe has them.
#pragma once

#include <cutlass/pipeline/pipeline.hpp>

namespace emulation {

/// Makes the tensor maps that TMA reads (hopper.h), of what a driver takes.
inline CUresult CUDAAPI encode(CUtensorMap* made, CUtensorMapDataType type, cuuint32_t rank, void* address,
                               cuuint64_t const* extents, cuuint64_t const* strides, cuuint32_t const* box,
                               cuuint32_t const* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                               CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  TensorMap map{static_cast<char*>(address)};
  map.rank = rank;
  map.element_bytes = pycutlass::bytes_of(type);
  map.swizzle = swizzle;
  uint64_t const line = box[0] * map.element_bytes;
  bool right = rank <= 5 && swizzle <= CU_TENSOR_MAP_SWIZZLE_128B && reinterpret_cast<uintptr_t>(address) % 16 == 0;
  right &= line % 16 == 0 && (!swizzle || line <= 16u << swizzle);
  for (cuuint32_t i = 0; right && i < rank; ++i) {
    map.extents[i] = extents[i], map.box[i] = box[i];
    right &= steps[i] == 1 && extents[i] > 0 && box[i] > 0 && box[i] <= 256;
    if (i > 0) map.strides[i - 1] = strides[i - 1], right &= strides[i - 1] % 16 == 0;
  }
  std::memset(made, 0, sizeof(*made));
  std::memcpy(made, &map, sizeof(map));
  return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
inline void bind_driver() {
  pycutlass_driver driver{};
  driver.get_entry_point = [](char const* symbol, void** function, unsigned) {
    *function = reinterpret_cast<void*>(&encode);
    return int(std::strcmp(symbol, "cuTensorMapEncodeTiled") != 0);
  };
  pycutlass_bind(&driver);
}

template <typename Operation>
struct Stored {
  using Epilogue = typename Operation::CollectiveEpilogue;
  using Mma = typename Operation::CollectiveMainloop::TiledMma;
  using Tile = typename Epilogue::CtaTileMNK;
  using Params = typename Epilogue::Params;
  using LoadPipeline = typename Epilogue::LoadPipeline;
  using StorePipeline = typename Epilogue::StorePipeline;
  static constexpr int kStoring = cute::size(Mma{});  // threads that store a tile
  static constexpr bool kTakesTurns = kStoring == 128;
  static constexpr int kThreads = 128 + (kTakesTurns ? 2 : 1) * kStoring;
  static constexpr bool kWritesTarget = pycutlass::WritesTarget<typename Operation::Fused::Type>::value;

  struct Shared {
    alignas(1024) typename Epilogue::TensorStorage tensors;
    alignas(16) typename Epilogue::PipelineStorage loads;
  };

  template <typename Size, typename Source, typename Target>
  static Params params(Size const& size, typename Callbacks::Arguments const& given, Source& C, Target& D,
                       void* workspace) {
    bind_driver();
    pycutlass_operand source = C.operand(), target = D.operand();
    typename Epilogue::Arguments arguments{};
    arguments.thread = given;
#if EMULATED_GROUP
    // Tensor maps of problems are made of these. CUTLASS wants an address.
    arguments.ptr_C = reinterpret_cast<decltype(arguments.ptr_C)>(&source);
    arguments.ptr_D = reinterpret_cast<decltype(arguments.ptr_D)>(&target);
    cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>> const problems{};
    return Epilogue::to_underlying_arguments(problems, arguments, workspace);
#else
    if constexpr (kWritesTarget) {  // as `plan` has it
      target.stride[0] = cute::get<1>(size);
      target.stride[1] = int64_t(cute::get<0>(size)) * cute::get<1>(size);
      source = target;
    }
    arguments.ptr_C = static_cast<typename Source::Element const*>(source.data);
    arguments.dC = pycutlass::stride_of<decltype(arguments.dC)>(source);
    arguments.ptr_D = static_cast<typename Target::Element*>(target.data);
    arguments.dD = pycutlass::stride_of<decltype(arguments.dD)>(target);
    return Epilogue::to_underlying_arguments(size, arguments, workspace);
#endif
  }

  /// The tensor map of a problem of a group, as a warp makes it of the one that all have: of rows.
  template <typename Like, typename Matrix>
  static CUtensorMap map_of(Like const& like, Matrix& matrix, int rows, int columns) {
    CUtensorMap made = *like.get_tma_descriptor();
    TensorMap map;
    std::memcpy(&map, &made, sizeof(map));
    map.address = reinterpret_cast<char*>(matrix.data());
    map.extents[0] = columns, map.extents[1] = rows;
    map.strides[0] = matrix.operand().stride[0] * sizeof(typename Matrix::Element);
    std::memcpy(&made, &map, sizeof(map));
    return made;
  }

  /// Has a threadblock store tiles, of which `across` are side by side and `down` one below the other.
  template <typename Problem>
  static void run(Params const& params, Problem& problem, int down, int across, int batch, int count) {
    alignas(1024) static char memory[sizeof(Shared)];
    std::memset(memory, 0x7f, sizeof(memory));
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    shared_barriers.clear();
    auto const size = cute::make_shape(problem.m, problem.n, 64, EMULATED_GROUP ? 1 : count);
#if EMULATED_GROUP
    CUtensorMap of_source = map_of(params.tma_load_c, problem.C, problem.m, problem.n);
    CUtensorMap of_target = map_of(params.tma_store_d, problem.D, problem.m, problem.n);
    std::tuple<CUtensorMap*> const source_map{&of_source}, target_map{&of_target};
#else
    std::tuple<> const source_map, target_map;
#endif
    int left = 0;  // by how many threads, one tile after the other
    run_block({0, 0, 0}, kThreads, [&] {
      int const thread = threadIdx.x, group = thread / 128;
      typename LoadPipeline::Params of_loads{};
      using Category = typename LoadPipeline::ThreadCategory;
      of_loads.role = group > 0 ? Category::Consumer : thread < 32 ? Category::Producer : Category::NonParticipant;
      of_loads.producer_arv_count = 32;
      of_loads.consumer_arv_count = kStoring;
      of_loads.transaction_bytes = params.tma_transaction_bytes;
      LoadPipeline loads(shared.loads, of_loads);
      typename StorePipeline::Params of_stores{};
      of_stores.always_wait = true;
      StorePipeline stores(of_stores);
      Epilogue epilogue(params, shared.tensors);
      auto const place = [&](int tile) { return cute::make_coord(tile / across, tile % across, cute::_, batch); };
      wait_for_block();
      if (group == 0) {
        if (thread >= 32 || !epilogue.is_producer_load_needed()) return;
        auto state = cutlass::make_producer_start_state<LoadPipeline>();
        for (int tile = 0; tile < down * across; ++tile) {
          state = std::apply(
              [&](auto... map) {
                return epilogue.load(loads, state, size, Tile{}, place(tile), Mma{}, thread, shared.tensors, map...);
              },
              source_map);
        }
        epilogue.load_tail(loads, state);
        return;
      }
      int const subtiles = Epilogue::get_load_pipe_increment(Tile{}), first = kTakesTurns ? group - 1 : 0;
      typename Epilogue::LoadPipelineState loaded;
      auto stored = cutlass::make_producer_start_state<StorePipeline>();
      loaded.advance(first * subtiles), stored.advance(first * subtiles);
      bool has_stored = false;
      begin_joining(epilogue.fusion(), (thread - 128) % kStoring);
      auto const go_on = [&](auto const& states) { loaded = cute::get<0>(states), stored = cute::get<1>(states); };
      for (int tile = first; tile < down * across; tile += kTakesTurns ? 2 : 1) {
        int const own = kTakesTurns ? thread % 128 : thread - 128;
        auto sums = sums_of(problem, place(tile), own);
        if (kTakesTurns) wait_until([&] { return left >= 128 * tile; });
        go_on(std::apply(
            [&](auto... map) {
              return epilogue.store(loads, loaded, stores, stored, size, Tile{}, place(tile), sums, Mma{}, own,
                                    shared.tensors, map...);
            },
            target_map));
        has_stored = true;
        if (!kTakesTurns) continue;
        go_on(epilogue.store_tail(loads, loaded, stores, stored));
        loaded.advance(subtiles), stored.advance(subtiles);
        ++left;
      }
      if (!kTakesTurns && has_stored) epilogue.store_tail(loads, loaded, stores, stored);
      constexpr int kGroups = kTakesTurns ? 2 : 1;
      end_lines(epilogue.fusion(), size, batch * kGroups + first, count * kGroups, (thread - 128) % kStoring);
    });
    if (has_stores()) fail("a threadblock ends before TMA has read its shared memory");
  }

 private:
  template <typename Problem, typename Place>
  static auto sums_of(Problem& problem, Place const& place, int thread) {
    using namespace cute;
    auto sums = partition_fragment_C(Mma{}, take<0, 2>(Tile{}));
    auto const where = Mma{}.get_thread_slice(thread).partition_C(make_identity_tensor(take<0, 2>(Tile{})));
    for (int i = 0; i < size(sums); ++i) {
      int const row = get<0>(place) * int(size<0>(Tile{})) + int(get<0>(where(i)));
      int const column = get<1>(place) * int(size<1>(Tile{})) + int(get<1>(where(i)));
      bool const inside = row < problem.m && column < problem.n;
      sums(i) = inside ? float(problem.sums[size_t(row) * problem.n + column]) : 0;
    }
    return sums;
  }
};

}  // namespace emulation
