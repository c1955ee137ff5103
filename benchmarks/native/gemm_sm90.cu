// What one writes without PyCUTLASS: an f16 GEMM of CUTLASS's 3.x API, device and host in one translation unit.
// The template parameters are those of benchmarks/kernels.py's `hopper` with the tile of `COMPILED`.
#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

using Half = cutlass::half_t;
using Tile = cute::Shape<cute::_128, cute::_256, cute::_64>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;

using Fusion = cutlass::epilogue::fusion::LinearCombination<Half, float, Half, float>;
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto,
    float, float, Half, RowMajor, 8, Half, RowMajor, 8, cutlass::epilogue::TmaWarpSpecializedCooperative,
    Fusion>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Half, RowMajor, 8, Half, ColumnMajor, 8, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
    cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue,
                                                    cutlass::gemm::PersistentScheduler>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

// D = A x B: A of m x k row-major, B of k x n column-major, D of m x n row-major, all packed. `raster_order` is 0 along
// M, 1 along N, 2 chosen by CUTLASS. Null where CUTLASS refuses the problem.
extern "C" void* gemm_create(int m, int n, int k, void const* a, void const* b, void* d, int max_swizzle,
                             int raster_order) {
  typename Gemm::Arguments arguments{};
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  arguments.problem_shape = {m, n, k, 1};
  arguments.mainloop.ptr_A = static_cast<Half const*>(a);
  arguments.mainloop.dA = {k, cute::_1{}, 0};
  arguments.mainloop.ptr_B = static_cast<Half const*>(b);
  arguments.mainloop.dB = {k, cute::_1{}, 0};
  arguments.epilogue.ptr_C = static_cast<Half const*>(d);  // beta is 0: described to the hardware, never read
  arguments.epilogue.dC = {n, cute::_1{}, 0};
  arguments.epilogue.ptr_D = static_cast<Half*>(d);
  arguments.epilogue.dD = {n, cute::_1{}, 0};
  arguments.epilogue.thread.alpha = 1.0f;
  arguments.epilogue.thread.beta = 0.0f;
  arguments.hw_info.sm_count = cutlass::KernelHardwareInfo::query_device_multiprocessor_count(0);
  arguments.scheduler.max_swizzle_size = max_swizzle;
  using RasterOrder = decltype(arguments.scheduler.raster_order);
  arguments.scheduler.raster_order = raster_order == 0   ? RasterOrder::AlongM
                                     : raster_order == 1 ? RasterOrder::AlongN
                                                         : RasterOrder::Heuristic;
  Gemm* gemm = new Gemm();
  if (Gemm::can_implement(arguments) == cutlass::Status::kSuccess && Gemm::get_workspace_size(arguments) == 0 &&
      gemm->initialize(arguments) == cutlass::Status::kSuccess) {
    return gemm;
  }
  delete gemm;
  return nullptr;
}

extern "C" int gemm_launch(void* gemm, void* stream) {
  return static_cast<int>(static_cast<Gemm*>(gemm)->run(static_cast<cudaStream_t>(stream)));
}

extern "C" void gemm_destroy(void* gemm) { delete static_cast<Gemm*>(gemm); }
