// Runs the epilogue of a Hopper-native kernel with an epilogue function on the host, tile by tile (sm90_store.h). Of
// kernels without TMA it is what their `store` calls of the function: sums are handed to each thread as wgmma leaves
// them in its registers, and what it returns is taken for D.
#pragma once

#include "function.h"

#include <algorithm>
#include <memory>
#include <type_traits>

namespace emulation {

using Callbacks = typename Operation::Fused::Type;
constexpr int kTileM = Callbacks::kTileM, kTileN = Callbacks::kTileN;
constexpr int kColumns = Callbacks::kStoredColumns, kRows = EMULATED_WARPS * 16;
constexpr int kDown = kTileM / kRows, kAcross = kTileN / kColumns, kFragment = kRows * kColumns / (32 * EMULATED_WARPS);
using Source = Matrix<EMULATED_C>;
using Target = Matrix<EMULATED_D>;
using Element = typename Target::Element;

/// Whether lines of tiles are joined as kernels of ours do it, or with the tile that ends them, as CUTLASS's do.
inline bool joins_later = false;
inline void begin_joining(Callbacks& fusion, int thread) {
  if constexpr (Callbacks::kJoinsLater) {
    if (joins_later) fusion.begin_joining(thread);
  }
}
template <typename Size>
void end_lines(Callbacks& fusion, Size const& size, int own, int all, int thread) {
  if constexpr (Callbacks::kJoinsLater) {
    if (fusion.joins_later) fusion.end_lines(size, own, all, thread);
  }
}

}  // namespace emulation

#include "sm90_store.h"

namespace emulation {

/// One GEMM, or one of a batch or a group: matrix `number` of what `check` has.
struct Problem {
  int m, n, number;
  std::vector<double> sums;
  std::shared_ptr<Source> source;
  std::shared_ptr<Target> target;
  Source& C;
  Target& D;
  std::shared_ptr<FunctionCheck> shared;
  FunctionCheck& check;

  Problem(int m_, int n_, int number_, std::shared_ptr<Source> source_, std::shared_ptr<Target> target_,
          std::shared_ptr<FunctionCheck> shared_, std::mt19937& random)
      : m(m_),
        n(n_),
        number(number_),
        sums(size_t(m) * n),
        source(source_),
        target(target_),
        C(*source),
        D(*target),
        shared(shared_),
        check(*shared) {
    for (double& sum : sums) sum = int(random() % 41) - 20;
    if (shared->sizes.count == 1 && random() % 2) check.put_in_place<false>(D);
  }
  void choose() { C.choose(number), D.choose(number), check.choose(number); }
  long wrong() {
    long found = !D.has_slack(kUntouched);
    choose();
    for (int row = 0; row < m; ++row) {
      found += check.wrong_in_row(row, n, [&](int column) { return sums[row * n + column]; }, C, D);
    }
    return found + check.wrong_at_last();
  }
};

/// Where element `i` of a thread's fragment is in a subtile (PTX ISA, "Register fragments" of wgmma.m64nNk16).
inline std::pair<int, int> place(int thread, int i) {
  int const lane = thread % 32, row = thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
  return {row, i / 4 * 8 + lane % 4 * 2 + i % 2};
}

/// Stores one tile as one thread.
inline void run_tile(Callbacks& fusion, Problem& problem, int tile_m, int tile_n, int batch) {
  int const thread = threadIdx.x;
  auto const size = cute::make_shape(problem.m, problem.n, 64, 1);
  auto const coord = cute::make_coord(tile_m, tile_n, cute::_, batch);
  auto source = cute::make_tensor<typename Source::Element>(cute::Int<kFragment>{});
  auto callbacks = fusion.template tile_callbacks<kRows, kColumns>(size, coord, source, thread);
  callbacks.begin();
  for (int j = 0; j < kAcross; ++j) {
    for (int i = 0; i < kDown; ++i) {
      auto const of = [&](int element) {
        auto const [row, column] = place(thread, element);
        return std::pair(tile_m * kTileM + i * kRows + row, tile_n * kTileN + j * kColumns + column);
      };
      cutlass::Array<float, kFragment> sums;
      for (int e = 0; e < kFragment; ++e) {
        auto const [row, column] = of(e);
        bool const inside = row < problem.m && column < problem.n;
        sums[e] = inside ? float(problem.sums[row * problem.n + column]) : 0;
        source(e) = inside ? problem.C(row, column) : typename Source::Element(0);
      }
      callbacks.begin_loop(i, j);
      callbacks.previsit(i, j, 0, true);
      auto const store = [&](auto const& visit) {
        if constexpr (Callbacks::kIsGated) {
          visit();  // which writes D by itself
        } else {
          auto const computed = visit();
          for (int e = 0; e < kFragment; ++e) {
            auto const [row, column] = of(e);
            if (row < problem.m && column < problem.n) {
              problem.D(row, column) = pycutlass::function::Stored<Element>::of(computed[e]);
            }
          }
        }
      };
      store([&] { return callbacks.visit(sums, 0, i, j); });
      if constexpr (EMULATED_GROUP || Callbacks::kReducesColumns) {
        wait_for_block();
        callbacks.synchronized(i, j);
        wait_for_block();
      }
    }
  }
  callbacks.leave();
  callbacks.end();
}

/// Stores tiles by what a `store` calls of the function.
template <typename Operation>
struct Called {
  using Params = Callbacks::Params;

  template <typename Size>
  static Params params(Size const& size, Callbacks::Arguments const& arguments, Source&, Target&, void* workspace) {
    return Callbacks::to_underlying_arguments(size, arguments, workspace);
  }
  static void run(Params const& params, Problem& problem, int down, int across, int batch, int count) {
    alignas(128) static typename Callbacks::SharedStorage shared;
    std::memset(&shared, 0x7f, sizeof(shared));
    run_block({0, 0, 0}, 32 * EMULATED_WARPS, [&] {
      Callbacks fusion(params, shared);
      begin_joining(fusion, threadIdx.x);
      auto const size = cute::make_shape(problem.m, problem.n, 64, 1);
      for (int tile = 0; tile < down * across; ++tile) run_tile(fusion, problem, tile / across, tile % across, batch);
      end_lines(fusion, size, batch, count, threadIdx.x);
    });
  }
};

/// All but kernels without TMA, which no group is.
template <typename Operation, typename = void>
struct HasStore : std::true_type {};
template <typename Operation>
struct HasStore<Operation, std::void_t<decltype(Operation::kIsDirect)>> : std::bool_constant<!Operation::kIsDirect> {};
using Tiles = std::conditional_t<HasStore<Operation>::value, Stored<Operation>, Called<Operation>>;

/// Runs a threadblock that stores all tiles of a problem, one after the other, and those of the last clusters that are
/// outside of D.
inline void run_tiles(Tiles::Params const& params, Problem& problem, int batch, int count) {
  problem.choose();
  constexpr int kCluster = 2;  // along both
  auto const tiles = [](int extent, int tile) { return (extent + kCluster * tile - 1) / (kCluster * tile) * kCluster; };
  Tiles::run(params, problem, tiles(problem.m, kTileM), tiles(problem.n, kTileN), batch, count);
}

/// Problems of at most `most_m` x `most_n`, multiples of `step`: a batch, or a group of which each has other extents.
inline long run(int count, int most_m, int most_n, int step, unsigned seed) {
  std::mt19937 random(seed);
  be_late(seed);
  joins_later = Callbacks::kJoinsLater && random() % 3 > 0;
  std::vector<std::unique_ptr<Problem>> problems;
  for (int i = 0; i < count; ++i) {
    int const m = EMULATED_GROUP ? int(random() % most_m) + 1 : most_m;
    int const n = EMULATED_GROUP ? (int(random() % (most_n / step)) + 1) * step : most_n / step * step;
    bool const is_own = EMULATED_GROUP || i == 0;
    auto const check =
        is_own ? std::make_shared<FunctionCheck>(Sizes{m, n, EMULATED_GROUP ? 1 : count}, random) : problems[0]->shared;
    int const matrices = EMULATED_GROUP ? 1 : count;
    auto const C = is_own ? std::make_shared<Source>(m, n, ALIGNMENT_C, kPoison, matrices) : problems[0]->source;
    if (is_own) C->fill(random);
    auto const D = is_own ? std::make_shared<Target>(m, n / kColumnsOfElement, 2 * ALIGNMENT_D, kUntouched, matrices)
                          : problems[0]->target;
    problems.push_back(std::make_unique<Problem>(m, n, EMULATED_GROUP ? 0 : i, C, D, check, random));
  }
  Callbacks::Arguments arguments{};
  static_cast<Function::Arguments&>(arguments) = problems[0]->check.arguments;
  auto const point_target = [&](auto& given) {
    if constexpr (Callbacks::kIsGated) {
      pycutlass_operand const D = problems[0]->D.operand();
      given.target = {static_cast<Element*>(D.data), D.stride[0], D.stride[1]};
    }
  };
  point_target(arguments);
#if EMULATED_GROUP
  std::vector<Tables> made;
  made.reserve(16);  // which are pointed at
  point_at_tables(problems, arguments, made);
  // What a group has for its reductions: planned twice, as a call is.
  std::vector<int32_t> sizes;
  std::vector<void*> targets;
  std::vector<int64_t> lds;
  for (auto& each : problems) {
    pycutlass_operand const D = each->D.operand();
    targets.push_back(D.data), lds.push_back(D.stride[0]);
    sizes.insert(sizes.end(), {each->m, each->n, 64});
  }
  pycutlass_grouped_call call{};
  call.tables.pointers[PYCUTLASS_D] = targets.data();
  call.tables.lds[PYCUTLASS_D] = lds.data();
  Operation::Epilogue::list(arguments, call.tables);
  call.problem_count = count;
  call.sizes = sizes.data();
  std::vector<char> table, scratch;
  auto const plan_group = [&](auto& given) {
    if constexpr (Callbacks::kReducesGroup) {
      pycutlass_plan_result plan{};
      Callbacks::Space::of(call, plan);
      table.resize(plan.workspace_bytes);
      scratch.resize(plan.scratch_bytes, 0x7f);
      call.common.workspace = call.schedule = table.data();
      call.scratch = scratch.data();
      plan = {};
      given.group = Callbacks::Space::of(call, plan);
      std::memset(table.data() + plan.clear_offset, 0, plan.clear_bytes);  // a part of the scratch memory
    }
  };
  plan_group(arguments);
#endif
  auto const size = cute::make_shape(most_m, most_n / step * step, 64, count);
  std::vector<char> workspace(Callbacks::get_workspace_size(size, arguments) + 16);
  auto const params = Tiles::params(size, arguments, problems[0]->C, problems[0]->D, workspace.data());
  for (int batch = 0; batch < count; ++batch) {
    Problem& problem = *problems[batch];
    run_tiles(params, problem, batch, count);
  }
  // Partial results and counters are as the next launch needs them.
  if (std::count(workspace.begin(), workspace.end(), 0) != long(workspace.size())) fail("the workspace is not clear");
  long wrong = 0;
  for (auto& each : problems) wrong += each->wrong();
  return wrong;
}

}  // namespace emulation

int main(int count, char** words) {
  return emulation::run_all<5>(count, words, [](auto const& numbers) { return std::apply(emulation::run, numbers); });
}
