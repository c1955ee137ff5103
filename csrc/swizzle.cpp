// Threadblock swizzles: which thread block computes which tile of the output.
// clang-format off
#include <builtin_types.h>             // CUTLASS's swizzles name blockIdx, which a host compiler does not know
#include <device_launch_parameters.h>  // by itself; both must come before CUTLASS
// clang-format on

#include "pycutlass/swizzle.h"

#include <cxxabi.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <typeinfo>

#include "conv.h"
#include "cutlass/conv/threadblock/threadblock_swizzle.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"

namespace {

using cutlass::conv::Conv2dProblemSize;
using cutlass::conv::Operator;
using cutlass::gemm::GemmCoord;

template <typename T>
std::string type_name() {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, &status),
                                              std::free);
  return name.get();
}

void require_at_least(GemmCoord const& coord, int least, std::string const& what) {
  for (int i = 0; i < 3; ++i) {
    if (coord[i] < least) {
      throw py::value_error(what + "." + "mnk"[i] + "() must be at least " + std::to_string(least) + "; got " +
                            std::to_string(coord[i]));
    }
  }
}

// Refuses sizes for which CUTLASS's 32-bit rounding up to whole tiles would overflow or divide by zero.
void require_tiles(GemmCoord const& problem_size, GemmCoord const& tile_size, int least = 0) {
  require_at_least(problem_size, least, "problem_size");
  require_at_least(tile_size, 1, "tile_size");
  for (int i = 0; i < 3; ++i) {
    fits_index(std::int64_t(problem_size[i]) + tile_size[i] - 1, std::string("problem_size.") + "mnk"[i] + "() + tile");
  }
}

// The same for strided dgrad, which has tiles along m for every position of the filter's start.
void require_strided_tiles(Conv2dProblemSize const& p, GemmCoord const& tile_size) {
  std::int64_t rows = fits_index(std::int64_t(p.H) + p.stride_h - 1, "H + stride_h") / p.stride_h;
  std::int64_t columns = fits_index(std::int64_t(p.W) + p.stride_w - 1, "W + stride_w") / p.stride_w;
  std::int64_t pixels = fits_index(fits_index(p.N * rows, "rows") * columns, "the rows of the implicit GEMM");
  std::int64_t tiles = fits_index(pixels + tile_size.m() - 1, "the rows of the implicit GEMM") / tile_size.m();
  fits_index(tiles * fits_index(std::int64_t(p.stride_h) * p.stride_w, "stride_h * stride_w"), "the tiles along m");
}

int require_slices(AnyInt const& slices) {
  // the slices, or the batch, become the grid's z extent
  int count = checked<int>(slices, "split_k_slices", {}, 1);
  if (count > 65535) {
    throw py::value_error(
        "split_k_slices (for batched kernels: the batch count) must be at most 65535, the most "
        "blocks that a CUDA grid has along z; got " +
        std::to_string(count) + ". BatchedIdentitySwizzle takes larger batches");
  }
  return count;
}

template <typename Swizzle>
void bind_gemm_shape(py::class_<Swizzle>& cls) {
  cls.def_static(
      "get_tiled_shape",
      [](GemmCoord const& problem_size, GemmCoord const& tile_size, AnyInt const& split_k_slices) {
        require_tiles(problem_size, tile_size);
        return Swizzle::get_tiled_shape(problem_size, tile_size, require_slices(split_k_slices));
      },
      py::arg("problem_size"), py::arg("tile_size"), py::arg("split_k_slices"),
      "The problem in tiles: tiles along m, tiles along n, slices (or the batch).");
}

template <bool kStridedDgrad, typename Swizzle>
void bind_conv_shape(py::class_<Swizzle>& cls) {
  cls.def_static(
      "get_tiled_shape",
      [](Operator conv_operator, Conv2dProblemSize const& problem_size, GemmCoord const& tile_size,
         AnyInt const& split_k_slices) {
        require_tiles(checked_implicit_gemm(conv_operator, problem_size), tile_size);
        if (kStridedDgrad) require_strided_tiles(problem_size, tile_size);
        return Swizzle::get_tiled_shape(conv_operator, problem_size, tile_size, require_slices(split_k_slices));
      },
      py::arg("conv_operator"), py::arg("problem_size"), py::arg("tile_size"), py::arg("split_k_slices"),
      "The implicit GEMM of a convolution in tiles.");
}

// A grid within what CUDA can launch.
dim3 checked_grid(dim3 grid) {
  if (grid.y > 65535 || grid.z > 65535) {
    throw py::value_error("a CUDA grid has at most 65535 blocks along y and z; this one would have " +
                          std::to_string(grid.y) + " and " + std::to_string(grid.z) +
                          ". Use a larger tile, a wider swizzle, or split the problem");
  }
  return grid;
}

template <typename Swizzle>
dim3 grid_shape(GemmCoord const& tiled_shape) {
  require_at_least(tiled_shape, 0, "tiled_shape");
  // x is at most m times 8 (the widest swizzle), or n
  fits_index(std::int64_t(tiled_shape.m()) << Swizzle::get_log_tile(tiled_shape), "the grid's x extent");
  return checked_grid(Swizzle::get_grid_shape(tiled_shape));
}

// What every swizzle is: a type tag without state, given to operations as the class or as an instance.
template <typename Swizzle>
py::class_<Swizzle> bind_tag(py::module_& m, std::string const& name, char const* doc) {
  auto cls = public_class<Swizzle>(m, kCutlass, name.c_str(), doc);
  cls.def(py::init([] { return Swizzle{}; }))
      .def_static("tag", &type_name<Swizzle>, "The C++ type.")
      .def(
          "__eq__", [](Swizzle const&, Swizzle const&) { return true; }, py::is_operator())
      .def("__hash__", [name](Swizzle const&) { return py::hash(py::str(name)); })
      .def("__repr__", [name](Swizzle const&) { return name + "()"; })
      .def("__reduce__", [](Swizzle const&) { return py::make_tuple(py::type::of<Swizzle>(), py::tuple()); });
  return cls;
}

template <typename Swizzle>
py::class_<Swizzle> bind_swizzle_class(py::module_& m, std::string const& name, char const* doc) {
  auto cls = bind_tag<Swizzle>(m, name, doc);
  cls.def_static("get_grid_shape", &grid_shape<Swizzle>, py::arg("tiled_shape"), "The CUDA grid, in thread blocks.")
      .def_static(
          "get_log_tile", [](GemmCoord const& tiled_shape) { return Swizzle::get_log_tile(tiled_shape); },
          py::arg("tiled_shape"), "log2 of the tiles along n that neighbouring blocks take before m advances.");
  return cls;
}

using StreamK = cutlass::gemm::threadblock::ThreadblockSwizzleStreamK;

// Refuses sizes that stream-K's 32-bit counts of tiles and iterations cannot hold.
void require_stream_k(GemmCoord const& problem_size, GemmCoord const& tile_size, int slices) {
  require_tiles(problem_size, tile_size, 1);
  GemmCoord tiled = (problem_size + tile_size - GemmCoord(1, 1, 1)) / tile_size;
  constexpr int kCohort = StreamK::kCtasPerCohort;  // tiles are counted in whole cohorts
  std::int64_t tiles = fits_index(std::int64_t(tiled.m() + kCohort) * (tiled.n() + kCohort), "the number of tiles");
  fits_index(tiles * std::max(tiled.k(), slices), "tiles times iterations or slices");
}

// Stream-K's grid depends on the device and on the kernel, so it has no get_grid_shape(tiled_shape).
void bind_stream_k(py::module_& m) {
  using cutlass::gemm::GemmUniversalMode;
  auto cls = bind_tag<StreamK>(m, "ThreadblockSwizzleStreamK", "Stream-K: thread blocks share the k extent of tiles.");
  cls.def_static(
      "get_tiled_shape",
      [](GemmCoord const& problem_size, GemmCoord const& tile_size, AnyInt const& split_k_slices) {
        int slices = require_slices(split_k_slices);
        require_stream_k(problem_size, tile_size, slices);
        return StreamK(GemmUniversalMode::kGemm, problem_size, tile_size, slices, 1, 1, 1, 1, 1, 1, 1).tiled_shape();
      },
      py::arg("problem_size"), py::arg("tile_size"), py::arg("split_k_slices"),
      "The problem in tiles; slices of k are not tiles of stream-K, so the last extent is 1.");
  cls.def_static(
      "get_grid_dims",
      [](GemmCoord const& problem_size, GemmCoord const& tile_size, AnyInt const& split_k_slices,
         AnyInt const& sm_occupancy, AnyInt const& device_sms, std::optional<AnyInt> const& avail_sms,
         AnyInt const& epilogue_acc_fragments) {
        int slices = require_slices(split_k_slices);
        require_stream_k(problem_size, tile_size, slices);
        int sms = checked<int>(device_sms, "device_sms", {}, 1);
        int available = avail_sms ? checked<int>(*avail_sms, "avail_sms", {}, 1) : sms;
        int fragments = checked<int>(epilogue_acc_fragments, "epilogue_acc_fragments", {}, 1);
        int occupancy = checked<int>(sm_occupancy, "sm_occupancy", {}, 1);
        fits_index(std::int64_t(occupancy) * std::max(sms, available), "device_sms * sm_occupancy");
        // the sizes of the elements, here 1, only feed a figure that CUTLASS does not use
        return StreamK(GemmUniversalMode::kGemm, problem_size, tile_size, slices, occupancy, sms, available, 1, 1, 1,
                       fragments)
            .get_grid_dims();
      },
      py::arg("problem_size"), py::arg("tile_size"), py::arg("split_k_slices"), py::kw_only(), py::arg("sm_occupancy"),
      py::arg("device_sms"), py::arg("avail_sms") = py::none(), py::arg("epilogue_acc_fragments"),
      "The CUDA grid; split_k_slices 1 lets the heuristics decide, more emulates split-K.");
}

// The batch lies along x, beside the tiles of m.
void bind_batched(py::module_& m) {
  using Batched = pycutlass::BatchedIdentitySwizzle;
  auto cls = bind_tag<Batched>(m, "BatchedIdentitySwizzle", "Tiles along m first, then the batch; n along y.");
  cls.def_static(
         "get_tiled_shape",
         [](GemmCoord const& problem_size, GemmCoord const& tile_size, AnyInt const& batch_count) {
           require_tiles(problem_size, tile_size);
           return Batched::get_tiled_shape(problem_size, tile_size, checked<int>(batch_count, "split_k_slices", {}, 1));
         },
         py::arg("problem_size"), py::arg("tile_size"), py::arg("split_k_slices"),
         "The problem in tiles: tiles along m, tiles along n, the batch.")
      .def_static(
          "get_grid_shape",
          [](GemmCoord const& tiled_shape) {
            require_at_least(tiled_shape, 0, "tiled_shape");
            fits_index(std::int64_t(tiled_shape.m()) * tiled_shape.k(), "the grid's x extent");
            return checked_grid(Batched::get_grid_shape(tiled_shape));
          },
          py::arg("tiled_shape"), "The CUDA grid, in thread blocks.")
      .def_static(
          "get_log_tile", [](GemmCoord const& tiled_shape) { return Batched::get_log_tile(tiled_shape); },
          py::arg("tiled_shape"), "What the kernel hands back to the map: here the tiles along m.");
}

template <int N>
void bind_identity(py::module_& m) {
  using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<N>;
  auto cls = bind_swizzle_class<Swizzle>(m, "IdentitySwizzle" + std::to_string(N),
                                         "Up to this many tiles along n, then one step along m.");
  bind_gemm_shape(cls);
  bind_conv_shape<false>(cls);
}

template <int N>
void bind_strided_dgrad_identity(py::module_& m) {
  using Swizzle = cutlass::conv::threadblock::StridedDgradIdentityThreadblockSwizzle<N>;
  auto cls = bind_swizzle_class<Swizzle>(m, "StridedDgradIdentitySwizzle" + std::to_string(N),
                                         "As IdentitySwizzle, with tiles along m for every position of the stride.");
  bind_conv_shape<true>(cls);
}

}  // namespace

void bind_swizzle(py::module_& m) {
  bind_identity<1>(m);
  bind_identity<2>(m);
  bind_identity<4>(m);
  bind_identity<8>(m);
  bind_strided_dgrad_identity<1>(m);
  bind_strided_dgrad_identity<4>(m);

  // CUTLASS's GemmHorizontalThreadblockSwizzle is the same map, but lacks the function that its kernels call
  using Horizontal = cutlass::gemm::threadblock::GemmSplitKHorizontalThreadblockSwizzle;
  auto horizontal = bind_swizzle_class<Horizontal>(m, "HorizontalSwizzle", "Tiles along n first.");
  bind_gemm_shape(horizontal);

  bind_batched(m);

  using StridedHorizontal = cutlass::conv::threadblock::StridedDgradHorizontalThreadblockSwizzle;
  auto strided = bind_swizzle_class<StridedHorizontal>(m, "StridedDgradHorizontalSwizzle", "Tiles along n first.");
  bind_conv_shape<true>(strided);

  bind_stream_k(m);
}
