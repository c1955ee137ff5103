// Runs a GEMM with the epilogue of tests/unit/extra_epilogue.py on the host, for problems named on the command line.
#pragma once

#include "extra.h"

namespace emulation {

/// Returns how many elements of D and of the second output are wrong, having told of the first.
inline long run(int m, int n, int k, float alpha, float beta, unsigned seed) {
  std::mt19937 random(seed);
  double const poison = 100, untouched = 99;
  Matrix<EMULATED_A> A(m, k, ALIGNMENT_A, poison);
  Matrix<EMULATED_B> B(k, n, ALIGNMENT_B, poison);
  Matrix<EMULATED_C> C(m, n, ALIGNMENT_C, poison), D(m, n, 2 * ALIGNMENT_C, untouched);
  A.fill(random);
  B.fill(random);
  C.fill(random);
  ExtraCheck check(m, n, alpha, beta, random);

  pycutlass_gemm_call call{};
  call.m = m;
  call.n = n;
  call.k = k;
  call.batch_count = 1;
  launch(call, {A.operand(), B.operand(), check.source(C.operand()), D.operand()}, check.arguments);

  long wrong = !D.has_slack(untouched);
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      double sum = 0;
      for (int i = 0; i < k; ++i) sum += number(A(row, i)) * number(B(i, column));
      wrong += check.wrong(row, column, sum, number(C(row, column)), D(row, column));
    }
  }
  return wrong + check.wrong_at_last();
}

}  // namespace emulation

int main(int count, char** words) {
  return emulation::run_all<6>(count, words, [](auto const& numbers) { return std::apply(emulation::run, numbers); });
}
