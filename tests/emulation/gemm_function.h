// Runs a GEMM with an epilogue function on the host, for problems named on the command line. What is computed for one
// element is taken from the function's own C++: which element that is, what is read for it and where results go, is
// not.
#pragma once

#include "function.h"

namespace emulation {

/// Returns how many elements of D and of further outputs are wrong, having told of the first. `count` are the matrices
/// of a batch, or of tables; or slices of K.
inline long run(int m, int n, int k, int mode, int number_of, unsigned seed) {
  std::mt19937 random(seed);
  int const count = mode == int(cutlass::gemm::GemmUniversalMode::kGemm) ? 1 : number_of;
  bool const listed = mode == int(cutlass::gemm::GemmUniversalMode::kArray);
  Matrix<EMULATED_A> A(m, k, ALIGNMENT_A, kPoison, count, listed);
  Matrix<EMULATED_B> B(k, n, ALIGNMENT_B, kPoison, count, listed);
  Matrix<EMULATED_C> C(m, n, ALIGNMENT_C, kPoison, count, listed);
  Matrix<EMULATED_C> D(m, n / kColumnsOfElement, 2 * ALIGNMENT_C, kUntouched, count, listed);
  A.fill(random);
  B.fill(random);
  C.fill(random);
  constexpr bool kTransposed = Operation::kTransposed;
  FunctionCheck check({kTransposed ? n : m, kTransposed ? m : n, count, listed}, random);

  bool const in_place = seed % 2 && check.put_in_place<kTransposed>(D);

  pycutlass_gemm_call call{};
  call.m = m;
  call.n = n;
  call.k = k;
  call.mode = mode;
  call.batch_count = number_of;
  pycutlass_operand const source = Function::kReadsSource ? C.operand() : pycutlass_operand{};
  launch(call, {A.operand(), B.operand(), source, D.operand()}, check.arguments, 132, !in_place);

  long wrong = !D.has_slack(kUntouched);
  for (int each = 0; each < count; ++each) {
    A.choose(each), B.choose(each), C.choose(each), D.choose(each), check.choose(each);
    for (int row = 0; row < m; ++row) {
      auto const sum = [&](int column) {
        double result = 0;
        for (int i = 0; i < k; ++i) result += number(A(row, i)) * number(B(i, column));
        return result;
      };
      wrong += check.wrong_in_row<kTransposed>(row, n, sum, C, D);
    }
    wrong += check.wrong_at_last();
  }
  return wrong;
}

}  // namespace emulation

int main(int count, char** words) {
  return emulation::run_all<6>(count, words, [](auto const& numbers) { return std::apply(emulation::run, numbers); });
}
