// Runs a reduction of partial sums with an epilogue function on the host, for problems named on the command line.
#pragma once

#include "function.h"

namespace emulation {

/// Returns how many elements of D and of further outputs are wrong, having told of the first.
inline long run(int m, int n, int partitions, unsigned seed) {
  std::mt19937 random(seed);
  using Sum = std::remove_const_t<std::remove_pointer_t<decltype(Operation::Params{}.sums)>>;
  Matrix<Sum, true> sums(m, n, 0, kPoison, partitions);
  Matrix<EMULATED_C> C(m, n, ALIGNMENT_C, kPoison), D(m, n, 2 * ALIGNMENT_C, kUntouched);
  sums.fill(random);
  C.fill(random);
  FunctionCheck check({m, n}, random);
  check.choose(0);

  pycutlass_reduction_call call{};
  call.rows = m;
  call.columns = n;
  call.partitions = partitions;
  pycutlass_operand const source = Function::kReadsSource ? C.operand() : pycutlass_operand{};
  launch(call, {sums.operand(), {}, source, D.operand()}, check.arguments);

  long wrong = !D.has_slack(kUntouched);
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      double sum = 0;
      for (int i = 0; i < partitions; ++i) sums.choose(i), sum += number(sums(row, column));
      wrong += check.wrong(row, column, sum, number(C(row, column)), D(row, column));
    }
  }
  return wrong + check.wrong_at_last();
}

}  // namespace emulation

int main(int count, char** words) {
  return emulation::run_all<4>(count, words, [](auto const& numbers) { return std::apply(emulation::run, numbers); });
}
