// Compares the tiles that a threadblock of a Hopper-native kernel comes to with those of CUTLASS's scheduler
// (cutlass/gemm/kernel/sm90_tile_scheduler.hpp), whose divisions are exact on a host.
#pragma once

#include "pycutlass/gemm_sm90.h"

#include <cstdio>
#include <random>

namespace emulation {

/// Where the threadblock that is emulated is in its cluster.
struct Place {
  static dim3 get() { return place; }
  static inline dim3 place;
};

/// The tiles that are others, of one problem: of all numbers of tiles, in all places of a cluster.
template <typename Cluster>
long misplaced(int m, int n, int batches, int swizzle, int raster) {
  using namespace cute;
  using Scheduler = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90;
  using Params = typename Scheduler::Params;
  typename Scheduler::Arguments arguments;
  arguments.max_swizzle_size = swizzle;
  arguments.raster_order = static_cast<decltype(arguments.raster_order)>(raster);
  auto const params = Scheduler::to_underlying_arguments(make_shape(m, n, 64, batches), Shape<_128, _128, _64>{},
                                                         Cluster{}, cutlass::KernelHardwareInfo{0, 132}, arguments);
  long wrong = 0;
  uint64_t const count = params.blocks_per_problem_, step = 1 + count / 5000;
  for (uint64_t number = 0; number < count + step; number += step) {
    uint64_t const tile = std::min(number, count - 1);
    for (unsigned x = 0; x < size<0>(Cluster{}); ++x) {
      for (unsigned y = 0; y < size<1>(Cluster{}); ++y) {
        uint64_t batch, in_batch;
        params.divmod_batch_(batch, in_batch, tile);
        auto const [row, column] = Scheduler::get_work_idx_m_and_n(
            params.divmod_cluster_shape_minor_.divide(in_batch), params.divmod_cluster_shape_major_,
            params.divmod_cluster_shape_minor_, params.divmod_cluster_blk_major_, params.log_swizzle_size_,
            params.raster_order_, x, y);
        Place::place = dim3(x, y, 0);
        pycutlass::Tiles<Params, Cluster, Place> const walk(params, uint32_t(tile), 132);
        auto const coord = walk.coord();
        wrong += !walk.has_tile() || get<0>(coord) != row || get<1>(coord) != column || get<3>(coord) != int(batch);
      }
    }
  }
  return wrong;
}

/// The same of so many problems, drawn by `seed`: of any extents up to so many tiles that a walk can still count them.
template <int kM, int kN>
long misplaced_of_problems(int problems, unsigned seed) {
  std::mt19937 draw(seed);
  auto const up_to = [&](int bits) { return 1 + int(draw() % (1u << (1 + draw() % bits))); };
  long wrong = 0;
  for (int i = 0; i < problems; ++i) {
    wrong += misplaced<cute::Shape<cute::Int<kM>, cute::Int<kN>, cute::_1>>(
        up_to(i % 4 ? 14 : 20), up_to(i % 4 ? 14 : 20), up_to(i % 2 ? 1 : 9), 1 << draw() % 4, int(draw() % 3));
  }
  return wrong;
}

/// Whether slices of so many steps, and up to so many slices, follow each other and differ by one step at most.
inline bool slices_are_whole(int most_steps, int most_slices) {
  for (int total = 1; total <= most_steps; ++total) {
    for (int slices = 1; slices <= std::min(total, most_slices); ++slices) {
      int next = 0;
      for (int slice = 0; slice < slices; ++slice) {
        auto const [first, count] = pycutlass::Steps::of_slice(total, slices, slice);
        if (first != next || count < total / slices || count > (total + slices - 1) / slices) return false;
        next += count;
      }
      if (next != total) return false;
    }
  }
  return true;
}

}  // namespace emulation
