// Runs a group of GEMMs with an epilogue function on the host, for groups named on the command line: how many problems,
// of at most which extents, and what these are multiples of.
#pragma once

#include "function.h"

namespace emulation {

/// Operands and tensors of one problem; some have no elements, and others sum nothing up.
struct Problem {
  static constexpr bool kTransposed = ::Problem::kTransposed;
  int m, n, k;
  Matrix<EMULATED_A> A;
  Matrix<EMULATED_B> B;
  Matrix<EMULATED_C> C, D;
  FunctionCheck check;
  bool in_place;

  Problem(int m_, int n_, int k_, std::mt19937& random)
      : m(m_),
        n(n_),
        k(k_),
        A(m, k, ALIGNMENT_A, kPoison),
        B(k, n, ALIGNMENT_B, kPoison),
        C(m, n, ALIGNMENT_C, kPoison),
        D(m, n / kColumnsOfElement, 2 * ALIGNMENT_C, kUntouched),
        check({kTransposed ? n : m, kTransposed ? m : n}, random) {
    A.fill(random);
    B.fill(random);
    C.fill(random);
    check.choose(0);
    in_place = random() % 2 && check.put_in_place<kTransposed>(D);
  }
  long wrong() {
    long found = !D.has_slack(kUntouched);
    for (int row = 0; row < m; ++row) {
      auto const sum = [&](int column) {
        double sum = 0;
        for (int i = 0; i < k; ++i) sum += number(A(row, i)) * number(B(i, column));
        return sum;
      };
      found += check.wrong_in_row<kTransposed>(row, n, sum, C, D);
    }
    return found + check.wrong_at_last();
  }
};

inline long run(int count, int most_m, int most_n, int most_k, int step_m, int step_n, int step_k, unsigned seed) {
  std::mt19937 random(seed);
  auto const extent = [&](int most, int step, int number) {
    return number % 5 == 3 ? 0 : int(random() % (most / step) + 1) * step;
  };
  std::vector<std::unique_ptr<Problem>> problems;
  std::vector<Problem*> all;
  std::vector<int32_t> sizes;
  for (int i = 0; i < count; ++i) {
    int const m = extent(most_m, step_m, i / 2), n = extent(most_n, step_n, i), k = extent(most_k, step_k, i / 3);
    problems.push_back(std::make_unique<Problem>(m, n, k, random));
    all.push_back(problems.back().get());
    sizes.insert(sizes.end(), {m, n, k});
  }
  Function::Arguments arguments{};
  give_scalars(arguments);
  std::vector<Tables> made;
  made.reserve(16);  // which are pointed at
  point_at_tables(problems, arguments, made);

  pycutlass_grouped_call call{};
  std::vector<void*> addresses[4];
  std::vector<int64_t> lds[4];
  for (Problem* each : all) {
    pycutlass_operand const operands[] = {each->A.operand(), each->B.operand(), each->C.operand(), each->D.operand()};
    for (int i = 0; i < 4; ++i) {
      addresses[i].push_back(operands[i].data);
      lds[i].push_back(operands[i].stride[0]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    call.tables.pointers[i] = addresses[i].data();
    call.tables.lds[i] = lds[i].data();
  }
  call.tables.sizes = call.sizes = sizes.data();
  call.problem_count = count;
  bool const in_place = std::any_of(all.begin(), all.end(), [](Problem* each) { return each->in_place; });
  launch(call, {}, arguments, 3, !in_place);

  long wrong = 0;
  for (Problem* each : all) wrong += each->wrong();
  return wrong;
}

}  // namespace emulation

int main(int count, char** words) {
  return emulation::run_all<8>(count, words, [](auto const& numbers) { return std::apply(emulation::run, numbers); });
}
