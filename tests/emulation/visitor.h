// Runs a kernel with the epilogue of tests/unit/extra_epilogue.py on the host, for problems named on the command line.
#pragma once

#include "launch.h"

namespace emulation {

/// Returns how many elements of D and of the second output are wrong, having told of the first.
inline long run(int m, int n, int k, float alpha, float beta, unsigned seed) {
  std::mt19937 random(seed);
  double const poison = 100, untouched = 99;
  using Second = std::remove_pointer_t<decltype(Operation::Epilogue::Arguments::second)>;
  Matrix<EMULATED_A> A(m, k, ALIGNMENT_A, poison);
  Matrix<EMULATED_B> B(k, n, ALIGNMENT_B, poison);
  Matrix<EMULATED_C> C(m, n, ALIGNMENT_C, poison), D(m, n, 2 * ALIGNMENT_C, untouched);
  Matrix<EMULATED_C> extra(m, n, 3 * ALIGNMENT_C, poison), bias(1, n, 0, poison);
  Matrix<Second, true> second(m, n, ALIGNMENT_C, untouched);
  A.fill(random);
  B.fill(random);
  C.fill(random);
  extra.fill(random);
  bias.fill(random);

  pycutlass_gemm_call call{};
  call.m = m;
  call.n = n;
  call.k = k;
  call.batch_count = 1;
  Operation::Epilogue::Arguments given{};
  given.alpha = alpha;
  given.beta = beta;
  given.gamma = -1;
  given.delta = 2;
  given.epsilon = 0.5;
  given.extra = extra.data();
  given.extra_ld = extra.operand().stride[0];
  given.bias = bias.data();
  given.second = second.data();
  given.second_ld = second.operand().stride[0];
  pycutlass_operand const source = beta != 0 ? C.operand() : pycutlass_operand{};  // without one nothing is read
  launch(call, {A.operand(), B.operand(), source, D.operand()}, given);

  long wrong = !D.has_slack(untouched) + !second.has_slack(untouched);
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      double sum = 0;
      for (int i = 0; i < k; ++i) sum += number(A(row, i)) * number(B(i, column));
      double const result =
          alpha * sum + beta * number(C(row, column)) - number(extra(row, column)) + 2 * number(bias(0, column));
      double const found = number(D(row, column)), half = number(second(row, column));
      bool const right = found == written<decltype(D)::Element>(result) && half == written<Second>(0.5 * result);
      if (!right && ++wrong == 1) {
        std::printf("D[%d, %d] is %g, not %g; second is %g\n", row, column, found, result, half);
      }
    }
  }
  return wrong;
}

}  // namespace emulation

int main(int count, char** words) {
  return emulation::run_all<6>(count, words, [](auto const& numbers) { return std::apply(emulation::run, numbers); });
}
