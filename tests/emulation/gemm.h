// Runs a kernel of pycutlass/gemm_universal.h on the host, for problems named on the command line. To be included
// behind the text of a kernel, with the macros below defined.
#pragma once

#include "launch.h"

namespace emulation {

/// Returns how many elements of D are wrong, having told of the first.
inline long run(int m, int n, int k, float alpha, float beta, unsigned seed) {
  std::mt19937 random(seed);
  double const poison = 100, untouched = 99;
  Matrix<EMULATED_A> A(m, k, ALIGNMENT_A, poison);
  Matrix<EMULATED_B> B(k, n, ALIGNMENT_B, poison);
  Matrix<EMULATED_C> C(m, n, ALIGNMENT_C, poison), D(m, n, 2 * ALIGNMENT_C, untouched);
  A.fill(random);
  B.fill(random);
  C.fill(random);

  pycutlass_gemm_call call{};
  call.m = m;
  call.n = n;
  call.k = k;
  call.batch_count = call.max_swizzle = 1;
  launch(call, {A.operand(), B.operand(), C.operand(), D.operand()}, linear(alpha, beta));

  long wrong = !D.has_slack(untouched);
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      double sum = 0;
      for (int i = 0; i < k; ++i) sum += number(A(row, i)) * number(B(i, column));
      double const exact = written<decltype(D)::Element>(alpha * sum + beta * number(C(row, column)));
      double const found = number(D(row, column));
      if (found != exact && ++wrong == 1) std::printf("D[%d, %d] is %g, not %g\n", row, column, found, exact);
    }
  }
  return wrong;
}

}  // namespace emulation

int main(int count, char** words) {
  return emulation::run_all<6>(count, words, [](auto const& numbers) { return std::apply(emulation::run, numbers); });
}
